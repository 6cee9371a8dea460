"""What the sampler thread makes of the ledger."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stallmeter.engine.monitor import Monitor
from stallmeter.records import LedgerRecord

from ..conftest import FakeTime
from ..monitors import bare_monitor


def trained(directory: Path, works: list[float], *, tick_after: int | None = None) -> tuple[LedgerRecord, FakeTime]:
    """The ledger of a plain loop whose steps forward for so long and then optimize for 1 ms."""
    now = FakeTime()
    monitor: Monitor = bare_monitor(directory, interval_s=3600, now=now)
    began = now.ns
    for i, _ in enumerate(monitor.watch(range(len(works)))):
        with monitor.span("forward"):
            now.sleep(works[i])
        with monitor.span("optimizer"):
            now.sleep(0.001)
        if i == tick_after:
            monitor.run.collector.tick()
    monitor.close()
    record = monitor.window.ledger.record
    assert record is not None
    assert record.wall_s == pytest.approx((now.ns - began) / 1e9)
    return record, now


@pytest.mark.parametrize("at", [0, 1, 3])
def test_warm_up_is_booked_from_where_it_was_spent(tmp_path: Path, at: int) -> None:
    """Even where steps come too fast to keep each of them, and nothing is known of them yet."""
    works = [0.001] * 3000
    works[at] = 12.0
    record, _ = trained(tmp_path, works)
    assert record.recorded_steps < 3000
    assert record.buckets["warmup"] == pytest.approx(11.999)
    assert record.buckets["forward"] == pytest.approx(3.0)
    assert record.buckets["optimizer"] == pytest.approx(3.0)
    assert sum(record.buckets.values()) == pytest.approx(record.wall_s)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    works=st.lists(st.sampled_from([0.0, 0.001, 0.02, 0.5, 12.0]), min_size=1, max_size=40),
    tick_after=st.integers(0, 40),
)
def test_it_sums_to_the_wall_time(tmp_path: Path, works: list[float], tick_after: int) -> None:
    """Whatever the steps are, and whenever they are read."""
    record, _ = trained(tmp_path, works, tick_after=tick_after)
    assert sum(record.buckets.values()) == pytest.approx(record.wall_s)
    assert min(record.buckets.values()) >= 0
