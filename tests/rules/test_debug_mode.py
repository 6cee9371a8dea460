"""debug-mode: anomaly detection or a profiler is on for most of the training."""

from __future__ import annotations

import pytest

from stallmeter.records import CodeLook, DebugModes
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.debug_mode import LEAST, MOST, DebugMode, cost_share
from stallmeter.rules.evaluation import evaluate
from stallmeter.window import Window

from .windows import START_S, fires, loader, missing, run, silent, step


def debugged(anomaly_s: float = 0.0, profiler_s: float = 0.0, *, noting: float | None = None) -> Window:
    """A run of 100 s with modes on for so long, and looks that found a part of the steps to note stacks."""
    made = run(loader(), *(step(i) for i in range(200)))
    made.append(DebugModes(time_s=START_S + 100, anomaly_s=anomaly_s, profiler_s=profiler_s))
    if noting is not None:
        look = CodeLook(
            time_s=START_S, place="loop", bucket="steps", rule="", method="samples", seen=200, wall_s=10.0,
            tracing_s=10.0 * noting,
        )  # fmt: skip
        made.append(look)
    return made


def test_anomaly_detection_costs_more_than_what_is_seen_of_it() -> None:
    window = debugged(98.0, noting=0.2)
    found = fires(DebugMode(), window)
    assert (found.severity, found.culprit) == (Severity.CRITICAL, "detect_anomaly")
    seen_s = window.code.torch.tracing_s
    assert seen_s is not None
    assert seen_s == pytest.approx(0.2 * 96.0, rel=0.05)
    training_s = window.ledger.training_s
    assert training_s is not None
    assert found.time_lost_s == pytest.approx(cost_share(seen_s / training_s) * training_s)
    gain = found.advice[0].predicted_gain_pct
    assert gain is not None
    assert gain == pytest.approx(100 * found.time_lost_s / (training_s - found.time_lost_s), rel=0.1)
    primary = evaluate(ALL_RULES, window).primary
    assert primary is not None
    assert primary.rule == "debug-mode"


def test_what_it_costs_grows_with_what_is_seen_of_it() -> None:
    costs = [cost_share(percent / 100) for percent in range(101)]
    assert costs[0] == 0.0
    assert costs == sorted(costs)
    assert costs[-1] <= 1.0


@pytest.mark.parametrize(
    ("seen", "lost"),
    [(0.04, 0.52), (0.05, 0.55), (0.11, 0.60), (0.14, 0.74), (0.14, 0.84), (0.21, 0.76), (0.22, 0.94), (0.27, 0.83)],
)
def test_the_measured_costs_lie_in_the_interval(seen: float, lost: float) -> None:
    """Cases of benchmarks.faults.anomaly, with operations large and small."""
    assert LEAST * cost_share(seen) <= lost <= MOST * cost_share(seen)


def test_where_its_cost_was_not_seen_it_informs() -> None:
    for window in (debugged(98.0), debugged(98.0, noting=0.003)):
        verdict = evaluate(ALL_RULES, window)
        assert verdict.primary is not None
        assert (verdict.primary.rule, verdict.primary.severity) == ("debug-mode", Severity.INFO)
        assert verdict.primary.time_lost_s == 0.0
        assert verdict.primary.advice[0].predicted_gain_pct is None


def test_a_profiler_that_is_left_on_informs() -> None:
    found = evaluate(ALL_RULES, debugged(profiler_s=98.0)).primary
    assert found is not None
    assert (found.rule, found.severity) == ("debug-mode", Severity.INFO)
    assert found.title == "A profiler of torch records every step"


def test_a_few_steps_with_a_mode_are_as_they_should_be() -> None:
    assert silent(DebugMode(), debugged(5.0, 10.0, noting=0.2))
    assert silent(DebugMode(), debugged(noting=0.2))


def test_missing_signals() -> None:
    assert "device.modes.anomaly_s" in missing(DebugMode(), Window())
