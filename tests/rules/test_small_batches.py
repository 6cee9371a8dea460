"""small-batches: a step takes nearly as long with fewer items."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import StepRecord
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.small_batches import SmallBatches
from stallmeter.window import Window

from .windows import check_fix, device_steps, fires, gpus, ledger, missing, run, silent, step, window

EPOCH = 125


def sized(
    fewer: int = 8, fewer_s: float = 0.087, *more: Any, steps: int = 1000, epochs: int = 8, **changes: Any
) -> Window:
    """Eight epochs of 125 steps of 0.1 s (95 ms of work) with 32 items, but for the last of each."""

    def one(index: int) -> StepRecord:
        made = step(index, epoch=index // EPOCH, epoch_start=index % EPOCH == 0, **changes)
        if index % EPOCH != EPOCH - 1:
            return made
        return replace(made, samples=fewer, forward_s=fewer_s - 0.065, total_s=fewer_s + 0.005)

    return window(*map(one, range(1000)), *more, replace(ledger(steps=steps), epochs=epochs))


def test_fires() -> None:
    found = fires(SmallBatches(), sized())
    assert found.severity is Severity.INFO
    # 95 - 32 * (95 - 87) / 24 = 84.3 of 95 ms.
    assert found.summary == (
        "A step with 32 items works 95 ms, one with 8 87 ms: about 89 % of it is there whatever is in the batch."
    )
    assert found.time_lost_s == pytest.approx(1000 * 0.0843333 / 2, rel=1e-4)
    (advice,) = found.advice
    check_fix(advice.fix)
    assert advice.fix.do.startswith("Try batches of 64 items")  # four times as many would leave 31 updates an epoch
    gain, interval = advice.predicted_gain_pct, advice.gain_interval_pct
    assert gain == pytest.approx(100.0 * (99.0 / (99.0 - 42.1667) - 1.0), rel=1e-3)
    assert interval is not None
    assert interval[0] < gain < interval[1]


def test_long_epochs_may_have_larger_ones() -> None:
    """Half of a step is left to what is fixed: 89 % of it are 7.9 times as much as the items'."""
    found = fires(SmallBatches(), sized(epochs=1))
    assert found.advice[0].fix.do.startswith("Try batches of 128 items")


def test_a_long_wait_for_data_is_not_promised_away() -> None:
    """With larger batches the loader has as many items to make."""
    waits = fires(SmallBatches(), sized(data_wait_s=2.0, total_s=2.1)).advice[0].gain_interval_pct
    assert waits is not None
    assert waits[1] < 300.0


def test_it_stands_before_steps_that_set_the_pace() -> None:
    verdict = evaluate(ALL_RULES, sized())
    assert verdict.primary is not None
    assert verdict.primary.rule == "small-batches"
    assert "compute-bound" not in [d.rule for d in verdict.diagnoses]


@pytest.mark.parametrize(
    "made",
    [
        lambda: sized(8, 0.035),
        lambda: sized(8, 0.087, steps=100, epochs=2),
        lambda: sized(8, 0.087, *device_steps()),
        lambda: sized(8, 0.087, *gpus(5, lambda _: {"utilization_pct": 50.0})),
    ],
    ids=["items take the time", "short epochs", "a device", "a GPU"],
)
def test_silent(made: Any) -> None:
    assert silent(SmallBatches(), made())


def test_abstains_where_all_batches_are_alike() -> None:
    assert missing(SmallBatches(), run()) == ("sizes.smaller",)
