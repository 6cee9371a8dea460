"""A loader that Accelerate has prepared is probed in the loader that it iterates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from stallmeter import Monitor
from stallmeter.recording import Reader
from stallmeter.records import LoaderInfo, StepRecord, WorkerBatch


@pytest.mark.ecosystem
def test_a_prepared_loader(tmp_path: Path) -> None:
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True)
    plain = DataLoader(TensorDataset(torch.ones(64, 4), torch.ones(64)), batch_size=4, num_workers=2, shuffle=True)
    loader = accelerator.prepare(plain)
    with Monitor(directory=tmp_path, trackers=None, console=False, hardware=False) as monitor:
        for _ in range(2):
            for _ in monitor.watch(loader):
                pass
    found = [x for x, _ in Reader(monitor.folder)]
    (info,) = [x for x in found if isinstance(x, LoaderInfo)]
    assert (info.kind, info.num_workers, info.probed) == ("DataLoaderShard", 2, True)
    assert sum(isinstance(x, WorkerBatch) for x in found) == 32
    assert [x.samples for x in found if isinstance(x, StepRecord)] == [4] * 32
    assert loader.base_dataloader.worker_init_fn is None
