"""One program: ``python -m benchmarks.loaders.program DRAW FOLDER SECONDS``, all of it in JSON.

It prints how long a step took, over the steps after the first second. Nothing of stallmeter is imported but `watch`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import queue
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import active_children, get_context
from typing import Any

import torch

from .draws import Draw

WARM_S = 1.0
BLOCK = bytes(200_000)


class Work:
    """Makes a batch; what that costs was measured on this machine, in CPU time of its thread."""

    def __init__(self, draw: Draw) -> None:
        self.kind, self.seconds = draw.work, draw.batch_s
        self.rounds = 0
        if self.kind in ("python", "c", "healthy"):
            step = self._python if self.kind == "python" else self._hash
            step(20)
            began = time.thread_time()
            step(200)
            self.rounds = max(1, round(200 * self.seconds / (time.thread_time() - began)))
        self._local = threading.local()
        self._address = _storage() if self.kind == "socket" else None

    def __call__(self, index: int) -> torch.Tensor:
        if self.kind == "python":
            self._python(self.rounds)
        elif self.kind in ("c", "healthy"):
            self._hash(self.rounds)
        elif self.kind == "sleep":
            time.sleep(self.seconds)
        elif self._address is not None and self.seconds:
            self._ask()
        return torch.full((8, 16), float(index))

    @staticmethod
    def _python(rounds: int) -> int:
        return sum(x * x for _ in range(rounds) for x in range(400))

    @staticmethod
    def _hash(rounds: int) -> None:
        for _ in range(rounds):
            hashlib.sha256(BLOCK).digest()

    def _ask(self) -> None:
        known = getattr(self._local, "socket", None)
        if known is None:
            known = self._local.socket = socket.create_connection(self._address)  # type: ignore[arg-type]
        known.sendall(str(self.seconds).encode().ljust(32))
        known.recv(64)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._local = threading.local()


def _storage() -> tuple[str, int]:
    """Start a process that answers each request after the time that it names."""
    ready = get_context("spawn").Queue()
    get_context("spawn").Process(target=_serve, args=(ready,), daemon=True).start()
    return ready.get(timeout=60)  # type: ignore[no-any-return]


def _serve(ready: Any) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    ready.put(server.getsockname()[:2])
    while True:
        connection, _ = server.accept()
        threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    while asked := connection.recv(32):
        time.sleep(float(asked))
        connection.sendall(b"x" * 64)


def generator(draw: Draw, work: Work) -> Iterator[torch.Tensor]:
    yield from map(work, itertools.count())


def one_thread_ahead(draw: Draw, work: Work, source: Any = None) -> Iterator[torch.Tensor]:
    ready: queue.Queue[torch.Tensor] = queue.Queue(4)

    def run() -> None:
        for batch in map(work, itertools.count()) if source is None else source:
            ready.put(batch)

    threading.Thread(target=run, daemon=True).start()
    while True:
        yield ready.get()


class _Rows(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, work: Work) -> None:
        self.work = work

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.work(index)


def dataloader_behind(draw: Draw, work: Work) -> Iterator[torch.Tensor]:
    return one_thread_ahead(draw, work, torch.utils.data.DataLoader(_Rows(work), batch_size=None))


def threads(draw: Draw, work: Work) -> Iterator[torch.Tensor]:
    ready: queue.Queue[torch.Tensor] = queue.Queue(2 * draw.producers)
    numbers = itertools.count()

    def run() -> None:
        while True:
            ready.put(work(next(numbers)))

    for _ in range(draw.producers):
        threading.Thread(target=run, daemon=True).start()
    while True:
        yield ready.get()


def executor(draw: Draw, work: Work) -> Iterator[torch.Tensor]:
    with ThreadPoolExecutor(draw.producers) as pool:
        asked: deque[Any] = deque()
        for index in itertools.count():
            asked.append(pool.submit(work, index))
            if len(asked) > 2 * draw.producers:
                yield asked.popleft().result()


def processes(draw: Draw, work: Work) -> Iterator[torch.Tensor]:
    # Handed over as NumPy arrays, as most do: torch's own pickling takes a file descriptor for each.
    with get_context("fork").Pool(draw.producers, _keep, (work,)) as pool:
        asked: deque[Any] = deque()
        for index in itertools.count():
            asked.append(pool.apply_async(_made, (index,)))
            if len(asked) > 2 * draw.producers:
                yield torch.from_numpy(asked.popleft().get())


_KEPT: list[Work] = []


def _keep(work: Work) -> None:
    torch.set_num_threads(1)
    _KEPT[:] = [work]


def _made(index: int) -> Any:
    return _KEPT[0](index).numpy()


def nodes(draw: Draw, work: Work) -> Any:
    import torchdata.nodes as tn
    from torch.utils.data import SequentialSampler

    found: Any = tn.SamplerWrapper(SequentialSampler(range(1_000_000)))
    return tn.Loader(tn.ParallelMapper(found, work, num_workers=draw.producers, method="thread"))


def grain(draw: Draw, work: Work) -> Any:
    import grain as g

    options = g.ReadOptions(num_threads=draw.producers, prefetch_buffer_size=2 * draw.producers)
    return g.MapDataset.range(1_000_000).map(work).to_iter_dataset(options)


def datasets(draw: Draw, work: Work) -> Iterator[torch.Tensor]:
    import datasets as d

    rows = d.Dataset.from_dict({"x": list(range(20_000))}).to_iterable_dataset()
    for row in rows.map(lambda row: {"y": work(row["x"]).numpy()}).with_format("torch"):
        yield row["y"]


MAKERS: dict[str, Callable[[Draw, Work], Any]] = {
    "generator": generator,
    "one thread ahead": one_thread_ahead,
    "DataLoader behind a thread": dataloader_behind,
    "threads and a queue": threads,
    "executor": executor,
    "pool of processes": processes,
    "torchdata.nodes": nodes,
    "grain": grain,
    "datasets": datasets,
}


def train(draw: Draw, folder: str | None, seconds: float) -> float:
    """Train for so long, watched where there is a folder; return the mean time of a step, seconds."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    beside = Work(Draw(**{**_fields(draw), "work": "c", "batch_s": 0.2 * draw.step_s}))
    loader = MAKERS[draw.mechanism](draw, Work(draw))
    if folder is not None:
        from stallmeter import watch

        loader = watch(loader, directory=folder, trackers=None, console=False)
    began, steps, first, last = time.perf_counter(), 0, None, 0.0
    for batch in loader:
        optimizer.zero_grad()
        model(batch.float()).sum().backward()
        optimizer.step()
        time.sleep(draw.step_s * (0.8 if draw.computes else 1.0))
        if draw.computes:
            beside(0)
        now = time.perf_counter() - began
        steps += first is not None
        first = now if first is None and now > WARM_S else first
        last = now
        if now > seconds:
            break
    return (last - (first or 0.0)) / max(1, steps)


def _fields(draw: Draw) -> dict[str, Any]:
    return {name: getattr(draw, name) for name in Draw.__dataclass_fields__}


def main() -> None:
    """Run one program."""
    draw, folder, seconds = Draw(**json.loads(sys.argv[1])), sys.argv[2] or None, float(sys.argv[3])
    print(json.dumps({"step_s": train(draw, folder, seconds)}), flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    if not sys.argv[2]:  # libraries' threads need not end
        for child in active_children():
            child.kill()
        os._exit(0)
