"""The sync probe finds the lines that wait, and leaves Python's warnings as they were."""

from __future__ import annotations

import pickle
import sys
import threading
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from stallmeter.engine.between_steps import BetweenSteps
from stallmeter.rules.host_sync import HostSync
from stallmeter.sources.syncs import FIRST_STEP, SURE_POLLS, SyncProbe, call_site
from stallmeter.timing.clock import StepClock
from stallmeter.timing.ledger import Ledger
from stallmeter.window import Window

from ..conftest import FakeTime
from ..monitors import bare_run
from ..rules.test_launch_bound import launching
from ..simulated_gpu import SimulatedGpu
from .fake_torch import fake_torch


class Bench:
    def __init__(self, steps: int = 2) -> None:
        self.torch = fake_torch(SimulatedGpu(FakeTime()))
        self.cuda = self.torch.cuda
        self.clock = StepClock(Ledger(now=FakeTime()))
        self.clock.open = True
        self.registered: list[Any] = []
        self.wanted = True
        self.probe = SyncProbe(
            lambda name, call: self.registered.append(call), steps, lambda: self.wanted, {"torch": self.torch}
        )
        self.poll()

    def poll(self, times: int = SURE_POLLS) -> None:
        for _ in range(times):
            assert self.probe.sample(0.0) == ()

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
    announce = [getattr(warnings, name, None) for name in ("_filters_mutated", "_filters_mutated_lock_held")]
    return id(warnings.filters), list(warnings.filters), warnings.showwarning, announce


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
    warnings.filters[:] = [f for f in warnings.filters if f in before[1]]
    assert state() == before


def test_no_step_is_probed_without_cuda():
    torch = fake_torch(SimulatedGpu(FakeTime()))
    torch.cuda.initialized = False
    for modules in ({}, {"torch": torch}):
        probe = SyncProbe(pytest.fail, 2, modules=modules)
        for _ in range(SURE_POLLS):
            assert probe.sample(0.0) == ()
    assert torch.cuda.modes == []


def test_a_healthy_run_is_never_probed():
    """A passing impression is no reason either."""
    bench = Bench()
    bench.registered.clear()
    bench.probe = SyncProbe(pytest.fail, 2, lambda: bench.wanted, {"torch": bench.torch})
    bench.wanted = False
    bench.poll(10 * SURE_POLLS)
    for _ in range(10):
        bench.wanted = True
        bench.poll(SURE_POLLS - 1)
        bench.wanted = False
        bench.poll(1)
    assert bench.cuda.modes == []


def test_what_asks_for_the_probe():
    """A GPU that idles inside the steps, also one with work queued at their ends; no busy one."""
    suspects = HostSync().suspects
    assert suspects(launching())
    assert suspects(launching(caught_up=0.2))
    assert not suspects(launching(busy_pct=95.0))
    assert not suspects(Window())


@pytest.mark.parametrize("busy_pct", [60.0, 95.0])
def test_the_window_is_asked(busy_pct, tmp_path, monkeypatch):
    """With everything as it is by default, the window of the run decides."""
    monkeypatch.setitem(sys.modules, "torch", fake_torch(SimulatedGpu(FakeTime())))
    monkeypatch.setattr("stallmeter.engine.wiring.Window", lambda: launching(busy_pct))
    asked = []
    # Others ask for the training thread as well, on some CPUs.
    monkeypatch.setattr(BetweenSteps, "add", lambda _, name, __: asked.append(name))
    run = bare_run(tmp_path, hardware=True)
    probe = run.collector.sources["sync probe"]
    for _ in range(SURE_POLLS):
        probe.sample(0.0)
    assert (probe.name in asked) == (busy_pct < 90.0)


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


def ours() -> list[Any]:
    """What of the probe's stands among the filters."""
    return [entry for entry in warnings.filters if type(entry[1]).__module__ == "stallmeter.sources.syncs"]


def test_a_catch_warnings_that_ends_in_a_probed_step(bench):
    """It puts back a list from before the probe: what the mode reports still reaches nobody."""
    bench.warm_up()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        around = warnings.catch_warnings()
        around.__enter__()
        bench.boundary()
        around.__exit__(None, None, None)
        work(bench)
        bench.boundary()
        bench.boundary()
        assert ours() == []
    (found,) = bench.probe.sample(0.0)
    assert sum(found.calls.values()) == 1


def test_a_catch_warnings_that_begins_in_a_probed_step(bench):
    """It ends when the probe is long over, and brings nothing of it back."""
    before = state()
    bench.warm_up()
    bench.boundary()
    around = warnings.catch_warnings()
    around.__enter__()
    warnings.simplefilter("error")
    work(bench)
    bench.boundary()
    bench.boundary()
    assert ours() == []
    with pytest.raises(UserWarning, match="mine"):
        warnings.warn("mine", stacklevel=1)
    around.__exit__(None, None, None)
    assert state() == before


def test_filters_that_the_step_changes_stay_changed(bench):
    bench.warm_up()
    with warnings.catch_warnings():
        bench.boundary()
        warnings.filterwarnings("error", message="the step's own")
        warnings.filterwarnings("ignore", message="appended", append=True)
        work(bench)
        bench.boundary()
        bench.boundary()
        entries = [(entry[0], getattr(entry[1], "pattern", entry[1])) for entry in warnings.filters]
        assert entries[0] == ("error", "the step's own")
        assert entries[-1] == ("ignore", "appended")
        with pytest.raises(UserWarning, match="own"):
            warnings.warn("the step's own", stacklevel=1)
    assert sum(bench.probe.sample(0.0)[0].calls.values()) == 1


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_a_mode_that_the_step_switches_on_stays_on(bench, mode):
    """And reports to the program from then on. What was heard until then is half of the truth: nothing is said."""
    before, switch = state(), bench.cuda.set_sync_debug_mode
    bench.warm_up()
    bench.boundary()
    work(bench)
    bench.cuda.set_sync_debug_mode(mode)
    if mode == 1:
        with pytest.warns(UserWarning, match="synchronizing"):
            work(bench)
    assert not bench.boundary()
    assert bench.cuda.mode == mode
    assert bench.cuda.set_sync_debug_mode == switch
    assert bench.probe.sample(0.0) == ()
    assert state() == before


def test_calls_of_other_threads(bench, capsys):
    """They are not the step's, and are not shown: nobody asked for the mode."""
    bench.warm_up()
    bench.boundary()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        thread = threading.Thread(target=work, args=(bench,))
        thread.start()
        thread.join()
    bench.boundary()
    bench.boundary()
    assert bench.probe.sample(0.0)[0].calls == {}
    assert capsys.readouterr().err == ""


def test_filters_that_are_sent_to_another_process(bench):
    """As joblib and scikit-learn do; there is nothing to hear there."""
    bench.warm_up()
    bench.boundary()
    assert len(ours()) == 1
    sent = pickle.loads(pickle.dumps(ours()))
    bench.probe.close()
    assert sent[0][1].match("called a synchronizing CUDA operation") is None


def test_a_filter_list_that_was_replaced_is_no_error(bench):
    bench.warm_up()
    with warnings.catch_warnings():
        bench.boundary()
        warnings.resetwarnings()
        work(bench)
        warnings.filters = ()  # type: ignore[assignment]
        bench.boundary()
        warnings.filters = []
        bench.boundary()
    assert bench.cuda.mode == 0
    assert sum(bench.probe.sample(0.0)[0].calls.values()) == 1


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
    assert call_site(frames(*stack)) == expected
