"""low-utilization: neither the GPU nor the CPUs are busy."""

from __future__ import annotations

from typing import Any

from stallmeter.records.diagnosis import Severity
from stallmeter.rules.low_utilization import LowUtilization
from stallmeter.window import Window

from .windows import START_S, fires, gpus, hosts, missing, run, silent


def machine(gpu: float = 30.0, job: float = 1.2, *records: Any, wait_s: float = 2.0) -> Window:
    """A run on 8 CPUs with this load of its GPU and CPUs."""
    return run(
        *hosts(20, lambda i: {"usable_cpus": 8.0, "job_cpus": job}),
        *gpus(20, lambda i: {"utilization_pct": gpu}),
        *records,
        data_wait=wait_s,
    )


def test_fires():
    """All three numbers are told; no time is claimed."""
    found = fires(LowUtilization(), machine())
    assert found.summary == (
        "The busiest GPU worked 30 % of the time and the job kept 1.2 of 8.0 CPUs busy, with only 2 % data wait."
    )
    assert (found.severity, found.time_lost_s) == (Severity.WARNING, 0.0)


def test_threshold():
    """It is silent as soon as one of the three reaches its threshold."""
    assert fires(LowUtilization(), machine(gpu=49.9, job=3.99, wait_s=9.8))
    assert silent(LowUtilization(), machine(gpu=50.0))
    assert silent(LowUtilization(), machine(job=4.0))
    assert silent(LowUtilization(), machine(wait_s=9.9))


def test_the_busiest_gpu_counts():
    """A second GPU that is not used does not lower the first one's utilization."""
    assert silent(LowUtilization(), machine(80.0, 1.2, *gpus(20, lambda i: {"utilization_pct": 0.0}, index=1)))


def test_a_rank_is_compared_with_its_part_of_the_cpus():
    """Four ranks on 16 CPUs: one that keeps 3 of its 4 busy is no idle one."""
    budget = {"host_cpus": 16, "affinity_cpus": 16}
    for ranks, bound in ((4, False), (1, False), (4, True)):
        facts = {"budget": budget | {"ranks_on_node": ranks, "bound_per_rank": bound, "local_rank": 0}}
        made = run(
            *hosts(20, lambda i: {"usable_cpus": 16.0, "job_cpus": 3.0}),
            *gpus(20, lambda i: {"utilization_pct": 30.0}),
            facts=facts,
        )
        assert (silent if (ranks, bound) == (4, False) else fires)(LowUtilization(), made)


def test_the_start_does_not_count():
    """Before the first step the GPU has nothing to do."""
    idle = gpus(60, lambda i: {"utilization_pct": 0.0, "time_s": START_S - 100 + i})
    assert silent(LowUtilization(), machine(60.0, 1.2, *idle))


def dips(idle: int = 20, length: int = 5, **seconds: float) -> Window:
    """A GPU that is busy but for so many of 100 samples, ``length`` of them in a row each time."""
    starts = range(0, idle * 5, 5 * length)
    lazy = {start + i for start in starts for i in range(length)}
    return run(
        *hosts(20, lambda i: {"usable_cpus": 8.0, "job_cpus": 1.2}),
        *gpus(100, lambda i: {"utilization_pct": 0.0 if i in lazy else 90.0}),
        **seconds,
    )


def test_dips():
    """A GPU that is busy in between and then idles, with nothing beside the steps to explain it."""
    found = fires(LowUtilization(), dips())
    assert found.title == "The GPU is busy, and idle again and again"
    assert "20 % of the time it was idle, for up to 5 s in a row" in found.summary
    assert [(e.value, e.unit) for e in found.evidence[-2:]] == [(20.0, "%"), (5.0, "s")]


def test_dips_threshold():
    """Few idle samples, or a cause beside the steps, are no case for this rule."""
    assert fires(LowUtilization(), dips(10))
    assert silent(LowUtilization(), dips(9, 1))
    assert silent(LowUtilization(), dips(validation=20.0))
    assert silent(LowUtilization(), dips(checkpoint=20.0))
    assert silent(LowUtilization(idle_pct=30.0), dips())
    assert silent(LowUtilization(peak_pct=95.0), dips())


def test_abstains():
    """Without a GPU there is nothing to judge."""
    made = run(*hosts(20, lambda i: {"usable_cpus": 8.0, "job_cpus": 1.0}))
    assert missing(LowUtilization(), made) == ("gpu.utilization_pct",)


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(LowUtilization(gpu_pct=25.0), machine())
