"""weight-penalty: a term of the weights themselves, with its gradients, takes a large part of the steps."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.records import CodeLook, CodeSpot
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.weight_penalty import WeightPenalty
from stallmeter.window import Window

from .windows import START_S, device_steps, fires, loader, missing, run, silent, window


def penalised(share: float = 0.1, *records: Any, gradients: float = 0.5, seen: int = 400, **facts: Any) -> Window:
    """A run of 100 s, of whose steps looks find a share in a penalty and another in the backward pass."""
    look = CodeLook(
        time_s=START_S,
        place="loop",
        bucket="steps",
        rule="",
        method="samples",
        seen=seen,
        wall_s=10.0,
        penalties=(CodeSpot(file="train.py", line=14, function="l2_penalty", own=True, wall_s=10.0 * share),),
        gradients_s=10.0 * gradients,
    )
    return run(loader(), look, *records, facts=facts)


def test_fires() -> None:
    found = fires(WeightPenalty(), penalised())
    assert found.severity is Severity.INFO
    assert found.title == "A penalty on the weights in l2_penalty takes a large part of the steps"
    assert found.time_lost_s == pytest.approx(0.32 * 96.0, rel=0.02)
    assert found.location is not None
    assert (found.location.line, found.location.share_pct) == (14, pytest.approx(10.0))
    assert "(train.py:14)" in found.advice[0].text


def test_its_part_of_the_backward_pass_is_no_more_than_all_of_that() -> None:
    found = fires(WeightPenalty(), penalised(0.2, gradients=0.1))
    assert found.time_lost_s == pytest.approx(0.3 * 96.0, rel=0.02)
    gain, interval = found.advice[0].predicted_gain_pct, found.advice[0].gain_interval_pct
    assert gain is not None
    assert interval is not None
    assert interval[0] < gain < interval[1] < 100.0


def test_it_is_the_cause_and_not_the_steps() -> None:
    verdict = evaluate(ALL_RULES, penalised())
    assert verdict.primary is not None
    assert verdict.primary.rule == "weight-penalty"
    assert "compute-bound" not in {found.rule for found in verdict.diagnoses}


@pytest.mark.parametrize(("share", "seen"), [(0.02, 1000), (0.1, 100), (0.0, 400)])
def test_little_of_it(share: float, seen: int) -> None:
    assert silent(WeightPenalty(), penalised(share, seen=seen))


def test_on_a_gpu_operations_are_only_launched() -> None:
    assert silent(WeightPenalty(), penalised(0.1, *device_steps()))
    assert silent(WeightPenalty(), penalised(0.1, accelerator="CUDAAccelerator"))


def test_abstains() -> None:
    assert "code.torch.weight_penalties" in missing(WeightPenalty(), window())
