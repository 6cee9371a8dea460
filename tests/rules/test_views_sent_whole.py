"""views-sent-whole: workers hand over more than their batches hold."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.views_sent_whole import ViewsSentWhole
from stallmeter.window import Window
from stallmeter.workers.forecast import forecast

from .waiting import waiting
from .windows import fires, silent

RULE = ViewsSentWhole()


def views(spare_bytes: int | None = 50_000_000, **changes: Any) -> Window:
    """Steps of 0.1 s, half of which wait for one worker."""
    return waiting(**{"workers": 1, "wait_s": 0.05, "batch_s": 0.03, "spare_bytes": spare_bytes, **changes})


def test_fires() -> None:
    found = fires(RULE, views())
    assert found.severity is Severity.WARNING
    assert found.summary == "Workers hand over 51 MB for a batch of 1 MB: with each view all of its tensor."
    assert found.time_lost_s == pytest.approx(30.0)  # 1,000 steps, 0.6 ns a byte
    assert found.advice[0].predicted_gain_pct == pytest.approx(100 * (100 / 70 - 1))
    assert found.advice[0].gain_interval_pct == pytest.approx((100 * (100 / 87.5 - 1), 100.0))


def test_it_comes_before_other_causes_of_the_wait() -> None:
    verdict = evaluate(ALL_RULES, views())
    assert verdict.primary is not None
    assert verdict.primary.rule == RULE.id


def test_no_other_number_of_workers_is_recommended_beside_it() -> None:
    """Without workers nothing is sent, and less is won than by clones."""
    made = views(batch_s=0.004, ready=4, head_ready=True, busy_share=0.1)
    outlook = forecast(made)
    assert outlook is not None
    assert outlook.recommended == 0
    advice = evaluate(ALL_RULES, made).num_workers
    assert advice is not None
    assert advice.recommended == 1


def test_no_more_is_lost_than_was_waited_for() -> None:
    assert fires(RULE, views(500_000_000)).time_lost_s == pytest.approx(50.0)


def test_a_loop_that_computes_on_the_same_cpus_loses_time_beside_its_wait() -> None:
    """Workers copy where the loop computes: it hardly waits, and each of its steps takes longer."""
    busy = {"wait_s": 0.001, "workers": 2, "batch_s": 0.09, "queue_share": 0.3, "cpus": 1.0}
    assert fires(RULE, views(**busy)).time_lost_s > 10.0
    assert silent(RULE, views(**{**busy, "cpus": 16.0, "queue_share": 0.0}))


def test_a_small_part_of_the_wait_informs_only() -> None:
    found = fires(RULE, views(15_000_000, wait_s=0.1))
    assert found.severity is Severity.INFO
    primary = evaluate(ALL_RULES, views(15_000_000, wait_s=0.1)).primary
    assert primary is not None
    assert primary.rule != RULE.id


@pytest.mark.parametrize("spare_bytes", [0, 5_000_000])
def test_nothing_to_be_said(spare_bytes: int) -> None:
    assert silent(RULE, views(spare_bytes))


def test_without_workers_nothing_is_sent() -> None:
    assert silent(RULE, views(workers=0))
