"""Slow steps as bars: nothing of a step is lost, and nothing overlaps."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stallmeter.delivery.trackers.mlflow.step_traces import step_traces
from stallmeter.records import BUCKETS, HINDSIGHT

from ...report.recordings import START_S, step

PARTS = [bucket for bucket in BUCKETS if bucket not in HINDSIGHT]


def test_the_parts_of_a_step_in_their_usual_order():
    """Each measured bucket is a bar of its length; the step ends when it was recorded."""
    first, second = step_traces([step(7, callbacks_s=0.0, total_s=0.1), step(3)])
    assert first.title == "step 7 (slowest step)"
    assert second.title == "step 3 (slow step 2)"
    assert [(p.name, p.end_ns - p.start_ns) for p in first.parts] == [
        ("data_wait", 60_000_000),
        ("forward", 20_000_000),
        ("backward", 20_000_000),
    ]
    assert first.end_ns == round((START_S + 0.8) * 1e9)
    assert first.end_ns - first.start_ns == 100_000_000


@given(st.dictionaries(st.sampled_from(PARTS), st.floats(0, 1e5)), st.floats(0, 1e5))
def test_parts_lie_end_to_end_inside_the_step(spent, total_s):
    """Whatever was recorded, in whatever sum."""
    changes = {f"{bucket}_s": None for bucket in PARTS} | {f"{name}_s": s for name, s in spent.items()}
    changes["data_wait_s"] = spent.get("data_wait", 0.0)
    [made] = step_traces([step(0, **changes, total_s=total_s)])
    assert all(a.end_ns == b.start_ns for a, b in pairwise(made.parts))
    if made.parts:
        assert made.parts[0].start_ns == made.start_ns
        assert made.parts[-1].end_ns <= made.end_ns
    assert {p.name for p in made.parts} == {name for name, s in spent.items() if round(s * 1e9)} | {
        name for name, s in spent.items() if s and not round(s * 1e9)
    }
