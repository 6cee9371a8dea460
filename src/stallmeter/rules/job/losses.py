"""What a job loses to ranks that come late, by cause: the merge's findings, scaled to the whole run."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...ranks.arrivals import Exchanges
from ...ranks.between import BETWEEN, shares_between
from ...ranks.job import Job
from ...ranks.merge import Merged

COMPUTE = "compute"
"""A rank's own work in the step: what is no wait for data, no callback, logger, checkpoint or validation."""

_OWN_WORK = frozenset({"h2d", "forward", "backward", "compute", "optimizer", "loop", "other"})

NAMED_SHARE = 0.8
"""Part of a loss that the named ranks must have caused."""

STEADY, MOSTLY = 0.9, 0.6
"""A rank that was late in this part of the steps with a late rank, and lost this part, is named alone; our choice."""

LIKE_OTHERS = 0.5
"""Part of what those who are named have caused on the mean, from which on another one is named beside them."""

CHANCE = 1e-3
"""A rank that was last so often by chance, were all alike, is not named; the binomial test."""

COUNTS = 0.5
"""Part of the mean loss of a step from which on a step counts as one in which a rank was late."""

EXTRA_SHARE = 0.03
"""Share of the steps' time by which the collectives must show more loss than the ledgers, to be believed."""


FLIGHT_RECORDER = "the flight recorder"
"""Who says so, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Time that the job lost because ranks came late with one kind of work."""

    bucket: str
    """The late ranks' own; `COMPUTE` for all that is their own work."""
    ranks: tuple[int, ...]
    """Who was late, lasting through the run; empty when each step it was another one."""
    lost_s: float
    """Of the whole run, waited by the others."""
    share: float
    """Of the training time, 0 to 1."""
    per_step_s: float
    """Mean of a step."""
    steps: int
    """Steps in which a rank came late with this."""
    of_steps: int
    """Steps that were looked at."""
    parts: Mapping[str, float]
    """Share (0 to 1) of the loss by bucket of the ledger."""
    from_collectives: bool
    """Whether most of it was seen in the collectives alone."""
    seen_by: str = ""
    """What has seen the part of it that no ledger shows; empty where there is none."""
    unseen_share: float = 0.0
    """That part, 0 to 1."""


def group_of(bucket: str) -> str:
    """Return the kind of work that a bucket of the ledger is."""
    return COMPUTE if bucket in _OWN_WORK else bucket


def why_not_judged(job: Job) -> str:
    """Return why it cannot be said who waits for whom; empty where it can."""
    merged = job.merged
    if len(job.ranks) < 2:
        return f"only rank {job.ranks[0].rank} of {job.world_size} is known" if job.ranks else "no rank is known"
    if merged is None or not merged.total_s:
        return "there are no steps that all ranks have recorded"
    if merged.is_together or not (merged.meetings or merged.unmet_s) or _unseen(job):
        return ""  # they meet, nobody was ever late, or the collectives tell
    return "the ranks drift apart and nobody waits: they do not train together, or their steps differ in number"


def losses(job: Job) -> list[Loss]:
    """Return the losses of a job by kind of work, the largest first; none where the ranks do not meet."""
    merged = job.merged
    if merged is None or not merged.total_s:
        return []
    lost: defaultdict[str, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    late: defaultdict[str, Counter[int]] = defaultdict(Counter)
    parts: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    if merged.is_together:
        for (rank, bucket), seconds in merged.lost_s.items():
            lost[group_of(bucket)][rank] += seconds
            parts[group_of(bucket)][bucket] += seconds
    unseen = _unseen(job)
    for part in unseen:
        lost[part.group][part.rank] += part.lost_s
        parts[part.group][part.bucket] += part.lost_s
    for meeting in merged.meetings if merged.is_together else ():
        group = group_of(meeting.bucket)
        # Ranks that are alike differ a little in each step: that is no time that one of them was late.
        if meeting.loss_s >= COUNTS * sum(lost[group].values()) / merged.steps:
            late[group][meeting.rank] += 1
    found = []
    for group, by_rank in lost.items():
        seconds = sum(by_rank.values())
        in_steps_s = min(seconds, merged.total_s)
        lost_s = min(in_steps_s * merged.scale, job.training_s)
        beyond = [part for part in unseen if part.group == group]
        unseen_s = sum(part.lost_s for part in beyond)
        is_unseen = unseen_s > seconds / 2
        # How often who was late tells what has seen most of the loss: what is little elsewhere is noise.
        times = _times(beyond) if is_unseen else late[group]
        looked_at = beyond[0].looked_at if is_unseen else merged.steps
        if lost_s > 0:
            found.append(
                Loss(
                    bucket=group,
                    ranks=_named(by_rank, times, merged.ranks),
                    lost_s=lost_s,
                    share=lost_s / job.training_s,
                    per_step_s=in_steps_s / merged.steps,
                    steps=min(merged.steps, round(times.total() * merged.steps / max(1, looked_at))),
                    of_steps=merged.steps,
                    parts={bucket: s / seconds for bucket, s in parts[group].items()},
                    from_collectives=is_unseen,
                    seen_by=beyond[0].seen_by if beyond else "",
                    unseen_share=unseen_s / seconds,
                )
            )
    return sorted(found, key=lambda loss: -loss.share)


def joined(found: Sequence[Loss], kind: Callable[[Loss], Hashable]) -> list[Loss]:
    """Return losses of which those to the same ranks are one where they are of one kind, the largest first."""
    by_kind: defaultdict[Hashable, list[Loss]] = defaultdict(list)
    for loss in found:
        by_kind[kind(loss)].append(loss)
    whole = [loss for same in by_kind.values() for loss in ([_one(same)] if same[0].ranks else same)]
    return sorted(whole, key=lambda loss: -loss.share)


def _one(several: Sequence[Loss]) -> Loss:
    largest = several[0]
    if len(several) == 1:
        return largest
    lost_s = sum(loss.lost_s for loss in several)
    parts: defaultdict[str, float] = defaultdict(float)
    for loss in several:
        for bucket, part in loss.parts.items():
            parts[bucket] += part * loss.lost_s / lost_s if lost_s else 0.0
    return replace(
        largest,
        lost_s=lost_s,
        share=min(1.0, sum(loss.share for loss in several)),
        per_step_s=sum(loss.per_step_s for loss in several),
        steps=max(loss.steps for loss in several),
        parts=parts,
    )


def waited_by_rank(job: Job, found: Sequence[Loss]) -> dict[int, float]:
    """Return by rank what it waited for others in the whole run: by the ledgers, or by the collectives where they tell.

    Args:
        job: The job.
        found: Its losses, as `losses` returns them.
    """
    merged, exchanges = job.merged, job.exchanges
    if merged is None:
        return {}
    waits = {rank: merged.scale * merged.waited_s.get(rank, 0.0) for rank in merged.ranks}
    if not any(loss.unseen_share for loss in found):
        return waits
    if exchanges is not None and exchanges.stood_s:
        scale = merged.scale * (merged.total_s - merged.gaps_s) / exchanges.total_s
        return {rank: max(waited_s, scale * exchanges.stood_s.get(rank, 0.0)) for rank, waited_s in waits.items()}
    for loss in found:
        for rank in waits.keys() - loss.ranks if loss.ranks and loss.unseen_share else ():
            waits[rank] = max(waits[rank], loss.unseen_share * loss.lost_s)
    return waits


@dataclass(frozen=True, slots=True)
class _Unseen:
    """What was waited for a rank beyond what the ledgers show, scaled to the steps of the merge."""

    rank: int
    lost_s: float
    times: int
    """That it was seen to be the last."""
    looked_at: int
    """Steps or exchanges that were looked at for that."""
    bucket: str
    seen_by: str

    @property
    def group(self) -> str:
        """Kind of work; a rank's own where the bucket is not known."""
        return group_of(self.bucket) if self.bucket else COMPUTE


def _unseen(job: Job) -> list[_Unseen]:
    merged, exchanges = job.merged, job.exchanges
    if merged is None or exchanges is None or not exchanges.total_s:
        return _unseen_by_ddp(job)
    seen: defaultdict[int, float] = defaultdict(float)
    seen_in: defaultdict[tuple[int, str], float] = defaultdict(float)
    if merged.is_together:
        for meeting in merged.meetings:
            if meeting.index in exchanges.steps and not meeting.between:
                seen[meeting.rank] += meeting.loss_s
                seen_in[meeting.rank, meeting.bucket] += meeting.loss_s
    # Lateness that a rank makes up for later in the step is in the collectives, and no loss of the ledgers'.
    extra = {rank: seconds - seen[rank] for rank, seconds in exchanges.lost_s.items()}
    scale = (merged.total_s - merged.gaps_s) / exchanges.total_s
    least_s = EXTRA_SHARE * exchanges.total_s
    found: list[_Unseen] = []
    for rank, extra_s in extra.items():
        if extra_s <= least_s:
            continue
        times = exchanges.late_steps.get(rank, 0)
        # What all of them spend in a checkpoint that one of them writes is in no ledger a wait; the moment tells.
        apart = {name: s - seen_in[rank, name] for (late, name), s in exchanges.apart_s.items() if late == rank}
        for name, seconds in sorted(apart.items(), key=lambda item: -item[1]):
            if (part_s := min(seconds, extra_s)) > least_s:
                often = exchanges.apart_steps.get((rank, name), 0)
                # Such events are rare: the part of their time that was waited holds for those that were not looked at.
                spent_s = exchanges.spent_s.get(name, 0.0)
                waited_share = min(1.0, part_s / spent_s) if spent_s else 1.0
                lost_s = waited_share * merged.shared_s.get(name, 0.0)
                found.append(_by_recorder(rank, lost_s, often, exchanges, name))
                extra_s, times = extra_s - part_s, times - often
        if extra_s > least_s:
            found.append(_by_recorder(rank, scale * extra_s, times, exchanges))
    return found + _unseen_between(job, merged, exchanges)


def _unseen_between(job: Job, merged: Merged, exchanges: Exchanges) -> list[_Unseen]:
    """The same of the time between epochs.

    All validate, and one of them is slow, or one alone does what has no name.
    """
    if not exchanges.gaps or not merged.gaps:
        return []
    seen: defaultdict[int, float] = defaultdict(float)
    for meeting in merged.meetings if merged.is_together else ():
        if meeting.between:
            seen[meeting.rank] += meeting.loss_s
    scale, found = merged.gaps / exchanges.gaps, []
    for rank, seconds in exchanges.between_s.items():
        extra_s = scale * seconds - seen[rank]
        view = job.view(rank)
        if view is not None and extra_s > EXTRA_SHARE * merged.total_s:
            shares = shares_between(view.steps, view.ledger)
            name = max(shares, key=shares.__getitem__, default="")
            bucket = name if shares.get(name, 0.0) > _MOST_OF_GAP else BETWEEN
            looked_at = round(merged.steps / scale)
            times = exchanges.between_times.get(rank, 0)
            found.append(_Unseen(rank, extra_s, times, looked_at, bucket, FLIGHT_RECORDER))
    return found


_MOST_OF_GAP = 0.5
"""Share of a rank's time between epochs from which on it was late with what that was spent in."""


def _times(parts: Sequence[_Unseen]) -> Counter[int]:
    found: Counter[int] = Counter()
    for part in parts:
        found[part.rank] += part.times
    return found


def _by_recorder(rank: int, lost_s: float, times: int, exchanges: Exchanges, bucket: str = "") -> _Unseen:
    return _Unseen(rank, lost_s, times, len(exchanges.steps), bucket, FLIGHT_RECORDER)


def _unseen_by_ddp(job: Job) -> list[_Unseen]:
    """The same from what DDP timed itself: only of a rank that is late through the whole run."""
    merged, ddp = job.merged, job.ddp
    if merged is None or ddp is None or ddp.late is None:
        return []
    whole_s = ddp.loss_s * ddp.per_step * merged.steps
    extra_s = whole_s - (merged.lost_by(ddp.late) if merged.is_together else 0.0)
    if extra_s <= EXTRA_SHARE * merged.total_s:
        return []
    others = statistics.median(s for rank, s in ddp.backward_s.items() if rank != ddp.late)
    longer_s = (ddp.backward_s[ddp.late] - others) * ddp.per_step * merged.steps
    bucket = "backward" if longer_s >= extra_s / 2.0 else ""
    return [_Unseen(ddp.late, extra_s, ddp.times, ddp.times, bucket, "DDP's own times")]


def _named(lost_s: Mapping[int, float], late: Mapping[int, int], ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the few ranks that caused nearly all of it, where that is no chance; none where it went round."""
    whole_s = sum(lost_s.values())
    named: list[int] = []
    part_s = 0.0
    for rank in sorted(lost_s, key=lambda r: -lost_s[r]):
        # Nearly all is explained; who has caused as much as those that are named is named, too.
        if part_s >= NAMED_SHARE * whole_s and lost_s[rank] * len(named) < LIKE_OTHERS * part_s:
            break
        named.append(rank)
        part_s += lost_s[rank]
    if len(named) > max(1, len(ranks) // 2):
        # Jitter leaves a part to ranks that are hardly ever late; who is, step after step, is named all the same.
        first = named[0]
        steady = late.get(first, 0) >= STEADY * sum(late.values()) and lost_s[first] >= MOSTLY * whole_s
        return (first,) if steady and sum(late.values()) >= _TESTABLE else ()
    often, times = sum(late.get(rank, 0) for rank in named), sum(late.values())
    # A checkpoint each thousand steps is one rank's all the same, though nobody could tell it from chance.
    if times >= _TESTABLE and _tail(often, times, len(named) / len(ranks)) > CHANCE:
        return ()
    return tuple(sorted(named))


_TESTABLE = 12
"""Of fewer times that somebody was late no test tells anything at `CHANCE`."""


def _tail(often: int, times: int, chance: float) -> float:
    """Return the probability of so many or more of ``times``, each with this chance: the normal approximation."""
    spread = math.sqrt(times * chance * (1.0 - chance))
    return 0.5 * math.erfc((often - 0.5 - times * chance) / spread / math.sqrt(2.0)) if spread else 0.0
