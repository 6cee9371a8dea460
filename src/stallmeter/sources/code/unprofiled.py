"""What was seen under a profiler, put right by what the same work takes without one.

Two things make it take longer, and neither is known well: what each event costs, which is measured in a short loop, and
by how much the interpreter is slower meanwhile (before Python 3.12). The sum of all is known. What it differs by from
what is expected is shared out by how much each of the two may be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .fold import Seen

COST_ERROR = 0.15
"""Of what an event costs: 132 ns in a comprehension of `divmod`, and 150 in the loop that it is measured in (ours)."""

SLOW_ERROR = 0.15
"""Of by how much the interpreter is slower; our choice: code differs by a third at the most."""

MORE = 1.3
"""Code of the program may be slowed down by so much more than the code that it was measured with."""

MOST_COST = 0.3
"""Part of what events were thought to cost that may have been the program's own time."""


@dataclass(frozen=True, slots=True)
class Part:
    """Time with one stack of calls, as it was seen, without what its events cost."""

    seen: Seen
    is_apart: bool
    """Whether it belongs to what is known apart."""
    cost_s: float
    """What its events cost."""
    quick_s: float
    """Of its CPU time, what went by unseen, and so as quickly as it does."""

    @property
    def in_python(self) -> bool:
        """Whether it is code that the interpreter runs, and runs in a slower way."""
        return bool(self.seen.stack[-1].function.file)

    def expected_s(self, slower: float) -> float:
        """Return its CPU time without a profiler, as far as that is known of it alone."""
        seen_s = max(0.0, (self.seen.cpu_s or 0.0) - self.quick_s)
        return self.quick_s + (seen_s / slower if self.in_python else seen_s)


def unprofiled(parts: Sequence[Part], cpu_s: float, slower: float) -> list[Seen]:
    """Return what was seen as it is without a profiler.

    Args:
        parts: Of one piece of work.
        cpu_s: CPU time of the same work without a profiler.
        slower: How many times as long the interpreter takes for code while there is one.
    """
    expected = [part.expected_s(slower) for part in parts]
    more_s = cpu_s - sum(expected)
    costs_s = sum(part.cost_s for part in parts)
    python_s = sum(s for part, s in zip(parts, expected, strict=True) if part.in_python)
    by_cost, by_speed = (COST_ERROR * costs_s) ** 2, (SLOW_ERROR * python_s) ** 2
    if not by_cost + by_speed:
        return [part.seen for part in parts]
    more_cost_s = more_s * by_cost / (by_cost + by_speed)
    each_cost = more_cost_s / costs_s if costs_s else 0.0
    each_speed = (more_s - more_cost_s) / python_s if python_s else 0.0
    found = []
    for part, s in zip(parts, expected, strict=True):
        is_s = s + each_cost * part.cost_s + (each_speed * s if part.in_python else 0.0)
        seen_s = part.seen.cpu_s or 0.0
        least_s = part.expected_s(MORE * slower) if part.in_python else seen_s / MORE
        is_s = min(seen_s + MOST_COST * part.cost_s, max(least_s, is_s))
        found.append(Seen(part.seen.stack, part.seen.wall_s + is_s - seen_s, is_s))
    return found
