"""Recordings of jobs, written through `Recorder` as their ranks write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stallmeter.records import Event, HostSample

from ...rules.job.jobs import START_S, Known, Work, made, records_of, verdict_of
from ..recordings import write


def write_job(
    folder: Path,
    work: Work = lambda rank, step: {},
    *,
    ranks: int = 2,
    steps: int = 200,
    meet: str = "backward",
    known: Mapping[int, Known] | None = None,
    only: Sequence[int] | None = None,
    more: Sequence[Any] = (),
    **header: Any,
) -> Path:
    """Write the recordings of a job's ranks and return their folder.

    Args:
        folder: Where to.
        work: What the ranks do beyond a healthy step.
        ranks: How many there are.
        steps: How many each takes.
        meet: The bucket at whose end all wait for the last.
        known: What else is known of them.
        only: Ranks that have a recording; all by default.
        more: Records of each rank.
        header: Fields of all headers.
    """
    what = made(work, ranks=ranks, steps=steps, meet=meet)
    for rank in range(ranks) if only is None else only:
        facts = (known or {}).get(rank, Known())
        own: list[Any] = [HostSample(time_s=START_S + i, others_cpus=0.5 + rank) for i in range(3)]
        own += [*records_of(what, rank), *more]
        if facts.ended is not None:
            own.append(Event(time_s=START_S + 100, name="end", detail=facts.ended))
        if facts.judged:
            own.append(verdict_of(facts))
        write(folder, own, rank=rank, world_size=ranks, **({"host": facts.host, "pid": 100 + rank} | header))
    return folder
