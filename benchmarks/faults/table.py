"""From kept draws to the tables, as data and as Markdown."""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .cause import HEALTHY
from .judge import NOTHING
from .kept import Gain, Kept
from .statistic import binned, share

GOOD_PCT = 95.0
"""Of the best throughput: a recommendation that reaches it is good."""


def judged(found: Iterable[Kept]) -> list[Kept]:
    """Return the draws whose truth is known."""
    return [k for k in found if not k.failed]


def summary(found: Sequence[Kept]) -> dict[str, Any]:
    """Return the figures that the benchmark is about."""
    known = judged(found)
    groups = {
        "all": known,
        "faults": [k for k in known if not k.truth.healthy],
        "healthy": [k for k in known if k.truth.healthy],
        "quiet host": [k for k in known if not k.busy],
        "busy host": [k for k in known if k.busy],
        "undisturbed": [k for k in known if not k.disturbed],
    }
    return {
        "right": {name: (sum(k.judgement.right for k in part), len(part)) for name, part in groups.items()},
        "draws": len(found),
        "contradictions": sum(bool(k.judgement.contradictions) for k in known),
        "false_alarms": sum(bool(k.judgement.false_alarms) for k in known),
        "unexpected_warnings": sum(bool(k.judgement.unexpected) for k in known),
        "unclear": sum(bool(k.truth.unclear) for k in found),
        "failed": sum("error" in k.result for k in found),
        "seconds_per_draw": statistics.fmean(k.result["elapsed_s"] for k in found) if found else None,
    }


def markdown(found: Sequence[Kept]) -> str:
    """Return the whole account as Markdown."""
    known = judged(found)
    if not known:
        return "No draws are kept yet.\n"
    parts = [
        _about(found),
        _figures(summary(found)),
        "### Truth by primary cause",
        matrix_table(known),
        "### By family, library, loop",
        _by("family", known, lambda k: str(k.result["family"])),
        _by("library", known, lambda k: str(k.result["draw"]["program"]["library"])),
        _by("loop", known, lambda k: str(k.result["draw"]["program"]["loop"])),
        "### Said and right",
        reliability(known),
        "### Promised and measured gain",
        gains([g for k in known if (g := k.gain) is not None]),
        "### The recommended number of workers",
        workers(known),
        "### Misses",
        _list(k for k in known if _flawed(k)),
        "### Not judged",
        _list(k for k in found if k.failed),
    ]
    return "\n\n".join(parts) + "\n"


def _about(found: Sequence[Kept]) -> str:
    machine: dict[str, Any] = next((k.result["machine"] for k in found if "machine" in k.result), {})
    facts = {"draws": len(found), "date": time.strftime("%Y-%m-%d"), **machine}
    facts["disturbed by other processes"] = sum(k.disturbed for k in found)
    return "\n".join(f"- {name}: {value}" for name, value in facts.items() if value is not None)


def _figures(figures: dict[str, Any]) -> str:
    rows = ["| figure | value |", "| --- | --- |"]
    rows += [f"| right primary, {name} | {share(*pair)} |" for name, pair in figures["right"].items()]
    healthy = figures["right"]["healthy"][1]
    rows.append(f"| false alarms on healthy runs | {share(figures['false_alarms'], healthy)} |")
    rows.append(f"| verdicts that contradict themselves | {figures['contradictions']} |")
    rows.append(f"| verdicts with a warning of what was not planted | {figures['unexpected_warnings']} |")
    rows.append(f"| draws whose truth is unclear, failed runs | {figures['unclear']}, {figures['failed']} |")
    rows.append(f"| seconds a draw, repeats included | {figures['seconds_per_draw']:.1f} |")
    return "\n".join(rows)


def matrix_table(known: Sequence[Kept]) -> str:
    """Return truth by primary; columns are numbered and named below so that they fit."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for k in known:
        counts[k.truth.label][k.judgement.label] += 1
    truths = [*sorted(t for t in counts if t != HEALTHY), *([HEALTHY] if HEALTHY in counts else [])]
    said = {label for row in counts.values() for label in row}
    labels = [*(t for t in truths if t in said), *sorted(said - set(truths) - {NOTHING})]
    labels += [NOTHING] if NOTHING in said else []
    head = f"| truth | right | {' | '.join(str(i) for i in range(1, len(labels) + 1))} |"
    rows = [head, "| --- | ---: |" + " ---: |" * len(labels)]
    for truth in truths:
        own = [k for k in known if k.truth.label == truth]
        cells = [str(counts[truth][label]) if counts[truth][label] else "·" for label in labels]
        rows.append(f"| {truth} | {sum(k.judgement.right for k in own)}/{len(own)} | {' | '.join(cells)} |")
    names = ", ".join(f"{i} `{label}`" for i, label in enumerate(labels, 1))
    return "\n".join(rows) + f"\n\nPrimary: {names}."


def _by(name: str, known: Sequence[Kept], key: Callable[[Kept], str]) -> str:
    groups: dict[str, list[Kept]] = defaultdict(list)
    for k in known:
        groups[key(k)].append(k)
    rows = [f"| {name} | right | said |", "| --- | --- | --- |"]
    for value in sorted(groups):
        own = groups[value]
        said = ", ".join(f"{label} {n}" for label, n in Counter(k.judgement.label for k in own).most_common(6))
        rows.append(f"| {value} | {share(sum(k.judgement.right for k in own), len(own))} | {said} |")
    return "\n".join(rows)


def reliability(known: Sequence[Kept]) -> str:
    """Return what share of verdicts is right, by how sure they are."""
    pairs = [(k.confidence, k.judgement.right) for k in known if k.confidence is not None]
    rows = ["| confidence | said, mean | right |", "| --- | ---: | --- |"]
    for low, high, members in binned(pairs):
        mean = statistics.fmean(said for said, _ in members)
        rows.append(
            f"| {low:.1f} to {high:.1f} | {100 * mean:.0f} % | {share(sum(r for _, r in members), len(members))} |"
        )
    return "\n".join(rows)


def gains(found: Sequence[Gain]) -> str:
    """Return how far promised gains are off the measured ones, by rule."""
    if not found:
        return "No verdict promised a gain that was measured."
    rows = ["| rule | verdicts | median error of the throughput | inside the interval |", "| --- | ---: | ---: | --- |"]
    for rule in [*sorted({g.rule for g in found}), None]:
        own = [g for g in found if rule in (None, g.rule)]
        inside = [g.inside for g in own if g.inside is not None]
        error = statistics.median(g.error_pct for g in own)
        rows.append(f"| {rule or 'all'} | {len(own)} | {error:.1f} % | {share(sum(inside), len(inside))} |")
    return "\n".join(rows)


def workers(known: Sequence[Kept]) -> str:
    """Return how many recommended numbers reach the best that was measured."""
    shares = [(p, k) for k in known if (p := k.workers_of_best_pct) is not None]
    if not shares:
        return "No other number of workers was measured."
    good = sum(p >= GOOD_PCT for p, _ in shares)
    missed = [f"- {p:.0f} %: {_numbers(k)}; {k.result['described']}" for p, k in shares if p < GOOD_PCT]
    first = f"{share(good, len(shares))} recommendations reach {GOOD_PCT:.0f} % of the best number that was measured."
    return "\n".join([first, "", *missed])


def _numbers(k: Kept) -> str:
    advice = k.result["num_workers"]
    measured = ", ".join(f"{n}: {g:+.0f} %" for n, g in sorted(k.worker_gains.items()))
    return f"{advice['current']} -> {advice['recommended']} ({measured})"


def _flawed(k: Kept) -> bool:
    j = k.judgement
    return not j.right or bool(j.contradictions or j.false_alarms or j.unexpected)


def _list(found: Iterable[Kept]) -> str:
    return "\n".join(f"- {line(k)}" for k in found) or "None."


def line(k: Kept) -> str:
    """Return one draw, its truth and what is wrong with its verdict, in a line."""
    j = k.judgement
    measured = ", ".join(f"{name} {gain:+.0f} %" for name, gain in k.truth.gains.items())
    mark = "not judged" if k.failed else "right" if j.right and not _flawed(k) else "flawed" if j.right else "WRONG"
    sure = "" if k.confidence is None else f" ({100 * k.confidence:.0f} %)"
    parts = [f"{mark}: {j.label}{sure}, right would be {' or '.join(sorted(k.truth.right)) or '?'} [{measured}]"]
    for name, found in (
        ("contradiction", j.contradictions),
        ("false alarm", j.false_alarms),
        ("also warns", j.unexpected),
    ):
        parts += [f"{name}: {one}" for one in found]
    if k.disturbed:
        parts.append(f"others used {k.result.get('disturbance_cpus', 0.0):.1f} CPUs")
    if k.failed:
        parts.append(k.failed[-300:])
    parts.append(str(k.result["described"]))
    return "; ".join(parts)
