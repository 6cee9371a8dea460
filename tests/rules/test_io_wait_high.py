"""io-wait-high: the host waits for storage."""

from __future__ import annotations

from typing import Any

from stallmeter.records.diagnosis import Severity
from stallmeter.rules.io_wait_high import IoWaitHigh
from stallmeter.window import Window

from .windows import batches, fires, hosts, missing, run, silent


def iowait(pct: float | None, *records: Any, wait_s: float = 30.0) -> Window:
    """A run with this I/O wait, and this much data wait in 99 s of training."""
    return run(*hosts(20, lambda i: {"cpu_iowait_pct": pct}), *records, data_wait=wait_s)


def test_warns_when_training_waits():
    """With data wait it is a warning, which claims no time."""
    found = fires(IoWaitHigh(), iowait(35.0, *batches(cpu_s=0.03)))
    assert found.summary.startswith("35 % of the host's CPU time was spent waiting for storage; data wait took 30 %")
    assert (found.severity, found.time_lost_s) == (Severity.WARNING, 0.0)


def test_informs_when_training_does_not_wait():
    """Somebody else's disk traffic is no problem of a run that does not wait."""
    blocked = batches(cpu_s=0.03)
    assert fires(IoWaitHigh(), iowait(35.0, *blocked, wait_s=9.8)).severity is Severity.INFO
    assert fires(IoWaitHigh(), iowait(35.0, *blocked, wait_s=9.9)).severity is Severity.WARNING


def test_informs_where_the_workers_were_not_seen():
    """The disk's traffic may be somebody else's, and the wait may have another cause."""
    assert fires(IoWaitHigh(), iowait(35.0)).severity is Severity.INFO


def test_does_not_contradict_the_workers():
    """Workers that compute do not wait for storage, whatever the host says."""
    assert fires(IoWaitHigh(), iowait(35.0, *batches(cpu_s=0.09))).severity is Severity.INFO
    assert fires(IoWaitHigh(), iowait(35.0, *batches(cpu_s=0.03))).severity is Severity.WARNING


def test_threshold():
    """It fires at the threshold and is silent just below it."""
    assert fires(IoWaitHigh(), iowait(20.0))
    assert silent(IoWaitHigh(), iowait(19.9))


def test_abstains():
    """Where the system does not tell, there is nothing to judge."""
    assert missing(IoWaitHigh(), iowait(None)) == ("host.iowait_pct",)


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(IoWaitHigh(iowait_pct=40.0), iowait(35.0))
