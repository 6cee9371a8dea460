"""step-outliers: rare steps take many times longer than the others."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.records.diagnosis import Severity
from stallmeter.rules.step_outliers import StepOutliers
from stallmeter.window import Window

from .windows import fires, hosts, ledger, missing, silent, step, window

SLOW_S = 0.58


def pauses(every: int, pause_s: float = SLOW_S - 0.08, steps: int = 1000, where: str = "forward") -> Window:
    """Steps of 80 ms own work, each ``every``-th with a pause; the ledger is their sum."""
    made: list[Any] = []
    for i in range(steps):
        extra = pause_s if i % every == every - 1 else 0.0
        own = {"forward_s": 0.03, "backward_s": 0.05, "optimizer_s": 0.015, "callbacks_s": 0.0}
        own[f"{where}_s"] += extra
        made.append(step(i, **own, total_s=0.1 + extra))
    wall_s = sum(s.total_s for s in made)
    buckets = {f: sum(getattr(s, f"{f}_s") for s in made) for f in ("forward", "backward", "optimizer", "callbacks")}
    buckets |= {"start": 0.0, "data_wait": 0.0, "loop": 0.0}
    names = {"Ema": buckets.pop("callbacks")}
    return window(*made, ledger(wall_s=wall_s, steps=steps, callbacks=names, **buckets))


def test_fires():
    """What the long steps took beyond the median is lost."""
    found = fires(StepOutliers(), pauses(50))
    assert found.time_lost_s == pytest.approx(20 * 0.5)
    assert found.summary.startswith("About 20 of 1000 steps took 10.0 s more than median steps (80.0 ms) would, 9 % of")
    assert found.summary.endswith("the longest took 580 ms.")
    assert found.severity is Severity.WARNING


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (250, "the longest took 580 ms, and such a one comes each 50 steps."),
        (100, "the longest took 580 ms."),
        (1000, "the longest took 580 ms."),
    ],
    ids=["four distances", "one distance", "more than are kept"],
)
def test_long_steps_at_even_distances_are_told_with_it(steps: int, said: str) -> None:
    assert fires(StepOutliers(), pauses(50, steps=steps)).summary.endswith(said)


def test_long_steps_now_and_then_have_no_distance() -> None:
    made = pauses(50, steps=250)
    made.append(step(260, forward_s=0.6, total_s=0.7))
    assert fires(StepOutliers(), made).summary.endswith("ms.")


def neighbours(made: Window, until_s: float, others: float = 1.0, waits_pct: float = 50.0) -> Window:
    """Of the samples up to some time after the first one, each with so much of others."""
    busy, quiet = (
        {"others_cpus": others, "loop_cpu_wait_pct": waits_pct},
        {"others_cpus": 0.0, "loop_cpu_wait_pct": 2.0},
    )
    for sample in hosts(120, lambda i: busy if i < until_s else quiet, first_s=1.0):
        made.append(sample)
    return made


def test_what_a_job_beside_it_lengthens_is_not_told():
    """A cron job, say, or another training's start: it holds a CPU for some seconds."""
    alone = fires(StepOutliers(), pauses(50))
    assert silent(StepOutliers(), neighbours(pauses(50), until_s=120))
    part = fires(StepOutliers(), neighbours(pauses(50), until_s=20))
    assert 0.0 < part.time_lost_s < alone.time_lost_s
    assert part.time_lost_s == pytest.approx(round(part.time_lost_s / 0.5) * 0.5)


@pytest.mark.parametrize(("others", "waits_pct"), [(1.0, 5.0), (0.1, 50.0)], ids=["CPUs to spare", "its own threads"])
def test_who_holds_it_up_keeps_cpus_busy_that_it_waits_for(others: float, waits_pct: float):
    made = neighbours(pauses(50), until_s=120, others=others, waits_pct=waits_pct)
    assert fires(StepOutliers(), made).time_lost_s == pytest.approx(20 * 0.5)


def test_critical():
    """From the critical share on it is critical."""
    assert fires(StepOutliers(), pauses(50, pause_s=2.0)).severity is Severity.CRITICAL


def test_threshold():
    """The excess counts from the threshold on."""
    made = pauses(100, pause_s=0.5)
    share = made.ledger.training_share_pct(5.0)
    assert share is not None
    assert silent(StepOutliers(warn_pct=share + 0.01), made)
    assert fires(StepOutliers(warn_pct=share - 0.01), made)


@pytest.mark.parametrize("where", ["optimizer", "callbacks"])
def test_not_beside_the_own_work(where):
    """Long optimizer steps, as with accumulated gradients, and long callbacks are something else."""
    assert silent(StepOutliers(), pauses(50, where=where))


def test_a_pattern_is_no_outlier():
    """When every tenth step is long, that is how the program works."""
    assert silent(StepOutliers(), pauses(10))
    assert fires(StepOutliers(rare_pct=10.0), pauses(10))


def test_a_hiccup():
    """One long step may not come again: it is told where it took much of the run, and never a warning."""
    found = fires(StepOutliers(), pauses(1000, pause_s=30.0))
    assert found.severity is Severity.INFO
    assert found.summary == (
        "One of 1000 steps took 30.1 s, a median one 80.0 ms: 23 % of the training time. It may not come again."
    )
    assert found.advice[0].gain_interval_pct is not None
    assert found.advice[0].gain_interval_pct[0] < 0.0
    assert silent(StepOutliers(), pauses(1000, pause_s=20.0))


def test_little_jitter():
    """Steps of twice the median are ordinary."""
    assert silent(StepOutliers(), pauses(25, pause_s=0.15))


def test_scaled():
    """In a long run only a sample of the steps is kept; the loss is that of all of them."""
    made = pauses(53, steps=20_000)
    assert made.steps.count > 2 * len(made.steps.steady)
    assert fires(StepOutliers(), made).time_lost_s == pytest.approx(20_000 / 53 * 0.5, rel=0.15)


def test_never_more_than_the_ledger():
    """A sample that happens to hold all the long steps does not multiply them."""
    made = pauses(64, steps=20_000)
    made.steps.steady.extend([s for s in made.steps.steady if s.total_s > 0.2] * 4)  # type: ignore[attr-defined]
    found = made.steps.outliers(3.0)
    assert found is not None
    assert found.excess_s <= 20_000 / 64 * 0.5 * 1.01


def test_few_steps():
    """A dozen steps have no typical time."""
    made = pauses(8, steps=18, pause_s=3.0)
    assert silent(StepOutliers(rare_pct=50.0), made)
    assert fires(StepOutliers(rare_pct=50.0, min_steps=5.0, min_outliers=1.0), made)


def test_abstains():
    """Without steps there is nothing to judge."""
    assert missing(StepOutliers(), window(ledger())) == ("steps.body_s",)


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(StepOutliers(factor=8.0), pauses(50))
