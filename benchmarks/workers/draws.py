"""Loaders drawn by seed: mechanism, sizes, step and the number of workers that the recorded run starts with."""

from __future__ import annotations

import math
import multiprocessing
import random
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from . import loaders
from .loaders import ENDLESS, MEBI, Hungry, Items, Work

MECHANISMS = (
    "python",
    "native",
    "blocked",
    "mixed",
    "jpeg",
    "files",
    "uneven",
    "stream",
    "webdataset",
    "combined",
    "lock",
    "store",
    "tensors",
    "tiny",
    "hungry",
    "epochs",
)
"""What sets the pace of a loader; neighbouring seeds share one, so that odd and even ones cover the same."""

STARTS = (0, 0, 1, 1, 2, 2, 2, 3, 4, 6, 8, 12, 12)
STEPS = ("device", "device", "device", "cpu", "cpu-threads")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One loader, the loop that uses it, and where a run with it starts."""

    seed: int
    mechanism: str
    batch_size: int
    work: Work
    """Of one item."""
    floats: int
    tensors: int
    step: str
    """``device``: a sleep. ``cpu``, ``cpu-threads``: matrix products in one thread, in as many as there are CPUs."""
    step_s: float
    start: int
    prefetch_factor: int
    slow_share: float = 0.0
    slow_times: float = 1.0
    file_bytes: int = 0
    bytes_per_s: float = 0.0
    epoch_batches: int = 0
    """Batches in an epoch that starts its workers anew; 0 for one epoch without end."""
    many: bool = False
    """Whether it is swept up to 12 workers."""

    @property
    def name(self) -> str:
        """Seed and mechanism."""
        return f"{self.seed:03d}-{self.mechanism}"

    @property
    def numbers(self) -> list[int]:
        """Numbers of workers that are measured."""
        return sorted({0, 1, 2, 3, 4, 6, 8, self.start, *([12] if self.many else [])})

    @property
    def batch_work_s(self) -> float:
        """Time that a batch should take to make."""
        each = self.work.python_s + self.work.native_s + self.work.blocked_s
        return self.batch_size * each * (1 + self.slow_share * (self.slow_times - 1))

    def __str__(self) -> str:
        kinds = {"python": self.work.python_s, "native": self.work.native_s, "blocked": self.work.blocked_s}
        work = " + ".join(f"{1e3 * s:.2g} ms {kind}" for kind, s in kinds.items() if s) or "nothing"
        return f"{self.batch_size} items of {work}, {self.step} step {1e3 * self.step_s:.3g} ms, start {self.start}"


def draw(seed: int) -> Draw:
    """Draw a loader."""
    rng = random.Random(7919 * seed + 13)
    mechanism = MECHANISMS[(seed // 2) % len(MECHANISMS)]
    step = rng.choice(STEPS)
    step_s = _log(rng, 0.003, 0.040)
    batch_size = rng.choice((1, 2, 4, 8, 8, 16, 16, 32, 32, 64, 128, 256))
    service_s = min(step_s * _log(rng, 0.15, 6.0), 0.12)
    values: dict[str, Any] = {
        "slow_share": 0.0,
        "floats": int(_log(rng, 16, 20_000)),
        "tensors": rng.choice((1, 1, 2, 3)),
    }
    python, native, blocked = {
        "native": (0.0, 1.0, 0.0),
        "blocked": (0.0, 0.0, 1.0),
        "store": (0.0, 0.0, 0.0),
        "jpeg": (0.0, 0.0, 0.0),
        "tiny": (0.0, 0.0, 0.0),
        "python": (1.0, 0.0, 0.0),
        "lock": rng.choice(((1.0, 0.0, 0.0), (0.0, 0.0, 1.0))),
        "files": (rng.choice((0.0, 0.3)), 0.0, 0.0),
    }.get(mechanism) or _mixture(rng)
    if blocked:
        batch_size = min(batch_size, 32)
    match mechanism:
        case "tiny":
            step_s, batch_size = _log(rng, 0.001, 0.006), min(batch_size, 32)
            values["floats"] = 16
        case "tensors":
            values.update(tensors=rng.randint(8, 40), floats=16)
            batch_size, service_s = min(batch_size, 16), min(service_s, 0.03)
        case "uneven":
            values.update(slow_share=rng.choice((0.003, 0.01, 0.03)), slow_times=rng.choice((10.0, 20.0, 40.0)))
        case "jpeg":
            batch_size, values["floats"] = min(batch_size, 24), 3 * rng.choice((112, 160, 224)) ** 2
        case "files":
            batch_size, values["file_bytes"] = min(batch_size, 32), rng.choice((64 << 10, 256 << 10, MEBI))
        case "store":
            batch_size, values["bytes_per_s"] = min(batch_size, 16), _log(rng, 8e6, 60e6)
        case "epochs":
            values["epoch_batches"] = max(8, int(_log(rng, 0.4, 2.0) / max(step_s, service_s / 2)))
    start = rng.choice(STARTS)
    values["floats"] = min(values["floats"], max(16, 6 * MEBI // (4 * batch_size * values["tensors"])))
    each_s = service_s / batch_size / (1 + values["slow_share"] * (values.get("slow_times", 1.0) - 1))
    return Draw(
        seed=seed,
        mechanism=mechanism,
        batch_size=batch_size,
        work=Work(python * each_s, native * each_s, blocked * each_s),
        step=step,
        step_s=step_s,
        start=start,
        prefetch_factor=rng.choice((2, 2, 2, 4)),
        many=start >= 8 or rng.random() < 0.4,
        **values,
    )


def _log(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _mixture(rng: random.Random) -> tuple[float, float, float]:
    """Shares of Python, C and waiting: often one of them alone."""
    kind = rng.randrange(5)
    if kind < 3:
        return tuple(float(kind == k) for k in range(3))  # type: ignore[return-value]
    parts = [rng.random() for _ in range(3)]
    return tuple(part / sum(parts) for part in parts)  # type: ignore[return-value]


def maker(draw: Draw, folder: Path, stack: ExitStack) -> Callable[[int], Iterable[Any]]:
    """Prepare what a loader reads; return what makes one for a number of workers.

    Args:
        draw: The loader.
        folder: Where files are kept.
        stack: Ends the server.
    """
    items = Items(
        draw.work,
        draw.floats,
        draw.tensors,
        draw.epoch_batches * draw.batch_size or ENDLESS,
        draw.slow_share,
        draw.slow_times,
    )
    dataset: Any = items
    match draw.mechanism:
        case "jpeg":
            dataset = loaders.Photos(loaders.write_photos(folder / "photos"), math.isqrt(draw.floats // 3))
        case "files":
            files = loaders.write_files(folder / f"files-{draw.file_bytes}", draw.file_bytes)
            dataset = loaders.ColdFiles(files, draw.work)
        case "store":
            url = loaders.serve(stack, bytes_per_s=draw.bytes_per_s, item_bytes=32_768, latency_s=0.004)
            dataset = loaders.Remote(url)
        case "stream":
            dataset = loaders.Stream(items)
        case "lock":
            items.lock = multiprocessing.get_context("fork").Lock()
        case "webdataset":
            return _webdataset(draw, items, loaders.write_shards(folder / "shards"))

    def make(workers: int) -> Iterable[Any]:
        more = {"prefetch_factor": draw.prefetch_factor} if workers else {}
        if draw.mechanism == "hungry":
            # Its own each time: workers would inherit the table that a run without workers has made.
            own = Hungry(draw.work, draw.floats, draw.tensors)
            return DataLoader(own, batch_size=draw.batch_size, num_workers=workers, **more)
        loader = DataLoader(dataset, batch_size=draw.batch_size, num_workers=workers, **more)
        if draw.mechanism != "combined":
            return loader
        from lightning.pytorch.utilities import CombinedLoader

        second = Items(Work(blocked_s=min(0.002, 0.2 * draw.step_s)))
        return CombinedLoader([loader, DataLoader(second, batch_size=1, num_workers=workers, **more)], "max_size")

    return make


def _webdataset(draw: Draw, items: Items, shards: list[str]) -> Callable[[int], Iterable[Any]]:
    import webdataset

    def one(sample: dict[str, Any]) -> dict[str, torch.Tensor]:
        return items[len(sample["bin"])]

    def make(workers: int) -> Iterable[Any]:
        stream = webdataset.WebDataset(shards, resampled=True, shardshuffle=False).map(one)
        more = {"prefetch_factor": draw.prefetch_factor} if workers else {}
        return webdataset.WebLoader(stream, batch_size=draw.batch_size, num_workers=workers, **more)  # type: ignore[no-any-return]

    return make


def stepper(draw: Draw, cpus: int) -> Callable[[], None]:
    """Return the loop's own step, in the process that runs it."""
    if draw.step == "device":
        return lambda: time.sleep(draw.step_s)
    torch.set_num_threads(cpus if draw.step == "cpu-threads" else 1)
    size = 192 if draw.step == "cpu" else 384
    a = torch.ones(size, size)
    torch.mm(a, a)
    one_s = min(_time(lambda: torch.mm(a, a)) for _ in range(20))
    products = max(1, round(draw.step_s / one_s))

    def step() -> None:
        b = a
        for _ in range(products):
            b = torch.mm(a, a)
        del b

    return step


def _time(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
