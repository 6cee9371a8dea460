"""The callback books every second of a real Trainer where it belongs and leaves nothing behind."""

from __future__ import annotations

import contextlib
import copy
import importlib
import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from stallmeter.errors import SettingError
from stallmeter.recording import Reader
from stallmeter.records import Event, StepRecord

from .conftest import Bench, Items, both_namespaces


def buckets(callback: Any) -> dict[str, float]:
    """Seconds per bucket, those without time left out."""
    ledger = callback.monitor.window.ledger.record
    assert sum(ledger.buckets.values()) == pytest.approx(ledger.wall_s, abs=1e-6)
    return {k: pytest.approx(v, abs=1e-6) for k, v in ledger.buckets.items() if v}


def steps(callback: Any) -> list[StepRecord]:
    return [r for r, _ in Reader(callback.monitor.folder) if isinstance(r, StepRecord)]


@both_namespaces
def test_every_planted_second_is_found(bench: Bench) -> None:
    sm = bench.monitor()
    model = bench.model(training_step=0.1, backward=0.2, h2d=0.01, validation_step=0.5, on_before_optimizer_step=0.003)
    checkpoints = bench.pl.callbacks.ModelCheckpoint(
        dirpath=bench.folder / "ckpt", every_n_train_steps=3, save_top_k=-1
    )
    slow = bench.sleeper(on_train_batch_end=0.02, on_save_checkpoint=1.0)
    trainer = bench.trainer(sm, slow, checkpoints, max_epochs=2, enable_checkpointing=True)
    trainer.fit(model, bench.loader(cost_s=0.001), bench.loader(8, cost_s=0.002))
    assert buckets(sm) == {
        "data_wait": 8 * 4 * 0.001,
        "h2d": 8 * 0.01,
        "forward": 8 * 0.1,
        "backward": 8 * 0.2,
        "validation": 4 * (0.5 + 0.01 + 4 * 0.002),
        "callbacks": 8 * 0.02 + 8 * 0.003 + 2 * 1.0,
    }
    optimizer = sm.monitor.window.spent.optimizer
    assert (optimizer.kind, optimizer.tensors) == ("SGD", 2)
    assert sm.monitor.window.ledger.record.callbacks["Sleeper"] == pytest.approx(8 * 0.02 + 2 * 1.0)
    assert sm.monitor.window.ledger.record.callbacks["Model.on_before_optimizer_step"] == pytest.approx(8 * 0.003)


def test_step_records(bench: Bench) -> None:
    sm = bench.monitor()
    bench.trainer(sm, max_epochs=2).fit(bench.model(training_step=0.1), bench.loader(18, cost_s=0.01))
    found = steps(sm)
    assert [(s.index, s.epoch, s.epoch_start) for s in found] == [(i, i // 5, i % 5 == 0) for i in range(10)]
    assert [s.samples for s in found] == [4, 4, 4, 4, 2] * 2
    assert [s.optimizer_step for s in found] == list(range(1, 11))
    assert [s.tracker_step for s in found] == list(range(10))
    assert found[1].data_wait_s == pytest.approx(0.04)
    assert found[1].total_s == pytest.approx(0.14)


@both_namespaces
def test_the_logger_is_named(bench: Bench) -> None:
    base = bench.pl.loggers.CSVLogger
    time = bench.time

    class SlowLogger(base):  # type: ignore[misc, valid-type]
        def log_metrics(self, *args: Any, **kwargs: Any) -> None:
            time.sleep(0.25)
            super().log_metrics(*args, **kwargs)

    sm = bench.monitor(trackers=None)
    bench.trainer(sm, logger=SlowLogger(bench.folder), log_every_n_steps=2).fit(bench.model(), bench.loader(32))
    assert sm.monitor.window.ledger.record.logging == {"SlowLogger": pytest.approx(4 * 0.25)}


def test_a_checkpoint_is_told_from_the_callback_that_makes_it(unified: Bench) -> None:
    base = unified.pl.plugins.io.TorchCheckpointIO
    time = unified.time

    class SlowIO(base):  # type: ignore[misc, valid-type]
        def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            time.sleep(2)
            super().save_checkpoint(*args, **kwargs)

    sm = unified.monitor()
    saver = unified.pl.callbacks.ModelCheckpoint(dirpath=unified.folder / "c", every_n_train_steps=2, save_top_k=-1)
    unified.trainer(sm, saver, enable_checkpointing=True, plugins=[SlowIO()]).fit(unified.model(), unified.loader())
    assert buckets(sm) == {"checkpoint": 4.0}
    assert [s.checkpoint_s for s in steps(sm)][-3:] == [2, 0, 2]


def test_accumulated_gradients(bench: Bench) -> None:
    sm = bench.monitor()
    bench.trainer(sm, accumulate_grad_batches=2).fit(bench.model(backward=0.1), bench.loader(24))
    found = steps(sm)
    assert [s.optimizer_step for s in found] == [0, 1, 1, 2, 2, 3]
    assert [s.tracker_step for s in found] == [0, 0, 1, 1, 2, 2]
    assert buckets(sm) == {"backward": 0.6}


class _Manual:
    """Mixed into a module: two optimizers, stepped by hand."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer in self.optimizers():  # type: ignore[attr-defined]
            optimizer.zero_grad()
            self.bench_time.sleep(0.1)  # type: ignore[attr-defined]
            loss = self.layer(batch).sum()  # type: ignore[attr-defined]
            loss.register_hook(lambda _: self.bench_time.sleep(0.05))  # type: ignore[attr-defined]
            self.manual_backward(loss)  # type: ignore[attr-defined]
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=1e-3) for _ in range(2)]  # type: ignore[attr-defined]


@both_namespaces
def test_manual_optimization_with_several_optimizers(bench: Bench) -> None:
    sm = bench.monitor()
    model = bench.model()
    model.__class__ = type("Manual", (_Manual, type(model)), {"bench_time": bench.time})
    trainer = bench.trainer(sm)
    trainer.fit(model, bench.loader())
    assert [s.optimizer_step for s in steps(sm)] == [2, 4, 6, 8]
    assert buckets(sm) == {"forward": 8 * 0.1, "backward": 8 * 0.05}
    assert "backward" not in vars(trainer.strategy)


def test_an_action_of_the_users_own_may_be_named_by_its_keyword(bench: Bench) -> None:
    sm = bench.monitor()
    model = bench.model()
    time = bench.time

    class Profiled(type(model)):  # type: ignore[misc]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            with self.trainer.profiler.profile(action_name="mine"):
                time.sleep(0.1)
            return super().training_step(batch, batch_idx)

    model.__class__ = Profiled
    bench.trainer(sm).fit(model, bench.loader())
    assert buckets(sm) == {"forward": 0.4}


def test_training_step_may_return_none(bench: Bench) -> None:
    sm = bench.monitor()
    model = bench.model()
    time = bench.time

    class Skipping(type(model)):  # type: ignore[misc]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            time.sleep(0.1)
            return None if batch_idx == 1 else super().training_step(batch, batch_idx)

    model.__class__ = Skipping
    bench.trainer(sm).fit(model, bench.loader())
    assert len(steps(sm)) == 4
    assert buckets(sm) == {"forward": 0.4}


def test_validation_inside_an_epoch_is_not_step_time(bench: Bench) -> None:
    sm = bench.monitor()
    bench.trainer(sm, val_check_interval=2).fit(
        bench.model(training_step=0.1, validation_step=3), bench.loader(24), bench.loader(4)
    )
    assert [round(s.step_time_s, 6) for s in steps(sm)] == [0.1] * 6
    assert [s.validation_s for s in steps(sm)][1] == pytest.approx(3)
    assert buckets(sm)["validation"] == 9


@both_namespaces
@pytest.mark.parametrize("num_workers", [0, 2])
def test_validations_own_loader_is_part_of_validation(bench: Bench, num_workers: int) -> None:
    class Validating(torch.utils.data.DataLoader):  # type: ignore[type-arg]
        """Its iterator takes 2 s to make and 0.5 s for each of its 3 batches."""

        def __iter__(self) -> Any:
            bench.time.sleep(2)
            return (bench.time.sleep(0.5) or torch.ones(4, 4) for _ in range(3))

    sm = bench.monitor()
    made = Validating([0] * 12, batch_size=4, num_workers=num_workers)
    bench.trainer(sm, max_epochs=2, num_sanity_val_steps=1, profiler="simple").fit(
        bench.model(training_step=0.1, validation_step=1), bench.loader(), made
    )
    record = sm.monitor.window.ledger.record
    start_s, wait_s = (2.5, 1.0) if num_workers else (2.0, 1.5)
    assert record.validation_parts == {"start": pytest.approx(2 * start_s), "wait": pytest.approx(2 * wait_s)}
    assert buckets(sm)["validation"] == pytest.approx(2 * (2 + 3 * 1.5))
    evaluated = sm.monitor.window.spent.evaluated
    assert (evaluated.batches, evaluated.batch_size) == (2 * 3, 4)


def test_sanity_checks_belong_to_the_start(bench: Bench) -> None:
    sm = bench.monitor()
    bench.trainer(sm, num_sanity_val_steps=2, limit_val_batches=2, check_val_every_n_epoch=5).fit(
        bench.model(validation_step=3), bench.loader(), bench.loader()
    )
    assert buckets(sm) == {"start": 6}


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"fast_dev_run": True}, 1),
        ({"fast_dev_run": 3}, 3),
        ({"limit_train_batches": 2}, 2),
        ({"limit_train_batches": 0}, 0),
        ({"max_steps": 3}, 3),
        ({"overfit_batches": 2}, 2),
        ({"barebones": True, "logger": None, "enable_checkpointing": None}, 4),
        ({"max_epochs": 0}, 0),
    ],
    ids=str,
)
def test_short_runs(bench: Bench, options: dict[str, Any], count: int) -> None:
    sm = bench.monitor()
    if "barebones" in options:
        options = {**options, "num_sanity_val_steps": None, "enable_progress_bar": None, "enable_model_summary": None}
    bench.trainer(sm, **options).fit(bench.model(training_step=0.1), bench.loader())
    assert len(steps(sm)) == count
    assert buckets(sm).get("forward", 0) == pytest.approx(count * 0.1)


class Stream(IterableDataset):
    """Items without a length: Lightning keeps one batch in hand."""

    def __init__(self, items: Items) -> None:
        self.items = items

    def __iter__(self) -> Any:
        return (self.items[i] for i in range(len(self.items)))


def test_iterable_dataset(bench: Bench) -> None:
    sm = bench.monitor()
    data = DataLoader(Stream(Items(16, 0.01, bench.time)), batch_size=4)
    bench.trainer(sm, max_epochs=2).fit(bench.model(training_step=0.1), data)
    assert len(steps(sm)) == 8
    found = buckets(sm)
    assert found["forward"] == 0.8
    everything = sum(sm.monitor.window.ledger.record.buckets[b] for b in ("start", "worker_startup", "data_wait"))
    assert everything == pytest.approx(32 * 0.01)


@pytest.mark.parametrize("mode", ["max_size_cycle", "min_size", "max_size"])
def test_combined_loaders(bench: Bench, mode: str) -> None:
    combined = bench.pl.utilities.CombinedLoader
    sm = bench.monitor()
    loaders = combined({"a": bench.loader(8, cost_s=0.01), "b": bench.loader(16, cost_s=0.01)}, mode)
    bench.trainer(sm).fit(bench.model(), loaders)
    assert len(steps(sm)) == (2 if mode == "min_size" else 4)
    assert steps(sm)[0].samples == 4
    assert steps(sm)[1].data_wait_s == pytest.approx(8 * 0.01)


def test_dataloader_iter_fetches_inside_the_training_step(bench: Bench) -> None:
    time = bench.time
    model = bench.model()

    class Fetching(type(model)):  # type: ignore[misc]
        def training_step(self, dataloader_iter: Any) -> Any:
            batch, _, _ = next(dataloader_iter)
            time.sleep(0.1)
            return self.layer(batch).sum()

    model.__class__ = Fetching
    sm = bench.monitor()
    bench.trainer(sm).fit(model, bench.loader(cost_s=0.01))
    assert len(steps(sm)) == 4
    assert buckets(sm) == {"data_wait": 0.16, "forward": 0.4}


def test_fit_twice_makes_two_recordings(bench: Bench) -> None:
    sm = bench.monitor()
    trainer, model = bench.trainer(sm, max_epochs=1), bench.model(training_step=0.1)
    trainer.fit(model, bench.loader())
    first = sm.monitor
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, bench.loader())
    assert first.folder != sm.monitor.folder
    assert [s.epoch for s in steps(sm)] == [1] * 4
    assert buckets(sm)["forward"] == pytest.approx(0.4)


def test_other_entry_points_are_left_alone(bench: Bench) -> None:
    sm = bench.monitor()
    trainer = bench.trainer(sm)
    trainer.validate(bench.model(), bench.loader(), verbose=False)
    assert sm.monitor is None


@both_namespaces
def test_resume_in_mid_epoch(bench: Bench) -> None:
    saver = bench.pl.callbacks.ModelCheckpoint(dirpath=bench.folder / "c", every_n_train_steps=2, save_top_k=-1)
    bench.trainer(saver, enable_checkpointing=True).fit(bench.model(), bench.loader())
    sm = bench.monitor()
    checkpoint = next((bench.folder / "c").glob("*step=2.ckpt"))
    count = bench.counter()
    bench.trainer(sm, count).fit(bench.model(training_step=0.1), bench.loader(), ckpt_path=checkpoint)
    assert 1 < len(count.samples) < 4
    assert [s.optimizer_step for s in steps(sm)] == [3 + i for i in range(len(count.samples))]
    assert buckets(sm)["forward"] == pytest.approx(0.1 * len(count.samples))


HOOKS = [
    "setup",
    "on_fit_start",
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_validation_start",
    "on_validation_batch_end",
    "on_validation_end",
    "on_train_epoch_end",
    "on_train_end",
    "on_fit_end",
    "teardown",
]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("before", [True, False])
def test_an_exception_in_any_hook_passes_and_the_recording_is_readable(unified: Bench, hook: str, before: bool) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError(hook)

    culprit = type("Culprit", (unified.pl.Callback,), {hook: fail})()
    sm = unified.monitor()
    trainer = unified.trainer(*((culprit, sm) if before else (sm, culprit)))
    profiler = trainer.profiler
    with pytest.raises(ZeroDivisionError, match=hook):
        trainer.fit(unified.model(training_step=0.1), unified.loader(), unified.loader(4))
    assert not {"profile", "start", "stop"} & set(vars(profiler))
    if before and hook == "setup":
        assert sm.monitor is None
        return
    assert sm.monitor.closed
    last = [r for r, _ in Reader(sm.monitor.folder) if isinstance(r, Event)][-1]
    assert last.name == "end"
    buckets(sm)


@both_namespaces
def test_keyboard_interrupt(bench: Bench) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    sm = bench.monitor()
    trainer = bench.trainer(sm, type("Stop", (bench.pl.Callback,), {"on_train_batch_end": stop})())
    with contextlib.suppress(SystemExit, KeyboardInterrupt):  # Lightning before 2.4 returns instead
        trainer.fit(bench.model(training_step=0.1), bench.loader())
    events = [r for r, _ in Reader(sm.monitor.folder) if isinstance(r, Event)]
    assert events[-1].detail == "exception: KeyboardInterrupt"
    assert len(steps(sm)) == 1


def test_skipping_the_rest_of_an_epoch(bench: Bench) -> None:
    sm = bench.monitor()
    model = bench.model(training_step=0.1)

    class Skipping(type(model)):  # type: ignore[misc]
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 2 else None

    model.__class__ = Skipping
    bench.trainer(sm, max_epochs=2).fit(model, bench.loader(cost_s=0.01))
    assert [s.epoch for s in steps(sm)] == [0, 0, 1, 1]
    assert buckets(sm)["forward"] == pytest.approx(0.4)


def test_a_loader_that_yields_none(bench: Bench) -> None:
    sm = bench.monitor()

    class Holes:
        def __iter__(self) -> Any:
            return iter([torch.ones(4, 4), None, torch.ones(2, 4)])

        def __len__(self) -> int:
            return 3

    count = bench.counter()
    bench.trainer(sm, count).fit(bench.model(training_step=0.1, h2d=0.1), Holes())
    assert count.samples[:1] == [4]
    assert [s.samples for s in steps(sm)] == count.samples


@both_namespaces
def test_the_users_profiler_goes_on_working(bench: Bench) -> None:
    profiler = bench.pl.profilers.SimpleProfiler()
    sm = bench.monitor()
    bench.trainer(sm, profiler=profiler).fit(bench.model(training_step=0.1), bench.loader(cost_s=0.01))
    assert buckets(sm) == {"data_wait": 0.16, "forward": 0.4}
    assert len(profiler.recorded_durations["[_TrainingEpochLoop].train_dataloader_next"]) == 4
    assert not {"profile", "start", "stop"} & set(vars(profiler))


@both_namespaces
def test_every_patch_is_undone(bench: Bench) -> None:
    sm = bench.monitor()
    logger = bench.pl.loggers.CSVLogger(bench.folder)
    trainer = bench.trainer(sm, logger=logger)
    owners = [trainer.profiler, trainer.strategy, trainer.fit_loop.epoch_loop.val_loop, logger]
    before = [set(vars(o)) for o in owners]
    trainer.fit(bench.model(), bench.loader(), bench.loader(4))
    after = [set(vars(o)) for o in owners]
    assert not {"profile", "start", "stop"} & after[0]
    assert "process_dataloader" not in after[1] - before[1]
    assert "run" not in after[2] - before[2]
    assert not {"log_metrics", "save"} & (after[3] - before[3])


@both_namespaces
def test_pickle_and_deepcopy_during_fit(bench: Bench) -> None:
    sm = bench.module.StallMonitor(directory=bench.folder, trackers=None, hardware=False, console=False)
    done = []

    def copies(_: Any, trainer: Any, *__: Any) -> None:
        ledger = sm.monitor.run.clock.ledger
        for profiler in (pickle.loads(pickle.dumps(trainer.profiler)), copy.deepcopy(trainer.profiler)):
            stack = list(ledger.stack)
            with profiler.profile("[Strategy]X.training_step"):
                assert ledger.stack == stack
        assert pickle.loads(pickle.dumps(sm)).monitor is None
        assert copy.deepcopy(sm).monitor is None
        done.append(1)

    pickler = type("Pickler", (bench.pl.Callback,), {"on_train_epoch_end": copies})()
    boring = importlib.import_module(f"{bench.pl.__name__}.demos.boring_classes")
    bench.trainer(sm, pickler, limit_train_batches=4).fit(boring.BoringModel())
    assert done == [1]


@both_namespaces
def test_a_second_callback_steps_aside(bench: Bench) -> None:
    first, second = bench.monitor(), bench.monitor()
    bench.trainer(first, second).fit(bench.model(training_step=0.1), bench.loader())
    assert second.monitor is None
    assert buckets(first)["forward"] == pytest.approx(0.4)


@both_namespaces
def test_tuning_before_training_is_start(bench: Bench) -> None:
    sm = bench.monitor()
    finder = bench.pl.callbacks.LearningRateFinder(num_training_steps=3, early_stop_threshold=None)
    model = bench.model(training_step=0.1)
    model.lr = 0.1
    count = bench.counter()
    logger = bench.pl.loggers.CSVLogger(bench.folder)
    bench.trainer(sm, finder, count, logger=logger, enable_checkpointing=True).fit(model, bench.loader())
    assert len(steps(sm)) == len(count.samples)
    found = buckets(sm)
    assert found["forward"] == pytest.approx(0.1 * len(count.samples))
    assert found["start"] == pytest.approx(0.3)


@pytest.mark.parametrize(
    "options",
    [
        {"trackers": "wandb"},
        {"trackers": 7},
        {"trackers": ["auto", 3]},
        {"directory": 5},
        {"interval_s": 0},
        {"interval_s": "fast"},
        {"period_s": -1},
        {"close_budget_s": -1},
        {"rules": ["input-bound"]},
    ],
    ids=str,
)
def test_bad_arguments_are_refused_when_the_callback_is_made(unified: Bench, options: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(options))):
        unified.module.StallMonitor(**options)


def test_a_folder_that_cannot_be_written_stops_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    (bench.folder / "file").write_text("x")
    sm = bench.monitor(directory=bench.folder / "file" / "below")
    bench.trainer(sm).fit(bench.model(training_step=0.1), bench.loader())
    assert sm.monitor.folder is None
    assert "opening the recording failed" in caplog.text
    assert buckets(sm)["forward"] == pytest.approx(0.4)
