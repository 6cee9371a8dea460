"""The job's verdict: what the ranks say, and who waits for whom."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...ranks.job import GPU_FACTS, Job, RankView
from ...records.diagnosis import Abstention, Advice, Diagnosis, Evidence, Severity, Verdict, WorkerAdvice
from ...workers.job import advise_job
from .. import ALL_RULES
from ..no_step_ends import NoStepEnds
from ..slow_function import SlowFunction
from ..weight import BEFORE_TRAINING, HEALTHY, as_it_matters, only_informs, standing_s, won_s
from . import JOB_RULES
from .crowding import freed_s, with_data
from .dealing import deal_evenly, evaluate_a_part, evaluate_by_each, read_by_each
from .gain import MOST_WON, job_gain
from .losses import COMPUTE, Loss, group_of, joined, losses, waited_by_rank, why_not_judged
from .starved import as_slow, starved
from .words import OTHERS, of_ranks, waited, waits_for_ranks

WORTH_SHARE = 0.05
"""Share of the training time from which on a loss to late ranks, or one of all ranks, is worth a warning."""

CRITICAL_SHARE = 0.2
"""As for input wait, which XProf calls high from 20 %."""

_FAMILIES: Mapping[str, str] = {rule.id: getattr(rule, "family", rule.id) for rule in ALL_RULES}
"""Rules that explain the same seconds, by rule; a rule without a family is one by itself."""

_BUCKETS: Mapping[str, str] = {
    rule.id: getattr(rule, "bucket", "data_wait" if getattr(rule, "family", "") == "input" else "")
    for rule in ALL_RULES
}
"""Which bucket of the ledger the seconds of a rule's diagnosis are in; empty where it is none, or several."""


_OWN_SEVERITY = frozenset(rule.id for rule in ALL_RULES if getattr(rule, "own_severity", False))

MEET_SHARE = 0.25
"""Waits that come to two ranks by chance, each in a third of the steps, meet as often as this: those that take turns
meet in none, and are an imbalance."""

_WAITS_FOR_A_CPU = frozenset({"noisy-neighbour", "cpu-throttled", "too-many-threads"})
"""Rules whose seconds the system has counted, in whichever bucket they were, and that are no wait for another rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVerdict:
    """What is said about a job."""

    verdict: Verdict
    """In the form of one rank's, so that it can be shown like one; diagnoses name the ranks that they hold for."""
    losses: tuple[Loss, ...]
    lost_s: float
    """Avoidable seconds of wall time, of which no rank is free."""
    lost_rank_s: float
    """The same, times the ranks of the job."""
    lost_gpu_s: float | None
    """The same once more, where the ranks have GPUs; None where none is known."""
    slowdown: float | None
    """Training time of the job over what it would be without the loss; None where there is no time."""
    why_not: str
    """Why it was not judged who waits for whom; empty where it was."""


def judge(job: Job) -> JobVerdict:
    """Judge a job of several ranks.

    Where late ranks cost time, the diagnosis of the late rank for the work that it was late with is the job's; where it
    has none, `straggler` names the work. What the ranks say of their own, without their waits for others, is the job's
    as far as all of them spend that time. Where nobody can say who waits for whom, a rank's own cause stands with its
    name. The primary cause is what wins most.
    """
    found, why_not = with_data(job, losses(job)), why_not_judged(job)
    promoted = [(loss, own) for loss in found if (own := _of_late_ranks(job, loss)) is not None]
    of_all, explained = _of_all(job, found, judged=not why_not)
    explained += [loss for loss, _ in promoted]
    # Losses to the same ranks are one: nothing tells them apart that would be acted upon.
    left = joined([loss for loss in found if loss not in explained], lambda loss: loss.ranks)
    costs = [*(own for _, own in promoted), *of_all, *(d for rule in JOB_RULES for d in rule.check(job, left))]
    diagnoses = [d if d.rule in _OWN_SEVERITY else as_it_matters(d) for d in costs]
    warnings = [d for d in diagnoses if d.severity is not Severity.INFO]
    if not warnings:
        diagnoses += _informing(job)
    ordered = sorted(diagnoses, key=lambda d: (only_informs(d), -standing_s(d, _won_s(job, d)), d.rule, d.ranks))
    trained_s, before_s = _lost_s(job, warnings)
    lost_s = min(trained_s + before_s, job.wall_s)
    ranks = max(job.world_size, len(job.ranks))
    verdict = Verdict(
        primary=ordered[0] if ordered else None,
        diagnoses=tuple(ordered),
        abstained=tuple(_abstained(job)),
        num_workers=_workers(job, found),
        runner_up=next((d for d in ordered[1:] if d.severity is not Severity.INFO), None),
    )
    return JobVerdict(
        verdict=alone(verdict, ranks) if why_not or job.missing else verdict,
        losses=tuple(found),
        lost_s=lost_s,
        lost_rank_s=lost_s * ranks,
        lost_gpu_s=lost_s * ranks if any(view.facts.keys() & GPU_FACTS.keys() for view in job.ranks) else None,
        slowdown=job.training_s / (job.training_s - trained_s) if job.training_s else None,
        why_not=why_not,
    )


def alone(verdict: Verdict, world_size: int) -> Verdict:
    """Return the verdict of a rank that knows of no other: it cannot say that nothing is wrong.

    Its steps may be waits for them.
    """
    if world_size < 2 or all(diagnosis.rule != HEALTHY for diagnosis in verdict.diagnoses):
        return verdict
    kept = tuple(diagnosis for diagnosis in verdict.diagnoses if diagnosis.rule != HEALTHY)
    primary = verdict.primary if verdict.primary is None or verdict.primary.rule != HEALTHY else None
    return replace(
        verdict, primary=primary, diagnoses=kept, abstained=(*verdict.abstained, Abstention(HEALTHY, (OTHERS,)))
    )


# -- late ranks


def _of_late_ranks(job: Job, loss: Loss) -> Diagnosis | None:
    """Return the late rank's own diagnosis of the work that it was late with, as the job's; None where it has none."""
    if not loss.ranks or loss.share < WORTH_SHARE:
        return None
    own = [
        d
        for rank in loss.ranks
        for d in _warnings(job.view(rank))
        if d.time_lost_s > 0 and _BUCKETS.get(d.rule) and _lies_in(job.view(rank), d, loss.bucket)
    ]
    # Its own work can be late for reasons that no rule of one rank knows: these must explain most of it.
    if loss.bucket == COMPUTE:
        own = [d for d in own if d.time_lost_s >= loss.lost_s / 2.0]
    return _promoted(job, loss, max(own, key=lambda d: d.time_lost_s)) if own else None


def _lies_in(view: RankView | None, diagnosis: Diagnosis, group: str) -> bool:
    """Whether the seconds of a diagnosis are in a group of buckets: in that of its rule, or in the midst of steps.

    A loop that tells nobody of its evaluations has them in its body, where they are found by looks.
    """
    bucket = _BUCKETS[diagnosis.rule]
    if group_of(bucket) == group:
        return True
    if group != COMPUTE or bucket != "validation" or view is None or view.ledger is None:
        return False
    return view.ledger.buckets.get(bucket, 0.0) < diagnosis.time_lost_s / 2.0


def _promoted(job: Job, loss: Loss, own: Diagnosis) -> Diagnosis:
    share_pct = 100.0 * loss.share
    who = of_ranks(loss.ranks)
    # A loader that is as slow has its next batch ready after the wait for the late rank.
    hidden = as_slow(job, loss.ranks) if loss.bucket == "data_wait" else ()
    ranks = tuple(sorted((*loss.ranks, *hidden)))
    said = f"{waited(loss)}. "
    said += f"The loader{'s' if len(hidden) > 1 else ''} of {of_ranks(hidden)} would be as late. " if hidden else ""
    return replace(
        own,
        severity=Severity.CRITICAL if loss.share >= CRITICAL_SHARE else Severity.WARNING,
        summary=(said + own.summary).rstrip(),  # what a rank has posted may have lost its words
        time_lost_s=loss.lost_s,
        share_pct=100.0 * loss.lost_s / job.wall_s if job.wall_s else 0.0,
        ranks=() if len(ranks) == len(job.ranks) else ranks,
        evidence=(
            Evidence(f"waited for {who}, share of training time", share_pct, "%", 100.0 * WORTH_SHARE, "our choice"),
            Evidence("waited for it in a mean step", loss.per_step_s, "s"),
            Evidence(f"steps of {loss.of_steps:,} in which it was late", float(loss.steps), "steps"),
            *own.evidence,
        ),
        advice=(*_shared_out(job, loss), *_of_the_job(job, loss, own)),
    )


def _shared_out(job: Job, loss: Loss) -> tuple[Advice, ...]:
    """Return how the work that ranks are late with is done by all, where they do it for the others or have more."""
    return (*read_by_each(job, loss), *deal_evenly(job, loss), *evaluate_by_each(job, loss))


def _of_the_job(job: Job, loss: Loss, own: Diagnosis) -> tuple[Advice, ...]:
    """Return a rank's advice with what the job gains by it: no more than what the others waited."""
    made = []
    for place, advice in enumerate(own.advice):
        own_pct, fix = advice.predicted_gain_pct, advice.fix
        if place and own_pct is None:
            made.append(advice)
            continue
        gain_pct, interval_pct = _gain_of(job, replace(own, ranks=loss.ranks), advice, loss.lost_s)
        expect = fix.expect
        if own_pct is not None and (gain_pct is None or gain_pct < own_pct):
            # What it says of the rank's own steps does not hold for the job: another rank sets the pace then.
            expect = f"The other ranks no longer wait for {of_ranks(loss.ranks) if len(loss.ranks) < 3 else 'these'}."
        made.append(Advice.of(fix.do, expect=expect, limit=fix.limit, gain_pct=gain_pct, interval_pct=interval_pct))
    return tuple(made)


# -- all ranks


def _of_all(job: Job, found: Sequence[Loss], *, judged: bool) -> tuple[list[Diagnosis], list[Loss]]:
    """Return what ranks say of their own that is no wait for another rank, and the losses that belong to it.

    What costs time counts with the part that all ranks spend in it. Where that part is not known, most ranks must say
    it. What costs none, such as growing memory, is told for whoever has it.
    """
    free: defaultdict[str, list[tuple[int, Diagnosis]]] = defaultdict(list)
    costly: defaultdict[str, list[tuple[int, Diagnosis]]] = defaultdict(list)
    for view in job.ranks:
        for diagnosis in _warnings(view):
            costs = diagnosis.time_lost_s > 0
            kind = _FAMILIES.get(diagnosis.rule, diagnosis.rule) if costs else diagnosis.rule
            (costly if costs else free)[kind].append((view.rank, diagnosis))
    diagnoses = [_worst(job, said) for said in free.values()]
    explained: list[Loss] = []
    all_starve = len(starved(job)) == len(job.ranks)
    everyone = {view.rank for view in job.ranks}
    if standing := costly.pop(NoStepEnds.id, []):
        diagnoses.append(_held_up(job, standing))
    for said in costly.values():
        shared_s = _shared_s(job, said, found) if judged else None
        asked = sum(1 for view in job.ranks if view.verdict is not None)
        if shared_s is None and 2 * len({rank for rank, _ in said}) <= asked:
            # Ranks that do not wait for each other have each a pace of their own, and losses of their own.
            diagnoses += [] if judged else [_of_their_own(said)]
            continue
        diagnosis = _usual(said)
        least_s = statistics.median(d.time_lost_s for _, d in said)
        bucket = _BUCKETS.get(diagnosis.rule, "")
        lost_s = least_s if shared_s is None else min(least_s, shared_s)
        # Waits that come to all ranks alike never come to all at once: what they differ by is part of the same.
        for loss in found if shared_s is not None and bucket else ():
            meet = {rank for rank, _ in said} == everyone and lost_s >= MEET_SHARE * loss.lost_s
            belongs = loss.lost_s <= lost_s or (bucket == "data_wait" and (all_starve or meet))
            if not loss.ranks and loss.bucket == group_of(bucket) != COMPUTE and belongs:
                explained.append(loss)
                lost_s = min(least_s, lost_s + loss.lost_s)
        if lost_s >= WORTH_SHARE * job.training_s or diagnosis.rule in BEFORE_TRAINING:
            only = job.ranks[0].rank
            whole = _shortened(job, diagnosis, lost_s)
            whole = replace(whole, advice=(*evaluate_a_part(job, diagnosis), *whole.advice))
            diagnoses.append(replace(whole, ranks=(only,) if len(job.ranks) == 1 else ()))
        else:
            explained = [loss for loss in explained if loss.bucket != group_of(bucket)]
    return diagnoses, explained


def _held_up(job: Job, said: Sequence[tuple[int, Diagnosis]]) -> Diagnosis:
    """Return the diagnosis of those ranks that stand where the fewest do: the others wait for them.

    Where as many do, those are meant that do not wait for other ranks.
    """
    places: defaultdict[str, list[tuple[int, Diagnosis]]] = defaultdict(list)
    for rank, diagnosis in said:
        at = diagnosis.location
        places["" if at is None else f"{at.function}, {at.file}:{at.line} ({at.call})"].append((rank, diagnosis))
    rarest = min(places, key=lambda place: (len(places[place]), waits_for_ranks(place), place))
    ranks = tuple(sorted(rank for rank, _ in places[rarest]))
    return replace(places[rarest][0][1], ranks=() if len(ranks) == len(job.ranks) else ranks)


def _of_their_own(said: Sequence[tuple[int, Diagnosis]]) -> Diagnosis:
    """Return the typical one of what some ranks say, with their names."""
    usual = _usual(said)
    return replace(usual, ranks=tuple(sorted({rank for rank, diagnosis in said if diagnosis.rule == usual.rule})))


def _worst(job: Job, said: Sequence[tuple[int, Diagnosis]]) -> Diagnosis:
    """Return one diagnosis for all ranks that say it."""
    severe = [d for _, d in said if d.severity is Severity.CRITICAL] or [d for _, d in said]
    ranks = tuple(sorted({rank for rank, _ in said}))
    return replace(severe[0], ranks=() if len(ranks) == len(job.ranks) > 1 else ranks)


def _usual(said: Sequence[tuple[int, Diagnosis]]) -> Diagnosis:
    """Return the typical diagnosis of the rule that most ranks name."""
    lost_s: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for _, diagnosis in said:
        times[diagnosis.rule] += 1
        lost_s[diagnosis.rule] += diagnosis.time_lost_s  # type: ignore[assignment]
    rule = max(times, key=lambda name: (times[name], lost_s[name], name))
    same = sorted((d for _, d in said if d.rule == rule), key=lambda d: d.time_lost_s)
    return same[len(same) // 2]


def _shared_s(job: Job, said: Sequence[tuple[int, Diagnosis]], found: Sequence[Loss]) -> float | None:
    """Return the seconds of a diagnosis that are no wait for others, and that all ranks lose alike; None: not known."""
    merged = job.merged
    if merged is None or not merged.total_s:
        return None
    rule = said[0][1].rule
    scale, bucket = merged.scale, _BUCKETS.get(rule, "")
    # Starts of workers lie where epochs begin, of which few steps are kept; a slow start lies before all steps; and
    # what holds up a rank's own work (a collector of garbage, a compiler) is in whichever bucket it came upon.
    if bucket in ("worker_startup", COMPUTE) or rule in BEFORE_TRAINING or rule in _WAITS_FOR_A_CPU:
        return None
    if bucket:
        # Of what all spend in it alike, some may be the wait for one of them, which only the collectives show.
        waits_s = sum(loss.unseen_share * loss.lost_s for loss in found if loss.bucket == group_of(bucket))
        return max(0.0, scale * merged.shared_s.get(bucket, 0.0) - waits_s)
    if 2 * len({rank for rank, _ in said}) <= sum(1 for view in job.ranks if view.verdict is not None):
        return None
    # A step is long for all ranks where one is late: those that waited lose nothing of their own by it.
    waited_s = waited_by_rank(job, found)
    return max(0.0, statistics.median_low(d.time_lost_s - waited_s.get(rank, 0.0) for rank, d in said))


def _shortened(job: Job, diagnosis: Diagnosis, lost_s: float) -> Diagnosis:
    """Return a diagnosis with the part of its loss that is the job's."""
    if lost_s >= diagnosis.time_lost_s:
        return diagnosis
    advice = tuple(_shortened_advice(job, diagnosis, one, lost_s) for one in diagnosis.advice)
    share_pct = 100.0 * lost_s / job.wall_s if job.wall_s else 0.0
    return replace(diagnosis, time_lost_s=lost_s, share_pct=share_pct, advice=advice)


def _shortened_advice(job: Job, diagnosis: Diagnosis, advice: Advice, lost_s: float) -> Advice:
    """Return an advice with a gain of the job's part of the loss; as it is where it promises none."""
    if advice.predicted_gain_pct is None:
        return advice
    gain_pct, interval_pct = _gain_of(job, diagnosis, advice, lost_s)
    own_pct, own = advice.predicted_gain_pct, advice.gain_interval_pct
    if gain_pct is not None and interval_pct is not None and own is not None and own_pct > 0.0:
        # What is uncertain about a rank's own gain is so about the job's part of it.
        least, most = (gain_pct * one / own_pct for one in own)
        # Waits for others that lie in a function go with it.
        most = max(most, own[1]) if diagnosis.rule == SlowFunction.id else most
        interval_pct = max(0.0, min(interval_pct[0], least)), max(interval_pct[1], most)
    return replace(advice, predicted_gain_pct=gain_pct, gain_interval_pct=interval_pct)


def _gain_of(
    job: Job, diagnosis: Diagnosis, advice: Advice, lost_s: float
) -> tuple[float | None, tuple[float, float] | None]:
    """Return what the job gains by one advice of a diagnosis: no more than what it has lost."""
    won = min(lost_s, _won_s(job, replace(diagnosis, advice=(advice,))))
    # What they free of the CPUs the other ranks have; how much of it they can use is not known.
    freed = freed_s(job, diagnosis.rule, diagnosis.ranks) if won > 0 else 0.0
    expected = max(won, min(won + freed / 2.0, MOST_WON * job.training_s))
    return job_gain(job, expected, least_s=won, most_s=won + freed)


def _informing(job: Job) -> list[Diagnosis]:
    """Return what informs where nothing warns: from the rank that waits least for others, whose steps are its own."""
    merged = job.merged
    most_s = math.inf if merged is None else WORTH_SHARE * merged.total_s
    waited_s = {view.rank: 0.0 if merged is None else merged.waited_s.get(view.rank, 0.0) for view in job.ranks}
    for view in sorted(job.ranks, key=lambda view: (waited_s[view.rank], view.rank)):
        if told := [d for d in _finite(view) if d.severity is Severity.INFO and waited_s[view.rank] <= most_s]:
            return [replace(d, advice=(*evaluate_a_part(job, d), *d.advice)) for d in told]
    return []


# -- the whole


def _warnings(view: RankView | None) -> list[Diagnosis]:
    return [d for d in _finite(view) if d.severity is not Severity.INFO]


def _finite(view: RankView | None) -> list[Diagnosis]:
    if view is None or view.verdict is None:
        return []
    return [d for d in view.verdict.diagnoses if math.isfinite(d.time_lost_s)]


def _won_s(job: Job, diagnosis: Diagnosis) -> float:
    return won_s(diagnosis, training_s=job.training_s, wall_s=job.wall_s)


def _lost_s(job: Job, warnings: Sequence[Diagnosis]) -> tuple[float, float]:
    """Return the seconds lost in training and before it, none of them twice.

    Waits for late ranks, and buckets of the ledger, are not each other's. What rules of no bucket explain may be.
    """
    before_s = sum(d.time_lost_s for d in warnings if d.rule in BEFORE_TRAINING)
    inside = [d for d in warnings if d.rule not in BEFORE_TRAINING]
    of_job = {rule.id for rule in JOB_RULES}
    apart = [d.ranks or d.rule in of_job or _BUCKETS.get(d.rule) for d in inside]
    apart_s = sum(d.time_lost_s for d, is_apart in zip(inside, apart, strict=True) if is_apart)
    other_s = max((d.time_lost_s for d, is_apart in zip(inside, apart, strict=True) if not is_apart), default=0.0)
    return min(apart_s + other_s, 0.99 * job.training_s), before_s


def _abstained(job: Job) -> list[Abstention]:
    """Return the rules over ranks that could not judge, and those that could not on any rank that says so."""
    found = [Abstention(rule.id, missing) for rule in JOB_RULES if (missing := rule.lacks(job))]
    told = [view.verdict.abstained for view in job.ranks if view.verdict is not None and view.verdict.abstained]
    if told:
        everywhere = set.intersection(*({a.rule for a in abstained} for abstained in told))
        found += [a for a in told[0] if a.rule in everywhere]
    return found


def _workers(job: Job, found: Sequence[Loss]) -> WorkerAdvice | None:
    """Return one number for all ranks: that of the late ones where data make them late."""
    known = {view.rank: view.verdict.num_workers for view in job.ranks if view.verdict and view.verdict.num_workers}
    late = {rank for loss in found if loss.bucket == "data_wait" and loss.share >= WORTH_SHARE for rank in loss.ranks}
    return advise_job(known, sorted(late))
