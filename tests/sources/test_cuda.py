"""Device timing begins when CUDA is used, follows the training's stream, and never touches what it should not."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import pytest

from stallmeter.engine.monitor import Monitor
from stallmeter.records import DeviceStep, Event
from stallmeter.report.model import read_history
from stallmeter.sources import cuda as door
from stallmeter.sources.cuda import CudaSource
from stallmeter.timing.clock import DataSpan, StepClock
from stallmeter.timing.ledger import DATA_WAIT, FORWARD, LOOP, Ledger, WorkSpan

from ..conftest import FakeTime
from ..monitors import bare_run
from ..simulated_gpu import SimulatedGpu
from .fake_torch import FakeStream, fake_torch


class Bench:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, devices: int = 1) -> None:
        self.time = FakeTime()
        self.gpu = SimulatedGpu(self.time)
        self.torch = fake_torch(self.gpu, devices)
        self.cuda = self.torch.cuda
        self.modules: dict[str, Any] = {"torch": self.torch}
        self.clock = StepClock(Ledger(LOOP, now=self.time), loop=LOOP, idle=LOOP)
        self.swaps: list[int] = []
        monkeypatch.setattr(door, "capture_mode_exchange", lambda torch: self._exchange)
        self._mode = 0

    def _exchange(self, mode: Any) -> int:
        mode = ctypes.cast(mode, ctypes.POINTER(ctypes.c_int)).contents
        self._mode, mode.value = mode.value, self._mode
        self.swaps.append(self._mode)
        return 0

    def source(self) -> CudaSource:
        return CudaSource(self.clock, self.modules)

    def step(self, wait_ms: float = 2.0, gpu_ms: float = 1.0) -> None:
        with DataSpan(self.clock, DATA_WAIT):
            self.gpu.work(wait_ms)
        with WorkSpan(self.clock.ledger, FORWARD):
            self.gpu.launch(gpu_ms)
            self.gpu.work(0.1)
        self.clock.worked = True

    def steps(self, count: int, **options: float) -> None:
        for _ in range(count):
            self.step(**options)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_nothing_happens_without_torch_or_cuda(bench):
    """No torch, torch without CUDA in use, CUDA without anything on it: the ledger hears of no device."""
    source = CudaSource(bench.clock, {})
    assert source.sample(0.0) == ()
    bench.cuda.initialized = False
    source = bench.source()
    assert source.sample(0.0) == ()
    bench.cuda.initialized = True
    assert source.sample(0.0) == ()
    assert bench.clock.ledger.device is None
    assert bench.cuda.events == []
    bench.cuda.allocated[0] = 1
    source.sample(0.0)
    assert bench.clock.ledger.device is not None


def test_steps_are_timed_and_resolved_on_another_thread(bench):
    """The training thread records, the sampler asks, within the device's own context and with its mode swapped."""
    bench.cuda.allocated[0] = 1
    source = bench.source()
    bench.steps(10, wait_ms=2.0, gpu_ms=1.0)
    bench.clock.pause()
    bench.gpu.synchronize()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(source.sample(1.0)))
    thread.start()
    thread.join()
    assert [s.index for s in found] == list(range(10))
    assert found[5].exposed_wait_s == pytest.approx(0.0011)
    assert bench.cuda.entered == [(0, False)]
    assert bench.swaps == [door.THREAD_LOCAL, 0]
    assert source.sample(2.0) == []


def test_the_stream_is_that_of_the_moment(bench):
    """A program may go on with another stream at any time."""
    bench.cuda.allocated[0] = 1
    bench.source()
    bench.step()
    first = bench.cuda.streams[0]
    bench.cuda.streams[0] = FakeStream(0)
    bench.steps(2)
    used = [stream for event in bench.cuda.events for stream in event.streams]
    assert used[0] is first
    assert used[-1] is bench.cuda.streams[0]


@pytest.mark.parametrize(
    ("allocated", "current", "chosen"),
    [
        pytest.param({0: 0, 1: 5, 2: 0}, 0, 1, id="the only one in use"),
        pytest.param({0: 5, 1: 5, 2: 0}, 1, 1, id="the current one of several in use"),
        pytest.param({0: 5, 1: 0, 2: 5}, 1, 1, id="not known: the current one"),
    ],
)
def test_several_devices(monkeypatch, allocated, current, chosen):
    """A plain loop may use cuda:1 without choosing it; a device that nobody uses is not touched."""
    bench = Bench(monkeypatch, devices=3)
    bench.cuda.allocated, bench.cuda.current = allocated, current
    bench.source()
    bench.steps(2)
    assert {stream.device for event in bench.cuda.events for stream in event.streams} == {chosen}
    assert {index for index, _ in bench.cuda.entered} == ({chosen} if chosen != current else set())


def test_steps_that_come_fast_are_sampled(bench):
    """Above 100 steps a second the training thread pays for every tenth, or so, only."""
    bench.cuda.allocated[0] = 1
    source = bench.source()
    source.sample(1.0)
    bench.steps(1000, wait_ms=0.9, gpu_ms=0.1)
    source.sample(2.0)
    recorded = bench.gpu.records
    bench.steps(1000, wait_ms=0.9, gpu_ms=0.1)
    assert bench.gpu.records - recorded == pytest.approx(100 * 5, abs=10)


def test_a_capture_on_the_training_thread_is_left_alone(bench):
    """The last sample of a run is taken there."""
    bench.cuda.allocated[0] = 1
    source = bench.source()
    bench.steps(5)
    bench.gpu.synchronize()
    bench.gpu.is_capturing = True
    assert source.sample(1.0) == ()
    bench.gpu.is_capturing = False
    assert len(source.sample(1.0)) == 4


def test_a_failed_device_is_named_once(bench):
    bench.cuda.allocated[0] = 1
    source = bench.source()
    bench.steps(3, gpu_ms=0.1)
    bench.gpu.broken = "CUDA error: an illegal memory access was encountered\nmore"
    with pytest.raises(RuntimeError, match="illegal memory access"):
        source.sample(1.0)
    assert bench.clock.ledger.device is None
    assert source.sample(2.0) == ()


def test_a_failure_to_record_is_told(bench):
    bench.cuda.allocated[0] = 1
    source = bench.source()
    bench.gpu.broken = "CUDA error: device-side assert triggered\nmore"
    bench.steps(2)
    bench.gpu.broken = None
    *steps, event = source.sample(1.0)
    assert all(isinstance(s, DeviceStep) and s.exposed_wait_s is None for s in steps)
    assert event == Event(
        time_s=1.0, name="device timing switched off", detail="CUDA error: device-side assert triggered"
    )
    assert bench.clock.ledger.device is None


def test_no_driver_function_no_timing(bench, monkeypatch):
    """Where other threads' captures could be spoiled nothing is timed."""
    monkeypatch.setattr(door, "capture_mode_exchange", lambda torch: None)
    bench.cuda.initialized = False
    source = bench.source()
    bench.cuda.initialized, bench.cuda.allocated[0] = True, 1
    (event,) = source.sample(3.0)
    assert event.name == "device timing not used"
    assert source.sample(4.0) == ()
    assert bench.clock.ledger.device is None


def test_closing_lets_go(bench):
    bench.cuda.allocated[0] = 1
    source = bench.source()
    source.close()
    assert bench.clock.ledger.device is None
    assert source.sample(1.0) == ()


def test_through_a_monitor(bench, tmp_path):
    """What the device did reaches the recording, and from there the report."""
    run = bare_run(tmp_path, interval_s=0.02, now=bench.time)
    bench.clock = run.clock
    bench.cuda.allocated[0] = 1
    run.collector.sources["cuda"] = CudaSource(run.clock, bench.modules)
    monitor = Monitor.of(run.start())
    wait = DataSpan(run.clock, DATA_WAIT)
    for _ in range(40):
        with wait:
            bench.gpu.work(5.0)
        with monitor.span("forward"):
            bench.gpu.launch(20.0)
            bench.gpu.work(0.1)
        run.clock.worked = True
    run.clock.pause()
    bench.gpu.synchronize()
    monitor.close()
    assert monitor.folder is not None
    report = read_history(monitor.folder).report()
    assert report.device is not None
    assert (report.device.timed_steps, report.device.host_clock_steps) == (37, 0)
    assert report.device.host_wait_s == pytest.approx(0.005)
    assert report.device.exposed_wait_s == pytest.approx(0.0, abs=1e-9)
    assert report.device.forward_s == pytest.approx(0.02)
    assert report.data_wait_share_pct == pytest.approx(100 * 5.0 * 40 / (40 * 5.1 + 40 * 14.9), rel=0.03)
    assert bench.clock.ledger.device is None


def test_this_machine_without_a_driver_has_no_capture_mode(monkeypatch):
    """The function is looked for in the driver, and its absence is no error."""

    def none(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", none)
    assert door.capture_mode_exchange(fake_torch(SimulatedGpu(FakeTime()))) is None
