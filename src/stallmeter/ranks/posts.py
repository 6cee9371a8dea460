"""What a rank tells rank 0 while the job runs: half a kilobyte to a dozen, twice a minute.

A post holds the ledger, what the rank's own rules say in short, and the newest steps in tens of microseconds. Which
steps those are follows from their index alone, so that all ranks send the same ones: rows of `ROW`, the rows thinned by
powers of two until the post fits.
"""

from __future__ import annotations

import base64
import json
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..recording import Header, decode, encode
from ..records import Arrivals, LedgerRecord, StepRecord
from ..records.diagnosis import Diagnosis, Severity, Verdict
from .job import RankView
from .steps import PHASES, RankSteps, with_starts

ROW = 8
"""Steps in a row."""

BYTES_PER_MIN = 1_000_000
"""What rank 0 receives at most from all ranks together."""

LARGEST = 12_000
"""Bytes of one post at most, however few ranks there are."""

LEAST = 400
"""Bytes that a ledger and a short verdict take in any case."""

_TICK_S = 1e-5
_TEXT = 160
"""Most characters of a sentence."""


def post_bytes(world_size: int, posts_per_min: float = 2.0) -> int:
    """Return how large a post of each rank may be."""
    return int(max(LEAST, min(LARGEST, BYTES_PER_MIN / posts_per_min / max(1, world_size - 1))))


def encode_post(
    header: Header,
    ledger: LedgerRecord,
    verdict: Verdict | None,
    steps: Sequence[StepRecord],
    *,
    facts: Mapping[str, float],
    arrivals: Sequence[Arrivals] = (),
    ended: str | None = None,
    most: int = LARGEST,
) -> bytes:
    """Return a post.

    Args:
        header: Of the rank's recording.
        ledger: The newest.
        verdict: Its own.
        steps: Those since the last post.
        facts: About its machine.
        arrivals: Its newest collectives.
        ended: Why its run ended; None while it goes on.
        most: Bytes. Steps are left out, and then words, until it fits.
    """
    whole: dict[str, Any] = {
        "header": _header(header),
        "ledger": encode(replace(ledger, callbacks={}, logging={}, validation_parts={})),
        "verdict": None if verdict is None else encode(_short(verdict)),
        "facts": {name: float(f"{value:.4g}") for name, value in facts.items()},
        "ended": ended,
    }
    every = 1
    while every <= 1 << 20:
        chosen = [step for step in steps if not step.outlier and step.index // ROW % every == 0]
        text = _packed({**whole, "steps": _columns(chosen), "arrivals": _newest(arrivals, 512 // every)})
        if len(text) <= most:
            return text
        every *= 2
        if not chosen:
            break
    bare = None if verdict is None else _wordless(verdict)
    if bare is not None:  # the job's number of workers is made of all ranks': it goes last
        text = _packed({**whole, "verdict": encode(bare), "facts": {}})
        if len(text) <= most:
            return text
        bare = replace(bare, num_workers=None)
    return _packed({**whole, "verdict": None if bare is None else encode(bare), "facts": {}})


def decode_post(text: bytes) -> RankView:
    """Return what a post says.

    Raises:
        ValueError: It is no post.
    """
    try:
        whole = json.loads(zlib.decompress(base64.b85decode(text)))
        header = Header(**whole["header"])
        ledger = decode(whole["ledger"])
        verdict = decode(whole["verdict"]) if whole.get("verdict") else None
        if not isinstance(ledger, LedgerRecord):
            raise ValueError("a post without a ledger")
        arrivals = [a for line in whole.get("arrivals", ()) if isinstance(a := decode(line), Arrivals)]
        return RankView(
            rank=header.rank,
            header=header,
            steps=_steps(header, whole.get("steps") or {}),
            ledger=ledger,
            verdict=verdict if isinstance(verdict, Verdict) else None,
            facts=whole.get("facts", {}),
            ended=whole.get("ended"),
            arrivals=arrivals,
        )
    except (KeyError, TypeError, zlib.error) as exc:
        raise ValueError(f"no post of a rank: {exc}") from exc


def joined(before: RankView | None, new: RankView, most: int) -> RankView:
    """Return a rank's view with the steps of an earlier one before its own.

    Args:
        before: From earlier posts; None for the first.
        new: From the newest.
        most: Steps to keep: of more the newest, in whole rows.
    """
    if before is None:
        return new
    old, late = before.steps, new.steps
    names = {*old.seconds, *late.seconds}
    seen = set(old.index)
    fresh = [at for at, index in enumerate(late.index) if index not in seen]
    cut = max(0, len(old.index) + len(fresh) - most)
    if cut:  # at the beginning of a row, so that all ranks drop the same
        cut = next((at for at in range(cut, len(old.index)) if old.index[at] // ROW != old.index[at - 1] // ROW), cut)
    seconds = {}
    for name in names:
        mine, theirs = old.seconds.get(name, [0.0] * len(old)), late.seconds.get(name, [0.0] * len(late))
        seconds[name] = [*mine[cut:], *(theirs[at] for at in fresh)]
    return replace(
        new,
        steps=RankSteps(
            new.rank,
            [*old.index[cut:], *(late.index[at] for at in fresh)],
            [*old.ends_s[cut:], *(late.ends_s[at] for at in fresh)],
            seconds,
            [*old.optimizer_step[cut:], *(late.optimizer_step[at] for at in fresh)],
            late.host,
        ),
        arrivals=[*before.arrivals, *new.arrivals][-4:],
    )


def view_of_steps(
    header: Header,
    ledger: LedgerRecord,
    verdict: Verdict | None,
    steps: Sequence[StepRecord],
    *,
    facts: Mapping[str, float],
    arrivals: Sequence[Arrivals] = (),
    ended: str | None = None,
) -> RankView:
    """Return rank 0's view of itself, in the form of the others'."""
    chosen = [step for step in steps if not step.outlier]
    return RankView(
        rank=header.rank,
        header=header,
        steps=_steps(header, _columns(chosen)),
        ledger=ledger,
        verdict=verdict,
        facts=facts,
        ended=ended,
        arrivals=arrivals,
    )


def _packed(whole: Mapping[str, Any]) -> bytes:
    return base64.b85encode(zlib.compress(json.dumps(whole, separators=(",", ":")).encode(), 6))


def _header(header: Header) -> dict[str, Any]:
    return {
        "run_id": header.run_id,
        "rank": header.rank,
        "world_size": header.world_size,
        "started_s": header.started_s,
        "host": header.host,
        "pid": header.pid,
        "version": header.version,
        "framework": header.framework,
    }


def _columns(steps: Sequence[StepRecord]) -> dict[str, Any]:
    if not steps:
        return {}
    base_s = steps[0].time_s
    columns: dict[str, Any] = {
        "base_s": base_s,
        "index": [step.index for step in steps],
        "end": [round((step.time_s - base_s) / _TICK_S) for step in steps],
        "update": [step.optimizer_step for step in steps],
        "first": [at for at, step in enumerate(steps) if step.epoch_start],
    }
    for name in PHASES:
        values = [round((getattr(step, f"{name}_s") or 0.0) / _TICK_S) for step in steps]
        if any(values):
            columns[name] = values
    return columns


def _steps(header: Header, columns: Mapping[str, Any]) -> RankSteps:
    if not columns:
        return RankSteps(header.rank, [], [], {}, (), header.host)
    seconds = {name: [value * _TICK_S for value in columns[name]] for name in PHASES if name in columns}
    ends = array("d", (columns["base_s"] + tick * _TICK_S for tick in columns["end"]))
    return RankSteps(
        header.rank,
        list(columns["index"]),
        list(ends),
        with_starts(seconds, columns.get("first", ())),
        list(columns["update"]),
        header.host,
    )


def _newest(arrivals: Sequence[Arrivals], most: int) -> list[str]:
    if not arrivals or most < 32:
        return []
    newest = arrivals[-1]
    cut = max(0, len(newest.sequence) - most)
    columns = ("sequence", "began_us", "took_us", "sent_bytes")
    return [encode(replace(newest, **{name: getattr(newest, name)[cut:] for name in columns}))]


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
