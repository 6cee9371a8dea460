"""Whatever comes, each series gets growing steps, and what was accepted is not placed again."""

from __future__ import annotations

from itertools import groupby, pairwise

from hypothesis import given
from hypothesis import strategies as st

from stallmeter.delivery.trackers.neptune.substeps import Substeps
from stallmeter.records.interfaces import Point


def point(step: int, key: str = "a", value: float = 1.0, time_s: float = 0.0) -> Point:
    return Point("steps", key, value, step, time_s)


points = st.lists(
    st.builds(
        point,
        st.integers(-3, 6),
        st.sampled_from("abc"),
        st.sampled_from([0.5, 1.5]),
        st.floats(0, 10, allow_nan=False),
    ),
    max_size=40,
)


@given(points)
def test_steps_grow_and_keep_their_whole_part(sent: list[Point]) -> None:
    placed, behind = Substeps().place(sent)
    assert sorted(map(repr, [one.point for one in placed] + behind)) == sorted(map(repr, sent))
    series = sorted(placed, key=lambda one: one.point.key)
    for _, each in groupby(series, key=lambda one: one.point.key):
        for before, after in pairwise(each):
            assert before.step < after.step
            assert before.time_s <= after.time_s
    for one in placed:
        assert one.point.step <= one.step < one.point.step + 1
        assert one.time_s >= one.point.time_s


@given(points, st.data())
def test_sending_again_places_only_what_is_missing(sent: list[Point], data: st.DataObject) -> None:
    """A tracker took some of the series and failed; then the same points come again, with newer ones."""
    whole, _ = Substeps().place(sent)
    substeps = Substeps()
    first, _ = substeps.place(sent)
    taken_keys = data.draw(st.sets(st.sampled_from("abc")))
    taken = [one for one in first if one.point.key in taken_keys]
    substeps.accept(taken)
    newer = [point(99, key, time_s=11.0) for key in "abc"]
    again, _ = substeps.place([*sent, *newer])
    missing = [one for one in whole if one.point.key not in taken_keys]
    assert [one for one in again if one.point.step != 99] == missing
    assert [one.point for one in again if one.point.step == 99] == newer
    substeps.accept(again)
    substeps.complete()
    assert substeps.place([point(100, time_s=12.0)])[0][0].step == 100


def test_a_step_given_again_later_is_not_mistaken_for_the_same_point() -> None:
    substeps = Substeps()
    for number in range(3):
        placed, behind = substeps.place([point(7)])
        assert [one.step for one in placed] == [round(7 + number * 1e-6, 6)]
        assert not behind
        substeps.accept(placed)
        substeps.complete()
