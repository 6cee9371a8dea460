"""The job's verdict: what the ranks say, and who waits for whom."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...ranks.job import Job, RankView
from ...records.diagnosis import Abstention, Advice, Diagnosis, Evidence, Severity, Verdict, WorkerAdvice
from .. import ALL_RULES
from . import JOB_RULES
from .gain import job_gain
from .losses import COMPUTE, Loss, group_of, losses
from .straggler import Straggler
from .words import OTHERS, named, of_ranks

WORTH_SHARE = 0.05
"""Share of the training time from which on a loss to late ranks, or one of all ranks, is worth a warning."""

CRITICAL_SHARE = 0.2
"""As for input wait, which XProf calls high from 20 %."""

_BUCKETS = {
    rule.id: getattr(rule, "bucket", "data_wait" if getattr(rule, "family", "") == "input" else "")
    for rule in ALL_RULES
}
"""Which bucket of the ledger the seconds of a rule's diagnosis are in; empty where it is none, or several."""

HEALTHY = "compute-bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVerdict:
    """What is said about a job."""

    verdict: Verdict
    """In the form of one rank's, so that it can be shown like one; diagnoses name the ranks that they hold for."""
    losses: tuple[Loss, ...]
    lost_s: float
    """Avoidable seconds of wall time."""
    lost_gpu_s: float
    """The same, times the ranks that stand meanwhile."""
    slowdown: float | None
    """Time of the job over what it would be without the loss; None where there is no time."""
    why_not: str
    """Why it was not judged who waits for whom; empty where it was."""


def judge(job: Job) -> JobVerdict:
    """Judge a job of several ranks.

    Where late ranks cost time, the diagnosis of the late rank for the work that it was late with is the job's; where it
    has none, `straggler` names the work. What the most ranks say of their own, without their waits for others, is the
    job's as well. The primary cause is what wins most.
    """
    found = losses(job)
    late = [d for loss in found if loss.share >= WORTH_SHARE and (d := _of_late_ranks(job, loss))]
    over_ranks = [d for rule in JOB_RULES if (d := rule.check(job, found)) is not None]
    known = {(d.rule, d.ranks) for d in late}
    diagnoses = late + [d for d in over_ranks if (d.rule, d.ranks) not in known]
    diagnoses += [d for d in _of_all(job) if d.rule not in {d.rule for d in diagnoses}]
    warnings = [d for d in diagnoses if d.severity is not Severity.INFO]
    if not warnings:
        diagnoses = _informing(job, diagnoses)
    ordered = sorted(diagnoses, key=lambda d: (d.severity is Severity.INFO, -d.time_lost_s, d.rule))
    lost_s = min(sum(d.time_lost_s for d in warnings), 0.99 * job.training_s)
    return JobVerdict(
        verdict=Verdict(
            primary=ordered[0] if ordered else None,
            diagnoses=tuple(ordered),
            num_workers=_workers(job, ordered),
            runner_up=next((d for d in ordered[1:] if d.severity is not Severity.INFO), None),
        ),
        losses=tuple(found),
        lost_s=lost_s,
        lost_gpu_s=lost_s * max(1, job.world_size),
        slowdown=job.training_s / (job.training_s - lost_s) if job.training_s else None,
        why_not=_why_not(job),
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


def _why_not(job: Job) -> str:
    if len(job.ranks) < 2:
        return f"only rank {job.ranks[0].rank} of {job.world_size} is known" if job.ranks else "no rank is known"
    if job.merged is None:
        return "there are no steps that all ranks have recorded"
    if not job.merged.is_together and not losses(job):
        if not job.merged.meetings and not job.merged.unmet_s:
            return ""  # nobody was ever late
        return "the ranks drift apart and nobody waits: they do not train together, or their steps differ in number"
    return ""


def _of_late_ranks(job: Job, loss: Loss) -> Diagnosis | None:
    """Return the job's diagnosis of a loss to lasting ranks: the late rank's own, else that it is late."""
    if not loss.ranks:
        return None
    own = [
        d
        for rank in loss.ranks
        for d in _warnings(job.view(rank))
        if _BUCKETS.get(d.rule) and group_of(_BUCKETS[d.rule]) == loss.bucket
    ]
    # Its own work can be late for reasons that no rule of one rank knows: these must explain most of it.
    if loss.bucket == COMPUTE:
        own = [d for d in own if d.time_lost_s >= loss.lost_s / 2.0]
    if not own:
        return None if loss.bucket == COMPUTE else Straggler().about(job, loss)
    return _promoted(job, loss, max(own, key=lambda d: d.time_lost_s))


def _promoted(job: Job, loss: Loss, own: Diagnosis) -> Diagnosis:
    gain_pct, interval_pct = job_gain(job, loss.lost_s)
    share_pct = 100.0 * loss.share
    who = of_ranks(loss.ranks)
    first, *rest = own.advice or (Advice(text=""),)
    advice = (replace(first, predicted_gain_pct=gain_pct, gain_interval_pct=interval_pct), *rest) if own.advice else ()
    return replace(
        own,
        severity=Severity.CRITICAL if loss.share >= CRITICAL_SHARE else Severity.WARNING,
        summary=f"The other ranks waited {loss.per_step_s * 1e3:.1f} ms in a mean step for {who}, {share_pct:.0f} % of "
        f"the training time; it was late with {named(loss.bucket)}. {own.summary}",
        time_lost_s=loss.lost_s,
        share_pct=100.0 * loss.lost_s / job.wall_s if job.wall_s else 0.0,
        ranks=loss.ranks,
        evidence=(
            Evidence(f"waited for {who}, share of training time", share_pct, "%", 100.0 * WORTH_SHARE, "our choice"),
            Evidence("waited for it in a mean step", loss.per_step_s, "s"),
            Evidence("steps in which it was late, of those looked at", float(loss.steps), "steps"),
            *own.evidence,
        ),
        advice=advice,
    )


def _of_all(job: Job) -> list[Diagnosis]:
    """Return what ranks say of their own that is no wait for another rank.

    What costs time must be said by most ranks, and counts with the part that all ranks spend in it. What costs none,
    such as growing memory, is told for whoever has it.
    """
    by_rule: defaultdict[str, list[tuple[int, Diagnosis]]] = defaultdict(list)
    for view in job.ranks:
        for diagnosis in _warnings(view):
            by_rule[diagnosis.rule].append((view.rank, diagnosis))
    found = []
    for said in by_rule.values():
        diagnosis = sorted(said, key=lambda pair: pair[1].time_lost_s)[len(said) // 2][1]
        ranks = tuple(rank for rank, _ in said)
        alike = len(said) == len(job.ranks)
        if all(d.time_lost_s <= 0 for _, d in said):
            found.append(replace(diagnosis, ranks=() if alike else ranks))
        elif 2 * len(said) > len(job.ranks):
            shared_s = _shared_s(job, diagnosis, said)
            if shared_s >= WORTH_SHARE * job.training_s:
                found.append(_shortened(job, diagnosis, shared_s))
    return found


def _shared_s(job: Job, diagnosis: Diagnosis, said: Sequence[tuple[int, Diagnosis]]) -> float:
    """Return the seconds of a diagnosis that are no wait for others, and that all ranks lose alike."""
    lost_s = statistics.median(d.time_lost_s for _, d in said)
    merged = job.merged
    bucket = _BUCKETS.get(diagnosis.rule, "")
    if merged is None or not merged.total_s or not merged.is_together:
        return lost_s
    scale = job.training_s / merged.total_s
    if bucket and merged.meetings and bucket != "worker_startup":
        return min(lost_s, scale * merged.shared_s.get(bucket, lost_s / scale))
    waited_s = [merged.waited_s.get(rank, 0.0) for rank, _ in said]
    return max(0.0, lost_s - scale * statistics.median(waited_s)) if not bucket else lost_s


def _shortened(job: Job, diagnosis: Diagnosis, lost_s: float) -> Diagnosis:
    """Return a diagnosis with the part of its loss that is the job's."""
    if lost_s >= diagnosis.time_lost_s or not diagnosis.advice:
        return diagnosis
    gain_pct, interval_pct = job_gain(job, lost_s)
    first, *rest = diagnosis.advice
    if first.predicted_gain_pct is not None and gain_pct is not None and gain_pct < first.predicted_gain_pct:
        first = replace(first, predicted_gain_pct=gain_pct, gain_interval_pct=interval_pct)
    share_pct = 100.0 * lost_s / job.wall_s if job.wall_s else 0.0
    return replace(diagnosis, time_lost_s=lost_s, share_pct=share_pct, advice=(first, *rest))


def _informing(job: Job, diagnoses: list[Diagnosis]) -> list[Diagnosis]:
    """Return what informs where nothing warns: from the rank that waits least for others, whose steps are its own."""
    waited_s = job.merged.waited_s if job.merged is not None else {}
    views = [view for view in job.ranks if view.verdict is not None]
    if not views:
        return diagnoses
    least = min(views, key=lambda view: (waited_s.get(view.rank, 0.0), view.rank))
    own = least.verdict.diagnoses if least.verdict is not None else ()
    return diagnoses + [d for d in own if d.severity is Severity.INFO]


def _warnings(view: RankView | None) -> list[Diagnosis]:
    if view is None or view.verdict is None:
        return []
    return [d for d in view.verdict.diagnoses if d.severity is not Severity.INFO]


def _workers(job: Job, ordered: Sequence[Diagnosis]) -> WorkerAdvice | None:
    """Return one number for all ranks: that of the late ones where data make them late, else what most would take."""
    known = {view.rank: view.verdict.num_workers for view in job.ranks if view.verdict and view.verdict.num_workers}
    if not known:
        return None
    late = ordered[0].ranks if ordered and _BUCKETS.get(ordered[0].rule) == "data_wait" else ()
    asked = [known[rank] for rank in (late or known) if rank in known] or list(known.values())
    if late:
        return max(asked, key=lambda advice: advice.recommended)
    usual = Counter(advice.recommended for advice in asked).most_common(1)[0][0]
    return next(advice for advice in asked if advice.recommended == usual)
