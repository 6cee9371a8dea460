"""The sync probe finds the lines that wait, and leaves Python's warnings as they were."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from stallmeter.clock import StepClock
from stallmeter.ledger import Ledger
from stallmeter.sources.syncs import FIRST_STEP, SyncProbe, place

from ..conftest import FakeTime
from ..simulated_gpu import SimulatedGpu
from .fake_torch import fake_torch


class Bench:
    def __init__(self, steps: int = 2) -> None:
        self.torch = fake_torch(SimulatedGpu(FakeTime()))
        self.cuda = self.torch.cuda
        self.clock = StepClock(Ledger(now=FakeTime()))
        self.clock.open = True
        self.registered: list[Any] = []
        self.probe = SyncProbe(lambda name, call: self.registered.append(call), steps, {"torch": self.torch})
        self.probe.sample(0.0)

    def boundary(self) -> bool:
        self.clock.index += 1
        return bool(self.registered[0](self.clock))

    def warm_up(self) -> None:
        while self.clock.index < FIRST_STEP - 1:
            assert self.boundary()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def state() -> tuple[Any, ...]:
    return list(warnings.filters), warnings.showwarning


def work(bench: Bench) -> None:
    bench.cuda.synchronizing()


def test_calls_are_counted_by_line(bench):
    before = state()
    bench.warm_up()
    work(bench)
    assert bench.cuda.modes == []
    assert bench.boundary()
    assert bench.cuda.mode == 1
    work(bench)
    work(bench)
    assert bench.boundary()
    bench.cuda.synchronizing()
    assert not bench.boundary()
    assert (bench.cuda.mode, state()) == (0, before)
    work(bench)
    (found,) = bench.probe.sample(1.0)
    assert (found.first_step, found.steps) == (FIRST_STEP, 2)
    (most, count), (other, once) = sorted(found.calls.items(), key=lambda item: -item[1])
    assert (count, once) == (2, 1)
    assert most.startswith("sources/test_syncs.py:")
    assert most.endswith(" in work")
    assert other.endswith("in test_calls_are_counted_by_line")
    assert bench.probe.sample(2.0) == ()


def test_nothing_is_raised_or_printed(bench, capsys):
    """Even in a program that turns warnings into errors; its own warnings go their way."""
    bench.warm_up()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bench.boundary()
        work(bench)
        with pytest.raises(UserWarning, match="mine"):
            warnings.warn("mine", stacklevel=1)
        bench.boundary()
        bench.boundary()
    shown: list[str] = []
    before = state()
    assert capsys.readouterr().err == ""
    other = Bench()
    other.warm_up()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warnings, "showwarning", lambda message, *_, **__: shown.append(str(message)))
        other.boundary()
        warnings.simplefilter("always")
        warnings.warn("mine", stacklevel=1)
        work(other)
        other.boundary()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            work(other)
        other.boundary()
    assert shown == ["mine"]
    assert sum(other.probe.sample(0.0)[0].calls.values()) == 2
    warnings.filters[:] = [f for f in warnings.filters if f in before[0]]
    assert state() == before


def test_no_step_is_probed_without_cuda():
    probe = SyncProbe(pytest.fail, 2, {})
    assert probe.sample(0.0) == ()
    torch = fake_torch(SimulatedGpu(FakeTime()))
    torch.cuda.initialized = False
    assert SyncProbe(pytest.fail, 2, {"torch": torch}).sample(0.0) == ()
    assert torch.cuda.modes == []


def test_the_users_own_mode_is_left_alone(bench):
    before = state()
    bench.cuda.mode = 2
    bench.warm_up()
    assert not bench.boundary()
    assert bench.cuda.modes == []
    assert state() == before


@pytest.mark.parametrize("how", ["pause", "close", "no such mode"])
def test_everything_is_restored(bench, how, monkeypatch):
    """Whatever ends the probed step: the epoch, the run, or an error in the switch itself."""
    before = state()
    bench.warm_up()
    if how == "no such mode":

        def fail(mode: int) -> None:
            if mode:
                raise RuntimeError("not in this build")

        monkeypatch.setattr(bench.cuda, "set_sync_debug_mode", fail)
        with pytest.raises(RuntimeError, match="not in this build"):
            bench.boundary()
    else:
        bench.boundary()
        work(bench)
        bench.clock.open = False
        if how == "pause":
            assert not bench.boundary()
            assert len(bench.probe.sample(0.0)) == 1
        else:
            bench.probe.close()
    assert bench.cuda.mode == 0
    assert state() == before


def test_a_filter_list_that_was_replaced_is_no_error(bench):
    bench.warm_up()
    with warnings.catch_warnings():
        bench.boundary()
        warnings.resetwarnings()
        bench.boundary()
        bench.boundary()
    assert bench.cuda.mode == 0


def frames(*modules: str) -> Any:
    """A stack, innermost first."""
    frame = None
    for number, module in reversed(list(enumerate(modules))):
        code = SimpleNamespace(co_filename=f"/x/{module.replace('.', '/')}.py", co_name="f")
        frame = SimpleNamespace(f_globals={"__name__": module}, f_back=frame, f_lineno=number, f_code=code)
    return frame


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        (("warnings", "torch._tensor", "model", "lightning.pytorch.loops.fit", "train"), "x/model.py:2 in f"),
        (("torch._tensor", "torchmetrics.metric", "model"), "torchmetrics/metric.py:1 in f"),
        (("torch._tensor", "lightning.pytorch.core.module", "model", "train"), "x/model.py:2 in f"),
        (("torch.x", "lightning.pytorch.y", "lightning.pytorch.loops.fit", "train"), "pytorch/y.py:1 in f"),
        (("torch.x", "warnings"), "unknown"),
        ((), "unknown"),
    ],
)
def test_whose_line_it_is(stack, expected):
    """The program's own line; the framework's where the framework waits by itself, never the line that calls fit."""
    assert place(frames(*stack)) == expected
