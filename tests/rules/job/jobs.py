"""Jobs made by hand: ranks that do their work of each step and wait for each other where they meet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stallmeter.ranks.arrivals import Exchanges
from stallmeter.ranks.job import Job, RankView, assemble
from stallmeter.ranks.steps import PHASES, RankSteps
from stallmeter.recording import Header
from stallmeter.records import BUCKETS, Arrivals, LedgerRecord, StepRecord
from stallmeter.records.diagnosis import Abstention, Advice, Diagnosis, Severity, Verdict, WorkerAdvice

START_S = 1_700_000_000.0
HEALTHY = {"data_wait": 0.001, "forward": 0.006, "backward": 0.010, "optimizer": 0.002, "loop": 0.001}
"""Own seconds of a step: 20 ms."""

Work = Callable[[int, int], Mapping[str, float]]
"""Rank and step to own seconds by bucket beyond those of a healthy step."""


def late(rank: int, bucket: str, seconds: float, every: int = 1) -> Work:
    """One rank needs longer in one bucket."""
    return lambda r, step: {bucket: seconds} if r == rank and step % every == 0 else {}


def in_turn(ranks: int, bucket: str, seconds: float) -> Work:
    """Each step another one needs longer."""
    return lambda r, step: {bucket: seconds} if (step * 7 + step // 5) % ranks == r else {}


@dataclass(frozen=True)
class Made:
    """What the ranks of a job did."""

    count: int
    seconds: Mapping[int, Mapping[str, Sequence[float]]]
    ends_s: Mapping[int, Sequence[float]]

    def total_s(self, rank: int) -> float:
        return sum(map(sum, self.seconds[rank].values()))


def made(work: Work, *, ranks: int = 2, steps: int = 200, meet: str = "backward", wait: bool = True) -> Made:
    """Let ranks work.

    Args:
        work: What they do beyond a healthy step.
        ranks: How many.
        steps: How many.
        meet: The bucket at whose end all wait for the last.
        wait: Whether they wait at all.
    """
    seconds: dict[int, dict[str, list[float]]] = {rank: {name: [] for name in PHASES} for rank in range(ranks)}
    ends_s: dict[int, list[float]] = {rank: [] for rank in range(ranks)}
    now_s = dict.fromkeys(range(ranks), START_S)
    for step in range(steps):
        own = {rank: _sum(HEALTHY, work(rank, step)) for rank in range(ranks)}
        for name in PHASES:
            before_s = dict(now_s)
            for rank in range(ranks):
                now_s[rank] += own[rank][name]
            if name == meet and wait:
                now_s = dict.fromkeys(now_s, max(now_s.values()))
            for rank in range(ranks):
                seconds[rank][name].append(now_s[rank] - before_s[rank])
        for rank in range(ranks):
            ends_s[rank].append(now_s[rank])
    return Made(steps, seconds, ends_s)


def _sum(*parts: Mapping[str, float]) -> Mapping[str, float]:
    total: defaultdict[str, float] = defaultdict(float)
    for part in parts:
        for name, s in part.items():
            total[name] += s
    return total


@dataclass(frozen=True)
class Known:
    """What else is known of a rank."""

    diagnoses: Sequence[Diagnosis] = ()
    facts: Mapping[str, float] = field(default_factory=dict)
    host: str = "node1"
    ended: str | None = "end"
    workers: WorkerAdvice | None = None
    abstained: Sequence[Abstention] = ()
    arrivals: Sequence[Arrivals] = ()
    judged: bool = True


def verdict_of(known: Known) -> Verdict:
    """The verdict of a rank."""
    return Verdict(
        primary=known.diagnoses[0] if known.diagnoses else None,
        diagnoses=tuple(known.diagnoses),
        abstained=tuple(known.abstained),
        num_workers=known.workers,
    )


def ledger_of(what: Made, rank: int) -> LedgerRecord:
    """The ledger of a rank: 1 s of start, and its steps."""
    spent = {name: sum(values) for name, values in what.seconds[rank].items()}
    return LedgerRecord(
        time_s=START_S + 1.0 + what.total_s(rank),
        wall_s=1.0 + what.total_s(rank),
        steps=what.count,
        epochs=1,
        buckets=dict.fromkeys(BUCKETS, 0.0) | {"start": 1.0} | spent,
        recorded_steps=what.count,
    )


def header_of(rank: int, world_size: int, host: str = "node1") -> Header:
    """The header of a rank's recording."""
    return Header(
        run_id="ab12cd", rank=rank, world_size=world_size, started_s=START_S, host=host, pid=100 + rank, version="0.1.0"
    )


def job(
    work: Work = lambda rank, step: {},
    *,
    ranks: int = 2,
    steps: int = 200,
    meet: str = "backward",
    wait: bool = True,
    known: Mapping[int, Known] | None = None,
    only: Sequence[int] | None = None,
    cut: Mapping[int, int] | None = None,
) -> Job:
    """Return a job, assembled as one that was read.

    Args:
        work: What the ranks do beyond a healthy step.
        ranks: How many there are.
        steps: How many each takes.
        meet: The bucket at whose end all wait for the last.
        wait: Whether they wait at all.
        known: What else is known of them.
        only: Ranks that have a recording; all by default.
        cut: Steps after which a rank is silent.
    """
    what = made(work, ranks=ranks, steps=steps, meet=meet, wait=wait)
    views = []
    for rank in range(ranks) if only is None else only:
        facts = (known or {}).get(rank, Known())
        end = (cut or {}).get(rank, steps)
        part = Made(
            end,
            {rank: {name: values[:end] for name, values in what.seconds[rank].items()}},
            {rank: what.ends_s[rank][:end]},
        )
        columns = {name: values for name, values in part.seconds[rank].items() if any(values)}
        views.append(
            RankView(
                rank=rank,
                header=header_of(rank, ranks, facts.host),
                steps=RankSteps(rank, range(end), part.ends_s[rank], columns, range(1, end + 1), facts.host),
                ledger=ledger_of(part, rank),
                verdict=verdict_of(facts) if facts.judged else None,
                facts=facts.facts,
                ended=facts.ended,
                arrivals=facts.arrivals,
            )
        )
    return assemble(views)


def records_of(what: Made, rank: int) -> list[StepRecord | LedgerRecord]:
    """Return what a rank's recording holds of its steps."""
    names = [f"{name}_s" for name in PHASES]
    rows = zip(*(what.seconds[rank][name] for name in PHASES), strict=True)
    steps = [
        StepRecord(
            index=at,
            epoch=0,
            optimizer_step=at + 1,
            tracker_step=at,
            samples=8,
            time_s=what.ends_s[rank][at],
            total_s=sum(row),
            epoch_start=at == 0,
            **dict(zip(names, row, strict=True)),  # type: ignore[arg-type]
        )
        for at, row in enumerate(rows)
    ]
    return [*steps, ledger_of(what, rank)]


def diagnosis(rule: str, lost_s: float = 0.0, **changes: object) -> Diagnosis:
    """What a rule of one rank says."""
    given: dict[str, object] = {
        "rule": rule,
        "severity": Severity.WARNING,
        "title": f"The problem of {rule}",
        "summary": f"It took {lost_s:.1f} s.",
        "time_lost_s": lost_s,
        "share_pct": 10.0,
        "confidence": 0.9,
        "advice": (Advice.of("Do less.", expect="Steps of 2 ms instead of 40 ms.", limit="Not always."),),
    }
    return Diagnosis(**(given | changes))  # type: ignore[arg-type]


def compute_bound() -> Diagnosis:
    """What a victim says of itself."""
    return diagnosis("compute-bound", severity=Severity.INFO, summary="95 % of the training time went into the steps.")


def seen_in_collectives(lost_s: float, steps: int = 100, *, first: int = 50, **more: Any) -> Exchanges:
    """What the collectives of some steps show of rank 1, in a job whose ledgers show nothing."""
    return Exchanges(
        steps=frozenset(range(first, first + steps)),
        total_s=steps * 0.04,
        lost_s={1: lost_s},
        late_steps={1: steps},
        exchange_s=None,
        is_measured=False,
        bytes_per_step=1e6,
        per_step=1.0,
        **more,
    )
