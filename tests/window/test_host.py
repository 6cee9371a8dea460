"""What samples of the host say, and who else is on it."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.rules.cpu_saturated import CpuSaturated
from stallmeter.rules.noisy_neighbour import NoisyNeighbour
from stallmeter.window import Window
from stallmeter.window.facts import Facts
from stallmeter.window.host import HostSignals
from stallmeter.window.ledger import LedgerSignals
from stallmeter.window.loader import LoaderSignals
from stallmeter.window.steps import StepSignals

from ..rules.waiting import waiting
from ..rules.windows import START_S, fires, hosts, missing, run, step


def test_cpus_never_exceed_the_budget():
    """Load of others beyond the job's CPUs is not its own."""
    made = run(*hosts(9, lambda i: {"usable_cpus": 2.0, "job_cpus": 1.0, "others_cpus": 30.0}))
    assert made.host.cpu_busy_pct == 100.0


def test_memory_left():
    """The newest sample that knows the limit counts."""
    made = run(
        *hosts(3, lambda i: {"memory_limit_bytes": 100, "memory_limit_used_bytes": 10 * i}),
        *hosts(1, lambda i: {}, first_s=9.0),
    )
    assert made.host.memory.left_bytes == 80
    assert made.host.memory.peak_pct == 20.0


def test_a_part_alone():
    """Medians over the run; a trend begins with the first step."""
    steps = StepSignals(LoaderSignals(), LedgerSignals())
    made = HostSignals(Facts(), steps, size=128)
    assert (made.usable_cpus, made.cpus_per_rank, made.job_cpus, made.memory.main_trend, made.links) == (None,) * 5
    for sample in hosts(60, lambda i: {"usable_cpus": 4.0, "cpu_iowait_pct": float(i), "main_rss_bytes": 1000 * i}):
        made.append(sample)
    assert (made.usable_cpus, made.cpus_per_rank, made.iowait_pct) == (4.0, 4.0, 29.5)
    assert made.median(lambda s: s.swap_used_bytes) is None
    assert made.memory.main_trend is not None
    assert made.memory.main_trend.per_s == pytest.approx(1000.0)
    steps.append(step(0, time_s=START_S + 55.0))
    assert made.memory.main_trend is not None
    steps.append(step(5, time_s=START_S + 55.0))
    assert made.memory.main_trend is None


def budget(**known: Any) -> dict[str, Any]:
    return {"budget": {"host_cpus": 8, "affinity_cpus": 8, **known}}


def neighbours(ranks_cpus: float | None, **known: Any) -> Window:
    """A loop whose batches wait for a CPU, beside others that keep 3 of 8 busy."""
    made = waiting(wait_s=0.05, work_s=0.01, batch_s=0.015, workers=2, cpus=8.0, queue_share=0.8)
    for sample in hosts(
        200, lambda i: {"usable_cpus": 8.0, "job_cpus": 1.0, "others_cpus": 3.0, "ranks_cpus": ranks_cpus}
    ):
        made.append(sample)
    made.facts.update(budget(**known))
    return made


def test_other_ranks_are_no_noisy_neighbours() -> None:
    """What others keep busy counts where the ranks are told from them, or are not on these CPUs."""
    assert fires(NoisyNeighbour(), neighbours(None))
    assert fires(NoisyNeighbour(), neighbours(4.0, ranks_on_node=4))
    assert fires(NoisyNeighbour(), neighbours(None, ranks_on_node=4, bound_per_rank=True))
    assert missing(NoisyNeighbour(), neighbours(None, ranks_on_node=4)) == ("host.others_cpus",)


def test_other_ranks_fill_the_cpus_as_well() -> None:
    made = neighbours(4.0, ranks_on_node=4)
    assert made.host.cpu_busy_pct == 100.0
    assert fires(CpuSaturated(), made)
