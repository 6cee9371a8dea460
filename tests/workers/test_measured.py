"""What the batches and steps of a window cost, with what single steps show of the loop beside its workers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.window import Window
from stallmeter.workers import Limits
from stallmeter.workers.measured import costs_of
from stallmeter.workers.plan import with_one_thread

from ..rules.windows import START_S, hosts, loader, window
from .test_beside import CROWDED_S, QUIET_S, mixed

WAIT_S = 0.001
"""Of each of these steps for its batch."""


def of_turns(indices_s: float) -> Window:
    """Steps of one thread beside workers and while these rest, and what it takes to choose the items of a batch."""
    steps, batches = mixed(60)
    return window(
        replace(loader(2), time_s=START_S, indices_s=indices_s),
        *(replace(one, index=index, tracker_step=index) for index, one in enumerate(steps)),
        *batches,
        *hosts(8, lambda _: {"usable_cpus": 2.0, "main_cpus": 0.1, "job_cpus": 0.5}),
    )


@pytest.mark.parametrize("indices_s", [0.0, 0.001])
def test_the_sampler_is_work_of_the_loop_beside_workers_and_without_them(indices_s: float) -> None:
    """It is asked in the wait for a batch, which the work that single steps show leaves out."""
    costs = costs_of(of_turns(indices_s), 2)
    assert costs is not None
    assert costs.indices_s == indices_s
    assert costs.quiet_work_s == pytest.approx(QUIET_S + indices_s)
    assert costs.crowded_work_s == pytest.approx(CROWDED_S + indices_s)


def test_one_thread_asks_the_sampler_as_well() -> None:
    """A loop whose step is shorter with one thread than its sampler takes was predicted."""
    bare, asking = (costs_of(of_turns(indices_s), 2) for indices_s in (0.0, 0.001))
    assert bare is not None
    assert asking is not None
    limits = Limits(available_cpus=2.0)
    more_s = with_one_thread(asking, limits).work_s - with_one_thread(bare, limits).work_s
    assert more_s == pytest.approx(0.001)
