"""The exchange itself takes the time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.ranks.arrivals import Exchanges
from stallmeter.records.diagnosis import Severity
from stallmeter.rules.job.communication_bound import CommunicationBound

from ..windows import check_fix
from .jobs import job

RULE = CommunicationBound()


def with_exchange(share: float | None, *, ranks: int = 4, measured: bool = True):
    """A job whose exchange takes this share of 100 steps of 20 ms."""
    exchanges = Exchanges(
        steps=frozenset(range(100)),
        total_s=2.0,
        lost_s={},
        late_steps={},
        exchange_s=None if share is None else share * 2.0,
        is_measured=measured,
        bytes_per_step=40e6,
        per_step=2.0,
    )
    return replace(job(ranks=ranks), exchanges=exchanges)


def test_half_of_the_time():
    """Seconds, milliseconds of a step, bytes and bandwidth; what exchanging half as often wins."""
    made = with_exchange(0.5)
    (said,) = RULE.check(made, [])
    assert said.ranks == ()
    assert said.severity is Severity.CRITICAL
    assert said.time_lost_s == pytest.approx(made.training_s / 2)
    assert said.summary.startswith("After the last rank's arrival the exchange took 10 ms in a mean step, 50 % of the")
    assert said.summary.endswith("for 40 MB of each rank.")
    told = {evidence.name: evidence.value for evidence in said.evidence}
    assert told["bandwidth of the algorithm"] == pytest.approx(2 * 3 / 4 * 40e6 / 0.010)
    assert told["collectives in a step"] == 2.0
    assert said.advice[0].predicted_gain_pct == pytest.approx(100 * (1 / 0.75 - 1))
    assert said.confidence == 0.8
    for advice in said.advice:
        check_fix(advice.fix)


def test_an_end_that_was_not_noted_is_less_sure():
    """It is then taken for the end of the backward pass."""
    assert RULE.check(with_exchange(0.5, measured=False), [])[0].confidence == 0.6
    # The optimizer, and whatever else follows in a plain loop's body, is taken with it.
    assert RULE.check(with_exchange(0.25), []) != []
    assert RULE.check(with_exchange(0.25, measured=False), []) == []


@pytest.mark.parametrize("share", [None, 0.0, 0.15])
def test_silent(share):
    """Without a known end, without an exchange and below 20 %."""
    assert RULE.check(with_exchange(share), []) == []


def test_a_whole_job_counts_for_the_bandwidth():
    """The exchange is among all ranks, though some are not known."""
    made = with_exchange(0.5, ranks=4)
    (all_known,) = RULE.check(made, [])
    (one_missing,) = RULE.check(replace(made, ranks=made.ranks[:3]), [])
    assert one_missing.evidence == all_known.evidence


def test_without_collectives_it_abstains():
    """It says for want of what."""
    assert RULE.lacks(job()) == ("collectives that all ranks recorded",)
    assert RULE.lacks(with_exchange(None)) == ("collectives that all ranks recorded",)
    assert RULE.lacks(with_exchange(0.1)) == ()
