"""What torch.compile does: dynamo's own counters, read where the program has imported it.

Nothing is imported and nothing is wrapped. The counters stand in modules of torch 2.2 to 2.13 under the same names; a
name that is not there costs what it would tell.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..records import CompilerSample

MOST_TIMES = 100_000
"""A list of compilations that is longer than this is nobody's counter."""


class _Counters(NamedTuple):
    by_frame: dict[Any, int] | None
    """Compilations of each piece of code."""
    times: list[float] | None
    """Seconds of each compilation, in their order."""


class CompilerSource:
    """The source of `CompilerSample`.

    Args:
        modules: Where dynamo is looked for.
    """

    name = "compiler"

    def __init__(self, modules: Mapping[str, Any] | None = None) -> None:
        self._modules = sys.modules if modules is None else modules
        self._base = self._read()
        """What had been compiled before the run began, or before frames were counted anew."""
        self._newest: dict[Any, int] = dict(self._base.by_frame or {})
        """Compilations of each piece of code when they were read last."""
        self._before, self._again_before = 0, 0
        """Compilations of the run, and those of them that were not the first, before they were counted anew."""
        self._last: CompilerSample | None = None

    def sample(self, time_s: float) -> Sequence[CompilerSample]:
        """Return the counters if they have changed.

        Args:
            time_s: Unix time of this poll.
        """
        now = self._read()
        if now.by_frame is None and now.times is None:
            return ()
        # torch.compiler.reset() begins to count frames anew, and leaves the times: what was counted before stays.
        if now.by_frame is not None and any(now.by_frame.get(at, 0) < n for at, n in self._newest.items()):
            self._before, self._again_before = self._count(self._newest)
            self._base = self._base._replace(by_frame={})
        if now.times is not None and len(now.times) < len(self._base.times or ()):
            self._base = self._base._replace(times=[])
        self._newest = now.by_frame or {}
        base = self._base
        times = None if now.times is None else now.times[len(base.times or ()) :]
        counted, again = (None, None) if now.by_frame is None else self._count(now.by_frame)
        found = CompilerSample(
            time_s=time_s,
            compilations=len(times or ()) if counted is None else counted,
            recompilations=again,
            seconds=None if times is None else sum(times),
            recompile_s=None if times is None or again is None else sum(sorted(times)[:again]),
        )
        last = self._last
        if last is not None and (last.compilations, last.seconds) == (found.compilations, found.seconds):
            return ()
        self._last = found
        return (found,)

    def _count(self, by_frame: Mapping[Any, int]) -> tuple[int, int]:
        """Return how often something was compiled in the run, and how often again."""
        counts = _since(by_frame, self._base.by_frame or {})
        again = sum(new if known else new - 1 for known, new in counts if new)
        return self._before + sum(new for _, new in counts), self._again_before + again

    def close(self) -> None:
        """Nothing is held."""

    def _read(self) -> _Counters:
        frames = getattr(self._modules.get("torch._dynamo.convert_frame"), "FRAME_COMPILE_COUNTER", None)
        metrics = getattr(self._modules.get("torch._dynamo.utils"), "compilation_time_metrics", None)
        times: list[float] | None = None
        if isinstance(metrics, dict):
            # Copied in one piece: the training thread goes on compiling.
            name = next((key for key in list(metrics) if str(key).endswith("compile_inner")), None)
            times = [] if name is None else list(metrics[name])[:MOST_TIMES]
        return _Counters(dict(frames) if isinstance(frames, dict) else None, times)


def _since(now: Mapping[Any, int], base: Mapping[Any, int]) -> list[tuple[bool, int]]:
    """Return for each piece of code whether it had been compiled before the run, and how often since."""
    return [(bool(base.get(frame)), count - base.get(frame, 0)) for frame, count in now.items()]
