"""Run after run in one process: threads, files, children, shared memory and objects go back to what they were."""

from __future__ import annotations

import contextlib
import gc
import math
import multiprocessing
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import stallmeter

from .conftest import ListTracker

torch.set_num_threads(1)
pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_collections", "own_semaphores")]
SETTLE = 20
"""Runs after which all is imported, cached and allocated that stays."""

GROWTH_BYTES = 5_000_000


@pytest.fixture
def own_semaphores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this process and of its forks have names of their own."""
    monkeypatch.setitem(multiprocessing.current_process()._config, "semprefix", f"/leaks{os.getpid()}")


@dataclass
class Held:
    """What this process holds."""

    threads: Counter[str] = field(default_factory=lambda: Counter(t.name for t in threading.enumerate()))
    files: int = field(default_factory=lambda: psutil.Process().num_fds())
    paths: Counter[str] = field(default_factory=lambda: Counter(f.path for f in psutil.Process().open_files()))
    children: int = field(default_factory=lambda: len(psutil.Process().children(recursive=True)))
    shared: set[str] = field(default_factory=lambda: _shared())
    objects: Counter[str] = field(default_factory=lambda: _objects())


def _shared() -> set[str]:
    """Shared memory that somebody still could open, other programs' left out, or that is mapped here."""
    folder = Path("/dev/shm")
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    family = {process.pid for process in (psutil.Process(), *psutil.Process().children(recursive=True))}
    others = (_mapped(pid) for pid in psutil.pids() if names and pid not in family)
    others_semaphores = {name for name in names if name.startswith("sem.mp-")}  # mapped by nobody between two uses
    return names.difference(others_semaphores, *others) | _mapped(os.getpid())


def _mapped(pid: int) -> set[str]:
    with contextlib.suppress(OSError):  # it has ended, or is somebody else's
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        return {line.split("/dev/shm/")[1] for line in lines if "/dev/shm/" in line}
    return set()


def _objects() -> Counter[str]:
    """Instances of our own classes."""
    names = (f"{type(o).__module__}.{type(o).__qualname__}" for o in gc.get_objects())
    return Counter(name for name in names if name.startswith("stallmeter."))


def settled(before: Held, most_objects: float) -> Held:
    """What is held once what ends by itself has ended; the threads of other tests may have ended, too.

    Args:
        before: What was held before.
        most_objects: How many more there may be of each class of ours.
    """
    deadline = time.monotonic() + 30
    while True:
        gc.collect()
        now = Held()
        more = now.threads - before.threads, now.files > before.files, now.children > before.children
        objects = any(n > most_objects for n in (now.objects - before.objects).values())
        left = any(more) or objects or now.paths - before.paths or now.shared - before.shared
        if not left or time.monotonic() > deadline:
            return now
        time.sleep(0.05)


def assert_nothing_is_left(run: Callable[[int], object], runs: int) -> None:
    """Hold what ``runs`` runs left against what the first of them left."""
    alive: list[weakref.ref[object]] = []
    for number in range(SETTLE):
        alive.append(weakref.ref(run(number)))
    gc.collect()
    before, rss = Held(), 0
    for number in range(SETTLE, runs):
        if number == (SETTLE + runs) // 2:  # threads and allocators have grown to what they need; a leak goes on
            rss = psutil.Process().memory_info().rss
        alive.append(weakref.ref(run(number)))
    # The last run may still be held, and holds as many samples as there was time for. A leak leaves one a run.
    most_objects = (runs - SETTLE) // 2
    after = settled(before, most_objects)
    assert after.threads - before.threads == Counter()
    assert after.files <= before.files
    assert after.paths - before.paths == Counter()
    assert after.children <= before.children
    assert after.shared - before.shared == set()
    left = after.objects - before.objects
    assert {name: n for name, n in left.items() if n > most_objects} == {}
    assert psutil.Process().memory_info().rss - rss < GROWTH_BYTES
    assert sum(monitor() is not None for monitor in alive) <= 1  # the last one may be what a frame still holds


DATA = TensorDataset(torch.ones(8, 2))


def test_plain_loops(tmp_path: Path) -> None:
    """Hardware and tracker each time, processes as workers each tenth time, an exception each third time."""

    def run(number: int) -> stallmeter.Monitor:
        loader = DataLoader(DATA, batch_size=2, num_workers=number % 10 == 0)
        monitor = stallmeter.Monitor(directory=tmp_path, trackers=ListTracker(), interval_s=0.01, console=False)
        try:
            with monitor:
                for i, _ in enumerate(monitor.watch(loader)):
                    if i == 2 and number % 3 == 0:
                        raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        assert monitor.undelivered == ()
        return monitor

    assert_nothing_is_left(run, 200)
    assert len(list(tmp_path.iterdir())) == 200


def test_fits(tmp_path: Path) -> None:
    """One callback and one trainer each time, as in a search over hyperparameters."""
    import lightning.pytorch as pl

    from stallmeter.lightning import unified

    class Model(pl.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch[0]).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    def run(number: int) -> Any:
        sm = unified.StallMonitor(directory=tmp_path, trackers=ListTracker(), interval_s=0.01, console=False)
        quiet = dict.fromkeys(("enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger"), False)
        trainer = pl.Trainer(accelerator="cpu", max_epochs=1, callbacks=[sm], **quiet)
        trainer.fit(Model(), DataLoader(DATA, batch_size=2, num_workers=number % 10 == 0))
        return sm.monitor

    assert_nothing_is_left(run, 50)


def test_one_trainer_fits_again_and_again(tmp_path: Path) -> None:
    """One callback, one trainer, one loader: each fit makes its own recording."""
    import lightning.pytorch as pl
    from lightning.pytorch.demos.boring_classes import BoringModel

    from stallmeter.lightning.unified import StallMonitor

    sm = StallMonitor(directory=tmp_path, trackers=None, interval_s=0.01, console=False)
    quiet = dict.fromkeys(("enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger"), False)
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=0, limit_train_batches=2, limit_val_batches=0, callbacks=[sm], **quiet
    )
    model = BoringModel()
    loader = model.train_dataloader()

    def run(number: int) -> Any:
        trainer.fit_loop.max_epochs += 1
        trainer.fit(model, loader)
        return sm.monitor

    assert_nothing_is_left(run, 50)
    assert len(list(tmp_path.iterdir())) == 50


@pytest.mark.usefixtures("drawings")
def test_pictures(tmp_path: Path) -> None:
    """The children that draw are let go, too, and nothing of what they load comes into this process."""
    runs = 3

    def run() -> None:
        monitor = stallmeter.Monitor(directory=tmp_path, trackers=None, interval_s=0.01, console=False)
        with monitor:
            for _ in monitor.watch(range(5)):
                time.sleep(0.002)
        assert monitor.finish()

    run()
    before, loaded = settled(Held(), math.inf), set(sys.modules)
    for _ in range(runs):
        run()
    after = settled(before, runs - 1)
    assert after.threads - before.threads == Counter()
    assert (after.files <= before.files, after.children <= before.children) == (True, True)
    left = after.objects - before.objects
    assert {name: n for name, n in left.items() if n > runs - 1} == {}
    assert not {name for name in set(sys.modules) - loaded if name.startswith(("matplotlib", "plotly", "jinja2"))}
    assert len(list(tmp_path.glob("*/report.html"))) == runs + 1
