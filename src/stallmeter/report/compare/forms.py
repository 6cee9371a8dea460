"""A comparison of two runs in words, for a terminal and for Markdown, and as JSON."""

from __future__ import annotations

from typing import Any

from ...rules.job.words import of_ranks
from .. import wording
from ..overview import Overview
from ..table import Table
from .comparison import Change, Comparison, Side

SCHEMA = 1
"""Raised when a key changes its meaning or goes away; new keys do not raise it."""


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
    ledger = tuple(_row(change) for change in comparison.ledger)
    return Overview(
        headline=outcome(comparison),
        tables=(
            Table(("Run", "before", "after"), _facts(before, after), numeric=False),
            Table(("", "before", "after", "change", "difference, 95 % sure"), numbers),
            Table(("Time per step", "before", "after", "change"), tuple(row[:-1] for row in ledger)),
        ),
        remarks=comparison.doubts,
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
        return f"No difference beyond noise. {moved}; the difference is {_between(change)}."
    limit = comparison.max_regression_pct
    if limit is None:
        said = "slower" if change.worse_pct > 0 else "faster" if change.worse_pct < 0 else "unchanged"
        said = f"The second run is {said}"
    elif comparison.regressed:
        said = f"Regression of more than {limit:g} %"
    else:
        said = f"No regression of more than {limit:g} %"
    doubt = (
        "how much of it is noise cannot be told" if change.interval is None else f"the difference is {_between(change)}"
    )
    return f"{said}. {moved}; {doubt}."


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
