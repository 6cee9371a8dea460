"""recomputed-activations: a checkpoint computes forward again in the backward pass, with memory to spare."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.records import CodeLook, HostSample
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.recomputed_activations import RecomputedActivations
from stallmeter.window import Window

from .windows import START_S, device_steps, fires, loader, missing, run, silent, window


def checkpointed(
    share: float | None = 0.25, *records: Any, used_pct: float | None = 40.0, seen: int = 200, **facts: Any
) -> Window:
    """A run of 100 s in which a share of the steps is a second computation."""
    look = CodeLook(
        time_s=START_S,
        place="loop",
        bucket="steps",
        rule="",
        method="samples",
        seen=seen,
        wall_s=10.0,
        recomputed_s=None if share is None else 10.0 * share,
    )
    memory = () if used_pct is None else (_memory(used_pct),)
    return run(loader(), look, *memory, *records, facts=facts)


def _memory(used_pct: float) -> HostSample:
    used = int(used_pct * 1e8)
    return HostSample(time_s=START_S + 5.0, memory_limit_used_bytes=used, memory_limit_bytes=10**10)


def test_fires() -> None:
    made = checkpointed()
    found = fires(RecomputedActivations(), made)
    assert found.severity is Severity.WARNING
    assert found.summary == (
        "25 % of the steps' time went into computing activations again that were not kept, and at most 40 % of the "
        "memory was in use."
    )
    assert found.culprit == "torch.utils.checkpoint"
    assert found.time_lost_s == pytest.approx(0.25 * 96.0, rel=0.02)
    assert found.advice[0].text.startswith("Leave activation checkpointing off: call the layers without")


def test_what_is_left_is_shorter_by_it() -> None:
    made = checkpointed()
    found = fires(RecomputedActivations(), made)
    training_s = made.ledger.training_s
    assert training_s is not None
    gain, interval = found.advice[0].predicted_gain_pct, found.advice[0].gain_interval_pct
    assert gain == pytest.approx(100.0 * (training_s / (training_s - found.time_lost_s) - 1.0))
    assert interval is not None
    assert interval[0] < gain < interval[1]


def test_the_fewer_looks_the_less_is_promised() -> None:
    few, many = (
        fires(RecomputedActivations(), checkpointed(seen=seen)).advice[0].gain_interval_pct for seen in (40, 400)
    )
    assert few is not None
    assert many is not None
    assert few[0] < many[0] < many[1] < few[1]


def test_it_is_the_cause_and_not_the_steps() -> None:
    verdict = evaluate(ALL_RULES, checkpointed())
    assert verdict.primary is not None
    assert verdict.primary.rule == "recomputed-activations"
    assert "compute-bound" not in {found.rule for found in verdict.diagnoses}


def test_the_setting_of_the_framework() -> None:
    found = fires(RecomputedActivations(), checkpointed(framework="transformers 5.0"))
    assert found.advice[0].text.startswith(
        "Leave activation checkpointing off: TrainingArguments(gradient_checkpointing=False)."
    )


def test_more_than_half_is_critical() -> None:
    assert fires(RecomputedActivations(), checkpointed(0.55)).severity is Severity.CRITICAL


@pytest.mark.parametrize("share", [0.0, 0.05])
def test_little_of_it(share: float) -> None:
    assert silent(RecomputedActivations(), checkpointed(share))


def test_memory_that_is_needed() -> None:
    assert silent(RecomputedActivations(), checkpointed(used_pct=75.0))


def test_on_a_gpu_no_look_sees_it() -> None:
    assert silent(RecomputedActivations(), checkpointed(0.25, *device_steps()))
    assert silent(RecomputedActivations(), checkpointed(0.25, accelerator="CUDAAccelerator"))
    assert evaluate(ALL_RULES, checkpointed(0.25, accelerator="CPUAccelerator")).primary is not None


def test_abstains() -> None:
    assert "code.torch.recomputed" in missing(RecomputedActivations(), window())
    assert missing(RecomputedActivations(), checkpointed(used_pct=None)) == ("host.memory.peak_pct",)


def test_a_recording_from_before_it_was_looked_for() -> None:
    assert missing(RecomputedActivations(), checkpointed(None)) == ("code.torch.recomputed",)
