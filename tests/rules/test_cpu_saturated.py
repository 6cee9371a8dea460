"""cpu-saturated: all CPUs of the job are busy while it waits for data."""

from __future__ import annotations

from stallmeter.records.diagnosis import Severity
from stallmeter.rules.cpu_saturated import CpuSaturated
from stallmeter.window import Window

from .windows import fires, hosts, missing, run, silent


def busy(job: float, others: float | None = 0.0, wait_s: float = 30.0) -> Window:
    """A run on 4 usable CPUs of a host of 64, with this load, and this much data wait in 99 s of training."""
    return run(
        *hosts(20, lambda i: {"usable_cpus": 4.0, "host_cpus": 64, "job_cpus": job, "others_cpus": others}),
        data_wait=wait_s,
    )


def test_fires():
    """It informs, and claims no time."""
    found = fires(CpuSaturated(), busy(3.0, 0.9))
    assert found.summary.startswith("98 % of the 4.0 usable CPUs were busy in a typical second, and 30 % of the")
    assert (found.severity, found.time_lost_s) == (Severity.INFO, 0.0)


def test_threshold():
    """It fires at both thresholds and is silent just below either."""
    assert fires(CpuSaturated(), busy(3.8))
    assert silent(CpuSaturated(), busy(3.79))
    assert fires(CpuSaturated(), busy(3.8, wait_s=9.9))
    assert silent(CpuSaturated(), busy(3.8, wait_s=9.89))


def test_the_hosts_cpus_do_not_count():
    """All of four CPUs is all, on a host of 64 too; four of 64 idle ones is nothing."""
    made = run(*hosts(20, lambda i: {"usable_cpus": 64.0, "job_cpus": 4.0, "others_cpus": 0.0}), data_wait=30.0)
    assert silent(CpuSaturated(), made)


def test_abstains():
    """Without the load of others it is not known whether the CPUs are full."""
    assert missing(CpuSaturated(), busy(4.0, None)) == ("host.cpu_busy_pct",)


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert fires(CpuSaturated(busy_pct=50.0), busy(2.0))
