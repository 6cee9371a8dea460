"""Ranks that did not end as they should, in words."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence

from ...ranks.job import BEFORE_S, Job, RankView
from ...rules.job.words import SHOWN, of_ranks, waits_for_ranks

MOST_PLACES = 4
"""In so many places ranks are said to stand."""

LONG_SILENT_S = 90.0
"""Ranks tell rank 0 twice a minute at the least: three posts in a row did not come."""


def broken_lines(job: Job) -> Iterator[str]:
    """Yield what ended or holds up the job: who died, who ended first or by an exception, who went silent or stands."""
    views, first = job.ranks, job.left_first
    died = {view.rank for view in job.died}
    alike = len({view.ended for view in views}) < 2
    told = {
        **_deaths([view for view in views if view.rank in died]),
        f"ended first{_how(first)}, and the others could not go on without it": [first] if first is not None else [],
        # Where one has died the others' collectives raise.
        "ended by an exception": [
            view
            for view in views
            if not alike and not died and first is None and (view.ended or "").startswith("exception")
        ],
        "went silent": [] if _is_over(job) else [v for v in _open_ended(job) if (v.silent_s or 0.0) > LONG_SILENT_S],
    }
    for what, found in told.items():
        if found:
            yield f"{_named(found)} {what}. {_last_steps(found)}."
    yield from _killed(job.killed_together)
    yield from _standing(views)


def unheard_lines(job: Job) -> Iterator[str]:
    """Yield who has sent no last word, and who was never heard of."""
    late = _open_ended(job) if _is_over(job) else []
    if late:
        yield f"{_named(late)} sent no last word: slower to end, or out of reach. {_last_steps(late)}."
    if job.missing:
        yield f"Nothing is known of {of_ranks(job.missing)}."


def _open_ended(job: Job) -> list[RankView]:
    died = {view.rank for view in job.died}
    return [view for view in job.ranks if view.ended is None and view.rank not in died]


def _is_over(job: Job) -> bool:
    """Whether a last word is missing. Rank 0 tells: while it goes on nobody's is."""
    return len({view.ended for view in job.ranks}) > 1 and not any(view.rank == 0 for view in _open_ended(job))


def _standing(views: Sequence[RankView]) -> Iterator[str]:
    """Yield where ranks stood, those first whose place is the rarest: most wait for the others."""
    places: dict[str, list[RankView]] = {}
    for view in views:
        if view.standing is not None and view.is_cut_short:
            places.setdefault(view.standing.partition(" in ")[2], []).append(view)
    rarest_first = sorted(places.items(), key=lambda item: (len(item[1]), waits_for_ranks(item[0])))
    for place, found in rarest_first[:MOST_PLACES]:
        longest = max((view.standing or "" for view in found), key=_seconds)
        yield f"{_named(found)} stood {longest.partition(' in ')[0]} in {place}. {_last_steps(found)}."


def _seconds(standing: str) -> float:
    found = re.match(r"for (\d+) s", standing)
    return float(found[1]) if found else 0.0


_SENT_BY = {
    "SIGKILL": " (the kernel sends it where memory runs out)",
    "SIGBUS": " (a full /dev/shm ends a process so)",
}


def _deaths(died: Sequence[RankView]) -> dict[str, list[RankView]]:
    """Return who died, by what is known of how."""
    ways: dict[str, list[RankView]] = {}
    for view in died:
        ways.setdefault(_death(view), []).append(view)
    return ways


def _death(view: RankView) -> str:
    gone = view.gone
    if gone is not None and gone.signal is not None:
        return f"was ended by {_signal(gone.signal)}, and the others could not go on without it"
    if gone is not None and gone.status is not None:
        return f"left the program with status {gone.status} and no exception, and the others could not go on without it"
    return "died, while others went on"


_SIGNALS = frozenset(map(int, signal.Signals))


def _killed(views: Sequence[RankView]) -> Iterator[str]:
    """Yield by which signals ranks were ended that nobody can tell apart, and who was the first."""
    if len(views) < 2:
        return
    gone = [view.gone for view in views if view.gone is not None]
    signals = sorted({_signal(end.signal) for end in gone if end.signal is not None})
    apart_s = gone[1].time_s - gone[0].time_s
    first = f", {of_ranks([views[0].rank])} {apart_s:.2g} s before the next" if apart_s > BEFORE_S else ""
    in_order = sorted(views, key=lambda view: view.rank)
    yield f"{_named(in_order)} were ended by {' and '.join(signals)}{first}. {_last_steps(in_order)}."


def _signal(number: int) -> str:
    name = signal.Signals(number).name if number in _SIGNALS else f"signal {number}"
    return f"{name}{_SENT_BY.get(name, '')}"


def _how(first: RankView | None) -> str:
    kind, _, error = (first.ended or "" if first is not None else "").partition(": ")
    return f" by {error}" if kind == "exception" and error else ""


def _named(views: Sequence[RankView]) -> str:
    who = of_ranks([view.rank for view in views])
    return who[:1].upper() + who[1:]


def _last_steps(views: Sequence[RankView]) -> str:
    steps = [f"{0 if view.ledger is None else view.ledger.steps:,}" for view in views]
    more = ", …" if len(steps) > SHOWN else ""
    return f"Last known step{'' if len(steps) == 1 else 's'}: {', '.join(steps[:SHOWN])}{more}"
