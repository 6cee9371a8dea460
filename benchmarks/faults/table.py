"""From results to the confusion matrix and the other figures, as data and as Markdown."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .case import HEALTHY, NOTHING, Case, Judgement, judge
from .runner import disturbed

Result = Mapping[str, Any]

PLANTED: Mapping[str, tuple[str, ...]] = {
    "forward": ("forward",),
    "callbacks": ("callbacks",),
    "logging": ("logging",),
    "checkpoint": ("checkpoint",),
    "validation": ("validation",),
    "start": ("start",),
    "input": ("data_wait", "worker_startup"),
}
"""What was planted and the buckets where the ledger must have it."""


def judged(results: Sequence[Result], cases: Sequence[Case]) -> list[tuple[Result, Judgement]]:
    """Hold every result against its case."""
    by_id = {case.id: case for case in cases}
    return [(result, judge(by_id[result["case"]], result)) for result in results]


def matrix(pairs: Iterable[tuple[Result, Judgement]]) -> dict[str, Counter[str]]:
    """Count primaries by truth."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for result, judgement in pairs:
        counts[result["truth"]][judgement.label] += 1
    return dict(counts)


def ledger_error_pct(result: Result) -> dict[str, float]:
    """Say by how much of the wall time the ledger is off what was planted, for each place where that is known.

    What was planted is a lower bound where the framework's own work around it is booked in the same bucket.
    """
    spent, ledger = dict(result.get("spent") or {}), result.get("ledger") or {}
    wall = sum(ledger.values())
    if not wall:
        return {}
    if "next" in spent:
        spent["input"] = spent["next"] + spent.get("next iterators", 0.0) + spent.get("shutdowns", 0.0)
    return {
        place: 100.0 * (sum(ledger.get(bucket, 0.0) for bucket in PLANTED[place]) - seconds) / wall
        for place, seconds in spent.items()
        if place in PLANTED and seconds > 0.01 * wall
    }


def summary(pairs: Sequence[tuple[Result, Judgement]]) -> dict[str, Any]:
    """Return the figures that the benchmark is about."""
    faults = [(r, j) for r, j in pairs if r["truth"] != HEALTHY]
    healthy = [(r, j) for r, j in pairs if r["truth"] == HEALTHY]
    quiet = [(r, j) for r, j in pairs if not disturbed(r)]
    coverage = [r["coverage_pct"] for r, _ in pairs if r.get("coverage_pct") is not None]
    errors = [abs(e) for r, _ in pairs for e in ledger_error_pct(r).values()]
    return {
        "runs": len(pairs),
        "faults": {"runs": len(faults), "right": sum(j.right for _, j in faults), "right_pct": _pct(faults)},
        "healthy": {"runs": len(healthy), "right": sum(j.right for _, j in healthy), "right_pct": _pct(healthy)},
        "undisturbed": {"runs": len(quiet), "right": sum(j.right for _, j in quiet), "right_pct": _pct(quiet)},
        "contradictions": sum(len(j.contradictions) for _, j in pairs),
        "false_alarms": sum(len(j.false_alarms) for _, j in pairs),
        "unexpected_warnings": sum(len(j.unexpected) for _, j in pairs),
        "wrong_details": sum(len(j.faults) for _, j in pairs),
        "failed_runs": sum("error" in r for r, _ in pairs),
        "coverage_min_pct": min(coverage, default=None),
        "ledger_error_median_pct": statistics.median(errors) if errors else None,
        "ledger_error_max_pct": max(errors, default=None),
    }


def _pct(pairs: Sequence[tuple[Result, Judgement]]) -> float | None:
    return 100.0 * sum(j.right for _, j in pairs) / len(pairs) if pairs else None


def markdown(pairs: Sequence[tuple[Result, Judgement]], cases: Sequence[Case], about: Mapping[str, Any]) -> str:
    """Return the whole account as Markdown."""
    figures = summary(pairs)
    parts = [
        "# Right causes on planted faults",
        (
            "Every run is a real `Trainer.fit` with a real DataLoader in a process of its own, pinned to two CPUs. The "
            "accelerator's compute is a sleep in a layer of the model. A run counts as right when its primary cause is "
            "the one that was planted; on a healthy shape, when nothing warns and the primary is `compute-bound` or "
            "none."
        ),
        "\n".join(f"- {name}: {value}" for name, value in about.items()),
        _figures(figures),
        "## Truth by primary cause",
        matrix_table(matrix(pairs)),
        "## By case",
        _by_case(pairs, cases),
        "## What was wrong",
        _misses(pairs),
    ]
    return "\n\n".join(parts) + "\n"


def _figures(figures: Mapping[str, Any]) -> str:
    rows = ["| figure | value |", "| --- | --- |"]
    for name in ("faults", "healthy", "undisturbed"):
        part = figures[name]
        if part["runs"]:
            label = {"faults": "right primary, faults", "healthy": "right, healthy shapes"}.get(
                name, "right, of all runs that nobody disturbed"
            )
            rows.append(f"| {label} | {part['right']} of {part['runs']} ({part['right_pct']:.1f} %) |")
    for name in ("contradictions", "false_alarms", "unexpected_warnings", "wrong_details", "failed_runs"):
        rows += [f"| {name.replace('_', ' ')} | {figures[name]} |"]
    for name, label in (
        ("coverage_min_pct", "least wall time in a named bucket"),
        ("ledger_error_median_pct", "ledger off what was planted, median, of wall time"),
        ("ledger_error_max_pct", "the same, worst"),
    ):
        if figures[name] is not None:
            rows.append(f"| {label} | {figures[name]:.2f} % |")
    return "\n".join(rows)


def matrix_table(counts: Mapping[str, Counter[str]]) -> str:
    """Return truth by primary; columns are numbered and named below so that they fit."""
    truths = [*sorted(t for t in counts if t != HEALTHY), *([HEALTHY] if HEALTHY in counts else [])]
    said = {label for row in counts.values() for label in row}
    labels = [*(t for t in truths if t in said), *sorted(said - set(truths) - {NOTHING})]
    labels += [NOTHING] if NOTHING in said else []
    head = f"| truth | {' | '.join(str(i) for i in range(1, len(labels) + 1))} |"
    rows = [head, "| --- |" + " ---: |" * len(labels)]
    for truth in truths:
        row = counts[truth]
        rows.append(f"| {truth} | {' | '.join(str(row[label]) if row[label] else '·' for label in labels)} |")
    names = ", ".join(f"{i} `{label}`" for i, label in enumerate(labels, 1))
    return "\n".join(rows) + f"\n\nPrimary: {names}."


def _by_case(pairs: Sequence[tuple[Result, Judgement]], cases: Sequence[Case]) -> str:
    rows = ["| case | planted | right | said |", "| --- | --- | ---: | --- |"]
    for case in cases:
        own = [j for r, j in pairs if r["case"] == case.id]
        if own:
            said = ", ".join(f"{label} {n}" for label, n in Counter(j.label for j in own).most_common())
            rows.append(f"| {case.id} | {case.what} | {sum(j.right for j in own)}/{len(own)} | {said} |")
    return "\n".join(rows)


def _misses(pairs: Sequence[tuple[Result, Judgement]]) -> str:
    lines = []
    for result, judgement in pairs:
        if judgement.clean and not judgement.unexpected:
            continue
        lines.append(f"- {describe(result, judgement)}")
    return "\n".join(lines) or "Nothing."


def describe(result: Result, judgement: Judgement) -> str:
    """Return one run and everything wrong with its verdict, in a line."""
    parts = [f"{result['case']}, intensity {result['level']}, seed {result['seed']}: {judgement.label}"]
    primary = result.get("primary")
    if primary and not judgement.right:
        parts.append(f"“{primary['summary']}”")
    for name, found in (
        ("contradiction", judgement.contradictions),
        ("false alarm", judgement.false_alarms),
        ("also warns", judgement.unexpected),
        ("detail", judgement.faults),
    ):
        parts += [f"{name}: {one}" for one in found]
    if disturbed(result):
        parts.append(f"others used {result['disturbance_cpus']:.1f} CPUs")
    if "error" in result:
        parts.append(str(result["error"])[-300:])
    return "; ".join(parts)


def signal_table(results: Sequence[Result]) -> str:
    """Return the raw signals, a line per run, for whoever calibrates thresholds."""
    head = (
        "case", "lvl", "seed", "said", "others", "wait%", "wait ms", "work ms", "empty%", "head%", "late%", "unclr%",
        "top10%", "service", "cpu", "runq", "blocked", "startup s", "others(own)",
    )  # fmt: skip
    rows = [head]
    for r in results:
        signals = r.get("signals") or {}
        queue, batch = signals.get("queue") or {}, signals.get("batch") or {}

        def ms(stats: Any) -> str:
            return "-" if not stats else f"{1e3 * stats['median']:.1f}"

        def num(value: Any, digits: int = 0) -> str:
            return "-" if value is None else f"{value:.{digits}f}"

        rows.append(
            (
                r["case"], str(r["level"]), str(r["seed"]), (r.get("primary") or {}).get("rule", NOTHING),
                num(r.get("disturbance_cpus"), 2), num(signals.get("data_wait_share_pct")),
                ms(signals.get("data_wait_s")), ms(signals.get("work_s")), num(queue.get("empty_pct")),
                num(queue.get("head_ready_pct")), num(queue.get("head_late_pct")), num(queue.get("head_unclear_pct")),
                num(queue.get("wait_of_slowest_tenth_pct")), ms(batch.get("service_s")), ms(batch.get("cpu_s")),
                ms(batch.get("run_queue_s")), ms(batch.get("blocked_s")), num(signals.get("worker_startup_s"), 2),
                num((signals.get("host") or {}).get("others_cpus"), 2),
            )
        )  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
