"""host-memory-near-limit: memory is nearly used up."""

from __future__ import annotations

from stallmeter.records.diagnosis import Severity
from stallmeter.rules.host_memory_near_limit import HostMemoryNearLimit
from stallmeter.window import Window

from .windows import fires, hosts, missing, run, silent

GB = 10**9


def peak(pct: float) -> Window:
    """A run that uses half of its 10 GB, and once this share."""
    return run(
        *hosts(
            30,
            lambda i: {
                "memory_limit_bytes": 10 * GB,
                "memory_limit_used_bytes": int((pct / 100 if i == 7 else 0.5) * 10 * GB),
                "job_rss_bytes": 4 * GB,
            },
        )
    )


def test_fires():
    """The peak counts, and what the job holds of it is told."""
    found = fires(HostMemoryNearLimit(), peak(93.0))
    assert found.summary == (
        "Up to 93 % of the memory that this job may use was taken; this job's processes hold 4.0 GB."
    )
    assert (found.severity, found.time_lost_s) == (Severity.WARNING, 0.0)


def test_critical():
    """Close to the limit it is critical."""
    assert fires(HostMemoryNearLimit(), peak(97.0)).severity is Severity.CRITICAL


def test_threshold():
    """It fires at the threshold and is silent just below it."""
    assert fires(HostMemoryNearLimit(), peak(90.0))
    assert silent(HostMemoryNearLimit(), peak(89.9))


def test_abstains():
    """Without a limit there is nothing to judge."""
    assert missing(HostMemoryNearLimit(), run(*hosts(30, lambda i: {"memory_limit_used_bytes": 1}))) == (
        "host.memory.peak_pct",
    )


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(HostMemoryNearLimit(warn_pct=95.0), peak(93.0))
