"""The exchange between the ranks takes the time, more than a late rank does: all wait for the network.

**What it means.** Gradients, or parameters, are exchanged in each step. All ranks arrive together, and then they stand
until the exchange has ended. Neither data nor computing is the limit.

**Evidence.** From the collectives that PyTorch's flight recorder noted on all ranks: time from the last arrival to the
end of the exchange, bytes and collectives in a step, and the bandwidth of the algorithm that follows from them. Where
it does not note their end (gloo), or notes nothing, the time is DDP's own: it times one exchange in a hundred. What the
program calls itself may take more: the share of a step in which looks at the training thread's stack find it in such a
collective, without waits for late ranks that other rules tell of. A barrier counts where the same call exchanges
something as well. Such calls are the program's to change: they are told as information from less on. What overlaps with
the backward pass is not counted. Where DDP counts an exchange in each of the micro-batches that an update is made of,
or each of them exchanges as many bytes as that with the update, all but one are in vain. These need not take long to be
told of: with them go the waits of ranks for each other that come with each meeting.

**Advice.** Exchange less often (accumulate gradients), less (bf16 compression), or in larger pieces (bucket size);
check that the fast network is used. Calls of the program's own: less often, or joined; Lightning's
`log(..., sync_dist=True)` meets the other ranks twice for each value, in each step unless `on_step=False` is set.

**When it is wrong.** Where nobody recorded collectives it is silent. Without their end and without DDP's own times the
end of the backward pass, or of a plain loop's body, is taken, and a long optimizer step looks like a long exchange. On
two ranks of one host the "network" is its memory and its CPUs: with few CPUs the exchange is slow because of these.

**References.** Read in Lightning 2.6: a barrier and a reduction in `_sync_ddp`. NCCL tests' definition of the bandwidth
of an all-reduce: 2 (n - 1) / n times the bytes, over the time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...ranks.arrivals import Exchanges
from ...ranks.code import CALLS
from ...ranks.job import GPU_FACTS, Job
from ...ranks.steps import updates_per_step, updating
from ...records import DdpTimes
from ...records.diagnosis import Advice, Diagnosis, Evidence, Location, Severity
from ..frameworks import LIGHTNING
from ..rule import threshold
from .gain import MOST_WON, job_gain
from .losses import Loss
from .rank_imbalance import RankImbalance
from .straggler import Straggler, own_work_s
from .words import time

IN_VAIN = 1.5
"""Exchanges for one update from which on some are in vain; our choice, between one and two."""

ACCUMULATES = 0.75
"""Updates in a step up to which gradients are accumulated; our choice, between one in two steps and one in each."""

ALIKE, LEAST_STEPS = 0.75, 3
"""Part of what a step with an update exchanges from which on another one exchanges as much; our choice. Sharded models
gather their weights in each, two thirds of it. And so many steps of either kind must be known."""

WITH_COPIES = 1.4
"""What an exchange costs at the most, as a multiple of its own time: DDP's copies to and from its buckets go with it.
Our measurement, benchmarks/ranks: 1.1 to 1.4 on CPUs, whose memory is slow beside what they exchange through it."""

_LOGGED = (
    Advice.of(
        "Log with on_step=False, on_epoch=True where sync_dist=True calls them.",
        expect="Two collectives for each value, once an epoch.",
        limit="A value of a single step is not the mean of all ranks then.",
    ),
)
"""Of Lightning, whose `log` meets the other ranks at a barrier and in a reduction, for each value."""

MOST_OF_IT = 0.5
"""Part of the bytes that one gradient must be to be named; our choice."""

OWN_CALLS = "Collectives that the program calls itself hold up the steps"

COLLECTIVES = "torch.distributed."
"""Begin of the names of what a program calls to meet its other ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationBound:
    """Fires when ranks stand together in the exchange."""

    id: ClassVar[str] = "communication-bound"
    title: ClassVar[str] = "The ranks wait for their exchange more than for each other"

    warn_pct: float = threshold(20.0, "%", "XProf calls a share of 20 % high")
    unsure_pct: float = threshold(
        30.0,
        "%",
        "our measurement, benchmarks/ranks: what follows the exchange is taken with it where its end is not noted",
    )
    info_pct: float = threshold(10.0, "%", "our choice, for calls of the program's own: half of what is high")
    critical_pct: float = threshold(50.0, "%", "our choice: most of the step")
    vain_pct: float = threshold(5.0, "%", "as for a callback that takes this much, which XProf reports")

    def check(self, job: Job, losses: Sequence[Loss]) -> list[Diagnosis]:
        """Compare the time of the exchange itself with that of the steps."""
        return self._long(job, losses) or self._in_vain(job, losses)

    def _long(self, job: Job, losses: Sequence[Loss]) -> list[Diagnosis]:
        found = _exchange_of(job, losses)
        if found is None or found.per_step_s <= 0:
            return []
        known = found.is_measured or found.in_own_calls  # looks tell a call from what follows it
        limit, source = (self.warn_pct, "XProf") if known else (self.unsure_pct, "our measurement")
        only_informs = found.in_own_calls and 100.0 * found.share < limit
        if only_informs:
            limit, source = self.info_pct, "our choice"
        if 100.0 * found.share < limit:
            return []
        share, per_step_s, count = min(1.0, found.share), found.per_step_s, max(job.world_size, len(job.ranks))
        bandwidth = 2.0 * (count - 1) / count * found.bytes_per_step / per_step_s
        merged = job.merged
        # What lies between epochs, or before and after the steps, has no exchange.
        lost_s = share * job.training_s if merged is None else per_step_s * merged.steps * merged.scale
        lost_s = min(lost_s, share * job.training_s)
        in_vain = None if found.in_own_calls else _exchanges_per_update(job)
        place = _place(job) if found.in_own_calls else None
        apart = found.in_own_calls and job.ddp is not None  # it is DDP that exchanges the gradients
        return [
            Diagnosis(
                rule=self.id,
                severity=Severity.INFO if only_informs else self._severity(share),
                title=OWN_CALLS if found.in_own_calls else self.title,
                summary=f"{_of_what(found)} took {time(per_step_s)} in a mean step, "
                f"{100.0 * share:.0f} % of the time, for {found.bytes_per_step / 1e6:.3g} MB of each rank.",
                time_lost_s=lost_s,
                share_pct=100.0 * lost_s / job.wall_s if job.wall_s else 0.0,
                confidence=0.8 if found.is_measured else 0.6,
                location=place,
                evidence=(
                    Evidence(found.measured, 100.0 * share, "%", limit, source),
                    Evidence("exchange in a mean step", per_step_s, "s"),
                    Evidence("exchanged by a rank in a step", found.bytes_per_step, "bytes"),
                    Evidence("collectives in a step", found.per_step, "collectives"),
                    Evidence("bandwidth of the algorithm", bandwidth, "bytes/s"),
                    *(() if apart else _largest_of(job)),
                    *(() if in_vain is None else (Evidence("exchanges for one update", in_vain, "exchanges"),)),
                ),
                advice=(
                    *((_called_less(job, lost_s, place),) if found.in_own_calls else ()),
                    *(
                        _LOGGED
                        if found.in_own_calls and job.ranks[0].header.framework.partition(" ")[0] in LIGHTNING
                        else ()
                    ),
                    *(() if apart else _of_gradients(job, losses, lost_s, in_vain)),
                    *_of_network(job),
                ),
            )
        ]

    def _in_vain(self, job: Job, losses: Sequence[Loss]) -> list[Diagnosis]:
        """Exchanges that need not be cost something however short they are, and in each of them all ranks meet."""
        exchanges, noted = _exchanges_per_update(job), _noted_exchange_of(job)
        if exchanges is None or job.exchanges is None or not job.training_s:
            return []
        taken = noted.share if noted is not None and noted.is_measured else _timed_share(job, job.exchanges)
        exchange_s = min(1.0, taken) * job.training_s
        lost_s = _vain_s(job, losses, exchange_s, exchanges)
        share = lost_s / job.training_s
        if 100.0 * share < self.vain_pct:
            return []
        return [
            Diagnosis(
                rule=self.id,
                severity=self._severity(share),
                title="Gradients are exchanged more often than the weights change",
                summary=f"There are {exchanges:.0f} exchanges for each update of the weights, of "
                f"{job.exchanges.bytes_per_step / 1e6:.3g} MB of each rank in a mean step, where one would do. "
                f"What they take, and the waits for each other in them, is {100.0 * share:.0f} % of the time.",
                time_lost_s=lost_s,
                share_pct=100.0 * lost_s / job.wall_s if job.wall_s else 0.0,
                confidence=0.8,
                evidence=(
                    Evidence("exchanges for one update", exchanges, "exchanges", IN_VAIN, "our choice"),
                    Evidence("what they take in vain, share of the time", 100.0 * share, "%", self.vain_pct, "XProf"),
                    Evidence("of it waits for each other in turn", _evened_s(losses, exchanges), "s"),
                    Evidence("exchanged by a rank in a step", job.exchanges.bytes_per_step, "bytes"),
                    *_largest_of(job),
                ),
                advice=(_once_an_update(job, losses, exchange_s, exchanges), *_as_rows(job)),
            )
        ]

    def _severity(self, share: float) -> Severity:
        return Severity.CRITICAL if 100.0 * share >= self.critical_pct else Severity.WARNING

    def lacks(self, job: Job) -> tuple[str, ...]:
        """Without the collectives of all ranks, or DDP's own times, it is not known what the exchange takes."""
        return () if _exchange_of(job, ()) is not None else ("collectives that all ranks recorded",)


def _place(job: Job) -> Location | None:
    """Return the function of the program that takes the most of all in a collective that it calls."""
    calls = [place for view in job.ranks for place in view.places if (place.call or "").startswith(COLLECTIVES)]
    return max(calls, key=lambda place: place.share_pct, default=None)


def _of_what(found: _Exchange) -> str:
    if found.in_own_calls:
        return "Collectives that the program calls itself"
    return "After the last rank's arrival the exchange"


def _exchanges_per_update(job: Job) -> float | None:
    """Return how often DDP exchanges all gradients for one update of the weights; None where once, or not known.

    Both DDP and the flight recorder must say so: a model that is called twice in a step counts two of DDP's iterations,
    and a second model has bytes of its own. Where DDP's times are not known, all steps must exchange as much as those
    with an update.
    """
    updates = next((found for view in job.ranks if (found := updates_per_step(view.steps))), None)
    if job.exchanges is None or updates is None or updates > ACCUMULATES:
        return None
    if job.ddp is None or not job.ddp.is_known or not job.ddp.sent_bytes:
        return 1.0 / updates if _is_exchanged_by_all(job, job.exchanges) else None
    per_step = min(job.ddp.per_step, job.exchanges.bytes_per_step / job.ddp.sent_bytes)
    return per_step / updates if per_step / updates >= IN_VAIN else None


def _is_exchanged_by_all(job: Job, exchanges: Exchanges) -> bool:
    """Whether steps without an update exchange as much as those with one."""
    known = next((found for view in job.ranks if (found := updating(view.steps))), {})
    sent: dict[bool, list[int]] = {True: [], False: []}
    for index, updates in known.items():
        if index in exchanges.steps:
            sent[updates].append(exchanges.bytes_by_step.get(index, 0))
    if min(map(len, sent.values())) < LEAST_STEPS:
        return False
    return statistics.median(sent[False]) >= ALIKE * statistics.median(sent[True]) > 0


def _timed_share(job: Job, exchanges: Exchanges) -> float:
    """Return the share of the steps that the exchange takes by what DDP timed, however seldom; 0 where it did not."""
    ddp, merged = job.ddp, job.merged
    if ddp is None or merged is None or not merged.total_s or not ddp.sent_bytes:
        return 0.0
    return ddp.exposed_s * exchanges.bytes_per_step / ddp.sent_bytes * merged.steps / merged.total_s


def _vain_s(job: Job, losses: Sequence[Loss], exchange_s: float, exchanges: float) -> float:
    """Return what goes with all exchanges of an update but one, of those that take so many seconds together."""
    return min(exchange_s * (1.0 - 1.0 / exchanges) + _evened_s(losses, exchanges), MOST_WON * job.training_s)


def _evened_s(losses: Sequence[Loss], exchanges: float) -> float:
    """Return what ranks no longer wait for each other in turn: what one is late with in a step evens out over some."""
    return _in_turn_s(losses) * (1.0 - 1.0 / math.sqrt(exchanges))


def _in_turn_s(losses: Sequence[Loss]) -> float:
    return math.fsum(loss.lost_s for loss in losses if not loss.ranks)


def _of_gradients(job: Job, losses: Sequence[Loss], lost_s: float, in_vain: float | None) -> tuple[Advice, ...]:
    return (
        _half_as_often(job, lost_s) if in_vain is None else _once_an_update(job, losses, lost_s, in_vain),
        *_as_rows(job),
        Advice.of(
            "Halve the bytes: register DDP's bf16_compress_hook.",
            limit="Gradients are rounded to bfloat16 on the way.",
        ),
    )


def _largest(job: Job) -> DdpTimes | None:
    """Return the reading that names the gradient that is most of what is exchanged; None where none is."""
    known = [times for view in job.ranks for times in view.ddp if times.largest_gradient]
    newest = known[-1] if known else None
    return newest if newest is not None and newest.largest_gradient_bytes >= MOST_OF_IT * newest.sent_bytes else None


def _largest_of(job: Job) -> tuple[Evidence, ...]:
    found = _largest(job)
    if found is None:
        return ()
    return (Evidence(f"of it the gradient of {found.largest_gradient}", float(found.largest_gradient_bytes), "bytes"),)


def _as_rows(job: Job) -> tuple[Advice, ...]:
    """Return the advice to send the rows of an embedding table that are used, where most of the bytes are its."""
    found = _largest(job)
    if found is None or not found.is_of_a_table:
        return ()
    return (
        Advice.of(
            "Send the used rows of the embedding table alone: nn.Embedding(sparse=True).",
            expect="Most of what is exchanged is the gradient of this one table.",
            limit="With SparseAdam, SGD or Adagrad, and gloo; NCCL exchanges no sparse gradients.",
        ),
    )


def _half_as_often(job: Job, lost_s: float) -> Advice:
    # Half of it is what exchanging half as often, or half as much, can win; and half of DDP's copies.
    gain_pct, interval_pct = job_gain(job, lost_s / 2.0, most_s=WITH_COPIES * lost_s / 2.0)
    return Advice.of(
        "Exchange half as often: accumulate_grad_batches=2, in a plain loop model.no_sync().",
        expect="Half the exchanges for the same samples.",
        limit="The effective batch doubles: the learning rate may need a change.",
        gain_pct=gain_pct,
        interval_pct=interval_pct,
    )


def _once_an_update(job: Job, losses: Sequence[Loss], lost_s: float, exchanges: float) -> Advice:
    part = 1.0 - 1.0 / exchanges
    # Copies and CPUs that go with each exchange are not in its time.
    gain_pct, interval_pct = job_gain(
        job,
        _vain_s(job, losses, lost_s, exchanges),
        least_s=lost_s * part,
        most_s=2.0 * lost_s * part + _in_turn_s(losses),
    )
    return Advice.of(
        "Run all micro-batches but the last in model.no_sync() (in Fabric no_backward_sync).",
        expect=f"One exchange for an update instead of {exchanges:.0f}, and the same weights.",
        limit="The forward pass must be inside, too: DDP decides there whether it exchanges.",
        gain_pct=gain_pct,
        interval_pct=interval_pct,
    )


def _of_network(job: Job) -> tuple[Advice, ...]:
    """Return what is to be checked of the network. None lies between ranks of one host that use no GPU."""
    if any(view.facts.keys() & GPU_FACTS.keys() for view in job.ranks):
        return (Advice.of("Check that the fast network is used: NCCL_DEBUG=INFO names the interface."),)
    hosts = {view.header.host for view in job.ranks}
    if len(hosts) == 1 and all(hosts) and len(job.ranks) == job.world_size:
        return ()
    return (Advice.of("Check that the fast network is used: GLOO_SOCKET_IFNAME chooses the interface."),)


def _called_less(job: Job, saved_s: float, place: Location | None) -> Advice:
    # Fewer calls, or larger ones, win all of it or a part, or what their function does beside them as well.
    most_s = max(saved_s, 0.0 if place is None else _held_s(job, place))
    gain_pct, interval_pct = job_gain(job, saved_s, least_s=saved_s / 2.0, most_s=most_s)
    return Advice.of(
        "Call these collectives less often, with less data, or join their tensors into one.",
        expect="Steps without them: in each call all ranks meet.",
        limit="Where each step needs what they bring.",
        gain_pct=gain_pct,
        interval_pct=interval_pct,
    )


def _held_s(job: Job, place: Location) -> float:
    """Return the seconds that a function takes of the steps, with all that it calls, on the rank where it was seen."""
    ranks = [view for view in job.ranks if place in view.places and view.ledger is not None]
    steps = max((view.ledger.steps for view in ranks if view.ledger is not None), default=0)
    return max((own_work_s(view) * steps * place.share_pct / 100.0 for view in ranks), default=0.0)


@dataclass(frozen=True, slots=True)
class _Exchange:
    """The exchange itself, waits for late ranks apart."""

    share: float
    """Of the time of the steps, 0 to 1."""
    per_step_s: float
    bytes_per_step: float
    per_step: float
    """Collectives in a step."""
    is_measured: bool
    """Whether its end was noted."""
    measured: str
    """What the share is, in words."""
    in_own_calls: bool = False
    """Whether it is what the program's own calls take, and no exchange of gradients."""


def _exchange_of(job: Job, losses: Sequence[Loss]) -> _Exchange | None:
    """Return what is known of the exchange: what was noted of it, or what the program's own calls take if that is more.

    These are called again and again in a step, and each of them meets all ranks.
    """
    noted, calls_s, merged = _noted_exchange_of(job), _in_own_calls_s(job, losses), job.merged
    if calls_s is None or merged is None or not merged.total_s or job.exchanges is None:
        return noted
    if noted is not None and noted.per_step_s >= calls_s:
        return noted
    return _Exchange(
        calls_s * merged.steps / merged.total_s,
        calls_s,
        job.exchanges.bytes_per_step,
        job.exchanges.per_step,
        False,
        "exchange by the program's own calls, from looks at its stack, share of the steps",
        in_own_calls=True,
    )


def _in_own_calls_s(job: Job, losses: Sequence[Loss]) -> float | None:
    """Return what collectives of the program's own calls take in a step, waits that other rules tell of left out.

    None where that is not known: without the arrivals of all ranks, or looks at each.
    """
    if job.exchanges is None or not job.exchanges.steps:
        return None
    found = []
    for view in job.ranks:
        share = view.facts.get(CALLS)
        if share is None or not own_work_s(view):
            return None
        found.append(share * own_work_s(view))
    limits = {True: Straggler().warn_pct, False: RankImbalance().warn_pct}
    told = [one for one in losses if 100.0 * one.share >= limits[bool(one.ranks)]]
    return max(0.0, statistics.median(found) - math.fsum(one.per_step_s for one in told)) if found else None


def _noted_exchange_of(job: Job) -> _Exchange | None:
    """Return what is known of the exchange: as noted where its end was, else by DDP's own times."""
    exchanges, ddp, merged = job.exchanges, job.ddp, job.merged
    is_measured = exchanges is not None and exchanges.is_measured
    if ddp is not None and ddp.is_known and merged is not None and merged.total_s and not is_measured:
        per_step_s = ddp.exposed_s * ddp.per_step
        return _Exchange(
            per_step_s * merged.steps / merged.total_s,
            per_step_s,
            exchanges.bytes_per_step if exchanges is not None else ddp.sent_bytes * ddp.per_step,
            exchanges.per_step if exchanges is not None else ddp.buckets * ddp.per_step,
            True,
            "exchange of gradients that nothing hides, by DDP's own times, share of the steps",
        )
    if exchanges is None or exchanges.exchange_s is None or not exchanges.total_s:
        return None
    return _Exchange(
        exchanges.exchange_s / exchanges.total_s,
        exchanges.exchange_s / max(1, len(exchanges.steps)),
        exchanges.bytes_per_step,
        exchanges.per_step,
        exchanges.is_measured,
        "exchange after the last arrival, share of the steps",
    )
