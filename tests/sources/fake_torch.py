"""A torch whose CUDA is a `SimulatedGpu`: the seam between stallmeter and the driver."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from ..simulated_gpu import SimulatedEvent, SimulatedGpu

_SYNCHRONIZING = """
def synchronizing(self):
    if self.mode == 1:
        warnings.warn("called a synchronizing CUDA operation (Triggered internally at x.cpp:1.)", stacklevel=2)
"""
_of_torch: dict[str, Any] = {"__name__": "torch.cuda", "warnings": warnings}
exec(_SYNCHRONIZING, _of_torch)


class FakeStream:
    def __init__(self, device: int) -> None:
        self.device = device


class FakeEvent(SimulatedEvent):
    """Recorded on a stream, as `torch.cuda.Event` is."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        super().__init__(gpu)
        self.streams: list[FakeStream] = []

    def record(self, stream: FakeStream | None = None) -> None:  # type: ignore[override]
        assert stream is not None
        if self.gpu.broken:
            raise RuntimeError(self.gpu.broken)
        self.streams.append(stream)
        self.gpu.records += 1
        super().record()


class FakeCuda:
    """The functions of `torch.cuda` that stallmeter calls; each counts its calls."""

    synchronizing = _of_torch["synchronizing"]
    """What a call like .item() does to whoever listens."""

    def __init__(self, gpu: SimulatedGpu, devices: int = 1) -> None:
        self.gpu = gpu
        self.count = devices
        self.current = 0
        self.initialized = True
        self.allocated = dict.fromkeys(range(devices), 0)
        self.stats: dict[int, Any] = {}
        self.streams = [FakeStream(i) for i in range(devices)]
        self.entered: list[tuple[int, bool]] = []
        self.mode = 0
        self.modes: list[int] = []
        self.events: list[FakeEvent] = []

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        return self.count

    def current_device(self) -> int:
        return self.current

    def memory_allocated(self, index: int) -> int:
        return self.allocated[index]

    def memory_stats_as_nested_dict(self, index: int) -> Any:
        return self.stats.get(index, {})

    def is_current_stream_capturing(self) -> bool:
        return self.gpu.is_capturing

    def current_stream(self, index: int) -> FakeStream:
        return self.streams[index]

    def Event(self, *, enable_timing: bool) -> FakeEvent:
        assert enable_timing
        self.events.append(FakeEvent(self.gpu))
        return self.events[-1]

    @contextlib.contextmanager
    def device(self, index: int) -> Iterator[None]:
        self.entered.append((index, threading.current_thread() is threading.main_thread()))
        yield

    def get_sync_debug_mode(self) -> int:
        return self.mode

    def set_sync_debug_mode(self, mode: int) -> None:
        warnings.warn("Synchronization debug mode is a prototype feature and does not yet detect all", stacklevel=1)
        self.mode = mode
        self.modes.append(mode)


def fake_torch(gpu: SimulatedGpu, devices: int = 1) -> Any:
    cuda = FakeCuda(gpu, devices)
    raw = SimpleNamespace(_cuda_getCurrentRawStream=lambda index: id(cuda.streams[index]))
    return SimpleNamespace(cuda=cuda, _C=raw, version=SimpleNamespace(hip=None))
