"""A device that works its stream off in order, beside a host whose time passes only when told to."""

from __future__ import annotations

import math
from typing import Any

from .conftest import FakeTime


class SimulatedGpu:
    """Milliseconds on the host's clock; what is launched runs after all that was launched before."""

    def __init__(self, time: FakeTime) -> None:
        self.time = time
        self.ready_ms = 0.0
        self.records = 0
        self.is_capturing = False
        self.broken: str | None = None

    @property
    def now_ms(self) -> float:
        return self.time.ns / 1e6

    def work(self, ms: float) -> None:
        """The host computes or sleeps."""
        self.time.sleep(ms / 1e3)

    def launch(self, ms: float) -> None:
        self.ready_ms = max(self.ready_ms, self.now_ms) + ms

    def synchronize(self) -> None:
        self.time.ns += max(0, math.ceil(self.ready_ms * 1e6) - self.time.ns)

    # -- what stallmeter sees of it -----------------------------------------------------------------------------------

    def event(self) -> Any:
        return SimulatedEvent(self)

    def record(self, event: SimulatedEvent) -> None:
        if self.broken:
            raise RuntimeError(self.broken)
        self.records += 1
        event.record()

    def capturing(self) -> bool:
        return self.is_capturing


class SimulatedEvent:
    """Reached when what was launched before it is done. Raises where a CUDA event would."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        self.gpu = gpu
        self.at_ms: float | None = None
        self.generation = 0

    def record(self) -> None:
        self.at_ms = max(self.gpu.now_ms, self.gpu.ready_ms)
        self.generation += 1

    def query(self) -> bool:
        if self.gpu.broken:
            raise RuntimeError(self.gpu.broken)
        assert self.at_ms is not None, "an event was asked that was never recorded"
        return self.gpu.now_ms >= self.at_ms

    def elapsed_time(self, end: SimulatedEvent) -> float:
        if not (self.query() and end.query()):
            raise RuntimeError("device not ready")
        assert self.at_ms is not None
        assert end.at_ms is not None
        return end.at_ms - self.at_ms
