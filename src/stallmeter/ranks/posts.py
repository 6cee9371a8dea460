"""What a rank tells rank 0 while the job runs: half a kilobyte to a dozen, twice a minute.

A post holds the ledger, what the rank's own rules say in short, and the newest steps in tens of microseconds. Which
steps those are follows from their index alone, so that all ranks send the same ones: rows of `ROW`, the rows thinned by
powers of two until the post fits.
"""

from __future__ import annotations

import base64
import json
import math
import statistics
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields, replace
from itertools import accumulate, pairwise
from typing import Any, TypeVar

from ..recording import Header, decode, encode
from ..records import Arrivals, DdpTimes, LedgerRecord, LoaderInfo, StepRecord
from ..records.diagnosis import Advice, Diagnosis, Location, Severity, Verdict, WorkerAdvice
from ..records.rows import ROW, is_kept
from ..records.steps import BUCKETS
from .data import DataRead, read_in_evaluation, read_in_training
from .job import GPU_FACTS, HOST_FACTS, SUPPLY, RankView
from .steps import PHASES, RankSteps, starting_steps, with_starts

T = TypeVar("T")

BYTES_PER_MIN = 1_000_000
"""What rank 0 receives at most from all ranks together."""

LARGEST = 12_000
"""Bytes of one post at most, however few ranks there are."""

LEAST = 600
"""Bytes that a ledger, the shortest verdict and a row of steps take in any case."""

FIRST_S, PERIOD_S = 2.0, 30.0
"""The first post comes after so long, the others whenever the run has doubled, at last twice a minute. In a large job
they are farther apart: rank 0 receives them all."""

MOST_READINGS = 32
"""Of the flight recorder that are kept of a rank, the newest."""

COLLECTIVES, MOST_COLLECTIVES = 512, 2000
"""In a post, at first and at the most; between them those of `OF_STEPS` steps, a few more than
`stallmeter.ranks.arrivals` must know."""

OF_STEPS = 24

LEAST_COLLECTIVES = 32
"""Fewer of them in a post say nothing."""

_ENOUGH = 3 * ROW
"""Steps that are worth more than words."""

MOST_DDP = 64
"""Of DDP's own times that are kept of a rank, the newest."""

_DDP_PART = 400
"""For each so many bytes that a post may have, one of DDP's own times is in it."""

_STEP_BYTES = 6
"""Of a post, at least; only for not trying what cannot fit."""

MOST_UNPACKED = 4_000_000
"""Bytes of a post once it is unpacked; more is none of ours."""

_TICK_S = 1e-5
_TEXT = 160
"""Most characters of a sentence."""

_RECORDS = (Header, LedgerRecord, Verdict, Diagnosis, Advice, WorkerAdvice)
_COMMON = "".join(
    f',"{name}":'
    for name in (
        *HOST_FACTS,
        *GPU_FACTS,
        SUPPLY,
        *(f.name for record in _RECORDS for f in fields(record)),
        *("ledger", "verdict", "facts", "ended", "arrivals", "header", "base_s", "index", "end", "update", "first"),
        *BUCKETS,
    )
).encode()
"""What posts have in common: half of a small one. Only ranks with the same version understand each other."""


def post_bytes(world_size: int, period_s: float = PERIOD_S) -> int:
    """Return how large a post of each rank may be, the one before it so long ago."""
    return int(max(LEAST, min(LARGEST, BYTES_PER_MIN * period_s / 60.0 / max(1, world_size - 1))))


class PostPace:
    """When a rank posts, and how much: what rank 0 receives grows no faster than the time.

    Args:
        world_size: Ranks of the job.
        now_s: Monotonic seconds.
    """

    def __init__(self, world_size: int, now_s: float) -> None:
        self._world_size = world_size
        self._begun_s = self._last_s = now_s
        self._least_s = max(FIRST_S, 60.0 * LEAST * max(1, world_size - 1) / BYTES_PER_MIN)
        self.due_s = now_s + self._least_s
        """When the next post is to come."""
        self.most = LEAST
        """Bytes of the post at hand."""

    def begin(self, now_s: float, *, last: bool = False) -> None:
        """Begin a post.

        Args:
            now_s: Monotonic seconds.
            last: Whether none will follow.
        """
        self.most = post_bytes(self._world_size, PERIOD_S if last else now_s - self._last_s)
        self._last_s = now_s
        self.due_s = now_s + max(self._least_s, min(PERIOD_S, now_s - self._begun_s))

    def not_before(self, due_s: float) -> None:
        """Put the next one off, where it would come earlier.

        Args:
            due_s: Monotonic seconds.
        """
        self.due_s = max(self.due_s, due_s)


def encode_post(
    header: Header,
    ledger: LedgerRecord,
    verdict: Verdict | None,
    steps: Sequence[StepRecord],
    *,
    facts: Mapping[str, float],
    places: Sequence[Location] = (),
    between: Location | None = None,
    arrivals: Sequence[Arrivals] = (),
    ddp: Sequence[DdpTimes] = (),
    trains_on: DataRead | None = None,
    evaluates: DataRead | None = None,
    live_on: bool = False,
    ended: str | None = None,
    standing: str | None = None,
    most: int = LARGEST,
) -> bytes:
    """Return a post.

    Args:
        header: Of the rank's recording.
        ledger: The newest.
        verdict: Its own.
        steps: Those since the last post.
        facts: About its machine.
        places: In the code, where its steps do their own work.
        between: In the code, where it is most between two epochs.
        arrivals: Its newest collectives.
        ddp: What DDP timed since the last post.
        trains_on: Which data its training goes through.
        evaluates: Which data its evaluations go through.
        live_on: Whether its workers are known to live on from epoch to epoch.
        ended: Why its run ended; None while it goes on.
        standing: Where its training thread stands; None while steps end.
        most: Bytes. Steps are left out, and then words, until it fits.
    """
    read = trains_on is not None or evaluates is not None
    whole: dict[str, Any] = {
        "header": _header(header),
        "ledger": encode(replace(ledger, callbacks={}, logging={}, validation_parts={})),
        "verdict": None if verdict is None else encode(_short(verdict)),
        "facts": {name: float(f"{value:.4g}") for name, value in facts.items()},
        "ended": ended,
        **({} if standing is None else {"standing": standing[:_TEXT]}),
        **({"data": [trains_on and astuple(trains_on), evaluates and astuple(evaluates)]} if read else {}),
        **({"places": list(map(_place, places))} if places else {}),
        **({"between": _place(between)} if between is not None else {}),
    }
    short = None if verdict is None else _wordless(verdict)
    supply = {name: value for name, value in whole["facts"].items() if name == SUPPLY}
    bare = {**whole, "verdict": None if short is None else encode(short), "facts": supply, "places": []}
    bare.pop("between", None)
    least = bare if short is None else {**bare, "verdict": encode(replace(short, num_workers=None))}
    least = {name: value for name, value in least.items() if name != "data"}
    even = [step for step in steps if not step.outlier]
    wanted = _wanted(arrivals, even)
    for form, enough in ((whole, min(_ENOUGH, len(even))), (bare, min(1, len(even))), (least, min(1, len(even)))):
        every = 1
        while len(even) / every * _STEP_BYTES > most:
            every *= 2
        while len(chosen := [step for step in even if is_kept(step.index, every)]) >= enough:
            text = _packed(
                {
                    **form,
                    "steps": _columns(chosen, live_on=live_on),
                    "arrivals": _newest(arrivals, wanted if every == 1 else COLLECTIVES // every),
                    "ddp": [encode(times) for times in ddp[-max(1, most // _DDP_PART // every) :]],
                }
            )
            if len(text) <= most:
                return text
            if every == 1 and wanted > COLLECTIVES:
                wanted = COLLECTIVES  # rather than fewer steps
                continue
            if not chosen or every > 1 << 20:
                break
            every *= 2
    return _packed(least)


def decode_post(text: bytes) -> RankView:
    """Return what a post says.

    Raises:
        ValueError: It is no post.
    """
    try:
        whole = unpacked(text)
        header = Header(**whole["header"])
        ledger = decode(whole["ledger"])
        verdict = decode(whole["verdict"]) if whole.get("verdict") else None
        if not isinstance(ledger, LedgerRecord):
            raise ValueError("a post without a ledger")
        arrivals = [_added_up(a) for line in whole.get("arrivals", ()) if isinstance(a := decode(line), Arrivals)]
        ddp = [t for line in whole.get("ddp", ()) if isinstance(t := decode(line), DdpTimes)]
        trains_on, evaluates = (None if read is None else DataRead(*read) for read in whole.get("data", (None, None)))
        return RankView(
            rank=header.rank,
            header=header,
            trains_on=trains_on,
            evaluates=evaluates,
            steps=_steps(header, whole.get("steps") or {}),
            ledger=ledger,
            verdict=verdict if isinstance(verdict, Verdict) else None,
            facts={str(name): float(value) for name, value in whole.get("facts", {}).items()},
            places=[Location(*place) for place in whole.get("places", ())],
            between=Location(*whole["between"]) if whole.get("between") else None,
            ended=whole.get("ended"),
            standing=whole.get("standing"),
            arrivals=arrivals,
            ddp=ddp,
        )
    except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, zlib.error) as exc:
        raise ValueError(f"no post of a rank: {exc}") from exc


def joined(before: RankView | None, new: RankView, most: int) -> RankView:
    """Return a rank's view with the steps of an earlier one before its own.

    Args:
        before: From earlier posts; None for the first.
        new: From the newest.
        most: Steps to keep: of more the newest, in whole rows.
    """
    if before is None:
        return replace(new, steps=_newest_rows(new.steps, most))
    old, late = before.steps, new.steps
    # Not those between: one that was read from its recording has more of the rows than its posts.
    newest = old.index[-1] if len(old.index) else -1
    fresh = [at for at, index in enumerate(late.index) if index > newest]
    seconds = {
        name: [
            *old.seconds.get(name, [0.0] * len(old)),
            *_at(late.seconds.get(name, [0.0] * len(late)), fresh),
        ]
        for name in (*old.seconds, *(name for name in late.seconds if name not in old.seconds))
    }
    whole = RankSteps(
        new.rank,
        [*old.index, *_at(late.index, fresh)],
        [*old.ends_s, *_at(late.ends_s, fresh)],
        seconds,
        [*(old.optimizer_step or [None] * len(old)), *_at(late.optimizer_step or [None] * len(late), fresh)],
        late.host or old.host,
        sorted({*old.starts, *late.starts}),
        earlier_s=old.earlier_s,
    )
    return replace(
        new,
        verdict=new.verdict or before.verdict,
        facts={**before.facts, **new.facts},
        trains_on=new.trains_on or before.trains_on,
        evaluates=new.evaluates or before.evaluates,
        places=new.places or before.places,
        between=new.between or before.between,
        steps=_newest_rows(whole, most),
        arrivals=list({(a.group, a.time_s): a for a in (*before.arrivals, *new.arrivals)}.values())[-MOST_READINGS:],
        ddp=[*before.ddp, *(times for times in new.ddp if times not in before.ddp)][-MOST_DDP:],
    )


def _at(values: Sequence[T], places: Sequence[int]) -> list[T]:
    return [values[at] for at in places]


def _newest_rows(steps: RankSteps, most: int) -> RankSteps:
    """Leave out the oldest, up to the beginning of a row, so that all ranks leave out the same."""
    cut, rows = len(steps) - most, [index // ROW for index in steps.index]
    if cut <= 0:
        return steps
    cut = next((at for at in range(cut, len(rows)) if rows[at] != rows[at - 1]), cut)
    return RankSteps(
        steps.rank,
        steps.index[cut:],
        steps.ends_s[cut:],
        {name: values[cut:] for name, values in steps.seconds.items()},
        steps.optimizer_step[cut:],
        steps.host,
        [index for index in steps.starts if index >= steps.index[cut]],
        earlier_s=steps.earlier_s + steps.ends_s[cut] - steps.ends_s[0],
    )


def view_of_steps(
    header: Header,
    ledger: LedgerRecord,
    verdict: Verdict | None,
    steps: Sequence[StepRecord],
    *,
    facts: Mapping[str, float],
    places: Sequence[Location] = (),
    between: Location | None = None,
    arrivals: Sequence[Arrivals] = (),
    ddp: Sequence[DdpTimes] = (),
    loader: LoaderInfo | None = None,
    evaluated: object = None,
    live_on: bool = False,
    ended: str | None = None,
    standing: str | None = None,
) -> RankView:
    """Return rank 0's view of itself, in the form of the others'."""
    chosen = [step for step in steps if not step.outlier]
    return RankView(
        rank=header.rank,
        header=header,
        steps=_steps(header, _columns(chosen, live_on=live_on)),
        ledger=ledger,
        verdict=verdict,
        loader=loader,
        trains_on=read_in_training(loader),
        evaluates=read_in_evaluation(evaluated),
        facts=facts,
        places=places,
        between=between,
        ended=ended,
        standing=standing,
        arrivals=arrivals,
        ddp=ddp,
    )


def unpacked(text: bytes) -> Any:
    """Return the plain objects that a post is made of.

    Raises:
        ValueError: It is none, cut off, or too long.
        zlib.error: The same.
    """
    unpack = zlib.decompressobj(zdict=_COMMON)
    whole = json.loads(unpack.decompress(base64.b85decode(text), MOST_UNPACKED))
    if not unpack.eof:
        raise ValueError("a post that is cut off, or too long")
    return whole


def _place(place: Location) -> tuple[str | float | None, ...]:
    file, function, call = (name and name[-_TEXT:] for name in (place.file, place.function, place.call))
    return file, place.line, function, float(f"{place.share_pct:.3g}"), call


def _packed(whole: Mapping[str, Any]) -> bytes:
    squeezed = zlib.compressobj(6, zdict=_COMMON)
    text = json.dumps(whole, separators=(",", ":")).encode()
    return base64.b85encode(squeezed.compress(text) + squeezed.flush())


def _header(header: Header) -> dict[str, Any]:
    return {
        "run_id": header.run_id,
        "rank": header.rank,
        "world_size": header.world_size,
        "started_s": header.started_s,
        "host": header.host,
        "pid": header.pid,
        "process_space": header.process_space,
        "version": header.version,
        "framework": header.framework,
    }


def _columns(steps: Sequence[StepRecord], *, live_on: bool) -> dict[str, Any]:
    if not steps:
        return {}
    base_s = steps[0].time_s
    columns: dict[str, Any] = {
        "base_s": base_s,
        "index": [step.index for step in steps],
        "end": [round((step.time_s - base_s) / _TICK_S) for step in steps],
        "update": [step.optimizer_step for step in steps],
        "first": [at for at, step in enumerate(steps) if step.epoch_start],
        **({"live_on": True} if live_on else {}),
    }
    for name in PHASES:
        values = [round((getattr(step, f"{name}_s") or 0.0) / _TICK_S) for step in steps]
        if any(values):
            columns[name] = values
    return columns


def _steps(header: Header, columns: Mapping[str, Any]) -> RankSteps:
    if not columns:
        return RankSteps(header.rank, [], [], {}, (), header.host)
    whole = [columns[name] for name in ("index", "end", "update", *PHASES) if name in columns]
    kinds = {type(value) for column in whole for value in column}
    if not kinds <= {int, type(None)} or len({*map(len, whole)}) != 1 or not math.isfinite(columns["base_s"]):
        raise ValueError("columns of a post that are no numbers, or not of one length")
    index, first = list(columns["index"]), list(columns.get("first", ()))
    seconds = {name: [value * _TICK_S for value in columns[name]] for name in PHASES if name in columns}
    return RankSteps(
        header.rank,
        index,
        [columns["base_s"] + tick * _TICK_S for tick in columns["end"]],
        with_starts(seconds, starting_steps(first, index, live_on=bool(columns.get("live_on")))),
        list(columns["update"]),
        header.host,
        [index[at] for at in first],
    )


def _wanted(arrivals: Sequence[Arrivals], steps: Sequence[StepRecord]) -> int:
    """Return how many collectives tell of enough steps: a step may have dozens."""
    newest = arrivals[-1] if arrivals else None
    if newest is None or len(newest.sequence) < LEAST_COLLECTIVES or not steps:
        return COLLECTIVES
    took_s = (newest.began_us[-1] - newest.began_us[0]) / 1e6
    step_s = statistics.median(step.total_s for step in steps)
    of_steps = OF_STEPS * len(newest.sequence) * step_s / took_s if took_s > 0 else 0.0
    return int(min(MOST_COLLECTIVES, max(COLLECTIVES, of_steps)))


def _newest(arrivals: Sequence[Arrivals], most: int) -> list[str]:
    """Return the newest collectives, so many, from as many readings as they take: short ones in a short run."""
    found: list[str] = []
    left = most if most >= LEAST_COLLECTIVES else 0
    columns = ("sequence", "began_us", "took_us", "sent_bytes")
    for reading in reversed(arrivals):
        cut = max(0, len(reading.sequence) - left)
        left -= len(reading.sequence) - cut
        if cut < len(reading.sequence):
            found.append(encode(_gaps(replace(reading, **{name: getattr(reading, name)[cut:] for name in columns}))))
    return found[::-1]


def _gaps(reading: Arrivals) -> Arrivals:
    """Return a reading with what each value has grown since the one before: that packs to less than half."""

    def grown(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(b - a for a, b in pairwise((0, *values)))

    return replace(reading, sequence=grown(reading.sequence), began_us=grown(reading.began_us))


def _added_up(reading: Arrivals) -> Arrivals:
    """Undo `_gaps`."""
    sequence, began_us = accumulate(reading.sequence), accumulate(reading.began_us)
    return replace(reading, sequence=tuple(sequence), began_us=tuple(began_us))


def _short(verdict: Verdict) -> Verdict:
    """Return what rank 0 needs of a verdict: what warns, in short, and the number of workers."""
    warns = [d for d in verdict.diagnoses if d.severity is not Severity.INFO][:4]
    kept = tuple(map(_brief, warns or verdict.diagnoses[:1]))
    return Verdict(primary=kept[0] if kept else None, diagnoses=kept, num_workers=verdict.num_workers)


def _brief(diagnosis: Diagnosis) -> Diagnosis:
    return replace(
        diagnosis, summary=diagnosis.summary[:_TEXT], evidence=(), advice=diagnosis.advice[:1], supersedes=()
    )


def _wordless(verdict: Verdict) -> Verdict:
    short = _short(verdict)
    bare = tuple(replace(d, summary="", title=d.title[:60], advice=()) for d in short.diagnoses[:2])
    workers = None if short.num_workers is None else replace(short.num_workers, reason="")
    return Verdict(primary=bare[0] if bare else None, diagnoses=bare, num_workers=workers)
