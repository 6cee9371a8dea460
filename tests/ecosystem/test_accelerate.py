"""Loaders that Accelerate or Fabric has prepared are looked into, with a line of code and without."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import stallmeter
from stallmeter import Monitor
from stallmeter.recording import Reader
from stallmeter.records import LoaderInfo, StepRecord, WorkerBatch
from stallmeter.report.model import read_history
from stallmeter.rules.evaluation import diagnose


@pytest.mark.ecosystem
def test_a_prepared_loader(tmp_path: Path) -> None:
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True)
    plain = DataLoader(TensorDataset(torch.ones(64, 4), torch.ones(64)), batch_size=4, num_workers=2, shuffle=True)
    loader = accelerator.prepare(plain)
    options = {"directory": tmp_path, "trackers": None, "console": False, "hardware": False, "deep_batches": 0}
    with Monitor(**options) as monitor:
        for _ in range(2):
            for _ in monitor.watch(loader):
                pass
    found = [x for x, _ in Reader(monitor.folder)]
    *_, info = (x for x in found if isinstance(x, LoaderInfo))
    assert (info.kind, info.num_workers, info.probed) == ("DataLoaderShard", 2, True)
    assert sum(isinstance(x, WorkerBatch) for x in found) == 32
    assert [x.samples for x in found if isinstance(x, StepRecord)] == [4] * 32
    assert loader.base_dataloader.worker_init_fn is None


class Slow(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.004)
        return torch.full((4,), index / 160)


def train(loader: object, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(2):
        for batch in loader:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()


def prepared(by: str, loader: DataLoader) -> object:
    if by == "accelerate":
        return pytest.importorskip("accelerate").Accelerator(cpu=True).prepare(loader)
    return pytest.importorskip("lightning.fabric").Fabric(accelerator="cpu", devices=1).setup_dataloaders(loader)


@pytest.mark.ecosystem
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("by", ["accelerate", "fabric"])
def test_without_code_its_workers_are_looked_into_and_advised(by: str, workers: int, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    everything = stallmeter.auto(directory=tmp_path, trackers=None, console=False, hardware=False, deep_batches=0)
    try:
        loader = prepared(by, DataLoader(Slow(), batch_size=4, num_workers=workers))
        train(loader, model, torch.optim.SGD(model.parameters(), 1e-3))
        monitor = everything.monitor
    finally:
        everything.stop()
    assert monitor is not None
    found = [x for x, _ in Reader(monitor.folder)]
    infos = [x for x in found if isinstance(x, LoaderInfo)]
    assert {(x.num_workers, x.probed) for x in infos} == {(workers, True)}
    # Without workers the first one is made before it is known that this is a training.
    assert sum(isinstance(x, WorkerBatch) for x in found) == 80 - (not workers)
    assert sum(isinstance(x, StepRecord) for x in found) == 80
    advice = diagnose(read_history(monitor.folder).window).num_workers
    assert advice is not None
    assert advice.current == workers


@pytest.mark.ecosystem
def test_the_run_of_accelerates_own_tracker_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerate, mlflow = pytest.importorskip("accelerate"), pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    everything = stallmeter.auto(directory=tmp_path / "rec", console=False, hardware=False)
    try:
        accelerator = accelerate.Accelerator(cpu=True, log_with="mlflow")
        accelerator.init_trackers("ours")
        model = torch.nn.Linear(4, 1)
        loader = accelerator.prepare(DataLoader(torch.ones(32, 4), batch_size=4))
        train(loader, model, torch.optim.SGD(model.parameters(), 1e-3))
        assert everything.monitor is not None
        assert [tracker.name for tracker in everything.monitor.run.trackers] == ["mlflow"]
    finally:
        everything.stop()
        mlflow.end_run()
