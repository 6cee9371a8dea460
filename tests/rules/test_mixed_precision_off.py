"""mixed-precision-off: the Tensor Cores have nothing to do."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.records.diagnosis import Severity
from stallmeter.rules.mixed_precision_off import MixedPrecisionOff
from stallmeter.window import Window

from .windows import fires, gpus, missing, run, silent


def computing(
    tensor: float | None = 0.2,
    precision: Any = "32-true",
    *,
    capability: float | None = 9.0,
    busy: float = 95.0,
    wait_s: float = 2.0,
) -> Window:
    """A run on a GPU that is busy, with its Tensor Cores as busy as told."""
    return run(
        *gpus(
            20,
            lambda i: {
                "utilization_pct": busy,
                "tensor_active_pct": tensor,
                "compute_capability": capability if i == 0 else None,
            },
        ),
        data_wait=wait_s,
        facts={"precision": precision},
    )


def test_seen_idle():
    """Where GPM tells, it is certain enough for a warning; no time is claimed."""
    found = fires(MixedPrecisionOff(), computing())
    assert found.summary == (
        "The GPU was busy 95 % of the time, and its Tensor Cores (capability 9.0) worked 0.2 % of the time; "
        "the Trainer computes in 32 bits or more."
    )
    assert (found.severity, found.time_lost_s, found.confidence) == (Severity.WARNING, 0.0, 0.8)
    assert "torch.bfloat16" in found.advice[0].text


@pytest.mark.parametrize("precision", ["32-true", "32", "64-true"])
def test_told_to_compute_in_full_precision(precision):
    """Before Hopper the use cannot be seen: the setting leads to a remark only."""
    found = fires(MixedPrecisionOff(), computing(None, precision, capability=8.0))
    assert (found.severity, found.confidence) == (Severity.INFO, 0.6)
    assert "probably idle" in found.summary


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed", "bf16-true", "16-true", "transformer-engine"])
def test_mixed_precision_is_on(precision):
    """Idle Tensor Cores then have other reasons."""
    assert silent(MixedPrecisionOff(), computing(0.0, precision))


@pytest.mark.parametrize("precision", [None, 3])
def test_a_plain_loop(precision):
    """Nobody knows the setting: what GPM sees decides, and without it there is nothing to judge."""
    assert fires(MixedPrecisionOff(), computing(0.2, precision))
    assert silent(MixedPrecisionOff(), computing(30.0, precision))
    assert missing(MixedPrecisionOff(), computing(None, precision)) == ("gpu.tensor_cores",)


def test_tf32_or_autocast_in_the_model():
    """Tensor Cores at work are in use, whatever the Trainer was told."""
    assert silent(MixedPrecisionOff(), computing(30.0, "32-true"))


def test_advice_for_older_gpus():
    """Volta and Turing have neither bfloat16 nor TF32 in their Tensor Cores."""
    found = fires(MixedPrecisionOff(), computing(None, capability=7.5))
    texts = " ".join(a.text for a in found.advice)
    assert "torch.float16" in texts
    assert "bfloat16" not in texts
    assert "TF32" not in texts


def test_threshold():
    """Capability, use, load and losses each have their limit."""
    assert fires(MixedPrecisionOff(), computing(0.9, capability=7.0, busy=50.0, wait_s=9.8))
    assert silent(MixedPrecisionOff(), computing(1.0))
    assert silent(MixedPrecisionOff(), computing(capability=6.1))
    assert silent(MixedPrecisionOff(), computing(busy=49.9))
    assert silent(MixedPrecisionOff(), computing(wait_s=9.9))


def test_abstains():
    """Without the capability nobody knows whether there are Tensor Cores."""
    assert missing(MixedPrecisionOff(), computing(capability=None)) == ("gpu.tensor_cores",)
    assert missing(MixedPrecisionOff(), run()) == ("gpu.tensor_cores", "gpu.utilization_pct")


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(MixedPrecisionOff(tensor_pct=0.1), computing())
