"""network-saturated: a full link, or uploads that grow."""

from __future__ import annotations

import pytest

from stallmeter.records.diagnosis import Severity
from stallmeter.rules.network_saturated import NetworkSaturated

from .windows import batches, fires, hosts, missing, run, silent, traffic

QUIET = [0.0] * 30
FULL = [8e7] * 30
"""80 % of the link's 100 MB/s."""


def test_full_link():
    """The interface is named; it warns when training waits for data."""
    found = fires(NetworkSaturated(), run(*traffic(FULL, QUIET), *batches(cpu_s=0.03), data_wait=30.0))
    assert found.culprit == "eth0"
    assert "eth0" in found.title
    assert found.summary.startswith("eth0 carried 80 % of its link's speed in a typical second; data wait took 30 %")
    assert (found.severity, found.time_lost_s) == (Severity.WARNING, 0.0)


def test_full_link_outwards():
    """The busier direction counts."""
    assert fires(NetworkSaturated(), run(*traffic(QUIET, FULL))).severity is Severity.INFO


def test_does_not_contradict_the_workers():
    """Workers that compute do not wait for the network."""
    made = run(*traffic(FULL, QUIET), *batches(cpu_s=0.09), data_wait=30.0)
    assert fires(NetworkSaturated(), made).severity is Severity.INFO


def test_informs_where_the_workers_were_not_seen():
    """The link may be full of what another program fetches."""
    assert fires(NetworkSaturated(), run(*traffic(FULL, QUIET), data_wait=30.0)).severity is Severity.INFO


def test_threshold():
    """It fires at the threshold and is silent just below it."""
    assert silent(NetworkSaturated(), run(*traffic([7.99e7] * 30, QUIET)))


def test_bursts():
    """A link that is full now and then is not full."""
    assert silent(NetworkSaturated(), run(*traffic([1e8, 0.0, 0.0] * 10, QUIET)))


def test_unknown_speed():
    """Without the link's speed nothing is said about its load."""
    assert silent(NetworkSaturated(), run(*traffic(FULL, QUIET, speed=None)))


def test_growing_uploads():
    """A file that grows and is sent whole every five seconds is noticed, for information."""
    sent = [2e6 * i if i % 5 == 4 else 0.0 for i in range(60)]
    found = fires(NetworkSaturated(), run(*traffic([0.0] * 60, sent)))
    assert found.culprit == "eth0"
    assert found.summary.startswith("eth0 sent 4.6 MB/s in the first third of the run and 20.6 MB/s in the last.")
    assert found.severity is Severity.INFO


@pytest.mark.parametrize(
    "sent",
    [
        [0.0] * 55 + [1e9] * 5,
        [0.0] * 30 + [5e7] * 3 + [0.0] * 20 + [5e7] * 3 + [0.0] * 4,
        [5e6] * 60,
        [5e7 - 8e5 * i for i in range(60)],
        [1e3 * i for i in range(60)],
    ],
    ids=["one upload at the end", "two checkpoints", "steady", "falling", "too little to matter"],
)
def test_ordinary_uploads(sent):
    """What does not grow steadily is no growing file."""
    assert silent(NetworkSaturated(), run(*traffic([0.0] * 60, sent, speed=None)))


def test_abstains():
    """Without an interface there is nothing to judge."""
    assert missing(NetworkSaturated(), run(*hosts(20, lambda i: {}))) == ("host.links",)


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(NetworkSaturated(use_pct=90.0), run(*traffic(FULL, QUIET)))
