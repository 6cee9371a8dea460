"""What a run of timed steps says, and where it says nothing."""

from __future__ import annotations

import pytest

from stallmeter.rules import ALL_RULES
from stallmeter.rules.compute_bound import ComputeBound
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.input_bound import InputBound
from stallmeter.window import Window
from stallmeter.window import exposed_wait as exposure

from ..rules.windows import device_steps, fires, missing, run, step


def test_an_unread_step_counts_with_the_hosts_wait():
    """Fallback is per step: ten hidden waits and ten unread ones make one half exposed."""
    read = device_steps(10, wait_s=0.01, exposed=0.0)
    unread = device_steps(10, wait_s=0.01, exposed_wait_s=None, total_s=None)
    assert exposure.exposed_share([*read, *unread]) == pytest.approx(0.5)
    assert exposure.exposed_share(read) == 0.0
    assert exposure.exposed_share(unread) is None
    assert exposure.exposed_share(device_steps(4)) is None


def test_a_wait_cannot_be_exposed_for_longer_than_it_took():
    """Events are recorded a moment after the host looks at its clock."""
    assert exposure.exposed_share(device_steps(10, wait_s=0.01, exposed_wait_s=0.0101)) == 1.0
    assert exposure.exposed_share(device_steps(10, wait_s=0.0)) == 1.0


def test_pace_and_means():
    steps = device_steps(10, wait_s=0.02)
    assert exposure.pace_s(steps) == pytest.approx(0.08)
    assert exposure.mean_s(steps, lambda s: s.forward_s) == pytest.approx(0.03)
    assert exposure.mean_s(steps, lambda s: s.compute_s) is None
    assert exposure.pace_s([]) is None


def test_a_plain_loop_without_spans_is_judged_by_its_wait():
    """Its body is all there is between two waits."""
    steps = device_steps(10, wait_s=0.001, beside_s=0.0, idle_s=None)
    assert exposure.caught_up_share(steps) == pytest.approx(1.0)


def test_a_hidden_wait_costs_nothing():
    """The host waits half of the time, the device never idles: the steps themselves set the pace."""
    work = {"forward_s": 0.05, "backward_s": 0.0, "optimizer_s": 0.0, "loop_s": 0.0}
    steps = [step(i, total_s=0.1, data_wait_s=0.05, **work) for i in range(50)]
    spent = {"data_wait": 50.0, "forward": 47.0, "backward": 0.0, "optimizer": 0.0}
    hidden = run(*steps, *device_steps(wait_s=0.05, exposed=0.0), **spent)
    assert hidden.ledger.host_wait_share_pct == pytest.approx(100 * 50 / 99)
    assert hidden.spent.data_wait_share_pct == 0.0
    assert hidden.spent.bucket_s("data_wait") == 0.0
    assert fires(ComputeBound(), hidden)
    assert [d.rule for d in evaluate(ALL_RULES, hidden).diagnoses] == ["compute-bound"]


def test_an_exposed_wait_is_lost():
    """What the device idled is the time that the input rules claim."""
    half = run(*device_steps(wait_s=0.05, exposed=0.5), data_wait=50.0)
    assert fires(InputBound(), half).time_lost_s == pytest.approx(25.0)
    assert half.spent.bucket_s("compute") == pytest.approx(25.0)
    assert fires(InputBound(), run(data_wait=50.0)).time_lost_s == 50.0
    assert missing(InputBound(), Window()) == ("spent.data_wait_share_pct", "steps.data_wait_s", "ledger.wall_s")


def test_the_model_hears_of_the_device():
    """A loop that only launches looks faster than its device while it waits for data."""
    made = run(*device_steps(wait_s=0.05, exposed=0.0, total_s=0.1))
    assert made.device.pace_s == pytest.approx(0.1)
    assert run().device.pace_s is None
