"""For how long debugging modes of torch were on."""

from __future__ import annotations

from ..records import DebugModes


class ModeSignals:
    """Signals of torch's debugging modes."""

    def __init__(self) -> None:
        self._last: DebugModes | None = None

    def append(self, record: DebugModes) -> None:
        """Take a newer reading."""
        self._last = record

    @property
    def anomaly_s(self) -> float | None:
        """Seconds of the run with ``torch.autograd.set_detect_anomaly``; None where torch was not asked."""
        return None if self._last is None else self._last.anomaly_s

    @property
    def profiler_s(self) -> float | None:
        """Seconds of the run with an active profiler of torch's; None where torch was not asked."""
        return None if self._last is None else self._last.profiler_s
