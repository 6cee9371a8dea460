"""half-precision-on-cpu: numbers of 16 bits on a CPU that has no instructions for them."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.records import CpuAutocast, OptimizerInfo
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.half_precision_on_cpu import HalfPrecisionOnCpu
from stallmeter.window import Window

from .windows import START_S, device_steps, fires, loader, missing, run, silent

NONE = {"bfloat16": False, "float16": False}


def weights(kind: str = "bfloat16", share: float | None = 1.0) -> OptimizerInfo:
    return OptimizerInfo(time_s=START_S, kind="SGD", tensors=4, half=kind, half_share=share)


def autocast(kind: str = "bfloat16") -> CpuAutocast:
    return CpuAutocast(time_s=START_S, kind=kind)


def emulated(*records: Any, has: Any = NONE, data_wait: float = 2.0, **facts: Any) -> Window:
    """A run of 100 s whose weights have 16 bits."""
    facts = {"computes_16_bits": has, **facts}
    return run(loader(), *(records or (weights(),)), facts=facts, data_wait=data_wait)


def test_weights() -> None:
    found = fires(HalfPrecisionOnCpu(), emulated())
    assert found.culprit == "bfloat16"
    assert found.advice[0].text.startswith("Use 32 bits: model.float(), and the batches as well.")
    gain, interval = found.advice[0].predicted_gain_pct, found.advice[0].gain_interval_pct
    assert gain is not None
    assert interval is not None
    assert interval[0] < gain < interval[1]


def test_what_it_costs_is_as_the_cpus_vectors_are() -> None:
    """Our measurement: two to three times with vectors of 512 bits, 6 to 25 times with 256."""
    wide, narrow, unknown = (
        fires(HalfPrecisionOnCpu(), emulated(wide_vectors=known)).advice[0].gain_interval_pct
        for known in (True, False, None)
    )
    assert wide is not None
    assert narrow is not None
    assert unknown is not None
    assert wide[0] < 130 < wide[1] < narrow[1]
    assert wide[0] < narrow[0] < 500
    assert unknown == pytest.approx((wide[0], narrow[1]), rel=0.1)


def test_autocast() -> None:
    found = fires(HalfPrecisionOnCpu(), emulated(weights("", 0.0), autocast("float16")))
    assert found.culprit == "float16"
    assert found.advice[0].text.startswith("Use 32 bits, without torch.autocast.")


def test_it_is_the_cause_and_not_the_steps() -> None:
    verdict = evaluate(ALL_RULES, emulated(autocast()))
    assert verdict.primary is not None
    assert verdict.primary.rule == "half-precision-on-cpu"
    assert not {"compute-bound", "mixed-precision-off"} & {found.rule for found in verdict.diagnoses}


@pytest.mark.parametrize(
    ("framework", "setting"),
    [
        ("lightning 2.6", 'Trainer(precision="32-true")'),
        ("transformers 5", "TrainingArguments(bf16=False, fp16=False)"),
    ],
)
def test_the_setting_of_the_framework(framework: str, setting: str) -> None:
    found = fires(HalfPrecisionOnCpu(), emulated(autocast(), framework=framework))
    assert found.advice[0].text.startswith(f"Use 32 bits: {setting}.")


def test_a_cpu_with_the_instructions() -> None:
    for records in ((weights(),), (autocast(),)):
        assert silent(HalfPrecisionOnCpu(), emulated(*records, has={"bfloat16": True, "float16": False}))
    assert fires(HalfPrecisionOnCpu(), emulated(weights("float16"), has={"bfloat16": True, "float16": False}))
    assert silent(HalfPrecisionOnCpu(), emulated(weights("float16"), has={"bfloat16": False}))  # not known of float16


def test_32_bits() -> None:
    assert silent(HalfPrecisionOnCpu(), emulated(weights("", 0.0), autocast("")))
    assert silent(HalfPrecisionOnCpu(), emulated(weights("bfloat16", 0.2)))
    assert silent(HalfPrecisionOnCpu(), emulated(weights("", None)))


def test_on_a_gpu() -> None:
    assert silent(HalfPrecisionOnCpu(), emulated(weights(), *device_steps()))
    assert silent(HalfPrecisionOnCpu(), emulated(accelerator="CUDAAccelerator"))


def test_steps_that_are_not_most_of_the_time() -> None:
    assert silent(HalfPrecisionOnCpu(), emulated(data_wait=70.0))


@pytest.mark.parametrize("has", [None, {}, "no"])
def test_a_cpu_of_which_nothing_is_known(has: Any) -> None:
    assert missing(HalfPrecisionOnCpu(), emulated(has=has)) == ("facts.computes_16_bits",)
