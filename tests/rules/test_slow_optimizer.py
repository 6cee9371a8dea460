"""slow-optimizer: an optimizer that could be fused takes a large part of each step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import OptimizerInfo
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.fusing import saves
from stallmeter.rules.slow_optimizer import SlowOptimizer
from stallmeter.window import Window

from .windows import START_S, device_steps, fires, loader, missing, run, silent, window

ADAM = OptimizerInfo(time_s=START_S, kind="AdamW", tensors=148, may_fuse=True)


def updating(seconds: float = 60.0, info: OptimizerInfo = ADAM, **more: Any) -> Window:
    """A run of 100 s in which the optimizer takes so many."""
    return run(loader(), info, optimizer=seconds, **more)


def test_fires() -> None:
    found = fires(SlowOptimizer(), updating())
    assert found.severity is Severity.WARNING
    assert found.summary == "AdamW took 61 % of the training time, and goes over its numbers a dozen times."
    part = saves(60.0 / 99.0)[1]
    assert found.time_lost_s == pytest.approx(part * 60.0)
    assert found.advice[0].text.startswith("Set fused=True in torch.optim.AdamW.")
    gain, interval = found.advice[0].predicted_gain_pct, found.advice[0].gain_interval_pct
    assert gain == pytest.approx(100.0 * (1.0 / (1.0 - part * 60.0 / 99.0) - 1.0), rel=0.02)
    assert interval is not None
    assert interval[0] < gain < interval[1]


@pytest.mark.parametrize(("seconds", "severity"), [(51.0, Severity.WARNING), (76.0, Severity.CRITICAL)])
def test_the_larger_its_share_the_more_urgent(seconds: float, severity: Severity) -> None:
    assert fires(SlowOptimizer(), updating(seconds)).severity is severity


def test_it_is_the_cause_where_it_takes_most() -> None:
    primary = evaluate(ALL_RULES, updating()).primary
    assert primary is not None
    assert primary.rule == "slow-optimizer"


@pytest.mark.parametrize(("seconds", "advised"), [(49.0, True), (11.0, True), (9.0, False)])
def test_a_smaller_part_is_told_with_the_model(seconds: float, advised: bool) -> None:
    verdict = evaluate(ALL_RULES, updating(seconds))
    assert [found.rule for found in verdict.diagnoses] == ["compute-bound"]
    first = verdict.diagnoses[0].advice[0]
    assert ("fused=True" in first.text and (first.predicted_gain_pct or 0.0) > 0.0) is advised


@pytest.mark.parametrize(
    ("share", "saved"), [(0.46, 0.55), (0.49, 0.59), (0.73, 0.87), (0.13, 0.65), (0.59, 0.83), (0.90, 0.88)]
)
def test_what_was_measured_lies_in_the_interval(share: float, saved: float) -> None:
    """Cases of benchmarks.faults.optimizers, those at its ends among them."""
    least, usual, most = saves(share)
    assert least <= saved <= most
    assert least < usual < most


@pytest.mark.parametrize("changes", [{"fused": True}, {"may_fuse": False}, {"kind": "SGD"}])
def test_nothing_to_be_won(changes: dict[str, Any]) -> None:
    assert silent(SlowOptimizer(), updating(info=replace(ADAM, **changes)))


def test_on_a_device_the_host_times_launches() -> None:
    assert silent(SlowOptimizer(), run(loader(), ADAM, *device_steps(), optimizer=60.0))


def test_in_a_framework_with_words_of_its_own() -> None:
    found = fires(SlowOptimizer(), updating(facts={"framework": "transformers 5.0"}))
    assert 'TrainingArguments(optim="adamw_torch_fused")' in found.advice[0].text


def test_abstains() -> None:
    assert missing(SlowOptimizer(), window()) == ("ledger.training_s", "spent.optimizer")
    assert missing(SlowOptimizer(), run(loader(), optimizer=60.0)) == ("spent.optimizer",)
