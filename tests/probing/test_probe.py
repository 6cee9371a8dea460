"""The probe with real training: a Trainer of either package, a plain loop, real loaders and workers."""

from __future__ import annotations

import copy
import importlib
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler, SequentialSampler

import stallmeter
from stallmeter.errors import SettingError
from stallmeter.probing.phases import LATE, OUT_OF_MEMORY, ProbePlan, ProbeRun
from stallmeter.probing.progress import Progress
from stallmeter.probing.result import ProbeResult, Rate
from stallmeter.probing.training import StepTraining

from ..children import children, left

torch.set_num_threads(1)
NAMESPACES = ["lightning.pytorch", "pytorch_lightning"]
QUICK: dict[str, Any] = {"seconds": 0.05, "time_limit_s": 60.0, "trackers": None, "progress": False}
pytestmark = pytest.mark.usefixtures("imported", "quick_collections")


@pytest.fixture(scope="module")
def imported() -> None:
    """What the first probe would import."""
    Plain()
    for namespace in NAMESPACES:
        module_of(namespace)


class Items(Dataset):
    """Random items; each may take some time and counts itself where it is made."""

    def __init__(self, count: int = 64, cost_s: float = 0.0) -> None:
        self.count, self.cost_s = count, cost_s
        self.generator = random.Random(5)
        self.noise = np.random.default_rng(6)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float]:
        if self.cost_s:
            time.sleep(self.cost_s)
        noise = self.generator.random() + self.noise.random() + np.random.rand() + random.random()
        return torch.rand(4) + noise, float(index)


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.rand(4) for _ in range(40))


def module_of(namespace: str, **hooks: Any) -> Any:
    """A LightningModule with dropout, batch norm and a counter, in train mode but for one layer."""
    pl = importlib.import_module(namespace)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
            self.layers[2].eval()
            self.steps = 0
            self.losses: list[float] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.steps += 1
            inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
            loss = self.layers(inputs).square().mean()
            self.losses.append(loss.item())
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
            total = self.trainer.estimated_stepping_batches
            return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=int(total))]

    for name, hook in hooks.items():
        setattr(Module, name, hook)
    return Module()


def fit(namespace: str, module: Any, loader: Any, folder: Path) -> list[float]:
    pl = importlib.import_module(namespace)
    trainer = pl.Trainer(
        max_epochs=2,
        logger=False,
        accelerator="cpu",
        devices=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(module, loader)
    return module.losses


def seed() -> None:
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)


class Plain:
    """A plain loop's parts, and its step function."""

    def __init__(self, work_s: float = 0.0) -> None:
        self.network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.01)
        self.losses: list[float] = []
        self.work_s = work_s
        self.batches: list[int] = []

    def step(self, batch: Any) -> None:
        inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
        self.batches.append(len(inputs))
        loss = self.network(inputs).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        if self.work_s:
            time.sleep(self.work_s)


@pytest.fixture
def namespace() -> str:
    """For what a smoke test on the other one covers."""
    return NAMESPACES[0]


# -- nothing is left behind


@pytest.mark.parametrize(("namespace", "workers"), [(NAMESPACES[0], 0), (NAMESPACES[0], 1), (NAMESPACES[1], 0)])
def test_lightning_trains_as_if_it_had_not_been_probed(namespace: str, workers: int, tmp_path: Path) -> None:
    """Same losses, same weights, same generators, bit for bit; loader and module have the same attributes."""
    losses, drawn = [], []
    importlib.import_module(namespace)  # draws random numbers
    for probed in (False, True):
        seed()
        module = module_of(namespace)
        own = torch.Generator().manual_seed(8)
        loader = DataLoader(
            Items(), batch_size=8, shuffle=True, num_workers=workers, persistent_workers=workers > 0, generator=own
        )
        if probed:
            before, attributes = copy.deepcopy(module.state_dict()), dict(vars(loader))
            modes = [part.training for part in module.modules()]
            result = stallmeter.probe(module, loader, sweep_workers=[0, 1], sweep_batch_size=[4], **QUICK)
            assert result.framework.startswith(namespace.partition(".")[0])
            assert result.device == "cpu"
            assert vars(loader) == attributes
            assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
            assert [part.training for part in module.modules()] == modes
            assert all(p.grad is None for p in module.parameters())
            assert (module.steps, module.losses) == (0, [])
            assert "configure_callbacks" not in vars(module)
            assert module._trainer is None
        losses.append(fit(namespace, module, loader, tmp_path))
        drawn.append((random.random(), np.random.rand(), torch.rand(1).item(), torch.rand(1, generator=own).item()))
    assert losses[0] == losses[1]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("workers", [0, 1])
def test_plain_loop_trains_as_if_it_had_not_been_probed(workers: int) -> None:
    losses = []
    for probed in (False, True):
        seed()
        plain = Plain()
        loader = DataLoader(Items(), batch_size=8, shuffle=True, num_workers=workers)
        for batch in loader:
            plain.step(batch)
        if probed:
            before = children()
            result = stallmeter.probe(step=plain.step, loader=loader, sweep_workers=[0, 2], **QUICK)
            assert sorted(result.restored) == ["Adam", "Sequential"]
            assert not left(before)
            plain.losses = plain.losses[:8]
        for batch in loader:
            plain.step(batch)
        losses.append(plain.losses)
    assert len(losses[0]) == 16
    assert losses[0] == losses[1]


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_datamodule(namespace: str) -> None:
    """It is set up once and afterwards not set up; its hooks run in the Trainer."""
    pl = importlib.import_module(namespace)
    calls: list[str] = []

    class Data(pl.LightningDataModule):
        def prepare_data(self) -> None:
            calls.append("prepare_data")

        def setup(self, stage: str) -> None:
            calls.append(f"setup {stage}")
            self.items = Items(count=int(torch.randint(64, 65, (1,))))

        def train_dataloader(self) -> Any:
            return DataLoader(self.items, batch_size=8)

        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            calls.append("on_after_batch_transfer")
            return batch

    data, module = Data(), module_of(namespace)
    before, state = dict(vars(data)), torch.get_rng_state()
    result = stallmeter.probe(module, data, **QUICK)
    assert result.free_data is not None
    assert result.together is not None
    assert (result.num_workers, result.batch_size) == (0, 8)
    assert calls[:2] == ["prepare_data", "setup fit"]
    assert set(calls[2:]) == {"on_after_batch_transfer"}
    assert vars(data) == before
    assert torch.equal(torch.get_rng_state(), state)


def test_callbacks_of_the_module_are_left_out(namespace: str) -> None:
    """A checkpoint of a probe would be a lie, and the module has its own hook back afterwards."""

    def configure_callbacks(self: Any) -> Any:
        raise AssertionError("asked for callbacks")

    stallmeter.probe(module_of(namespace, configure_callbacks=configure_callbacks), DataLoader(Items(), 8), **QUICK)


def test_an_error_in_the_step_rises_after_everything_was_put_back(namespace: str) -> None:
    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        self.steps += 1
        if self.steps == 5:
            raise ZeroDivisionError("five")
        return self.layers(batch[0]).square().mean()

    module = module_of(namespace, training_step=training_step)
    before = copy.deepcopy(module.state_dict())
    state, handler = torch.get_rng_state(), signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError, match="five"):
        stallmeter.probe(module, DataLoader(Items(), 8, shuffle=True), **QUICK)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert module.steps == 0
    assert torch.equal(torch.get_rng_state(), state)
    assert signal.getsignal(signal.SIGINT) is handler


def test_ctrl_c(namespace: str) -> None:
    """It ends the probe as it ends any program: no exit from inside, and Ctrl-C works afterwards."""

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        self.steps += 1
        if self.steps == 4:
            signal.raise_signal(signal.SIGINT)
        return self.layers(batch[0]).square().mean()

    module = module_of(namespace, training_step=training_step)
    before = copy.deepcopy(module.state_dict())
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        stallmeter.probe(module, DataLoader(Items(), 8), **QUICK)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert signal.getsignal(signal.SIGINT) is handler


def test_ctrl_c_in_a_plain_loop() -> None:
    plain = Plain()
    before = copy.deepcopy(plain.network.state_dict())

    def step(batch: Any) -> None:
        plain.step(batch)
        if len(plain.batches) == 12:
            raise KeyboardInterrupt

    running = children()
    with pytest.raises(KeyboardInterrupt):
        stallmeter.probe(step=step, loader=DataLoader(Items(), 8, num_workers=2), restore=[plain.network], **QUICK)
    assert all(torch.equal(before[name], value) for name, value in plain.network.state_dict().items())
    assert not left(running)


# -- what it finds


def test_a_slow_loader_is_the_lower_ceiling() -> None:
    """Items take 20 ms each where a step takes about 1: the loader is what to improve, and workers do."""
    plain = Plain()
    loader = DataLoader(Items(cost_s=0.02), batch_size=2)
    result = stallmeter.probe(step=plain.step, loader=loader, sweep_workers=[0, 4], **{**QUICK, "seconds": 0.3})
    assert result.free_compute.samples_per_s < result.free_data.samples_per_s / 2
    assert result.lower_ceiling == "data"
    assert result.headspace_pct > 100
    assert 0 < result.reached_pct <= 100
    assert [row.num_workers for row in result.workers] == [0, 4]
    assert all(row.measured is not None and row.predicted_step_time_s is not None for row in result.workers)
    assert result.workers[0].measured is result.together
    assert result.recommended_num_workers == 4
    assert result.measured_gain_pct > 50
    assert result.drift_pct is not None
    assert result.advice.recommended > 0


def test_a_slow_step_is_the_lower_ceiling() -> None:
    plain = Plain(work_s=0.05)
    result = stallmeter.probe(step=plain.step, loader=DataLoader(Items(), 4), **QUICK)
    assert result.free_data.samples_per_s < result.free_compute.samples_per_s / 2
    assert result.lower_ceiling == "compute"
    assert "workers beside it can" in " ".join(str(result).split())


def test_without_a_sweep_the_recommended_number_is_measured() -> None:
    """The model's advice does not stand alone: it is tried."""
    plain = Plain(work_s=0.02)
    result = stallmeter.probe(step=plain.step, loader=DataLoader(Items(cost_s=0.01), 2), **QUICK)
    assert result.advice.recommended > 0
    assert [row.num_workers for row in result.workers] == [0, result.advice.recommended]
    assert result.workers[1].measured is not None


def test_batch_sizes() -> None:
    plain = Plain()
    loader = DataLoader(Items(64), batch_size=8, shuffle=True)
    result = stallmeter.probe(step=plain.step, loader=loader, sweep_batch_size=[16, 4, 100], **QUICK)
    rows = result.batch_sizes
    assert [row.batch_size for row in rows] == [4, 8, 16, 100]
    assert [row.free_data.batch_samples for row in rows[:3]] == [4, 8, 16]
    assert [row.measured.batch_samples for row in rows[:3]] == [4, 8, 16]
    assert all(row.predicted_step_time_s for row in rows[:3])
    assert rows[1].measured is result.together
    assert rows[3].measured is None
    assert rows[3].why_not == "an epoch has only 64 items"
    assert all(row.peak_memory_bytes is None for row in rows)


OUT_OF_MEMORY_ERRORS = [
    RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    MemoryError(),
    getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)("too large"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY_ERRORS, ids=lambda error: f"{type(error).__name__} {error}"[:30])
def test_out_of_memory(error: Exception) -> None:
    """A batch size that does not fit is a finding; larger ones are not tried, the rest is measured."""
    plain = Plain()

    def step(batch: Any) -> None:
        if len(batch[0]) >= 16:
            raise error
        plain.step(batch)

    result = stallmeter.probe(step=step, loader=DataLoader(Items(), 8), sweep_batch_size=[4, 16, 32], **QUICK)
    assert [row.why_not for row in result.batch_sizes] == [None, None, OUT_OF_MEMORY, "out of memory with 16 already"]
    assert max(plain.batches) == 8
    assert OUT_OF_MEMORY in str(result)


def test_out_of_memory_in_lightning(namespace: str) -> None:
    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        if len(batch[0]) > 8:
            raise RuntimeError("CUDA out of memory.")
        return self.layers(batch[0]).square().mean()

    module = module_of(namespace, training_step=training_step)
    result = stallmeter.probe(module, DataLoader(Items(), 8), sweep_batch_size=[4, 16], **QUICK)
    assert [row.why_not for row in result.batch_sizes] == [None, None, OUT_OF_MEMORY]


def test_another_runtime_error_of_a_batch_size_rises() -> None:
    plain = Plain()

    def step(batch: Any) -> None:
        if len(batch[0]) == 16:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
        plain.step(batch)

    with pytest.raises(RuntimeError, match="mat1"):
        stallmeter.probe(step=step, loader=DataLoader(Items(), 8), sweep_batch_size=[16], **QUICK)


def test_iterable_dataset() -> None:
    """Measured as it is; another number of workers would make other data of it."""
    plain = Plain()
    result = stallmeter.probe(
        step=plain.step, loader=DataLoader(Stream(), batch_size=4), sweep_workers=[0, 2], sweep_batch_size=[8], **QUICK
    )
    assert result.together is not None
    assert result.workers[1].measured is None
    assert "iterable" in result.workers[1].why_not
    assert result.batch_sizes[1].measured.batch_samples == 8


def test_loader_of_one_batch() -> None:
    plain = Plain()
    result = stallmeter.probe(step=plain.step, loader=DataLoader(Items(4), batch_size=8, num_workers=1), **QUICK)
    assert result.free_compute.batch_samples == 4
    assert result.together is not None


def test_loader_of_one_batch_in_lightning(namespace: str) -> None:
    result = stallmeter.probe(module_of(namespace), DataLoader(Items(4), batch_size=8), **QUICK)
    assert result.together is not None
    assert result.together.batch_samples == 4


def test_any_iterable() -> None:
    plain = Plain()
    batches = [torch.rand(4, 4) for _ in range(10)]

    class Batches:
        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter(batches)

    result = stallmeter.probe(step=plain.step, loader=Batches(), sweep_workers="auto", sweep_batch_size=[2], **QUICK)
    assert (result.num_workers, result.batch_size, result.workers) == (None, 4, ())
    assert result.headspace_pct is not None
    assert result.batch_sizes[0].why_not == "Batches is no torch.utils.data.DataLoader"
    assert any("num_workers was not swept: Batches" in note for note in result.notes)
    json.dumps(result.to_json(), allow_nan=False)


@pytest.mark.parametrize("kind", [list, tuple])
def test_batches_in_a_list(kind: Any) -> None:
    plain = Plain()
    batches = kind(torch.rand(4, 4) for _ in range(10))
    before = [batch.clone() for batch in batches]
    result = stallmeter.probe(step=plain.step, loader=batches, **QUICK)
    assert result.together is not None
    assert (result.num_workers, result.batch_size) == (None, 4)
    assert all(map(torch.equal, batches, before))


class Unsized(Sampler):
    """Says nothing of its length, as torch allows."""

    def __init__(self, items: int) -> None:
        self.items = items

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.items))


def test_sampler_without_length() -> None:
    plain = Plain()
    loader = DataLoader(Items(), 8, sampler=Unsized(20), drop_last=True)
    result = stallmeter.probe(step=plain.step, loader=loader, sweep_batch_size=[16, 32], **QUICK)
    assert [row.measured is not None for row in result.batch_sizes] == [True, True, False]
    assert "yields no batch" in result.batch_sizes[2].why_not


def test_sparse_buffers() -> None:
    plain = Plain()
    plain.network.register_buffer("near", torch.eye(3).to_sparse())
    before = copy.deepcopy(plain.network.state_dict())
    state = torch.get_rng_state()
    result = stallmeter.probe(step=plain.step, loader=DataLoader(Items(), 8), **QUICK)
    assert result.together is not None
    after = plain.network.state_dict()
    assert all(torch.equal(before[name].to_dense(), after[name].to_dense()) for name in before)
    assert torch.equal(torch.get_rng_state(), state)


def test_own_batch_sampler() -> None:
    """The loader keeps it; another batch size cannot be had of it."""
    plain = Plain()
    sampler = BatchSampler(SequentialSampler(range(64)), 8, drop_last=False)
    result = stallmeter.probe(
        step=plain.step, loader=DataLoader(Items(), batch_sampler=sampler), sweep_batch_size=[4], **QUICK
    )
    assert result.batch_size == 8
    assert "batch sampler of its own" in result.batch_sizes[0].why_not


def test_recording_in_place_of_the_run(tmp_path: Path) -> None:
    """What the real run reached is taken from its recording; what is tried is compared with the same, measured here."""
    plain = Plain(work_s=0.01)
    loader = DataLoader(Items(cost_s=0.005), 4)
    with stallmeter.Monitor(directory=tmp_path, trackers=None, console=False, interval_s=0.1) as monitor:
        for _ in range(2):
            for batch in monitor.watch(loader):
                plain.step(batch)
    result = stallmeter.probe(step=plain.step, loader=loader, recording=tmp_path, **QUICK)
    assert result.recording == str(monitor.folder)
    assert result.together.steps == len([s for s in monitor.window.steps.steady if not s.epoch_start])
    assert result.together.step_time_s > 0.03
    assert result.advice is not None
    assert result.base is result.present is result.workers[0].measured
    assert result.drift_pct is not None
    assert "recorded run" in str(result)


def recorded_with_callbacks(loader: Any, folder: Path) -> None:
    """Callbacks take 20 ms of each step."""
    plain = Plain()
    with stallmeter.Monitor(directory=folder, trackers=None, console=False, interval_s=0.1) as monitor:
        for batch in monitor.watch(loader):
            plain.step(batch)
            with monitor.span("callbacks", "ImageLogger"):
                time.sleep(0.02)


def test_callbacks_of_a_recorded_run_are_nothing_that_workers_win(tmp_path: Path) -> None:
    """The recorded step has them and a probe's has not: the one is not compared with the other."""
    loader = DataLoader(Items(400), 8)
    recorded_with_callbacks(loader, tmp_path)
    quick = {**QUICK, "recording": tmp_path, "sweep_workers": [0, 1], "sweep_batch_size": [4]}
    result = stallmeter.probe(step=Plain().step, loader=loader, **quick)
    assert result.unhindered.step_time_s == pytest.approx(result.together.step_time_s - result.recorded_wait_s)
    assert result.unhindered.step_time_s > 0.02
    assert result.headspace_pct < 100
    assert result.pause_s > 0.01
    rows = [*result.workers, *result.batch_sizes]
    assert all(row.measured.step_time_s >= result.pause_s for row in rows)
    assert result.workers[0].measured is result.batch_sizes[1].measured is result.present
    assert result.measured_gain_pct <= result.headspace_pct
    assert "besides data and training" in " ".join(str(result).split())


def test_recording_of_another_number_of_workers(tmp_path: Path) -> None:
    """Gains are taken against the recorded number, measured here."""
    recorded_with_callbacks(DataLoader(Items(200), 8, num_workers=1), tmp_path)
    plain, loader = Plain(), DataLoader(Items(200), 8)
    result = stallmeter.probe(step=plain.step, loader=loader, recording=tmp_path, sweep_workers=[0], **QUICK)
    assert (result.num_workers, [row.num_workers for row in result.workers]) == (1, [0, 1])
    assert result.workers[1].measured is result.present is not None


def test_recording_of_other_batches(tmp_path: Path) -> None:
    recorded_with_callbacks(DataLoader(Items(200), 8), tmp_path)
    quick = {**QUICK, "recording": tmp_path, "sweep_workers": [0, 1]}
    result = stallmeter.probe(step=Plain().step, loader=DataLoader(Items(200), 4), **quick)
    assert result.pause_s == 0.0
    assert any("batches of another size" in note for note in result.notes)


# -- time


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


class Ticking(Dataset):
    """Each batch takes a second of the fake clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        self.clock.s += 0.5
        return torch.rand(4)


def bench(clock: Clock, limit_s: float, **plan: Any) -> ProbeResult:
    plain = Plain()

    def step(batch: Any) -> None:
        clock.s += 0.5
        plain.step(batch)

    asked = {"sweep_workers": None, "sweep_batch_size": (), "seconds": 10.0, **plan}
    return ProbeRun(
        StepTraining(step, [plain.network]),
        DataLoader(Ticking(clock), batch_size=2),
        ProbePlan(time_limit_s=limit_s, now=clock, **asked),
        Progress(False),
    ).run()


@pytest.mark.parametrize("limit_s", [1.0, 12.0, 40.0, 90.0, 1000.0])
def test_time_limit(limit_s: float) -> None:
    """Each phase has its share and may overrun by the batch in progress; two more steps per phase at the most."""
    clock = Clock()
    result = bench(clock, limit_s)
    assert clock.s <= limit_s + 4 * 1.5
    if limit_s >= 90:
        assert result.free_compute.step_time_s == pytest.approx(1.0)
        assert result.free_data.step_time_s == pytest.approx(0.5)
        assert result.together.step_time_s == pytest.approx(1.5)
        assert result.headspace_pct == pytest.approx(200)
        assert result.reached_pct == pytest.approx(100 / 1.5)
        assert not any("warm-up" in note for note in result.notes)


def test_phases_without_time_say_so() -> None:
    clock = Clock()
    result = bench(clock, 1.0, sweep_batch_size=(2, 4))
    assert result.free_compute is None
    assert any("loader alone: too few batches" in note for note in result.notes)
    assert LATE in {row.why_not for row in result.batch_sizes}
    assert "measured too little" in str(result)
    json.dumps(result.to_json(), allow_nan=False)


def test_a_short_time_is_measured_in_the_warm_up() -> None:
    clock = Clock()
    result = bench(clock, 12.0)
    assert result.free_compute.settled is False
    assert any("during its warm-up; raise the time limit" in note for note in result.notes)


def test_a_machine_that_changes_is_noticed() -> None:
    """A neighbour leaves during the sweep: the gains are the neighbour's, and the result says so."""
    clock = Clock()
    plain = Plain()
    began: list[float] = []

    def step(batch: Any) -> None:
        began.append(clock.s)
        clock.s += 2.0 if clock.s < 60 else 0.5
        plain.step(batch)

    plan = ProbePlan(sweep_workers=None, sweep_batch_size=(4,), seconds=5.0, time_limit_s=1000, now=clock)
    loader = DataLoader(Ticking(clock), batch_size=2)
    result = ProbeRun(StepTraining(step, [plain.network]), loader, plan, Progress(False)).run()
    assert result.drift_pct < -15
    assert any("the machine did not stay the same" in note for note in result.notes)


# -- what is refused


def refused(*words: str, **given: Any) -> None:
    with pytest.raises(SettingError) as caught:
        stallmeter.probe(**{**QUICK, **given})
    for word in words:
        assert word in str(caught.value)


def test_wrong_arguments() -> None:
    plain = Plain()
    loader = DataLoader(Items(), 8)
    module = module_of(NAMESPACES[0])
    good = {"step": plain.step, "loader": loader}
    refused("LightningModule", "NoneType")
    refused("LightningModule", "Sequential", module=plain.network, data=loader)
    refused("module's data", module=module)
    refused("not both", module=module, **good)
    refused("both step= and loader=", step=plain.step)
    refused("function that takes a batch", step=3, loader=loader)
    refused("restore=(model, optimizer)", step=lambda batch: None, loader=loader)
    refused("read only once", step=plain.step, loader=iter(loader))
    refused("one training loader", module=module, data=[loader, loader])
    refused("one training loader", step=plain.step, loader=[loader, loader])
    refused("one training loader", step=plain.step, loader={"a": loader})
    refused("to iterate over", step=plain.step, loader=7)
    refused("max_steps", module=module, data=loader, trainer_kwargs={"max_steps": 3})
    refused("no batch", step=plain.step, loader=DataLoader(Items(4), 8, drop_last=True))
    refused("'many'", sweep_workers="many", **good)
    refused("-1", sweep_workers=[-1], **good)
    refused("empty", sweep_workers=[], **good)
    refused("513", sweep_workers=[513], **good)
    refused("sweep_batch_size has 0", sweep_batch_size=[0], **good)
    refused("list of numbers", sweep_batch_size=16, **good)
    refused("seconds is 0", seconds=0, **good)
    refused("time_limit_s is nan", time_limit_s=float("nan"), **good)
    refused("trackers", trackers="neptune?", **good)


def test_lazy_module() -> None:
    module = module_of(NAMESPACES[0])
    module.layers[0] = nn.LazyLinear(8)
    refused("not initialised", module=module, data=DataLoader(Items(), 8))
    plain = Plain()
    plain.network = nn.Sequential(nn.LazyLinear(1))
    refused("not initialised", step=plain.step, loader=DataLoader(Items(), 8))


def test_one_process_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    refused("has 4", step=Plain().step, loader=DataLoader(Items(), 8))


# -- imports and progress


def test_importing_stallmeter_loads_no_torch() -> None:
    code = "import sys, stallmeter, stallmeter.probing; assert stallmeter.probe; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class Terminal:
    def __init__(self, terminal: bool) -> None:
        self.terminal, self.text = terminal, ""

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None: ...


@pytest.mark.parametrize(("wanted", "terminal"), [(True, True), (True, False), (False, True)])
def test_progress(wanted: bool, terminal: bool) -> None:
    """A bar where somebody looks, wiped at the end; nothing in a log file."""
    file: Any = Terminal(terminal)
    bar = Progress(wanted, file)
    plain = Plain()
    plan = ProbePlan(sweep_workers=None, sweep_batch_size=(), seconds=0.05, time_limit_s=60, now=time.perf_counter)
    ProbeRun(StepTraining(plain.step, None), DataLoader(Items(), 8), plan, bar).run()
    bar.clear()
    if wanted and terminal:
        assert "loader alone" in file.text
        assert "[######" in file.text
        assert file.text.endswith("\r\x1b[K")
        assert "\n" not in file.text
    else:
        assert file.text == ""


def rate(step_time_s: float, samples: float | None = 8) -> Rate:
    return Rate(step_time_s=step_time_s, batch_samples=samples, steps=10)


@pytest.mark.parametrize(
    ("free_data_s", "free_compute_s", "ceiling"), [(0.1, 0.2, "data"), (0.2, 0.1, "compute"), (0.1, 0.101, "both")]
)
def test_ceilings(free_data_s: float, free_compute_s: float, ceiling: str) -> None:
    result = ProbeResult(
        framework="loop",
        device="cpu",
        num_workers=0,
        batch_size=8,
        free_data=rate(free_data_s),
        free_compute=rate(free_compute_s),
        together=rate(free_data_s + free_compute_s),
        recording=None,
        advice=None,
    )
    assert result.lower_ceiling == ceiling
    assert result.headspace_pct == pytest.approx(100 * free_compute_s / free_data_s)
    assert result.recommended_num_workers is None
