"""double-precision: weights of 64 bits, which were taken for steps that set the pace."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.records import OptimizerInfo
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.double_precision import DoublePrecision
from stallmeter.rules.evaluation import evaluate
from stallmeter.window import Window

from .windows import START_S, device_steps, fires, loader, run, silent


def doubled(*records: Any, share: float | None = 1.0, data_wait: float = 2.0, **facts: Any) -> Window:
    """A run of 100 s whose weights have 64 bits."""
    info = OptimizerInfo(time_s=START_S, kind="AdamW", tensors=4, double_share=share)
    return run(loader(), info, *records, facts=facts, data_wait=data_wait)


def test_it_is_the_cause_and_not_the_steps() -> None:
    found = fires(DoublePrecision(), doubled())
    assert found.severity is Severity.WARNING
    assert found.advice[0].text.startswith("Use 32 bits: model.float(), and float32 where batches are made.")
    gain, interval = found.advice[0].predicted_gain_pct, found.advice[0].gain_interval_pct
    assert gain is not None
    assert interval is not None
    assert interval[0] < gain < interval[1]
    verdict = evaluate(ALL_RULES, doubled())
    assert verdict.primary is not None
    assert verdict.primary.rule == "double-precision"
    assert "compute-bound" not in {one.rule for one in verdict.diagnoses}


@pytest.mark.parametrize(
    ("framework", "said"),
    [
        ("lightning 2.6", 'Use 32 bits: Trainer(precision="32-true").'),
        ("transformers 5", "Use 32 bits: model.float()"),
    ],
)
def test_the_setting_of_the_framework(framework: str, said: str) -> None:
    assert fires(DoublePrecision(), doubled(framework=framework)).advice[0].text.startswith(said)


def test_on_a_gpu_no_time_is_claimed() -> None:
    for window in (doubled(*device_steps()), doubled(accelerator="CUDAAccelerator")):
        found = fires(DoublePrecision(), window)
        assert (found.severity, found.time_lost_s) == (Severity.INFO, 0.0)
        assert found.advice[0].predicted_gain_pct is None


@pytest.mark.parametrize("share", [0.0, 0.3, None])
def test_other_weights_and_older_recordings(share: float | None) -> None:
    assert silent(DoublePrecision(), doubled(share=share))


def test_steps_that_are_not_most_of_the_time() -> None:
    assert silent(DoublePrecision(), doubled(data_wait=70.0))
