"""slow-optimizer: an optimizer that could be fused takes a large part of each step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import OptimizerInfo
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.slow_optimizer import SlowOptimizer, saves
from stallmeter.window import Window

from .windows import START_S, device_steps, fires, loader, missing, run, silent, window

ADAM = OptimizerInfo(time_s=START_S, kind="AdamW", tensors=148, may_fuse=True)


def updating(seconds: float = 60.0, info: OptimizerInfo = ADAM, **more: Any) -> Window:
    """A run of 100 s in which the optimizer takes so many."""
    return run(loader(), info, optimizer=seconds, **more)


def test_fires() -> None:
    found = fires(SlowOptimizer(), updating())
    assert found.severity is Severity.WARNING
    assert found.summary == "AdamW took 61 % of the training time to update 148 tensors."
    part = saves(60.0 / 99.0)[1]
    assert found.time_lost_s == pytest.approx(part * 60.0)
    assert found.advice[0].text.startswith("Set fused=True in torch.optim.AdamW.")
    gain, interval = found.advice[0].predicted_gain_pct, found.advice[0].gain_interval_pct
    assert gain == pytest.approx(100.0 * (1.0 / (1.0 - part * 60.0 / 99.0) - 1.0), rel=0.02)
    assert interval is not None
    assert interval[0] < gain < interval[1]


@pytest.mark.parametrize(
    ("seconds", "severity"),
    [(10.0, Severity.INFO), (49.0, Severity.INFO), (51.0, Severity.WARNING), (76.0, Severity.CRITICAL)],
)
def test_the_larger_its_share_the_more_urgent(seconds: float, severity: Severity) -> None:
    assert fires(SlowOptimizer(), updating(seconds)).severity is severity


def test_it_is_the_cause_where_it_takes_much() -> None:
    """And stands beside a model that sets the pace where it takes little."""
    primary = evaluate(ALL_RULES, updating()).primary
    assert primary is not None
    assert primary.rule == "slow-optimizer"
    rules = [found.rule for found in evaluate(ALL_RULES, updating(20.0)).diagnoses]
    assert rules == ["slow-optimizer", "compute-bound"] or rules == ["compute-bound", "slow-optimizer"]


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


def test_a_small_part_of_the_time() -> None:
    assert silent(SlowOptimizer(), updating(9.0))


def test_on_a_device_the_host_times_launches() -> None:
    assert silent(SlowOptimizer(), run(loader(), ADAM, *device_steps(), optimizer=40.0))


def test_in_a_framework_with_words_of_its_own() -> None:
    found = fires(SlowOptimizer(), updating(facts={"framework": "transformers 5.0"}))
    assert 'TrainingArguments(optim="adamw_torch_fused")' in found.advice[0].text


def test_abstains() -> None:
    assert missing(SlowOptimizer(), window()) == ("ledger.training_s", "spent.optimizer")
    assert missing(SlowOptimizer(), run(loader(), optimizer=40.0)) == ("spent.optimizer",)
