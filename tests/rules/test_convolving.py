"""What makes convolutions on a CPU cheaper, beside compute-bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import Convolutions, CpuAutocast, OptimizerInfo
from stallmeter.rules.compute_bound import ComputeBound
from stallmeter.rules.convolving import LEAST_STEP_S, cheaper_convolutions

from .windows import START_S, device_steps, fires, loader, run, step

FOUND = Convolutions(time_s=START_S, share=0.9, forward_s=0.05, channels_last=0.0)
OFF = CpuAutocast(time_s=START_S, kind="")
KNOWN = {"computes_16_bits": {"bfloat16": True, "float16": False}}


def said(*records: Any, facts: dict[str, Any] | None = None) -> list[str]:
    """What is advised."""
    made = run(loader(), *records, facts=KNOWN if facts is None else facts)
    return [advice.fix.do for advice in fires(ComputeBound(), made).advice]


def test_what_they_win() -> None:
    made = run(loader(), FOUND, OFF, facts=KNOWN)
    half, last, *_ = fires(ComputeBound(), made).advice
    assert half.fix.do == 'Use bfloat16: torch.autocast("cpu", torch.bfloat16).'
    assert last.fix.do.startswith("Keep channels last: model.to(memory_format=torch.channels_last)")
    computed_s = made.spent.bucket_s("forward", "backward", "compute")
    training_s = made.ledger.training_s
    assert computed_s is not None
    assert training_s is not None
    for advice, times, part in ((half, 1.7, 1.0), (last, 1.15, 0.9)):
        left_s = training_s - part * computed_s * (1.0 - 1.0 / times)
        assert advice.predicted_gain_pct == pytest.approx(100.0 * (training_s / left_s - 1.0), rel=0.01)
        assert advice.gain_interval_pct is not None
        assert advice.gain_interval_pct[0] < advice.predicted_gain_pct < advice.gain_interval_pct[1]


def test_in_a_framework_with_words_of_its_own() -> None:
    lightning = KNOWN | {"framework": "lightning 2.6"}
    assert said(FOUND, OFF, facts=lightning)[0] == 'Use bfloat16: Trainer(precision="bf16-mixed").'


HALF = OptimizerInfo(time_s=START_S, kind="SGD", tensors=4, half_share=1.0, half="bfloat16")


@pytest.mark.parametrize(
    ("records", "facts"),
    [
        ([FOUND], KNOWN),
        ([FOUND, replace(OFF, kind="bfloat16")], KNOWN),
        ([FOUND, OFF, HALF], KNOWN),
        ([FOUND, OFF], {}),
        ([FOUND, OFF], {"computes_16_bits": {"bfloat16": False}}),
        ([replace(FOUND, share=0.4), OFF], KNOWN),
        ([replace(FOUND, forward_s=0.002), OFF], KNOWN),
        ([OFF], KNOWN),
    ],
    ids=[
        "not asked",
        "on",
        "weights of 16",
        "not known",
        "no instructions",
        "few",
        "little of a step",
        "not looked at",
    ],
)
def test_no_bfloat16(records: list[Any], facts: dict[str, Any]) -> None:
    assert not any("bfloat16" in do for do in said(*records, facts=facts))


def test_channels_that_lie_last_already() -> None:
    told = said(replace(FOUND, channels_last=0.8), OFF)
    assert any("bfloat16" in do for do in told)
    assert not any("channels last" in do for do in told)
    assert not any("channels last" in do for do in said(replace(FOUND, channels_last=None), OFF))


def test_beside_a_device() -> None:
    assert cheaper_convolutions(run(loader(), FOUND, OFF, facts=KNOWN))
    assert not cheaper_convolutions(run(loader(), FOUND, OFF, *device_steps(), facts=KNOWN))


def test_short_steps_win_nothing() -> None:
    short = [replace(step(i), total_s=0.5 * LEAST_STEP_S) for i in range(200)]
    assert not any("bfloat16" in do for do in said(FOUND, OFF, *short))
