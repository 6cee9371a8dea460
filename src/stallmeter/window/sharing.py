"""Whether batches take longer the more workers make one at a time: then they share what they wait for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..records import WorkerBatch

BLOCK = 16
"""Neighbouring batches that may be slow together, so that they count as one observation."""

MIN_BLOCKS = 4
"""In which the number of workers at work changes: one of them alone may be an accident."""

SIGMAS = 3.0
"""Standard errors by which the growth must differ from none: two measures are tried, again and again in a run."""

LEAST_SHARE = 0.4
"""Of the blocked time that must grow, two standard errors taken off: less may be an accident of how epochs begin and
end, and decides nothing. Of 340 simulated loaders that share nothing none reached it; of those with a line before the
store, and pauses or short epochs, 9 of 10 did."""


@dataclass(frozen=True, slots=True)
class Growth:
    """How the blocked time of a batch depends on the workers at work beside it."""

    per_worker_s: float
    """What each of them adds."""
    error_s: float
    """Standard error of that."""
    share: float
    """Part of a batch's blocked time that is there because of the others and itself in turn: 1 where one at a time gets
    through, 0 where each waits for itself."""

    @property
    def shows_sharing(self) -> bool:
        """Whether it is more than chance, and more than loaders show that share nothing.

        No answer the other way: a store that all share may not show here, as when all batches begin and end together.
        """
        if self.per_worker_s <= SIGMAS * self.error_s:
            return False
        return self.share * (1 - 2 * self.error_s / self.per_worker_s) >= LEAST_SHARE


def growth(batches: Sequence[WorkerBatch]) -> Growth | None:
    """Compare neighbouring batches; None where the number of workers at work hardly changes, or too little is known.

    Two measures of it are tried. Where requests wait in line, what counts is who was there before; where a bandwidth is
    divided, who was there meanwhile.

    Args:
        batches: Of one number of workers.
    """
    seen: set[int] = set()
    made = []
    for batch in sorted(batches, key=lambda b: b.time_s - b.wall_s):
        if batch.worker in seen and batch.blocked_s is not None and batch.in_flight is not None:
            made.append(batch)
        seen.add(batch.worker)
    blocks = [made[i : i + BLOCK] for i in range(0, len(made) - BLOCK + 1, BLOCK)]
    most = sorted(b.blocked_s or 0.0 for b in made)[-1 - len(made) // 20] if made else 0.0

    def blocked(batch: WorkerBatch) -> float:
        return min(most, batch.blocked_s or 0.0)

    found = [_slope(blocks, of, blocked) for of in (lambda b: 1.0 + (b.ahead or 0), lambda b: b.in_flight or 1.0)]
    known = [one for one in found if one is not None]
    return max(known, key=lambda one: one.per_worker_s / max(one.error_s, 1e-9), default=None)


def _slope(
    blocks: Sequence[Sequence[WorkerBatch]], of: Callable[[WorkerBatch], float], blocked: Callable[[WorkerBatch], float]
) -> Growth | None:
    """Fit one slope to the differences between neighbours; its error is from leaving out one block after the other.

    Differences, because a store that turns slow keeps all workers at work: batches then take long while many are made,
    though nothing is shared. But the first that take long are begun among few, and the last among many.
    """
    sums = []
    for block in blocks:
        xs, ys = [of(batch) for batch in block], [blocked(batch) for batch in block]
        pairs = [(xs[i + 1] - xs[i], ys[i + 1] - ys[i]) for i in range(len(block) - 1)]
        xx = math.fsum(dx * dx for dx, _ in pairs)
        if xx > 0:
            sums.append((xx, math.fsum(dx * dy for dx, dy in pairs), math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)))
    squares = math.fsum(s[0] ** 2 for s in sums)
    if not squares or math.fsum(s[0] for s in sums) ** 2 < MIN_BLOCKS * squares:
        return None
    xx, xy = math.fsum(s[0] for s in sums), math.fsum(s[1] for s in sums)
    slope, n = xy / xx, len(sums)
    others = [(xy - s[1]) / (xx - s[0]) for s in sums]
    error = math.sqrt((n - 1) / n * math.fsum((o - slope) ** 2 for o in others))
    x, y = math.fsum(s[2] for s in sums) / n, math.fsum(s[3] for s in sums) / n
    return Growth(slope, error, max(0.0, min(1.0, slope * x / y)) if y > 0 else 0.0)
