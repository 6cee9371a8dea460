"""Whether a debugging mode of torch is on: asked of torch where the program has imported it.

Nothing is imported and nothing is changed. Both are the same in all threads, in torch 2.2 to 2.13: anomaly detection is
a global of the engine's, and what the profiler notes is a global of its module.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..records import DebugModes


class ModeSource:
    """The source of `DebugModes`: what is on at a poll is taken to have been on since the last one.

    Args:
        modules: Where torch is looked for.
    """

    name = "debugging modes"

    def __init__(self, modules: Mapping[str, Any] | None = None) -> None:
        self._modules = sys.modules if modules is None else modules
        self._last_s: float | None = None
        self._anomaly_s = self._profiler_s = 0.0

    def sample(self, time_s: float) -> Sequence[DebugModes]:
        """Return for how long modes were on, if one is; and at the first poll, that none was yet.

        Args:
            time_s: Unix time of this poll.
        """
        torch = self._modules.get("torch")
        anomaly = getattr(torch, "is_anomaly_enabled", bool)()
        profiler = bool(getattr(self._modules.get("torch.autograd.profiler"), "_is_profiler_enabled", False))
        first = self._last_s is None
        passed_s = 0.0 if self._last_s is None else max(0.0, time_s - self._last_s)
        self._last_s = time_s
        self._anomaly_s += passed_s * anomaly
        self._profiler_s += passed_s * profiler
        if not (first or anomaly or profiler):
            return ()
        return (DebugModes(time_s=time_s, anomaly_s=self._anomaly_s, profiler_s=self._profiler_s),)

    def close(self) -> None:
        """Nothing is held."""
