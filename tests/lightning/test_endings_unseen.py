"""A fit that ends where Lightning calls no hook of ours ends us all the same."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from stallmeter.report.model import read_history

from ..children import PATIENCE_S, our_threads
from .conftest import Bench, both_namespaces


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stallmeter.report.files.write_extras", lambda *_: None)  # they take most of a short run's time


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Lightning ignores Ctrl-C from the first one on."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def assert_ended(sm: Any, trainer: Any, reason: str) -> None:
    """No thread, no patch, and a recording that says how it ended."""
    assert sm.monitor.closed
    for thread in our_threads():
        thread.join(PATIENCE_S)
    assert not our_threads()
    assert not {"_run", "_teardown", "save_checkpoint"} & set(vars(trainer))
    assert not {"on_exception", "process_dataloader"} & set(vars(trainer.strategy))
    assert read_history(sm.monitor.folder).report().ended == reason


def hook(bench: Bench, **hooks: Any) -> Any:
    return type("Other", (bench.pl.Callback,), hooks)()


def tuned(bench: Bench, step: Any) -> Any:
    """A model with what the tuners look for."""
    model = bench.model()
    model.lr, model.batch_size = 0.1, 2
    model.train_dataloader = model.val_dataloader = lambda: bench.loader(16, batch_size=model.batch_size)
    model.training_step = step
    return model


def wrong(*_: Any) -> None:
    raise ZeroDivisionError("that is wrong")


@pytest.mark.parametrize("finder", ["LearningRateFinder", "BatchSizeFinder"])
@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, KeyboardInterrupt])
def test_an_error_inside_a_tuner(bench: Bench, finder: str, error: type[BaseException]) -> None:
    """It has put callbacks of its own in the place of all others."""

    def step(*_: Any) -> None:
        raise error("that is wrong")

    sm = bench.monitor()
    trainer = bench.trainer(sm, getattr(bench.pl.callbacks, finder)(), enable_checkpointing=True)
    with contextlib.suppress(error, SystemExit):  # before 2.3, KeyboardInterrupt ends here
        trainer.fit(tuned(bench, step))
    assert_ended(sm, trainer, f"exception: {error.__name__}")


@both_namespaces
def test_a_tuner_that_ends_the_fit(bench: Bench) -> None:
    sm = bench.monitor()
    finder = bench.pl.callbacks.LearningRateFinder(num_training_steps=3, early_stop_threshold=None)
    finder._early_exit = True
    model = bench.model()
    model.lr = 0.1
    trainer = bench.trainer(sm, finder, enable_checkpointing=True)
    trainer.fit(model, bench.loader())
    assert_ended(sm, trainer, "end")


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_another_stage_inside_a_hook(bench: Bench, stage: str) -> None:
    """The fit's teardown is then told the other stage's name; the other stage's own teardown is not the fit's."""
    closed_inside = []

    def other_stage(_: Any, trainer: Any, module: Any) -> None:
        getattr(trainer, stage)(module, bench.loader(4), **({} if stage == "predict" else {"verbose": False}))
        closed_inside.append(sm.monitor.closed)

    sm = bench.monitor()
    model = bench.model()
    model.test_step = model.predict_step = lambda *_: torch.ones(1)
    trainer = bench.trainer(sm, hook(bench, on_train_end=other_stage))
    trainer.fit(model, bench.loader())
    assert closed_inside == [False]
    assert_ended(sm, trainer, "end")


@pytest.mark.parametrize("fails", [False, True])
def test_the_callback_is_taken_out(bench: Bench, fails: bool) -> None:
    def take_out(_: Any, trainer: Any, *__: Any) -> None:
        trainer.callbacks.remove(sm)
        if fails:
            wrong()

    sm = bench.monitor()
    trainer = bench.trainer(sm, hook(bench, on_train_epoch_end=take_out))
    if fails:
        with pytest.raises(ZeroDivisionError):
            trainer.fit(bench.model(), bench.loader())
    else:
        trainer.fit(bench.model(), bench.loader())
    assert_ended(sm, trainer, "exception: ZeroDivisionError" if fails else "end")


@both_namespaces
def test_another_callback_fails_when_told_of_an_exception(bench: Bench) -> None:
    """Lightning tells nobody else and cleans nothing up: the next fit, or the program's end, is the first we hear."""
    sm, following = bench.monitor(), bench.monitor()
    trainer = bench.trainer(hook(bench, on_train_epoch_end=wrong, on_exception=wrong), sm)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(bench.model(), bench.loader())
    assert not sm.monitor.closed
    bench.trainer(following).fit(bench.model(), bench.loader())
    assert_ended(sm, trainer, "exception")
    assert read_history(following.monitor.folder).report().ended == "end"


@both_namespaces
def test_a_fit_inside_a_fit_of_another_trainer(bench: Bench) -> None:
    outer, inner = bench.monitor(), bench.monitor()

    def fit(*_: Any) -> None:
        bench.trainer(inner).fit(bench.model(), bench.loader())
        assert not outer.monitor.closed

    trainer = bench.trainer(outer, hook(bench, on_train_epoch_end=fit))
    trainer.fit(bench.model(), bench.loader())
    assert inner.monitor.closed
    assert_ended(outer, trainer, "end")


@pytest.mark.parametrize("fails", [False, True])
def test_a_fit_in_a_forked_process(unified: Bench, fails: bool) -> None:
    """Lightning calls no hook there after an exception, and what is registered with atexit is left out."""
    sm = unified.module.StallMonitor(
        directory=unified.folder / "rec", trackers=None, hardware=False, workers=False, console=False
    )
    callbacks = [sm, hook(unified, on_train_epoch_end=wrong)] if fails else [sm]
    trainer = unified.trainer(*callbacks, strategy="ddp_fork", devices=1)
    if fails:
        with pytest.raises(Exception, match="that is wrong"):
            trainer.fit(unified.model(), unified.loader())
    else:
        trainer.fit(unified.model(), unified.loader())
    [folder] = (unified.folder / "rec").iterdir()
    assert read_history(folder).report().ended == ("exception: ZeroDivisionError" if fails else "end")
