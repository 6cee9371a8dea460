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
        """What had been compiled before the run began."""
        self._last: CompilerSample | None = None

    def sample(self, time_s: float) -> Sequence[CompilerSample]:
        """Return the counters if they have changed.

        Args:
            time_s: Unix time of this poll.
        """
        now, base = self._read(), self._base
        if now.by_frame is None and now.times is None:
            return ()
        if _is_reset(now, base):  # by torch.compiler.reset(): what was counted until now is in the last sample
            base = self._base = _Counters({}, [])
        times = None if now.times is None else now.times[len(base.times or ()) :]
        counts = None if now.by_frame is None else _since(now.by_frame, base.by_frame or {})
        again = None if counts is None else sum(new if known else new - 1 for known, new in counts if new)
        found = CompilerSample(
            time_s=time_s,
            compilations=len(times or ()) if counts is None else sum(new for _, new in counts),
            recompilations=again,
            seconds=None if times is None else sum(times),
            recompile_s=None if times is None or again is None else sum(sorted(times)[:again]),
        )
        last = self._last
        if last is not None and (last.compilations, last.seconds) == (found.compilations, found.seconds):
            return ()
        self._last = found
        return (found,)

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


def _is_reset(now: _Counters, base: _Counters) -> bool:
    fewer = len(now.times or ()) < len(base.times or ())
    return fewer or any((now.by_frame or {}).get(frame, 0) < count for frame, count in (base.by_frame or {}).items())


def _since(now: Mapping[Any, int], base: Mapping[Any, int]) -> list[tuple[bool, int]]:
    """Return for each piece of code whether it had been compiled before the run, and how often since."""
    return [(bool(base.get(frame)), count - base.get(frame, 0)) for frame, count in now.items()]
