"""Plain loops: with Fabric, with a real DataLoader, and without torch."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from stallmeter import Monitor
from stallmeter.recording import Reader
from stallmeter.records import LoaderInfo, StepRecord, WorkerBatch


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
    (info,) = [x for x in found if isinstance(x, LoaderInfo)]
    assert (info.num_workers, info.batch_size, info.probed) == (workers, 4, True)
    batches = [x for x in found if isinstance(x, WorkerBatch)]
    assert len(batches) == 32
    assert {b.worker for b in batches} == ({-1} if workers == 0 else {0})
    assert loader.worker_init_fn is None


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
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "switched off" not in done.stderr
    (folder,) = tmp_path.iterdir()
    assert [x.samples for x, _ in Reader(folder) if isinstance(x, StepRecord)] == [3] * 10
