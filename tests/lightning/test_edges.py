"""Training ends exactly as it would have without us: same exception, weights and random numbers, nothing left."""

from __future__ import annotations

import contextlib
import math
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stallmeter.errors import SettingError
from stallmeter.recording import Reader
from stallmeter.records import Event, LedgerRecord, StepRecord
from stallmeter.report.model import Report, read_history

from ..children import PATIENCE_S, children, left, our_threads
from .conftest import Bench, both_namespaces


@pytest.fixture(autouse=True)
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)  # what torch waits for failed workers


class Rows(Dataset):
    """Eight rows; ``fail_at`` raises."""

    def __init__(self, count: int = 8, fail_at: int = -1) -> None:
        self.count, self.fail_at = count, fail_at

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.fail_at:
            raise ZeroDivisionError("__getitem__")
        return torch.full((4,), float(index) / self.count)


def rows(count: int = 8, fail_at: int = -1, **options: Any) -> DataLoader:
    return DataLoader(Rows(count, fail_at), **{"batch_size": 2, "shuffle": fail_at < 0, **options})


@dataclass(frozen=True)
class Outcome:
    """All that a program can tell of how its training ended."""

    raised: tuple[str, str] | None
    weights: tuple[tuple[float, ...], ...]
    steps: tuple[int, int, int]
    random: tuple[Any, ...]
    attributes: tuple[frozenset[str], ...]
    """Names of what stands on the instances that we patch."""
    more: Any


OUR_FRAME = re.compile(r'  File "[^"]*/stallmeter/sources/[^"]*", .*\n(?:    .*\n)+')
"""What is raised in a worker arrives as the text of a traceback, with our frame in it."""

Fit = Callable[[Any, Any], Any]
"""Takes a trainer and a module; what it returns is part of the outcome."""


def outcome(bench: Bench, ours: list[Any], fit: Fit, make: Callable[[], Any], options: dict[str, Any]) -> Outcome:
    seed()
    model = make()
    trainer = bench.trainer(
        *ours, *options.get("callbacks", ()), **{k: v for k, v in options.items() if k != "callbacks"}
    )
    raised, more = None, None
    try:
        more = fit(trainer, model)
    except BaseException as exc:
        raised = (type(exc).__name__, OUR_FRAME.sub("", str(exc)))
    owners = (trainer.profiler, trainer.strategy, trainer.fit_loop.epoch_loop.val_loop, trainer, *trainer.loggers)
    return Outcome(
        raised=raised,
        weights=tuple(tuple(p.detach().flatten().tolist()) for p in model.parameters()),
        steps=(trainer.global_step, trainer.current_epoch, trainer.fit_loop.epoch_loop.total_batch_idx),
        random=(torch.rand(1).item(), random.random()),
        attributes=tuple(frozenset(vars(owner)) for owner in owners),
        more=more,
    )


def seed() -> None:
    torch.manual_seed(7)
    random.seed(7)


def assert_the_same(
    bench: Bench, fit: Fit, make: Callable[[], Any], *, recorded: bool = True, **options: Any
) -> tuple[Any, Outcome]:
    """Run it without us and with us, compare, and look for what is left. Returns our callback and the outcome."""
    without = outcome(bench, [], fit, make, dict(options))
    before = children()
    sm = bench.module.StallMonitor(directory=bench.folder / "rec", hardware=False, interval_s=0.05, console=False)
    found = outcome(bench, [sm], fit, make, dict(options))
    assert found == without
    assert left(before, collect=True) == set()
    for thread in our_threads():
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), thread.name
    if recorded:
        assert sm.monitor.closed
        report = read_history(sm.monitor.folder).report()
        assert report.ended is not None
        assert sum(share.seconds for share in report.ledger) == pytest.approx(report.wall_s, abs=1e-5)
    else:
        assert sm.monitor is None or sm.monitor.folder is None
    return sm, found


def report_of(sm: Any) -> Report:
    return read_history(sm.monitor.folder).report()


def fit(trainer: Any, model: Any) -> None:
    trainer.fit(model, rows(), rows(4))


# -- an exception in every hook ---------------------------------------------------------------------------------------

CALLBACK_HOOKS = [
    "setup",
    "on_fit_start",
    "on_sanity_check_start",
    "on_sanity_check_end",
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_validation_start",
    "on_validation_epoch_start",
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_validation_epoch_end",
    "on_validation_end",
    "on_train_epoch_end",
    "on_save_checkpoint",
    "state_dict",
    "on_train_end",
    "on_fit_end",
    "teardown",
]
MODULE_HOOKS = [
    "prepare_data",
    "setup",
    "configure_callbacks",
    "configure_model",
    "configure_optimizers",
    "on_fit_start",
    "on_train_start",
    "on_train_epoch_start",
    "on_before_batch_transfer",
    "transfer_batch_to_device",
    "on_after_batch_transfer",
    "on_train_batch_start",
    "training_step",
    "on_before_zero_grad",
    "optimizer_zero_grad",
    "on_before_backward",
    "backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "configure_gradient_clipping",
    "optimizer_step",
    "lr_scheduler_step",
    "on_train_batch_end",
    "on_validation_model_eval",
    "on_validation_start",
    "validation_step",
    "on_validation_model_train",
    "on_train_epoch_end",
    "on_save_checkpoint",
    "on_train_end",
    "on_fit_end",
    "teardown",
]
IN_EVERY_STEP = ("batch", "training_step", "backward", "optimizer", "zero_grad", "gradient")


def failing(hook: str) -> Callable[..., Any]:
    """Raises, where that can be awaited, in the second step."""
    calls = iter(range(10))

    def fail(owner: Any, *args: Any, **kwargs: Any) -> Any:
        late = any(part in hook for part in IN_EVERY_STEP) and hook != "configure_optimizers"
        if late and next(calls) == 0:
            theirs = getattr(super(type(owner), owner), hook)
            return theirs(*args, **kwargs)
        raise ZeroDivisionError(hook)

    return fail


@pytest.mark.parametrize("hook", CALLBACK_HOOKS)
@pytest.mark.parametrize("before", [True, False], ids=["before us", "after us"])
def test_an_exception_in_a_hook_of_a_callback(bench: Bench, hook: str, before: bool) -> None:
    def run(trainer: Any, model: Any) -> None:
        culprit = type("Culprit", (bench.pl.Callback,), {hook: failing(hook)})()
        trainer.callbacks.insert(0 if before else len(trainer.callbacks), culprit)
        fit(trainer, model)

    _, found = assert_the_same(
        bench,
        run,
        bench.model,
        recorded=not (before and hook == "setup"),
        enable_checkpointing=True,
        num_sanity_val_steps=1,
    )
    assert found.raised == ("ZeroDivisionError", hook)


@pytest.mark.parametrize("hook", MODULE_HOOKS)
def test_an_exception_in_a_hook_of_the_module(bench: Bench, hook: str) -> None:
    def make() -> Any:
        base = type(bench.model())

        class Scheduled(base):  # type: ignore[misc, valid-type]
            def configure_optimizers(self) -> Any:
                optimizer = super().configure_optimizers()
                return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 10)]

        model = bench.model()
        model.__class__ = type("Culprit", (Scheduled,), {hook: failing(hook)})
        return model

    recorded = hook not in ("prepare_data", "configure_callbacks")
    _, found = assert_the_same(bench, fit, make, recorded=recorded, enable_checkpointing=True)
    assert found.raised == ("ZeroDivisionError", hook)


@both_namespaces
def test_an_exception_in_on_exception(bench: Bench) -> None:
    def run(trainer: Any, model: Any) -> None:
        members = {"on_exception": failing("on_exception"), "on_train_start": failing("on_train_start")}
        trainer.callbacks.append(type("Culprit", (bench.pl.Callback,), members)())
        fit(trainer, model)

    without = outcome(bench, [], run, bench.model, {})
    sm = bench.monitor()
    found = outcome(bench, [sm], run, bench.model, {})
    assert found.raised == ("ZeroDivisionError", "on_exception")
    assert replace(found, attributes=()) == replace(without, attributes=())
    # Lightning tells nobody after that callback: what waits for it stands there until the next fit, and only passes on.
    left = [mine - theirs for mine, theirs in zip(found.attributes, without.attributes, strict=True)]
    assert frozenset().union(*left) == {"on_exception"}
    assert report_of(sm).ended == "exception: ZeroDivisionError"
    assert sm.monitor.finish()


def bad_collate(items: Any) -> Any:
    raise ZeroDivisionError("collate")


def bad_init(worker: int) -> None:
    raise ZeroDivisionError("worker_init_fn")


class BadSampler(torch.utils.data.Sampler):
    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[int]:
        yield from range(7)
        raise ZeroDivisionError("sampler")


DATA = {
    "getitem": lambda: rows(fail_at=5),
    "getitem in a worker": lambda: rows(fail_at=5, num_workers=2),
    "collate": lambda: rows(collate_fn=bad_collate),
    "collate in a worker": lambda: rows(collate_fn=bad_collate, num_workers=1),
    "worker_init_fn": lambda: rows(worker_init_fn=bad_init, num_workers=1),
    "sampler": lambda: rows(sampler=BadSampler(), shuffle=None, num_workers=1),
}


@pytest.mark.parametrize("loader", DATA.values(), ids=DATA)
def test_an_exception_in_the_data(bench: Bench, loader: Callable[[], DataLoader]) -> None:
    seen = []

    def run(trainer: Any, model: Any) -> None:
        seen.append(loader())
        trainer.fit(model, seen[-1])

    _, found = assert_the_same(bench, run, bench.model)
    assert found.raised is not None
    assert found.raised[0] == "ZeroDivisionError"
    assert seen[0].worker_init_fn is seen[1].worker_init_fn


@pytest.mark.parametrize(
    "exception",
    [KeyboardInterrupt(), SystemExit(3), SystemExit("words"), StopIteration(), GeneratorExit(), MemoryError("full")],
    ids=repr,
)
@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_validation_start", "on_train_end"])
def test_other_exceptions(bench: Bench, exception: BaseException, hook: str) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise exception

    def run(trainer: Any, model: Any) -> None:
        trainer.callbacks.append(type("Stop", (bench.pl.Callback,), {hook: stop})())
        fit(trainer, model)

    sm, _ = assert_the_same(bench, run, bench.model)
    assert report_of(sm).ended not in (None, "end") or isinstance(exception, StopIteration)


# -- ways to train ----------------------------------------------------------------------------------------------------


class _Manual:
    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer in self.optimizers():  # type: ignore[attr-defined]
            optimizer.zero_grad()
            self.manual_backward(self.layer(batch).pow(2).sum())  # type: ignore[attr-defined]
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=rate) for rate in (1e-3, 1e-2)]  # type: ignore[attr-defined]


class Stream(IterableDataset):
    """A shard for each worker."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = torch.utils.data.get_worker_info()
        ours = range(8) if info is None else range(info.id, 8, info.num_workers)
        return (torch.full((4,), float(i) / 8) for i in ours)


def manual(bench: Bench) -> Any:
    model = bench.model()
    model.__class__ = type("Manual", (_Manual, type(model)), {})
    return model


def test_manual_optimization(bench: Bench) -> None:
    sm, found = assert_the_same(bench, fit, lambda: manual(bench))
    assert found.steps[0] == 8
    assert report_of(sm).steps == 4


@pytest.mark.parametrize("mode", ["max_size_cycle", "min_size", "max_size"])
def test_combined_loaders_with_workers(bench: Bench, mode: str) -> None:
    def run(trainer: Any, model: Any) -> None:
        loaders = {"a": rows(4, num_workers=1), "b": rows(8, num_workers=1)}
        trainer.fit(model, bench.pl.utilities.CombinedLoader(loaders, mode))

    sm, _ = assert_the_same(bench, run, bench.model)
    assert report_of(sm).steps == (2 if mode == "min_size" else 4)


def test_a_stream_with_workers(bench: Bench) -> None:
    def run(trainer: Any, model: Any) -> None:
        trainer.fit(model, DataLoader(Stream(), batch_size=2, num_workers=2))

    sm, _ = assert_the_same(bench, run, bench.model, max_epochs=2)
    assert report_of(sm).steps == 8


@pytest.mark.parametrize("persistent", [False, True])
def test_random_numbers_in_workers(bench: Bench, persistent: bool) -> None:
    """Every worker draws what it would have drawn."""

    def run(trainer: Any, model: Any) -> None:
        loader = DataLoader(Noise(), batch_size=2, shuffle=True, num_workers=2, persistent_workers=persistent)
        trainer.fit(model, loader)

    assert_the_same(bench, run, bench.model, max_epochs=2)


class Noise(Rows):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(4) + random.random()


@pytest.mark.parametrize(
    "options",
    [
        {"overfit_batches": 2, "max_epochs": 2},
        {"fast_dev_run": 2},
        {"limit_train_batches": 0},
        {"max_epochs": 0},
        {"max_steps": 3},
        {"max_time": {"seconds": 0}},
        {"accumulate_grad_batches": 3},
        {"reload_dataloaders_every_n_epochs": 1, "max_epochs": 3},
        {"val_check_interval": 2, "num_sanity_val_steps": 1},
        {"gradient_clip_val": 0.1, "detect_anomaly": True},
        {"precision": "bf16-mixed"},
        {"profiler": "simple"},
        {
            "barebones": True,
            "logger": None,
            "enable_checkpointing": None,
            "num_sanity_val_steps": None,
            "enable_progress_bar": None,
            "enable_model_summary": None,
        },
    ],
    ids=str,
)
def test_options_of_the_trainer(bench: Bench, options: dict[str, Any]) -> None:
    assert_the_same(bench, fit, bench.model, **options)


@both_namespaces
def test_fit_twice_and_everything_else(bench: Bench) -> None:
    def run(trainer: Any, model: Any) -> Any:
        trainer.fit(model, rows(num_workers=1))
        trainer.fit_loop.max_epochs = 2
        trainer.fit(model, rows(num_workers=1), rows(4))
        scores = trainer.validate(model, rows(4), verbose=False)
        trainer.fit_loop.max_epochs = 3
        trainer.fit(model, rows())
        return scores

    sm, found = assert_the_same(bench, run, bench.model)
    assert found.steps[0] == 12
    assert len(list((bench.folder / "rec").iterdir())) == 3
    assert report_of(sm).steps == 4


def test_a_fit_after_one_that_failed(bench: Bench) -> None:
    def run(trainer: Any, model: Any) -> None:
        with pytest.raises(ZeroDivisionError):
            trainer.fit(model, rows(fail_at=5))
        trainer.fit(model, rows())

    sm, _ = assert_the_same(bench, run, bench.model)
    assert report_of(sm).ended == "end"


@both_namespaces
def test_a_trainer_inside_a_trainer(bench: Bench) -> None:
    def run(trainer: Any, model: Any) -> None:
        def nested(*_: Any) -> None:
            bench.trainer(*[type(c)(**quiet) for c in trainer.callbacks[:1] if hasattr(c, "monitor")]).fit(
                bench.model(), rows()
            )

        quiet = {"directory": bench.folder / "nested", "hardware": False, "console": False}
        trainer.callbacks.append(type("Nested", (bench.pl.Callback,), {"on_train_epoch_end": nested})())
        fit(trainer, model)

    sm, _ = assert_the_same(bench, run, bench.model)
    assert report_of(sm).steps == 4
    [nested] = (bench.folder / "nested").iterdir()
    assert read_history(nested).report().steps == 4


@pytest.mark.parametrize("when", ["step", "epoch"])
@pytest.mark.parametrize("workers", [0, 1])
def test_resume(bench: Bench, when: str, workers: int) -> None:
    every = {"every_n_train_steps": 3} if when == "step" else {"every_n_epochs": 1}
    saver = bench.pl.callbacks.ModelCheckpoint(dirpath=bench.folder / "c", save_top_k=-1, **every)
    seed()
    bench.trainer(saver, enable_checkpointing=True).fit(bench.model(), rows(shuffle=False))
    [checkpoint] = (bench.folder / "c").iterdir()

    def run(trainer: Any, model: Any) -> None:
        trainer.fit(model, rows(shuffle=False, num_workers=workers), ckpt_path=checkpoint)

    sm, found = assert_the_same(bench, run, bench.model, max_epochs=2)
    # A checkpoint made at the end of a step does not count that step's batch; Lightning before 2.5 uses it once more.
    again = 1 if when == "step" and bench.version < (2, 5) else 0
    assert report_of(sm).steps == (5 if when == "step" else 4) + again
    assert found.steps[0] == 8 + again


@both_namespaces
def test_a_checkpoint_made_with_us_resumes_without_us(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    sm = bench.monitor()
    trainer = bench.trainer(sm)
    trainer.fit(bench.model(), rows())
    trainer.save_checkpoint(bench.folder / "x.ckpt")
    assert not [key for key in torch.load(bench.folder / "x.ckpt", weights_only=False)["callbacks"] if "Stall" in key]
    bench.trainer(max_epochs=2).fit(bench.model(), rows(), ckpt_path=bench.folder / "x.ckpt")


def tunable(bench: Bench) -> Any:
    model = bench.model()

    class Tunable(type(model)):  # type: ignore[misc]
        def train_dataloader(self) -> DataLoader:
            return rows(32, batch_size=self.batch_size)

        def val_dataloader(self) -> DataLoader:
            return rows(4)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.lr)

    model.__class__ = Tunable
    model.lr, model.batch_size = 1e-3, 2
    return model


def test_the_tuner(bench: Bench) -> None:
    def run(trainer: Any, model: Any) -> Any:
        tuner = bench.pl.tuner.Tuner(trainer)
        size = tuner.scale_batch_size(model, mode="binsearch", init_val=2, max_trials=2, steps_per_trial=1)
        found = tuner.lr_find(model, num_training=6, early_stop_threshold=None)
        trainer.fit(model)
        return size, found.suggestion(), model.lr, model.batch_size

    sm, found = assert_the_same(bench, run, lambda: tunable(bench), enable_checkpointing=True, max_epochs=2)
    assert found.raised is None
    assert report_of(sm).steps == 2 * math.ceil(32 / found.more[-1])


@pytest.mark.parametrize("finder", ["LearningRateFinder", "BatchSizeFinder"])
def test_tuning_inside_fit(bench: Bench, finder: str) -> None:
    options = {
        "LearningRateFinder": {"num_training_steps": 4, "early_stop_threshold": None},
        "BatchSizeFinder": {"max_trials": 2, "init_val": 2, "steps_per_trial": 1},
    }

    def run(trainer: Any, model: Any) -> Any:
        trainer.callbacks.insert(0, getattr(bench.pl.callbacks, finder)(**options[finder]))
        trainer.fit(model)
        return model.lr, model.batch_size

    sm, found = assert_the_same(bench, run, lambda: tunable(bench), enable_checkpointing=True)
    assert found.raised is None
    # Lightning before 2.3 goes on in the epoch after the batches that its LearningRateFinder tried.
    tried = 4 if finder == "LearningRateFinder" and bench.version < (2, 3) else 0
    assert report_of(sm).steps == math.ceil(32 / found.more[-1]) - tried


# -- the machine is against us ----------------------------------------------------------------------------------------


def events(sm: Any) -> list[str]:
    return [r.name for r, _ in Reader(sm.monitor.folder) if isinstance(r, Event)]


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0, -1.7e9])
def test_the_clock_is_set_in_mid_run(bench: Bench, jump_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and ledger keep their order and their lengths."""
    real = time.time
    shift = [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + shift[0])

    def run(trainer: Any, model: Any) -> None:
        def jump(*_: Any, **__: Any) -> None:
            shift[0] += jump_s if trainer.global_step == 2 else 0.0

        shift[0] = 0.0
        trainer.callbacks.append(type("Jump", (bench.pl.Callback,), {"on_train_batch_end": jump})())
        fit(trainer, model)

    sm, _ = assert_the_same(bench, run, bench.model)
    records = [r for r, _ in Reader(sm.monitor.folder)]
    steps = [r for r in records if isinstance(r, StepRecord)]
    ledgers = [r for r in records if isinstance(r, LedgerRecord)]
    assert len(steps) == 4
    for series in (steps, ledgers):
        assert [r.time_s for r in series] == sorted(r.time_s for r in series)  # type: ignore[attr-defined]
        assert all(abs(r.time_s - real()) < 300 for r in series)  # type: ignore[attr-defined]
    assert [r.wall_s for r in ledgers] == sorted(r.wall_s for r in ledgers)
    assert all(0 <= s.total_s < 60 for s in steps)


@pytest.mark.parametrize("code", [4, 999, 12])  # no permission, unknown, library not found
def test_nvml_is_refused(bench: Bench, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def refuse(*_: Any) -> None:
        raise pynvml.NVMLError(code)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    monkeypatch.setattr(pynvml, "nvmlInitWithFlags", refuse)
    sm = bench.module.StallMonitor(directory=bench.folder / "rec", interval_s=0.05, console=False)
    bench.trainer(sm).fit(bench.model(), rows())
    report = report_of(sm)
    assert (report.steps, report.hardware.gpus) == (4, ())
    assert report.hardware.host["usable_cpus"] is not None
    assert events(sm) == ["end"]


def test_a_recording_that_is_deleted_in_mid_run(bench: Bench) -> None:
    import shutil

    def run(trainer: Any, model: Any) -> None:
        def delete(*_: Any, **__: Any) -> None:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(bench.folder / "rec")

        trainer.callbacks.append(type("Delete", (bench.pl.Callback,), {"on_train_epoch_end": delete})())
        fit(trainer, model)

    without = outcome(bench, [], run, bench.model, {})
    sm = bench.module.StallMonitor(directory=bench.folder / "rec", hardware=False, console=False)
    assert outcome(bench, [sm], run, bench.model, {}) == without
    assert sm.monitor.window.ledger.record.steps == 4
    assert "the recording is not complete" in events(sm)  # begun anew, and says so


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that refuses to make folders")
def test_a_place_where_no_folder_can_be_made(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    without = outcome(bench, [], fit, bench.model, {})
    sm = bench.module.StallMonitor(directory="/proc/recordings", hardware=False, console=False)
    assert outcome(bench, [sm], fit, bench.model, {}) == without
    assert sm.monitor.folder is None
    assert sm.monitor.window.ledger.record.steps == 4
    assert caplog.text.count("opening the recording failed") == 1


def test_a_signal_handler_that_raises_while_the_recording_ends(bench: Bench) -> None:
    """As torch's does when a worker has died. What it raises comes out, and recording and threads end all the same."""

    class Signalling:
        name = "signalling"

        def sample(self, time_s: float) -> list[Any]:
            return []

        def close(self) -> None:
            """The training thread waits for this one."""
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    def died(*_: Any) -> None:
        raise RuntimeError("a worker died")

    sm = bench.monitor(sources=[Signalling()])
    before = signal.signal(signal.SIGUSR1, died)
    try:
        with pytest.raises(RuntimeError, match="a worker died"):
            bench.trainer(sm).fit(bench.model(), rows())
        assert sm.monitor.finish()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert report_of(sm).ended == "end"
    assert (sm.monitor.folder / "report.md").is_file()
    for thread in our_threads():
        thread.join(PATIENCE_S)
    assert not our_threads()


# -- plug-ins ---------------------------------------------------------------------------------------------------------


class Broken:
    """A rule, a source and a tracker that all fail."""

    id, title, needs = "broken", "Broken", ()
    name = destination = "broken"
    batch_size = 10

    def check(self, window: Any) -> Any:
        raise RuntimeError("rule")

    def sample(self, time_s: float) -> Any:
        return "nonsense"

    def send(self, points: Any) -> None:
        raise RuntimeError("tracker")

    def show(self, page: Any) -> None:
        raise RuntimeError("tracker")

    def close(self) -> None:
        pass


def test_broken_plugins(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    without = outcome(bench, [], fit, bench.model, {})
    broken = Broken()
    sm = bench.module.StallMonitor(
        directory=bench.folder, rules=[broken], sources=[broken], trackers=[broken], hardware=False, console=False
    )
    assert outcome(bench, [sm], fit, bench.model, {}) == without
    assert sorted(events(sm)) == ["end", "rule broken failed", "source broken failed", "tracker broken switched off"]
    assert caplog.text.count("failed and is tried again") == 2
    assert caplog.text.count("failed and is switched off") == 1
    assert report_of(sm).steps == 4


def test_what_is_no_source_is_refused_when_the_callback_is_made(bench: Bench) -> None:
    with pytest.raises(SettingError, match="sources holds"):
        bench.module.StallMonitor(sources=[object()])


@both_namespaces
def test_a_callback_that_is_called_by_another_one(bench: Bench) -> None:
    """The trainer does not know ours."""
    sm = bench.monitor()
    hooks = ("setup", "on_train_start", "on_train_epoch_start", "on_train_batch_end", "on_train_end", "teardown")
    wrapper = type("Wrapper", (bench.pl.Callback,), {h: staticmethod(getattr(sm, h)) for h in hooks})()
    bench.trainer(wrapper).fit(bench.model(), rows())
    assert report_of(sm).steps == 4


def test_the_directory_becomes_a_file(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    sm = bench.monitor(directory=bench.folder / "rec")
    (bench.folder / "rec").write_text("not a folder")
    bench.trainer(sm).fit(bench.model(), rows())
    assert sm.monitor.folder is None
    assert caplog.text.count("opening the recording failed") == 1
