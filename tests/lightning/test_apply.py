"""Applying the recommended number of workers in a real Trainer, with real workers.

Time passes only where a test says so: making an item costs fake time in the loop thread and none in a worker. What the
model advises is planted at the seam between monitor and judge, and the sampler's tick is called at the end of each
epoch, so that no decision depends on how busy the machine is.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stallmeter.errors import SettingError
from stallmeter.recording import Reader
from stallmeter.records import Event, StepRecord, WorkerChange, WorkerTrial
from stallmeter.records.diagnosis import Verdict, WorkerAdvice
from stallmeter.records.steps import END

from ..children import ProcessesLeft
from .conftest import Bench, both_namespaces

STEPS = 20


def advice(current: int, recommended: int, gain_pct: float = 400.0) -> WorkerAdvice:
    return WorkerAdvice(
        current=current,
        recommended=recommended,
        predicted_step_time_s=0.002,
        predicted_gain_pct=gain_pct if recommended != current else 0.0,
        limited_by="compute",
        reason="it is planted",
        confidence=0.9,
    )


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, int]], None]:
    """Have the model recommend a number for each present number; itself where nothing is said."""

    def install(table: dict[int, int]) -> None:
        def evaluate(rules: Any, window: Any, guard: Any) -> Verdict:
            now = window.present().loader.num_workers
            return Verdict(primary=None, num_workers=None if now is None else advice(now, table.get(now, now)))

        monkeypatch.setattr("stallmeter.engine.collector.evaluate", evaluate)

    return install


class Fit:
    """One fit: what was trained on, with how many workers, and what was recorded."""

    def __init__(self, bench: Bench, loader: Any, *, epochs: int = 4, trainer: Any = None, **options: Any) -> None:
        self.bench = bench
        self.batches: list[list[float]] = []
        self.losses: list[float] = []
        self.workers: list[int] = []
        torch.manual_seed(7)
        self.monitor = bench.monitor(workers=True, interval_s=86_400, **options)
        self.model = bench.model(training_step=0.002)
        self.trainer = bench.trainer(self.monitor, self._spy(), max_epochs=epochs, **(trainer or {}))
        self.trainer.fit(self.model, loader)
        self.loader = loader

    def _spy(self) -> Any:
        fit = self

        def on_train_batch_end(_: Any, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if isinstance(batch, torch.Tensor):
                fit.batches.append(batch[:, 0].tolist())
            fit.losses.append(float(outputs["loss"]))

        def on_train_epoch_end(_: Any, trainer: Any, module: Any) -> None:
            loaders = trainer.fit_loop._combined_loader.flattened
            fit.workers.append(getattr(loaders[0], "num_workers", 0))
            fit.monitor.monitor.run.collector.tick()

        hooks = {"on_train_batch_end": on_train_batch_end, "on_train_epoch_end": on_train_epoch_end}
        return type("Spy", (self.bench.pl.Callback,), hooks)()

    def records(self, kind: type) -> list[Any]:
        return [record for record, _ in Reader(self.monitor.monitor.folder) if isinstance(record, kind)]

    @property
    def outcomes(self) -> list[tuple[int, int, str]]:
        return [(t.before, t.workers, t.outcome) for t in self.records(WorkerTrial)]

    @property
    def refusals(self) -> list[str]:
        return [e.detail for e in self.records(Event) if e.name == "num_workers is not changed"]


def slow(bench: Bench, **options: Any) -> DataLoader:
    """Items that cost five times what training on them costs, unless a worker makes them."""
    return bench.loader(4 * STEPS, 0.002, shuffle=True, **options)


@both_namespaces
def test_a_better_number_is_applied_and_kept(bench: Bench, plant: Any, processes_left: ProcessesLeft) -> None:
    plant({0: 2})
    fit = Fit(bench, slow(bench), on_num_workers="apply")
    assert fit.workers == [0, 2, 2, 2]
    assert fit.outcomes == [(0, 2, "measuring"), (0, 2, "kept")]
    kept = fit.records(WorkerTrial)[-1]
    assert kept.predicted_gain_pct == 400
    assert kept.achieved_gain_pct == pytest.approx(400, rel=0.05)
    assert [(c.step, c.before, c.workers) for c in fit.records(WorkerChange)] == [(STEPS, 0, 2)]
    assert len(fit.records(StepRecord)) == 4 * STEPS
    assert fit.loader.prefetch_factor == 2
    assert not processes_left()


def test_a_wrong_prediction_is_taken_back(bench: Bench, plant: Any, processes_left: ProcessesLeft) -> None:
    """Without workers it is six times slower: the model that says otherwise is not believed twice."""
    plant({2: 0})
    fit = Fit(bench, slow(bench, num_workers=2, prefetch_factor=3), epochs=6, on_num_workers="apply")
    assert fit.workers == [2, 0, 2, 2, 2, 2]
    assert fit.outcomes == [(2, 0, "measuring"), (2, 0, "reverted")]
    assert fit.records(WorkerTrial)[-1].achieved_gain_pct < 0
    assert fit.loader.prefetch_factor == 3
    assert not processes_left()


def test_report_changes_nothing(bench: Bench, plant: Any) -> None:
    plant({0: 2})
    fit = Fit(bench, slow(bench), epochs=2)
    assert fit.workers == [0, 0]
    assert fit.outcomes == []
    assert fit.monitor.monitor.verdict.num_workers.recommended == 2


def test_a_single_epoch_gets_the_advice_for_the_next_run(bench: Bench, plant: Any) -> None:
    plant({0: 2})
    fit = Fit(bench, slow(bench), epochs=1, on_num_workers="apply")
    assert fit.workers == [0]
    assert fit.outcomes == []
    assert fit.loader.num_workers == 0


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
def test_samples_and_losses_are_those_of_the_run_without_it(
    unified: Bench, plant: Any, processes_left: ProcessesLeft, options: dict[str, Any]
) -> None:
    plant({1: 3})

    def run(**monitor: Any) -> Fit:
        generator = torch.Generator().manual_seed(3)
        return Fit(unified, slow(unified, generator=generator, **options), **monitor)

    plain, applied = run(), run(on_num_workers="apply")
    assert applied.workers == [1, 3, 1, 1]
    if not options.get("persistent_workers"):
        assert applied.batches == plain.batches
        assert applied.losses == plain.losses
    assert sorted(map(sorted, applied.batches[:STEPS])) == sorted(map(sorted, plain.batches[:STEPS]))
    assert not processes_left()


def test_losses_from_zero_workers_are_bit_identical(unified: Bench, plant: Any) -> None:
    plant({0: 2})
    plain, applied = Fit(unified, slow(unified)), Fit(unified, slow(unified), on_num_workers="apply")
    assert applied.workers == [0, 2, 2, 2]
    assert applied.batches == plain.batches
    assert applied.losses == plain.losses
    assert all(torch.equal(a, b) for a, b in zip(plain.model.parameters(), applied.model.parameters(), strict=True))


@pytest.fixture
def fork_server() -> None:
    """It and the tracker of shared memory stay to the program's end."""
    resource_tracker.ensure_running()
    forkserver.ensure_running()


@pytest.mark.long
def test_workers_that_are_not_forked(
    unified: Bench, plant: Any, monkeypatch: pytest.MonkeyPatch, fork_server: None, processes_left: ProcessesLeft
) -> None:
    """As from Python 3.14 on, where nobody said otherwise."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    plant({0: 1})
    multiprocessing.set_start_method("forkserver", force=True)
    try:
        fit = Fit(unified, DataLoader(Rows(), 4, shuffle=True), epochs=3, on_num_workers="apply")
    finally:
        multiprocessing.set_start_method(None, force=True)
    assert fit.refusals == []
    assert fit.workers[:2] == [0, 1]
    assert sorted(x for batch in fit.batches[STEPS : 2 * STEPS] for x in batch) == [float(i) for i in range(4 * STEPS)]
    assert not processes_left()


class Rows(Dataset):
    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(torch.full((4,), float(i)) for i in range(4 * STEPS))


class Stateful(DataLoader):
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize(
    ("make", "trainer", "reason"),
    [
        (lambda b: DataLoader(Stream(), batch_size=4), {}, "iterable"),
        (lambda b: Stateful(slow(b).dataset, batch_size=4), {}, "state"),
        (lambda b: [torch.ones(4, 4)] * STEPS, {}, "there are 20 training loaders"),
        (lambda b: {"a": slow(b), "b": slow(b)}, {}, "2 training loaders"),
        (slow, {"reload_dataloaders_every_n_epochs": 1}, "reload_dataloaders_every_n_epochs"),
    ],
)
def test_what_is_refused_is_named(
    unified: Bench, plant: Any, make: Any, trainer: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    plant({0: 2})
    fit = Fit(unified, make(unified), epochs=3, trainer=trainer, on_num_workers="apply")
    assert fit.workers == [0] * 3
    assert len(fit.refusals) == 1
    assert reason in fit.refusals[0]
    assert reason in caplog.text
    assert fit.outcomes == []


def test_persistent_workers_are_not_taken_away(unified: Bench, plant: Any) -> None:
    plant({2: 0})
    fit = Fit(unified, slow(unified, num_workers=2, persistent_workers=True), on_num_workers="apply")
    assert fit.workers == [2] * 4
    assert "persistent_workers" in fit.refusals[0]


@pytest.mark.parametrize(
    "trainer",
    [
        {"limit_train_batches": 15},
        {"accumulate_grad_batches": 4},
        {"overfit_batches": 15},
    ],
)
def test_options_of_the_trainer(
    unified: Bench, plant: Any, processes_left: ProcessesLeft, trainer: dict[str, Any]
) -> None:
    plant({0: 2})
    fit = Fit(unified, slow(unified), epochs=5, trainer=trainer, on_num_workers="apply")
    assert set(fit.workers) == {0, 2}
    assert fit.outcomes[-1] == (0, 2, "kept")
    assert not processes_left()


def test_validation_in_the_middle_of_an_epoch(unified: Bench, plant: Any) -> None:
    plant({0: 2})
    loader = slow(unified)
    loader.dataset.count = 400
    monitor = unified.monitor(workers=True, interval_s=86_400, on_num_workers="apply")
    seen: list[int] = []

    def on_train_epoch_end(_: Any, trainer: Any, module: Any) -> None:
        seen.append(loader.num_workers)
        monitor.monitor.run.collector.tick()

    spy = type("Spy", (unified.pl.Callback,), {"on_train_epoch_end": on_train_epoch_end})()
    trainer = unified.trainer(monitor, spy, max_epochs=3, val_check_interval=0.25)
    trainer.fit(unified.model(training_step=0.002, validation_step=0.5), loader, unified.loader())
    assert seen == [0, 2, 2]
    trial = [r for r, _ in Reader(monitor.monitor.folder) if isinstance(r, WorkerTrial)][-1]
    assert trial.outcome == "kept"
    assert trial.achieved_gain_pct == pytest.approx(400, rel=0.05)


def test_a_resumed_run(unified: Bench, plant: Any, processes_left: ProcessesLeft, tmp_path: Path) -> None:
    plant({0: 2})
    first = Fit(unified, slow(unified), epochs=1)
    first.trainer.save_checkpoint(tmp_path / "a.ckpt")
    loader = slow(unified)
    monitor = unified.monitor(workers=True, interval_s=86_400, on_num_workers="apply")
    seen: list[int] = []

    def on_train_epoch_end(_: Any, trainer: Any, module: Any) -> None:
        seen.append(loader.num_workers)
        monitor.monitor.run.collector.tick()

    spy = type("Spy", (unified.pl.Callback,), {"on_train_epoch_end": on_train_epoch_end})()
    trainer = unified.trainer(monitor, spy, max_epochs=4)
    trainer.fit(unified.model(training_step=0.002), loader, ckpt_path=tmp_path / "a.ckpt")
    assert seen == [0, 2, 2]
    assert not processes_left()


def test_a_function_is_told_and_may_choose(bench: Bench, plant: Any) -> None:
    plant({0: 2})
    told: list[WorkerAdvice] = []

    def choose(said: WorkerAdvice) -> int | None:
        told.append(said)
        return 1 if said.current == 0 else None

    fit = Fit(bench, slow(bench), on_num_workers=choose)
    assert fit.workers == [0, 1, 1, 1]
    assert told[0] == advice(0, 2)
    assert told[-1] == advice(1, 1)
    assert fit.outcomes == [(0, 1, "measuring"), (0, 1, "set")]
    assert fit.records(WorkerTrial)[-1].predicted_gain_pct is None


def test_a_function_of_a_single_epoch_is_told_at_the_end(unified: Bench, plant: Any) -> None:
    plant({0: 2})
    told: list[WorkerAdvice] = []
    fit = Fit(unified, slow(unified), epochs=1, on_num_workers=told.append)
    assert told == [advice(0, 2)]
    assert fit.loader.num_workers == 0


def test_the_last_call_costs_no_record(bench: Bench, plant: Any, tmp_path: Path) -> None:
    """A function that takes its time at the end holds up neither the last sample nor the end of the recording."""
    plant({0: 2})
    seen: list[bool] = []

    def told(_: WorkerAdvice) -> None:
        (file,) = tmp_path.rglob("rank0.*.jsonl")
        seen.append(any(type(r) is Event and r.name == END for r, _ in Reader(file.parent)))

    Fit(bench, slow(bench), epochs=1, on_num_workers=told)
    assert seen == [True]


@pytest.mark.parametrize("nonsense", [-1, 1.5, "two", True])
def test_nonsense_is_ignored(unified: Bench, plant: Any, nonsense: Any, caplog: pytest.LogCaptureFixture) -> None:
    plant({0: 2})
    fit = Fit(unified, slow(unified), epochs=2, on_num_workers=lambda _: nonsense)
    assert fit.workers == [0, 0]
    assert "on_num_workers was ignored" in caplog.text
    assert repr(nonsense) in caplog.text


def test_a_function_that_raises_is_switched_off(unified: Bench, plant: Any, caplog: pytest.LogCaptureFixture) -> None:
    plant({0: 2})
    calls: list[int] = []

    def choose(_: WorkerAdvice) -> int:
        calls.append(1)
        raise RuntimeError("no idea")

    fit = Fit(unified, slow(unified), on_num_workers=choose)
    assert fit.workers == [0] * 4
    assert len(calls) == 1
    assert "on_num_workers failed and is switched off" in caplog.text


def test_settings(unified: Bench) -> None:
    with pytest.raises(SettingError, match="on_num_workers is 'always'"):
        unified.monitor(on_num_workers="always")
    with pytest.raises(SettingError, match="workers=False"):
        unified.monitor(on_num_workers="apply", workers=False)
