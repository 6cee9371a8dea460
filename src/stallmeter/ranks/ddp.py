"""Who comes late to the exchange of gradients, and what the exchange itself takes, from what DDP timed on each rank.

All ranks stand until the last one's gradients are there: the exchange is long on those who wait, and as long as it
takes by itself on the one they wait for. DDP times one iteration in a hundred, and each rank is asked at its own time,
so that the iterations differ: only what lasts through the run shows here. Where lateness goes round it is silent.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..records import DdpTimes
from .steps import RankSteps, updates_per_step
from .together import LEAST_S

MIN_TIMES = 3
"""Fewer iterations of a rank do not say who is late, nor what the exchange takes to a few tenths of it."""

FIRST = 10
"""DDP times each of so many first iterations, in which ranks still warm up."""

ENOUGH = 8
"""So many later iterations of each rank do without the first ones."""

EACH = 0.6
"""Exchanges in a step from which on there is one in each."""

LASTS = 0.75
"""Share of the iterations of either rank that must lie on its own side of the middle between the two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpExchange:
    """One exchange of gradients, by the medians of what DDP timed."""

    late: int | None
    """The rank for which the others wait, lasting through the run; None where it is no particular one."""
    loss_s: float
    """What the others wait for it in one exchange, by the median of them; 0 without one."""
    backward_s: Mapping[int, float]
    """By rank: its own backward computing."""
    exposed_s: float
    """What the exchange itself takes, beyond what is hidden behind computing."""
    per_step: float
    """Exchanges in a step: less than one where gradients are accumulated."""
    sent_bytes: int
    buckets: int
    times: int
    """Iterations that were looked at, of the rank with the fewest."""

    @property
    def is_known(self) -> bool:
        """Whether there are enough iterations for a judgement; fewer give an idea."""
        return self.times >= MIN_TIMES


def ddp_exchange(times: Mapping[int, Sequence[DdpTimes]], steps: Sequence[RankSteps]) -> DdpExchange | None:
    """Return what DDP's own times say of a job.

    Args:
        times: By rank.
        steps: Of the same ranks.

    Returns:
        None where not all ranks have any, or they are of different modules.
    """
    largest = max((t.sent_bytes for ts in times.values() for t in ts), default=0)
    known = {rank.rank: [t for t in times.get(rank.rank, ()) if t.sent_bytes == largest] for rank in steps}
    settled = {rank: [t for t in ts if t.iteration > FIRST] for rank, ts in known.items()}
    if min(map(len, settled.values()), default=0) >= ENOUGH:
        known = settled
    fewest = min(map(len, known.values()), default=0)
    if len(known) < 2 or not fewest:
        return None
    exposed = {rank: sorted(t.exposed_s for t in ts) for rank, ts in known.items()}
    late, loss_s = _late(exposed) if fewest >= MIN_TIMES else (None, 0.0)
    # One of the ranks is the last to come in each iteration, and has nobody to wait for: so many samples are pure.
    pooled = sorted(value for values in exposed.values() for value in values)
    last = max((t for ts in known.values() for t in ts), key=lambda t: t.iteration)
    return DdpExchange(
        late=late,
        loss_s=loss_s,
        backward_s={rank: statistics.median(t.backward_s for t in ts) for rank, ts in known.items()},
        exposed_s=pooled[len(pooled) // (2 * len(exposed))],
        per_step=_per_step(steps[0], known[steps[0].rank]),
        sent_bytes=last.sent_bytes,
        buckets=last.buckets,
        times=fewest,
    )


def _late(exposed: Mapping[int, Sequence[float]]) -> tuple[int | None, float]:
    middle = {rank: statistics.median(values) for rank, values in exposed.items()}
    order = sorted(middle, key=middle.__getitem__)
    late, usual = order[0], order[len(order) // 2]
    loss_s = middle[usual] - middle[late]
    border_s = middle[late] + loss_s / 2.0
    stands = sum(value < border_s for value in exposed[late]) >= LASTS * len(exposed[late])
    waits = sum(value > border_s for value in exposed[usual]) >= LASTS * len(exposed[usual])
    return (late, loss_s) if loss_s > LEAST_S and stands and waits else (None, 0.0)


def _per_step(steps: RankSteps, times: Sequence[DdpTimes]) -> float:
    """Return exchanges in a step: by the weight updates where the loop counts them, else by DDP's own count.

    Where DDP counts one in each step, gradients are not accumulated, however rare the updates are.
    """
    # DDP's count is of the last hundred: the largest quotient is the least wrong, and no larger than the truth.
    ratio = max((t.iteration / t.step for t in times if t.step), default=1.0)
    updates = updates_per_step(steps)
    if updates is not None:
        return max(1.0, updates) if ratio > EACH else updates
    return float(max(1, round(ratio))) if ratio > EACH else 1.0 / max(1, round(1.0 / ratio))
