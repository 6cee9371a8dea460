"""A comparison of two runs in words, for a terminal and for Markdown, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...rules.job.words import of_ranks
from ...workers.gains import RUN_NOISE
from .. import wording
from ..overview import Overview
from ..table import Table
from .comparison import Change, Comparison, Side
from .noise import ALIKE_PCT

SCHEMA = 1
"""Raised when a key changes its meaning or goes away; new keys do not raise it."""


SHOWN = 0.005
"""Share of the time per step of one run or the other from which on a bucket has a row of its own."""

ONE_EACH = (
    "One run each cannot tell a difference of a few percent: two runs of one program differ by up to "
    f"{100 * RUN_NOISE:.0f} % in 8 of 10 cases, and the noise above is that within a run"
)


def comparison_to_json(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as plain objects; every key is described in ``docs/reference/compare-json.md``."""
    decisive = comparison.decisive
    return {
        "schema": SCHEMA,
        "metric": comparison.metric,
        "decisive": decisive.key,
        "max_regression_pct": comparison.max_regression_pct,
        "worse_pct": decisive.worse_pct,
        "beyond_noise": decisive.beyond_noise,
        "alike": comparison.alike,
        "regressed": comparison.regressed,
        "summary": outcome(comparison),
        "before": _side(comparison.before),
        "after": _side(comparison.after),
        "numbers": {change.key: _change(change) for change in comparison.changes},
        "ledger_s_per_step": {change.key: _change(change) for change in comparison.ledger},
        "doubts": list(comparison.doubts),
    }


def comparison_overview(comparison: Comparison) -> Overview:
    """Return what is shown of a comparison."""
    before, after = comparison.before, comparison.after
    numbers = tuple(_row(change) for change in comparison.changes if not (change.before is change.after is None))
    ledger = tuple(_row(change) for change in _large(comparison.ledger))
    return Overview(
        headline=outcome(comparison),
        tables=(
            Table(("Run", "before", "after"), _facts(before, after), numeric=False),
            Table(("", "before", "after", "change", "difference, noise within a run"), numbers),
            Table(("Time per step", "before", "after", "change"), tuple(row[:-1] for row in ledger)),
        ),
        remarks=(*comparison.doubts, ONE_EACH),
    )


def outcome(comparison: Comparison) -> str:
    """Return in one sentence whether the second run is worse."""
    change = comparison.decisive
    if change.worse_pct is None:
        return f"The {change.label} was not measured in both runs."
    moved = (
        f"{_capital(change.label)} went from {_value(change, change.before)} to {_value(change, change.after)}"
        f" ({_moved(change)})"
    )
    if change.beyond_noise is False:
        return f"No difference beyond noise. {moved}; the difference is {_between(change)}.{_wall(comparison)}"
    limit = comparison.max_regression_pct
    if limit is None and comparison.alike:
        said = "No difference that one run each can tell"
    elif limit is None:
        said = f"The second run is {'slower' if change.worse_pct > 0 else 'faster'}"
    elif comparison.regressed:
        said = f"Regression of more than {limit:g} %"
    else:
        said = f"No regression of more than {limit:g} %"
    doubt = "how much of it is noise cannot be told"
    if change.interval is not None:
        doubt = f"by the noise within a run the difference is {_between(change)}"
    return f"{said}. {moved}; {doubt}.{_wall(comparison) if comparison.alike else ''}"


def _wall(comparison: Comparison) -> str:
    """Return what is said of the wall time where it moved and the decisive number did not."""
    wall = comparison.wall
    change_pct = None if wall is None else wall.change_pct
    if wall is None or change_pct is None or abs(change_pct) < ALIKE_PCT:
        return ""
    return f" But wall time went from {_value(wall, wall.before)} to {_value(wall, wall.after)} ({_moved(wall)})."


def _large(ledger: Sequence[Change]) -> Iterator[Change]:
    """Yield the buckets that matter in one run or the other, and the sum of those that do not."""
    sums = [sum(getattr(change, side) or 0.0 for change in ledger) for side in ("before", "after")]
    small = []
    for change in ledger:
        parts = zip((change.before, change.after), sums, strict=True)
        if any((seconds or 0.0) >= SHOWN * total > 0 for seconds, total in parts):
            yield change
        else:
            small.append(change)
    if small:
        before, after = (sum(getattr(change, side) or 0.0 for change in small) for side in ("before", "after"))
        yield Change(key="the rest", label="the rest", unit="s", before=before, after=after)


def _facts(before: Side, after: Side) -> tuple[tuple[str, ...], ...]:
    rows = [
        ("read from", before.source, after.source),
        ("steps", f"{before.steps:,}", f"{after.steps:,}"),
        ("wall time", wording.seconds(before.wall_s), wording.seconds(after.wall_s)),
        ("primary cause", _cause(before), _cause(after)),
        ("num_workers", wording.significant(before.num_workers), wording.significant(after.num_workers)),
        ("batch size", wording.significant(before.batch_size), wording.significant(after.batch_size)),
    ]
    if max(before.world_size or 1, after.world_size or 1) > 1:
        rows.insert(1, ("ranks", _ranks(before), _ranks(after)))
    return tuple(rows)


def _ranks(side: Side) -> str:
    detail = "" if side.rank is None or (side.world_size or 1) < 2 else f", these numbers of rank {side.rank}"
    return f"{side.world_size or 1}{detail}"


def _cause(side: Side) -> str:
    if side.rule is None:
        return "none"
    lost = f", {wording.percent(side.share_pct)} lost" if side.share_pct else ""
    who = f" on {of_ranks(side.cause_ranks)}" if side.cause_ranks else ""
    return f"{'probably ' if side.probable else ''}{side.rule}{who}{lost}"


def _row(change: Change) -> tuple[str, ...]:
    label = wording.label(change.label) if change.label == change.key else change.label
    return (
        label,
        _value(change, change.before),
        _value(change, change.after),
        _moved(change),
        _between(change),
    )


def _value(change: Change, value: float | None) -> str:
    if change.unit == "s":
        return wording.seconds(value)
    if change.unit == "%":
        return wording.percent(value)
    return wording.ABSENT if value is None else f"{wording.significant(value)} {change.unit}"


def _between(change: Change) -> str:
    if change.interval is None:
        return wording.ABSENT
    low, high = (_signed(change, value) for value in change.interval)
    return f"{low} to {high}" if low != high else low


def _signed(change: Change, value: float) -> str:
    text = _value(change, abs(value))
    return text if value == 0 else f"{'+' if value > 0 else '-'}{text}"


def _moved(change: Change) -> str:
    if change.unit == "%":  # a percentage of a percentage is not understood
        return wording.ABSENT if change.difference is None else f"{change.difference:+.1f} points"
    value = change.change_pct
    if value is None:
        return wording.ABSENT
    size = abs(value)
    return f"{value:+.1f} %" if size < 1e3 else f"{value:+,.0f} %" if size < 1e6 else f"{value:+.3g} %"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _side(side: Side) -> dict[str, Any]:
    return {
        "source": side.source,
        "id": side.run_id,
        "version": side.version,
        "framework": side.framework,
        "host": side.host,
        "ended": side.ended,
        "steps": side.steps,
        "wall_s": side.wall_s,
        "num_workers": side.num_workers,
        "batch_size": side.batch_size,
        "rank": side.rank,
        "world_size": side.world_size,
        "primary": None
        if side.rule is None
        else {
            "rule": side.rule,
            "title": side.title,
            "share_pct": side.share_pct,
            "probable": side.probable,
            "ranks": list(side.cause_ranks),
        },
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "unit": change.unit,
        "before": change.before,
        "after": change.after,
        "difference": change.difference,
        "change_pct": change.change_pct,
        "interval": None if change.interval is None else list(change.interval),
        "beyond_noise": change.beyond_noise,
    }
