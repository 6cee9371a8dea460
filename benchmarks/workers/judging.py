"""What today's stallmeter says of a kept recording, against the sweep."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stallmeter.report.model import read_history
from stallmeter.rules.evaluation import diagnose
from stallmeter.window import Window
from stallmeter.workers import Limits, LoaderCosts, predict_step_time_s
from stallmeter.workers.measured import operation
from stallmeter.workers.sharing import learn_from_waits

from ..faults.statistic import wilson_pct
from .measure import QUIET_CPUS, Truth

GOAL_PCT = 95.0
"""Share of the best throughput that a recommendation has to reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One draw: what was recommended, and what the sweep says of it."""

    name: str
    start: int
    recommended: int
    """The start where nothing was recommended, or a number together with one thread of the loop."""
    best: int
    """Of the sweep, by the median of its rounds."""
    of_best_pct: float
    start_of_best_pct: float
    """The same for the number that the run had."""
    error_pct: float | None
    """Of the predicted step time with the recommended number; None where the model does not predict."""
    errors_pct: Mapping[int, float]
    """By number of workers."""
    limited_by: str
    primary: str
    reason: str
    others_cpus: float
    noise_pct: float
    """Spread of the rounds with the recommended number: half of the difference of their quartiles."""

    @property
    def reached(self) -> bool:
        """Whether the recommendation is within 5 % of the best."""
        return self.of_best_pct >= GOAL_PCT

    @property
    def quiet(self) -> bool:
        """Whether other jobs left the CPUs alone in the sweep."""
        return self.others_cpus <= QUIET_CPUS


def judge(name: str, start: int, recording: Path, truth: Mapping[int, Truth]) -> Judgement:
    """Ask today's rules and model about a recording, and compare with the sweep."""
    window = read_history(recording, 0).window
    verdict = diagnose(window)
    advice = verdict.num_workers
    # A number that is meant with one thread of the loop is none that was swept: `threads` measures those.
    chosen = start if advice is None or advice.torch_threads is not None else advice.recommended
    asked = model(window.present())
    predicted = {} if asked is None else {w: predict_step_time_s(*asked, w) for w in truth}
    errors = {w: 100.0 * (s / truth[w].step_s - 1) for w, s in predicted.items()}
    here = between(truth, chosen)
    error = None
    if asked is not None:
        error = 100.0 * (predict_step_time_s(*asked, chosen) / statistics.median(here) - 1)
    return Judgement(
        name=name,
        start=start,
        recommended=chosen,
        best=min(truth, key=lambda w: truth[w].step_s),
        of_best_pct=100.0 * of_best(truth, here),
        start_of_best_pct=100.0 * of_best(truth, truth[start].rounds_s),
        error_pct=error,
        errors_pct=errors,
        limited_by="" if advice is None else advice.limited_by,
        primary="" if verdict.primary is None else verdict.primary.rule,
        reason="nothing is recommended" if advice is None else advice.reason,
        others_cpus=max(t.others_cpus for t in truth.values()),
        noise_pct=50.0 * (max(here) / min(here) - 1),
    )


def model(window: Window) -> tuple[LoaderCosts, Limits] | None:
    """Return what the model is asked with, as `stallmeter.workers.forecast` does it."""
    known = operation(window)
    return None if known is None else learn_from_waits(window, *known)


def of_best(truth: Mapping[int, Truth], rounds_s: Sequence[float]) -> float:
    """Return a throughput as a share of the best one's, each round against itself.

    The best of many noisy numbers looks better than it is, so the best number for a round is chosen by the others. And
    a machine that is slower in one minute than in the next must not count against who met that minute.
    """
    shares = []
    for i, own_s in enumerate(rounds_s):
        others = {w: [s for k, s in enumerate(t.rounds_s) if k != i] or [t.rounds_s[i]] for w, t in truth.items()}
        best = min(others, key=lambda w: statistics.median(others[w]))
        shares.append(truth[best].rounds_s[i] / own_s)
    return statistics.median(shares)


def between(truth: Mapping[int, Truth], workers: int) -> tuple[float, ...]:
    """Return the rounds of a number; of one that was not measured, what lies between its neighbours."""
    if workers in truth:
        return truth[workers].rounds_s
    below = max((w for w in truth if w < workers), default=None)
    above = min((w for w in truth if w > workers), default=None)
    if below is None or above is None:
        return truth[max(truth) if above is None else min(truth)].rounds_s
    part = (workers - below) / (above - below)
    return tuple(
        math.exp((1 - part) * math.log(a) + part * math.log(b))
        for a, b in zip(truth[below].rounds_s, truth[above].rounds_s, strict=True)
    )


def table(judged: Sequence[Judgement]) -> str:
    """Format a row for each draw."""
    columns = ("draw", "start", "recommended", "sweep best", "of best, %", "start's, %", "error, %", "all numbers, %")
    lines = [f"| {' | '.join((*columns, 'limited by', 'primary', 'noise, %'))} |", f"|---{'|---:' * 7}|---|---|---:|"]
    for j in judged:
        every = f"{statistics.median(abs(e) for e in j.errors_pct.values()):.1f}" if j.errors_pct else ""
        marks = " !" * (not j.reached) + " ~" * (not j.quiet)
        lines.append(
            f"| {j.name} | {j.start} | {j.recommended} | {j.best} | {j.of_best_pct:.0f}{marks} "
            f"| {j.start_of_best_pct:.0f} | {'' if j.error_pct is None else f'{j.error_pct:+.1f}'} | {every} "
            f"| {j.limited_by} | {j.primary} | {j.noise_pct:.0f} |"
        )
    return "\n".join(lines)


def summary(judged: Sequence[Judgement]) -> dict[str, Any]:
    """Compare everything with the goals."""
    hits = sum(j.reached for j in judged)
    errors = [abs(j.error_pct) for j in judged if j.error_pct is not None]
    every = [abs(e) for j in judged for e in j.errors_pct.values()]
    return {
        "draws": len(judged),
        "reached": hits,
        "reached_interval_pct": wilson_pct(hits, len(judged)),
        "starts_reached": sum(j.start_of_best_pct >= GOAL_PCT for j in judged),
        "misses": [j.name for j in judged if not j.reached],
        "quiet": sum(j.quiet for j in judged),
        "quiet_reached": sum(j.quiet and j.reached for j in judged),
        "predicted": len(errors),
        "median_error_pct": statistics.median(errors) if errors else None,
        "median_error_all_pct": statistics.median(every) if every else None,
        "rows": [asdict(j) for j in judged],
    }


def sentences(found: Mapping[str, Any]) -> str:
    """Say how it went."""
    low, high = found["reached_interval_pct"]
    missed = f" Misses: {', '.join(found['misses'])}." if found["misses"] else ""
    errors = ""
    if found["median_error_pct"] is not None:
        errors = (
            f"\nPredicted step time: median error {found['median_error_pct']:.1f} % for the recommended number "
            f"({found['predicted']} draws), {found['median_error_all_pct']:.1f} % over all numbers."
        )
    if found["quiet"] < found["draws"]:
        errors += (
            f"\nOn the {found['quiet']} draws in whose sweep other jobs left the CPUs alone, {found['quiet_reached']} "
            "recommendations reach it."
        )
    return (
        f"{found['reached']} of {found['draws']} recommendations ({low:.0f}-{high:.0f} %) reach {GOAL_PCT:.0f} % of "
        f"the best throughput; of the numbers that the runs started with, {found['starts_reached']} do.{missed}{errors}"
    )
