"""What changed over the run: intervals that add up, and an excerpt of consecutive steps."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.report.timeline import Timeline

from .long_runs import long_run
from .recordings import ledger, step


def timeline_of(records) -> Timeline:
    timeline = Timeline()
    for record in records:
        timeline.append(record)
    return timeline


@given(
    added=st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)), min_size=1, max_size=60), most=st.integers(1, 40)
)
def test_intervals_add_up_to_the_ledger(added, most):
    """Whatever the readings, the pieces are in order, without gaps, few, and hold all seconds of the last reading."""
    wait = work = 0.0
    readings = []
    for more_wait, more_work in added:
        wait, work = wait + more_wait, work + more_work
        readings.append(ledger(wall_s=wait + work, buckets={"data_wait": wait, "forward": work}))
    found = timeline_of(readings).intervals(most)
    if wait + work == 0:
        assert found == []
        return
    assert found[0].start_s == 0
    assert found[-1].end_s == readings[-1].wall_s
    assert all(a.end_s == b.start_s for a, b in pairwise(found))
    assert len(found) <= most + 1
    assert sum(i.buckets["data_wait"] for i in found) == pytest.approx(wait, abs=1e-6)
    assert sum(sum(i.buckets.values()) for i in found) == pytest.approx(wait + work)


def test_time_that_moves_to_another_bucket_is_not_negative():
    """Data wait that becomes worker start-up later is no negative share."""
    moved = [
        ledger(wall_s=2.0, buckets={"data_wait": 2.0}),
        ledger(wall_s=4.0, buckets={"worker_startup": 1.5, "data_wait": 1.0, "forward": 1.5}),
    ]
    last = timeline_of(moved).intervals(10)[-1]
    assert last.buckets["data_wait"] == 0.0
    assert last.buckets["worker_startup"] == 1.5


def test_a_timeline_is_bounded():
    """A long run keeps a fixed number of readings and still ends at its end."""
    found = timeline_of(ledger(wall_s=float(i), buckets={"data_wait": float(i)}) for i in range(1, 10_000))
    pieces = found.intervals(120)
    assert len(pieces) <= 121
    assert pieces[-1].end_s == 9_999.0


def test_excerpt_is_from_the_second_half():
    """Consecutive steps of one epoch, with the batches made meanwhile."""
    found = timeline_of(long_run(3000)).excerpt(32)
    assert found is not None
    assert len(found.steps) == 32
    assert not found.thinned
    assert found.steps[0].index > 1500
    assert not any(s.epoch_start for s in found.steps)
    assert found.batches
    assert all(b.time_s > found.start_s and b.time_s - b.wall_s < found.end_s for b in found.batches)


def test_excerpt_of_a_short_run():
    """Before the first reading of the ledger there are steps already."""
    assert timeline_of([step(0), step(1), step(2)]).excerpt(32).steps == (step(1), step(2))
    assert timeline_of([]).excerpt(32) is None
    assert timeline_of([step(0)]).excerpt(32) is None


def test_excerpt_knows_that_steps_are_missing():
    """Steps that were not recorded one by one are gaps."""
    assert timeline_of([step(1), step(4)]).excerpt(32).thinned
