"""Plain loops: with Fabric, with a real DataLoader, and without torch."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import stallmeter
from stallmeter import Monitor
from stallmeter.recording import Reader
from stallmeter.records import Event, LedgerRecord, LoaderInfo, StepRecord, WorkerBatch

from .warm import NO_PICTURES


def test_fabric(tmp_path: Path) -> None:
    fabric = pytest.importorskip("lightning.fabric").Fabric(accelerator="cpu", devices=1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.ones(16, 4)), batch_size=4))
    with Monitor(directory=tmp_path, trackers=None, console=False, hardware=False) as monitor:
        for (batch,) in monitor.watch(loader):
            with monitor.span("forward"):
                loss = model(batch).sum()
            with monitor.span("backward"):
                fabric.backward(loss)
            with monitor.span("optimizer"):
                optimizer.step()
    steps = [x for x, _ in Reader(monitor.folder) if isinstance(x, StepRecord)]
    assert [s.samples for s in steps] == [4] * 4
    assert all(s.forward_s and s.backward_s and s.optimizer_s for s in steps)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_is_probed(tmp_path: Path, workers: int) -> None:
    loader = DataLoader(TensorDataset(torch.ones(64, 4)), batch_size=4, num_workers=workers)
    with Monitor(directory=tmp_path, trackers=None, console=False, hardware=False) as monitor:
        for _ in range(2):
            for _ in monitor.watch(loader):
                pass
    found = [x for x, _ in Reader(monitor.folder)]
    infos = [x for x in found if isinstance(x, LoaderInfo)]
    assert {(info.num_workers, info.batch_size, info.probed) for info in infos} == {(workers, 4, True)}
    assert [info.indices_s is None for info in infos] == [True, False]  # told once its sampler has been timed
    batches = [x for x in found if isinstance(x, WorkerBatch)]
    assert len(batches) == 32
    assert {b.worker for b in batches} == ({-1} if workers == 0 else {0})
    assert loader.worker_init_fn is None


class Hiding(DataLoader[Any]):
    """Hands out the batches of another loader."""

    def __iter__(self) -> Any:
        return iter(DataLoader(self.dataset, batch_size=4, num_workers=1))


def test_a_loader_whose_workers_make_nothing(tmp_path: Path) -> None:
    """It is not called probed in the end, and no rule takes its number of workers for that of the loop."""
    loader = Hiding(TensorDataset(torch.ones(64, 4)), batch_size=4, num_workers=2)
    with Monitor(directory=tmp_path, trackers=None, console=False, hardware=False) as monitor:
        for _ in monitor.watch(loader):
            pass
    *_, info = [x for x, _ in Reader(monitor.folder) if isinstance(x, LoaderInfo)]
    assert (info.kind, info.probed, info.num_workers) == ("Hiding", False, None)
    missing = {a.rule: a.missing for a in monitor.verdict.abstained}
    assert "loader.num_workers" in missing["worker-startup"]
    assert {"workers.service_s", "loader.num_workers"} <= set(missing["too-few-workers"])


WITHOUT_TORCH = textwrap.dedent(
    """
    import sys
    sys.modules["torch"] = None
    import stallmeter
    for batch in stallmeter.watch([[1, 2, 3]] * 10):
        pass
    """
)


def test_without_torch(tmp_path: Path) -> None:
    env = {**os.environ, "STALLMETER_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", NO_PICTURES + WITHOUT_TORCH], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "switched off" not in done.stderr
    (folder,) = tmp_path.iterdir()
    assert [x.samples for x, _ in Reader(folder) if isinstance(x, StepRecord)] == [3] * 10


FORKING = textwrap.dedent(
    """
    import multiprocessing, os, sys, threading
    sys.modules["torch"] = None
    import stallmeter

    loader = [[1, 2, 3]] * 10

    def train(number=10, watched=None):
        batches = iter(stallmeter.watch(loader) if watched is None else watched)
        return sum(1 for _, batch in zip(range(number), batches))

    def fork(call, *arguments):
        child = os.fork()
        if child == 0:
            print("child", call(*arguments), flush=True)
            sys.exit()
        assert os.waitpid(child, 0)[1] == 0

    what = sys.argv[1]
    if what == "fork":
        train(3)
        fork(train)
    elif what == "multiprocessing":
        train(3)
        process = multiprocessing.get_context("fork").Process(target=train)
        process.start()
        process.join()
        assert process.exitcode == 0
    elif what == "explicit":
        with stallmeter.Monitor(trackers=None) as monitor:
            watched = monitor.watch(loader)
            train(3, watched)
            begun = iter(watched)
            next(begun)
            def in_child():
                with monitor.span("forward"):
                    return train(10, watched), train(10, watched), sum(1 for _ in begun)
            child = os.fork()
            if child == 0:
                print("child", in_child(), flush=True)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            train(3, watched)
    elif what == "threads":
        started = threading.Barrier(8)
        made = []
        def begin():
            started.wait()
            made.append(stallmeter.watch(loader))
        threads = [threading.Thread(target=begin) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        for watched in made:
            train(3, watched)
    """
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize(
    ("what", "steps", "warnings"),
    [("fork", [3, 10], 0), ("multiprocessing", [3, 10], 0), ("explicit", [7], 1), ("threads", [24], 0)],
)
def test_processes_and_threads(tmp_path: Path, what: str, steps: list[int], warnings: int) -> None:
    """Each process has a recording of its own, complete with its end; the parent's monitor says that it has none."""
    env = {**os.environ, "STALLMETER_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", NO_PICTURES + FORKING, what]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("passes through untimed") == warnings, done.stderr
    assert ("forked" in done.stderr) == bool(warnings)
    if what == "explicit":
        assert "child (10, 10, 9)" in done.stdout
    records = [[x for x, _ in Reader(folder)] for folder in tmp_path.iterdir()]
    assert sorted(sum(isinstance(x, StepRecord) for x in run) for run in records) == steps
    for run in records:
        assert [x.name for x in run if isinstance(x, Event)][-1] == "end"
        last = [x for x in run if isinstance(x, LedgerRecord)][-1]
        assert sum(last.buckets.values()) == pytest.approx(last.wall_s)


class Watching(Dataset[Any]):
    """A data set that watches a loader of its own in the worker."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return sum(stallmeter.watch([1, 2, 3]))


def _show_warnings(_: int) -> None:
    logger = logging.getLogger("stallmeter")
    logger.handlers, logger.propagate = [logging.StreamHandler()], False  # whatever another test has left


def test_a_loaders_worker_that_watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setenv("STALLMETER_DIR", str(tmp_path))
    loader = DataLoader(Watching(), batch_size=4, num_workers=1, worker_init_fn=_show_warnings)
    batches = [batch.tolist() for batch in loader]
    assert batches == [[6] * 4] * 2
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().err.count("worker process of a DataLoader") == 1
