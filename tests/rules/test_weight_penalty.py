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


def penalised(
    share: float = 0.1, *records: Any, model: float = 0.3, gradients: float = 0.5, seen: int = 400, **facts: Any
) -> Window:
    """A run of 100 s, of whose steps looks find a share in a penalty, one in the model and one in the backward pass."""
    look = CodeLook(
        time_s=START_S,
        place="loop",
        bucket="steps",
        rule="",
        method="samples",
        seen=seen,
        wall_s=10.0,
        penalties=(CodeSpot(file="train.py", line=14, function="l2_penalty", own=True, wall_s=10.0 * share),),
        model_s=10.0 * model,
        gradients_s=10.0 * gradients,
    )
    return run(loader(), look, *records, facts=facts)


def test_fires() -> None:
    found = fires(WeightPenalty(), penalised())
    assert found.severity is Severity.INFO
    assert found.title == "A penalty on the weights in l2_penalty takes a large part of the steps"
    assert found.time_lost_s == pytest.approx(0.22 * 96.0, rel=0.02)
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


@pytest.mark.parametrize(
    ("share", "model", "gradients", "faster"),
    [
        (0.09, 0.10, 0.62, 1.54),
        (0.02, 0.16, 0.61, 1.62),
        (0.20, 0.11, 0.49, 2.96),
        (0.13, 0.13, 0.58, 2.47),
        (0.06, 0.20, 0.59, 1.33),
        (0.21, 0.12, 0.56, 1.76),
        (0.12, 0.28, 0.40, 1.44),
        (0.05, 0.20, 0.52, 1.78),
    ],
)
def test_what_was_measured_lies_in_the_interval(share: float, model: float, gradients: float, faster: float) -> None:
    """Cases of benchmarks.faults.penalty, by which the bounds were chosen: what looks saw, and what was won."""
    found = fires(WeightPenalty(), penalised(share, model=model, gradients=gradients))
    interval = found.advice[0].gain_interval_pct
    assert interval is not None
    assert interval[0] <= 100.0 * (faster - 1.0) <= interval[1]


def test_a_backward_pass_that_is_longer_than_a_models_is_the_penaltys() -> None:
    short, long = (fires(WeightPenalty(), penalised(0.1, model=0.1, gradients=part)) for part in (0.3, 0.6))
    assert short.time_lost_s == pytest.approx(0.22 * 96.0, rel=0.02)
    assert long.time_lost_s == pytest.approx(0.5 * 96.0, rel=0.02)


def test_it_is_the_cause_and_not_the_steps() -> None:
    verdict = evaluate(ALL_RULES, penalised())
    assert verdict.primary is not None
    assert verdict.primary.rule == "weight-penalty"
    assert "compute-bound" not in {found.rule for found in verdict.diagnoses}


@pytest.mark.parametrize(("share", "seen"), [(0.02, 1000), (0.1, 40), (0.0, 400)])
def test_little_of_it(share: float, seen: int) -> None:
    assert silent(WeightPenalty(), penalised(share, seen=seen))


def test_on_a_gpu_operations_are_only_launched() -> None:
    assert silent(WeightPenalty(), penalised(0.1, *device_steps()))
    assert silent(WeightPenalty(), penalised(0.1, accelerator="CUDAAccelerator"))


def test_abstains() -> None:
    assert "code.torch.weight_penalties" in missing(WeightPenalty(), window())
