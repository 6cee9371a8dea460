"""On a real CUDA device: exposed wait against a profiler's trace, and nothing that waits for the device.

Run with ``pytest -m gpu tests/gpu``. Skipped without a device.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stallmeter.records import DeviceStep
from stallmeter.sources import cuda
from stallmeter.sources.cuda import CudaSource
from stallmeter.sources.syncs import SURE_POLLS, SyncProbe
from stallmeter.sources.torch_view import AllocatorSource
from stallmeter.timing.clock import DataSpan, StepClock
from stallmeter.timing.ledger import COMPUTE, DATA_WAIT, Ledger

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Loop:
    """A plain loop over a wait and some matrix products."""

    def __init__(self, size: int = 2048) -> None:
        self.a = torch.randn(size, size, device="cuda")
        self.clock = StepClock(Ledger(COMPUTE), loop=COMPUTE, idle=COMPUTE)
        self.source = CudaSource(self.clock)
        self.steps: list[DeviceStep] = []
        self.out: Any = None

    def step(self, wait_s: float, products: int) -> None:
        with DataSpan(self.clock, DATA_WAIT), torch.profiler.record_function("data wait"):
            time.sleep(wait_s)
        for _ in range(products):
            self.out = self.a @ self.a
        self.clock.worked = True

    def resolve(self) -> None:
        """As the sampler thread does."""
        failures: list[BaseException] = []

        def take() -> None:
            try:
                self.steps += [r for r in self.source.sample(time.time()) if isinstance(r, DeviceStep)]
            except BaseException as exc:  # it is raised below
                failures.append(exc)

        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]

    def end(self) -> list[DeviceStep]:
        self.clock.pause()
        torch.cuda.synchronize()
        self.resolve()
        return self.steps


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    for _ in range(5):  # cuBLAS makes its workspace, the clocks rise
        made.step(0.0, 20)
    made.clock.pause()
    torch.cuda.synchronize()
    made.resolve()
    made.steps.clear()
    yield made
    made.source.close()


def idle_in_waits_s(path: Path) -> list[float]:
    """Of each annotated wait in a trace, the time in which no kernel ran."""
    import gzip
    import json

    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    waits = sorted(
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if e.get("name") == "data wait" and e.get("cat") == "user_annotation"
    )
    kernels = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") == "kernel")
    found = []
    for begin, end in waits:
        busy = sum(max(0.0, min(end, stop) - max(begin, start)) for start, stop in kernels)
        found.append((end - begin - busy) / 1e6)
    return found


@pytest.mark.parametrize(("wait_s", "products"), [(0.02, 20), (0.005, 100), (0.03, 2)])
def test_exposed_wait_against_a_trace(loop: Loop, tmp_path: Path, wait_s: float, products: int) -> None:
    """Within 3 % of the waits' host time of what a profiler's trace shows as idle."""
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profile:
        for _ in range(20):
            loop.step(wait_s, products)
        steps = loop.end()
    path = tmp_path / "trace.json.gz"
    profile.export_chrome_trace(str(path))
    truth = idle_in_waits_s(path)
    assert len(steps) == len(truth) == 20
    assert all(s.exposed_wait_s is not None for s in steps)
    measured = sum(s.exposed_wait_s or 0.0 for s in steps)
    assert measured == pytest.approx(sum(truth), abs=0.03 * 20 * wait_s)


def test_a_long_queue_hides_the_wait(loop: Loop) -> None:
    begun = time.perf_counter()
    loop.step(0.0, 200)
    loop.clock.pause()
    torch.cuda.synchronize()
    work_s = time.perf_counter() - begun
    loop.resolve()
    loop.steps.clear()
    for _ in range(10):
        loop.step(work_s / 4, 200)
    steps = loop.end()
    assert sum(s.exposed_wait_s or 0.0 for s in steps[1:]) < 0.05 * sum(s.host_wait_s for s in steps[1:])


def test_nothing_waits_for_the_device(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch raises an error at each synchronising call; none of our parts makes one."""
    monkeypatch.setattr(cuda, "TIMED_STEPS_PER_S", math.inf)  # steps that come fast are not all timed
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(50):
            loop.step(0.0, 50)
            loop.resolve()
            assert AllocatorSource().sample(0.0)[0].reserved_peak_bytes
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(loop.end()) == 50


def test_events_are_used_again(loop: Loop) -> None:
    for _ in range(500):
        loop.step(0.0, 1)
        loop.resolve()
    loop.end()
    timeline = loop.source._timeline
    assert timeline is not None
    assert timeline.unused == timeline.events < 1000


def test_a_graph_capture_is_not_disturbed(loop: Loop) -> None:
    """While a graph is captured in the strictest mode another thread keeps asking events, and no event gets in."""
    for _ in range(20):
        loop.step(0.0, 50)
    stop = threading.Event()
    sampler = threading.Thread(target=lambda: [loop.source.sample(0.0) for _ in iter(stop.is_set, True)])
    static = torch.ones(64, 64, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        static @ static
    torch.cuda.current_stream().wait_stream(side)
    sampler.start()
    try:
        graph = torch.cuda.CUDAGraph()
        with DataSpan(loop.clock, DATA_WAIT), torch.cuda.graph(graph, capture_error_mode="global"):
            with DataSpan(loop.clock, DATA_WAIT):
                pass
            result = static @ static
    finally:
        stop.set()
        sampler.join()
    loop.clock.worked = True
    graph.replay()
    loop.end()
    assert float(result[0, 0]) == 64.0


def test_the_probe_finds_item(loop: Loop) -> None:
    """PyTorch's warnings reach the probe, with this file's line, and nobody else."""
    calls: list[Any] = []
    probe = SyncProbe(lambda name, call: calls.append(call), 2)
    for _ in range(SURE_POLLS):
        probe.sample(0.0)
    loop.clock.open = True
    loop.clock.index = 10
    assert calls[0](loop.clock)
    try:
        for _ in range(2):
            loop.a.sum().item()
            calls[0](loop.clock)
    finally:
        probe.close()
    (found,) = probe.sample(0.0)
    assert found.steps == 2
    assert any("test_cuda_live.py" in place and count >= 2 for place, count in found.calls.items())
    assert torch.cuda.get_sync_debug_mode() == 0


def test_a_fit_on_the_device(tmp_path: Path) -> None:
    """A real Trainer on the GPU times its steps, copies included."""
    lightning = pytest.importorskip("lightning.pytorch")
    from stallmeter.lightning.unified import StallMonitor

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8)))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layers(batch).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    data = torch.utils.data.DataLoader(torch.randn(64 * 400, 1024), batch_size=64, pin_memory=True)
    ours = StallMonitor(directory=tmp_path, trackers=None, console=False, interval_s=0.1)
    lightning.Trainer(
        max_epochs=2,
        accelerator="cuda",
        devices=1,
        callbacks=[ours],
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    ).fit(Model(), data)
    window = ours.monitor.window
    assert len(window.device.steps.items) > 20
    assert window.device.exposed_wait_share is not None
    assert window.device.h2d_share_pct is not None
    assert window.device.h2d_share_pct > 0
    assert window.gpu.allocators[0].allocated_peak_bytes
    assert window.facts["non_blocking"] is True
