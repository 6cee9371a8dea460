"""The same rank comes late in step after step, and all others wait for it.

**What it means.** Ranks that train together meet in each step. The slowest one sets the pace of all. Here it is always
the same one, mostly with its own work: a slower machine, or more to do than the others. More GPUs do not help: each of
them waits, too. Where a rule of one rank knows why (slow data, a callback, a logger, checkpoints, validation), that
rule is told with the rank's number instead of this one. So it is where its own workers take the CPU from its training
thread: its batches cost more CPU time than the others', and it waits longer for a CPU.

**Evidence.** The steps of all ranks, walked through beside each other: how far the named rank was behind when the
others began to wait for it. No clock is needed for that. A slow backward pass, or slow work in the body of a plain
loop, shows in no ledger, because all ranks wait in it alike; there the arrivals at the collectives tell, from PyTorch's
flight recorder, or else DDP's own times of its exchange. Beside it what differs between its machine and the others':
clocks, throttling, temperature, power, CPU time stolen by the hypervisor, other processes on its CPUs or its GPU. The
place is the function that takes longer there than on the other ranks, by looks at the stacks of all of them; where it
is late between two epochs, the one that it is in then and no other rank is.

**Advice.** Compare the machine with the others. Move the rank, or leave the machine out. Where the machines are alike
and the late rank takes longer in what all ranks do, its items are longer: split them evenly. Else look for work that
only this rank does: a hook, a print, a debug flag. What it does between two epochs,
an evaluation on one rank say, can be split over the ranks, or done less often.

What is promised is all that the others wait, where the late rank alone is seen in the place, or where its machine
explains it. Where it does more of what all do, as with longer batches, or nothing is seen that it does alone,
that is dealt out anew: all take the mean then.
So they do where all ranks' training threads wait for a CPU for as long as one of them is late (more processes than
CPUs), or nothing is won: what one rank does less of, the others get.

**When it is wrong.** A rank with more work by design, a pipeline stage for example, is no fault. What a rank does
between two collectives is told as one piece in a plain loop: give it spans (`monitor.span`) to see which part it is.

**References.** MegaScale (Jiang et al., NSDI '24); Understanding Stragglers in Large Model Training (OSDI '25): the
slowdown is the step's time over that of ranks that are alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ...ranks.between import BETWEEN
from ...ranks.code import BUFFERS, CALLS
from ...ranks.job import COST, CPU_WAIT, SUPPLY, Job, RankView, typical
from ...records.diagnosis import Advice, Diagnosis, Evidence, Location, Severity
from ...records.stats import median
from ...window.beside import WORK
from ..rule import threshold
from .gain import job_gain, shared_out_s
from .losses import COMPUTE, Loss, why_not_judged
from .shards import uneven_shards
from .words import of_ranks, time, waited, work_of

_EXPLAINS: Mapping[str, tuple[int, float]] = {
    "CPUs kept busy by others": (1, 0.5),
    "CPU time stolen by the hypervisor, %": (1, 5.0),
    CPU_WAIT: (1, 5.0),
    "quota periods throttled, %": (1, 5.0),
    "SM clock, MHz": (-1, 100.0),
    "GPU temperature, °C": (1, 10.0),
    "clocks held down, % of samples": (1, 10.0),
    "GPU memory of other processes, bytes": (1, 1e9),
}
"""What makes a machine slower where it is more (1) or less (-1) than the others have, and from which difference on. The
least differences are our choice: twice what machines that are alike differ by."""

DIFFERS = 0.1
"""Part by which any other fact about the machine must differ from the others' median to be told."""

OWN_WORK = ("slow-function", "compute-bound")
"""What a rank says of itself whose time goes into its steps, the first of which says where."""

TELLS = 1.0 / 3.0
"""A function that takes this part of the loss beyond what others spend in it is where the rank is late; our choice."""

NEARLY = 0.8
"""Of that, our choice: looks tell a function's part to a tenth."""

ALIKE = 0.2
"""A function in which the others spend this part of what the late rank spends beyond them is work that all do; our
choice: what one rank alone does takes the others nothing, and a planted one looks to a few percent like that."""

SHARDS = 0.5
"""Part of what is waited for a rank between epochs that more steps than the others' must explain; our choice."""

_NAMED = 2
"""Of more late ranks an advice does not name each."""

_HOST_LIMIT = 40


class _More(NamedTuple):
    """A function that all ranks call, and in which a late one spends longer."""

    function: str
    late_s: float
    """In a mean step of the late rank."""
    usual_s: float
    """In one of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """Fires when the same ranks' own work makes the others wait."""

    id: ClassVar[str] = "straggler"
    title: ClassVar[str] = "The same rank comes late in step after step, and the others wait for it"

    warn_pct: float = threshold(5.0, "%", "our choice: as for a callback that takes this much of the training time")
    critical_pct: float = threshold(20.0, "%", "as for input wait, which XProf calls high from 20 %")

    def check(self, job: Job, found: Sequence[Loss]) -> list[Diagnosis]:
        """Find losses to the same ranks that nothing else explains."""
        own = [loss for loss in found if loss.ranks and not _is_for_its_shard(job, loss)]
        return [self._about(job, loss) for loss in own if 100.0 * loss.share >= self.warn_pct]

    def lacks(self, job: Job) -> tuple[str, ...]:
        """Without steps in which ranks meet nobody is late."""
        return ("steps in which the ranks meet",) if why_not_judged(job) else ()

    def _about(self, job: Job, loss: Loss) -> Diagnosis:
        # Whether the late ranks' work can go, or must be done by others, is not known.
        least_s = shared_out_s(job, loss.lost_s, len(loss.ranks))
        facts, explained = _facts(job, loss.ranks)
        crowd, place = _crowd(job, loss), _place(job, loss)
        # More of what all ranks do can be shared out, and hardly be done without, unless the machine explains it.
        more = None if explained else _more_of_all(job, loss, place)
        alike = not explained and place is None and _do_the_same(job, loss)
        expected_s = least_s if crowd or more or alike else loss.lost_s
        gain_pct, interval_pct = job_gain(job, expected_s, least_s=0.0 if crowd else least_s, most_s=loss.lost_s)
        share_pct = 100.0 * loss.share
        work = work_of(loss)
        unseen = Evidence(f"of that, in no ledger: seen by {loss.seen_by}", 100.0 * loss.unseen_share, "%")
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if share_pct >= self.critical_pct else Severity.WARNING,
            title=f"Late with {work}, and the other ranks wait",
            summary=f"{waited(loss)}.{_where(job, loss.ranks)}",
            time_lost_s=loss.lost_s,
            share_pct=100.0 * loss.lost_s / job.wall_s if job.wall_s else 0.0,
            confidence=0.8 if loss.from_collectives else 0.9,
            ranks=loss.ranks,
            culprit=work,
            location=place,
            evidence=(
                Evidence("waited for it, share of training time", share_pct, "%", self.warn_pct, "our choice"),
                Evidence("waited for it in a mean step", loss.per_step_s, "s"),
                *([unseen] if loss.seen_by else []),
                *crowd,
                Evidence(f"steps of {loss.of_steps:,} in which it was late", float(loss.steps), "steps"),
                *facts,
            ),
            advice=_advice(loss, _apart(job, loss, place), more, explained, gain_pct, interval_pct, alike=alike),
        )


def _is_for_its_shard(job: Job, loss: Loss) -> bool:
    """Whether a rank that has more steps is waited for after the others' last one: that is told of as what it is."""
    shards = uneven_shards(job) if loss.bucket == BETWEEN else None
    return shards is not None and shards.ranks == loss.ranks and shards.saved_s >= SHARDS * loss.lost_s


def _crowd(job: Job, loss: Loss) -> list[Evidence]:
    """Return what all ranks wait for a CPU, where it is no less than what is lost.

    One that had less to do would leave its CPU to the others then, and who gets it is the scheduler's choice.
    """
    waits = [
        typical([view for view in job.ranks if (view.rank in loss.ranks) is late], CPU_WAIT) for late in (True, False)
    ]
    least = min((pct for pct in waits if pct is not None), default=0.0)
    if None in waits or least < 100.0 * loss.share:
        return []
    return [Evidence("all ranks' training threads wait for a CPU", least, "%", 100.0 * loss.share, "what is lost")]


def _advice(
    loss: Loss,
    apart: Location | None,
    more: _More | None,
    explained: bool,
    gain_pct: float | None,
    interval_pct: tuple[float, float] | None,
    *,
    alike: bool,
) -> tuple[Advice, ...]:
    who = of_ranks(loss.ranks) if len(loss.ranks) <= _NAMED else "these ranks"
    reads = loss.bucket in ("data_wait", "worker_startup")
    move = Advice.of(f"Move {who} to another machine, and see who is late then.")
    if more is not None and more.late_s - more.usual_s < TELLS * loss.per_step_s:
        more = None
    if more is not None or alike:
        dealt = Advice.of(
            "Split the items evenly over the ranks: shuffle them first, or go by their size.",
            expect="Ranks that arrive together: no function was seen that one of them alone has to do."
            if more is None
            else f"A step takes {who} {time(more.late_s)} in {more.function}, the others {time(more.usual_s)}.",
            limit="Not where its machine is slower, or it does more in a call that all make."
            if more is None
            else "Not where it is called more often there.",
            gain_pct=gain_pct,
            interval_pct=interval_pct,
        )
        return dealt, move
    return (
        Advice.of(
            f"Compare the machine of {who} with the others: clocks, heat, neighbours."
            if explained
            else f"Compare what {who} must read with the others: shards, storage, workers."
            if reads
            else f"Split {apart.function} over the ranks, or call it less often ({apart.file}:{apart.line})."
            if apart is not None
            else f"Find the work that only {who} must do, or that is slower there.",
            expect="Ranks that arrive together.",
            limit="More ranks do not help: each would wait for the slowest.",
            gain_pct=gain_pct,
            interval_pct=interval_pct,
        ),
        *(() if apart and not explained else (move,)),
    )


def _where(job: Job, ranks: tuple[int, ...]) -> str:
    """Name the machine where it is one that no other rank is on."""
    theirs = {view.header.host for view in job.ranks if view.rank in ranks}
    others = {view.header.host for view in job.ranks if view.rank not in ranks}
    if len(theirs) != 1 or theirs & others or not all(theirs | others):
        return ""
    return f" No other rank is on {next(iter(theirs))[:_HOST_LIMIT]}."


def _place(job: Job, loss: Loss) -> Location | None:
    """Return where in the code the late rank does more than the others; where that is not known, where it works."""
    late, others = _looked_at(job, loss)
    if late is None:
        return None
    if loss.bucket == BETWEEN:
        return _between(job, loss, late)
    if loss.bucket != COMPUTE:
        return None
    if late.places and others and own_work_s(late):
        return _beyond_others(late, others, loss.per_step_s)
    said = {d.rule: d.location for d in reversed(late.verdict.diagnoses) if d.location} if late.verdict else {}
    return next((said[rule] for rule in OWN_WORK if rule in said), None)


def _between(job: Job, loss: Loss, late: RankView) -> Location | None:
    """Return where the late rank is between two epochs, unless another rank is there, too: then all do it."""
    place = late.between
    others = {view.between.key for view in job.ranks if view.rank not in loss.ranks and view.between is not None}
    return None if place is None or place.key in others or (place.share_pct or 0.0) < 100.0 * TELLS else place


def _apart(job: Job, loss: Loss, place: Location | None) -> Location | None:
    """Return the place if it is a function that the late rank alone has to do; None where that is not known.

    Between two epochs it is one that makes no steps as well, and within them one that the others hardly spend time in.
    """
    late, others = _looked_at(job, loss)
    if place is None or late is None:
        return None
    if loss.bucket == BETWEEN:
        return None if place.key in {one.key for one in late.places} else place
    return place if others and _more_of_all(job, loss, place) is None else None


def _beyond_others(late: RankView, others: Sequence[RankView], lost_s: float) -> Location | None:
    """Return the function that takes longest beyond what the other ranks spend in it; None where none tells the loss.

    What all ranks do alike makes none of them late, however long it takes. Of two that take nearly as much beyond it
    the one that the others spend less in: who calls the model once more than they do tells why, the model does not.
    """
    usual_s, beyond_s = _against_others(late, others)
    most_s = max(beyond_s.values())
    if most_s < TELLS * lost_s:
        return None
    near = [key for key in beyond_s if beyond_s[key] >= NEARLY * most_s]
    key = max(near, key=lambda key: (beyond_s[key] - usual_s[key], key))
    return next(place for place in late.places if place.key == key)


def _more_of_all(job: Job, loss: Loss, place: Location | None) -> _More | None:
    """Return what ranks spend in the late rank's place, if the others do a good part of what it costs them to wait."""
    late, others = _looked_at(job, loss)
    if place is None or late is None or not others:
        return None
    usual_s, beyond_s = _against_others(late, others)
    usual, beyond = usual_s.get(place.key, 0.0), beyond_s.get(place.key, 0.0)
    is_done = place.key in usual_s and usual >= ALIKE * beyond
    return _More(place.function, usual + beyond, usual) if is_done else None


def _do_the_same(job: Job, loss: Loss) -> bool:
    """Whether nothing is seen on the late rank that others do not do as well, where all of them were looked at.

    What it does more of is hidden then: the others wait in the call in which it computes, the backward pass.
    """
    late, others = _looked_at(job, loss)
    if loss.bucket != COMPUTE or late is None or not late.places or not own_work_s(late):
        return False
    theirs = {place.key for view in others for place in view.places}
    spent_s = _spent_s(late)
    alone_s = math.fsum(spent_s[place.key] for place in late.places if place.key not in theirs)
    return bool(others) and alone_s < ALIKE * loss.per_step_s


def _looked_at(job: Job, loss: Loss) -> tuple[RankView | None, list[RankView]]:
    """Return the late rank, or the first of them, and the others whose functions are known."""
    late = next((view for view in job.ranks if view.rank in loss.ranks), None)
    return late, [view for view in job.ranks if view.rank not in loss.ranks and view.places and own_work_s(view)]


def _against_others(
    late: RankView, others: Sequence[RankView]
) -> tuple[Mapping[tuple[str, ...], float], Mapping[tuple[str, ...], float]]:
    """Return what the others spend in each function of the late rank in a mean step, and what that spends beyond it."""
    spent_s, theirs = _spent_s(late), [_spent_s(view) for view in others]
    usual_s = {key: median(one.get(key, 0.0) for one in theirs) or 0.0 for key in spent_s}
    return usual_s, {key: spent_s[key] - usual_s[key] for key in spent_s}


def _spent_s(view: RankView) -> Mapping[tuple[str, ...], float]:
    """Return what a mean step of a rank spends in functions, seconds."""
    own_s = own_work_s(view)
    return {place.key: own_s * place.share_pct / 100.0 for place in view.places}


def own_work_s(view: RankView) -> float:
    """Return what a mean step of a rank spends in its own work, seconds, waits for others within it included."""
    ledger = view.ledger
    if ledger is None or not ledger.steps:
        return 0.0
    return math.fsum(ledger.buckets.get(name, 0.0) for name in WORK) / ledger.steps


def _facts(job: Job, ranks: tuple[int, ...]) -> tuple[list[Evidence], bool]:
    """Return what differs between the machines, and whether some of it makes the late ones slower."""
    late = [view for view in job.ranks if view.rank in ranks]
    others = [view for view in job.ranks if view.rank not in ranks]
    told, explained = [], False
    for name in sorted({name for view in late for name in view.facts} - {BUFFERS, CALLS, COST, SUPPLY}):
        theirs, usual = typical(late, name), typical(others, name)
        if theirs is None or usual is None:
            continue
        sign, least = _EXPLAINS.get(name, (0, DIFFERS * max(abs(theirs), abs(usual), 1.0)))
        more = theirs - usual
        if (sign * more if sign else abs(more)) < least:
            continue
        explained = explained or bool(sign)
        words, _, unit = name.rpartition(", ")
        told.append(Evidence(f"{words or name}, others: {usual:.4g}", theirs, unit if words else "CPUs"))
    return told, explained
