"""The device's timeline: exact on a simulated in-order stream, bounded, and silent where events fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.records import DeviceStep
from stallmeter.timing.clock import DataSpan, StepClock
from stallmeter.timing.device import DeviceTimeline
from stallmeter.timing.ledger import DATA_WAIT, FORWARD, H2D, LOOP, VALIDATION, Ledger, Span, WorkSpan

from ..conftest import FakeTime
from ..simulated_gpu import SimulatedGpu


class Run:
    """A loop in the manner of Lightning: wait, copy, work, callbacks."""

    def __init__(self, **options: int) -> None:
        self.time = FakeTime()
        self.gpu = SimulatedGpu(self.time)
        self.ledger = Ledger(LOOP, now=self.time)
        self.clock = StepClock(self.ledger, loop=LOOP, idle=LOOP)
        self.timeline = DeviceTimeline(self.gpu, **options)
        self.ledger.device = self.timeline
        self.steps: list[DeviceStep] = []
        self.wait = DataSpan(self.clock, DATA_WAIT)
        self.copy = WorkSpan(self.ledger, H2D)
        self.forward = WorkSpan(self.ledger, FORWARD)
        self.callback = Span(self.ledger, self.ledger.slot(7, "Slow"))

    def step(
        self,
        *,
        wait: float = 0.1,
        gpu: float = 10.0,
        cpu: float = 2.0,
        h2d: float = 0.5,
        other: float = 0.3,
        sync: bool = False,
        sync_before: bool = False,
        pageable: bool = False,
    ) -> None:
        if sync_before:
            self.gpu.synchronize()
        with self.wait:
            self.gpu.work(wait)
        with self.copy:
            if pageable:
                self.gpu.synchronize()
            self.gpu.launch(h2d)
        with self.forward:
            self.gpu.work(cpu)
            self.gpu.launch(gpu)
            if sync:
                self.gpu.synchronize()
        with self.callback:
            self.gpu.work(other)
        self.clock.worked = True
        self.steps += self.timeline.resolve()

    def end(self) -> list[DeviceStep]:
        self.clock.pause()
        self.gpu.synchronize()
        self.steps += self.timeline.resolve()
        return self.steps


def ms(steps: list[DeviceStep], name: str) -> float:
    """Mean of a field over the steps from the third on, in ms."""
    values = [getattr(step, name) for step in steps[2:]]
    return 1e3 * sum(values) / len(values)


def steady(**options: object) -> list[DeviceStep]:
    run = Run()
    for _ in range(200):
        run.step(**options)  # type: ignore[arg-type]
    return run.end()


# -- the scenarios: (host wait, exposed wait, idle besides, copy, work) in ms a step ----------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({"wait": 5, "gpu": 20}, (5.0, 0.0, 0.0, 0.5, 20.0), id="the wait is hidden by queued work"),
        # The device ends 10 ms after the launch; of 30.3 ms until the next copy it idles 20.3 in the wait.
        pytest.param({"wait": 30, "gpu": 10}, (30.0, 20.3, 0.0, 0.5, 11.5), id="bound by data"),
        pytest.param({"wait": 30, "gpu": 10, "sync": True}, (30.0, 30.0, 0.3, 0.5, 11.5), id="bound by data, .item()"),
        pytest.param({"wait": 0.1, "gpu": 10, "sync": True}, (0.1, 0.1, 0.3, 0.5, 11.5), id="no wait, .item()"),
        pytest.param({"wait": 0.1, "gpu": 10, "other": 15}, (0.1, 0.1, 5.0, 0.5, 11.5), id="slow callbacks"),
        pytest.param({"wait": 5, "gpu": 20, "pageable": True}, (5.0, 0.0, 0.0, 0.5, 21.5), id="pageable copy"),
        pytest.param({"wait": 5, "gpu": 20, "sync_before": True}, (5.0, 5.0, 0.0, 0.5, 21.5), id="sync before next()"),
    ],
)
def test_a_simulated_stream(options, expected):
    """What the device did is found exactly, whatever the host saw."""
    steps = steady(**options)
    assert len(steps) == 200
    found = [ms(steps, name) for name in ("host_wait_s", "exposed_wait_s", "idle_s", "h2d_s", "forward_s")]
    assert found == pytest.approx(expected, abs=1e-6)


def test_bursts_hidden_by_the_backlog():
    """Every tenth batch takes 100 ms; the queue of a device that needs 20 ms a step covers it once it is long."""
    run = Run()
    for i in range(200):
        run.step(wait=100 if i % 10 == 9 else 0.2, gpu=20)
    steps = run.end()[20:]
    assert sum(s.host_wait_s for s in steps) / len(steps) == pytest.approx(0.01018, abs=1e-6)
    assert max(s.exposed_wait_s or 0.0 for s in steps) == pytest.approx(0.0, abs=1e-6)


def test_the_parts_sum_to_the_device_time_of_the_step():
    """Nothing is counted twice and nothing is lost."""
    for s in steady(wait=7, gpu=4, other=2):
        parts = (s.exposed_wait_s, s.h2d_s, s.forward_s, s.idle_s)
        assert s.total_s == pytest.approx(sum(p or 0.0 for p in parts))
    assert s.backward_s is None
    assert s.compute_s is None


def test_validation_is_no_part_of_a_step():
    run = Run()
    for _ in range(10):
        run.step(wait=1, gpu=5)
        with WorkSpan(run.ledger, VALIDATION):
            run.gpu.launch(1000)
            run.gpu.synchronize()
    for s in run.end():
        assert s.total_s is not None
        assert s.total_s < 0.1
        assert s.host_idle_s < 0.1


# -- the pool ----------------------------------------------------------------------------------------------------------


def test_events_are_used_again_only_after_they_were_read():
    """A device far behind needs many events; one that keeps up needs few, however long the run is."""
    behind, level = Run(), Run()
    for _ in range(300):
        behind.step(wait=0.1, gpu=50)
        level.step(wait=0.1, gpu=1, sync=True)
    assert behind.timeline.events > 1000
    assert level.timeline.events <= 12
    for run in (behind, level):
        assert [s.index for s in run.end()] == list(range(300))
        assert all(s.exposed_wait_s is not None for s in run.steps)
        assert run.timeline.unused == run.timeline.events


def test_the_cap_costs_detail_and_nothing_else():
    """Where no event is to be had a step keeps the host's clock, and timing goes on when there are some again."""
    run = Run(max_events=60)
    for _ in range(100):
        run.step(wait=3, gpu=50)
    assert run.timeline.events == 60
    run.gpu.synchronize()
    run.timeline.resolve()
    for _ in range(20):
        run.step(wait=3, gpu=1, sync=True)
    steps = run.end()
    assert run.timeline.unused == run.timeline.events == 60
    failed = [s for s in steps if s.exposed_wait_s is None]
    assert failed
    assert all(s.host_wait_s == pytest.approx(0.003) and s.total_s is None and s.forward_s is None for s in failed)
    assert all(s.exposed_wait_s is not None for s in steps[-20:])


def test_a_device_that_hangs_does_not_fill_the_memory():
    run = Run(max_events=40)
    for _ in range(500):
        run.step(wait=1, gpu=1e9)
    assert len(run.timeline._pending) <= 80
    assert run.steps == []


@pytest.mark.parametrize("where", ["wait", "copy", "forward", "callback"])
def test_an_exception_leaks_no_event(where):
    """The loop may be left anywhere and entered again."""
    run = Run()
    for _ in range(20):
        run.step()
        run.step()
        try:
            with run.wait:
                if where == "wait":
                    raise KeyError
            for name in ("copy", "forward", "callback"):
                with getattr(run, name):
                    if name == where:
                        raise KeyError
        except KeyError:
            run.clock.pause()
            run.ledger.unwind()
        run.clock.new_epoch(run.clock.epochs)
    assert len(run.end()) >= 40
    assert run.timeline.unused == run.timeline.events


def test_no_event_is_recorded_while_a_graph_is_captured():
    """An event would become part of the user's graph; the step falls back to the host's clock."""
    run = Run()
    run.step()
    with run.wait:
        run.gpu.work(1)
    run.gpu.is_capturing = True
    recorded = run.gpu.records
    with run.copy, run.forward:
        run.gpu.launch(1)
    assert run.gpu.records == recorded
    run.gpu.is_capturing = False
    run.clock.worked = True
    for _ in range(3):
        run.step()
    assert [s.exposed_wait_s is None for s in run.end()] == [False, True, False, False, False]
    assert run.timeline.unused == run.timeline.events


def test_a_device_that_fails_is_left_alone():
    """After an error every further call would fail too."""
    run = Run()
    run.step(gpu=1000)
    run.step(gpu=1000)
    run.gpu.broken = "CUDA error: device-side assert triggered"
    recorded = run.gpu.records
    run.clock.worked = True
    with run.wait:
        run.gpu.work(1)
    with run.forward:
        run.gpu.work(1)
    assert run.timeline.failure == run.gpu.broken
    assert run.gpu.records == recorded
    with pytest.raises(RuntimeError, match="device-side assert"):
        run.timeline.resolve()


def test_only_some_steps_are_timed_where_they_come_fast():
    run = Run()
    run.timeline.stride = 4
    for _ in range(41):
        run.step(wait=2, gpu=1, sync=True)
    steps = run.end()
    assert [s.index for s in steps] == list(range(0, 41, 4))
    assert all(s.exposed_wait_s == pytest.approx(0.002) for s in steps)
    assert run.timeline.unused == run.timeline.events


def test_several_fetches_in_one_step():
    """A step that skips a batch, or fetches inside its forward pass, is one step with all its waits."""
    run = Run()
    with run.wait:
        run.gpu.work(2)
    with run.wait:
        run.gpu.work(3)
    with run.forward:
        run.gpu.launch(1)
        with run.wait:
            run.gpu.work(4)
    run.clock.worked = True
    run.step()
    first = run.end()[0]
    assert (first.index, first.host_wait_s) == (0, pytest.approx(0.009))
    assert first.exposed_wait_s == pytest.approx(0.008)  # 1 ms of the last wait is hidden by the launch


ACTIONS = ["step", "copy", "forward", "wait", "pause", "sync", "launch", "capture", "resolve", "stride"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(ACTIONS),
            st.floats(0, 20, allow_nan=False),
        ),
        max_size=80,
    )
)
def test_whatever_happens_no_event_is_lost_and_no_time_is_invented(actions):
    """Any order of marks: events all come back, and the device is never timed longer than the run."""
    run = Run(max_events=64)
    begun = run.gpu.now_ms
    do: dict[str, Callable[[float], object]] = {
        "step": lambda x: run.step(wait=x, gpu=x / 2),
        "copy": lambda _: run.copy.__enter__(),
        "forward": lambda _: run.forward.__exit__(),
        "wait": lambda x: (run.wait.__enter__(), run.gpu.work(x), run.wait.__exit__()),
        "pause": lambda _: run.clock.pause(),
        "sync": lambda _: run.gpu.synchronize(),
        "launch": lambda x: run.gpu.launch(x),
        "capture": lambda _: setattr(run.gpu, "is_capturing", not run.gpu.is_capturing),
        "resolve": lambda _: run.steps.extend(run.timeline.resolve()),
        "stride": lambda x: setattr(run.timeline, "stride", 1 + int(x) % 3),
    }
    for name, x in actions:
        do[name](x)
    steps = run.end()
    assert run.timeline.unused == run.timeline.events <= 64
    assert sum(s.total_s or 0.0 for s in steps) <= (run.gpu.now_ms - begun) / 1e3 + 1e-6
    indices = [s.index for s in steps]
    assert indices == sorted(set(indices))
