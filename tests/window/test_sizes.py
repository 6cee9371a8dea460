"""Steps with fewer items than the others have."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.records import StepRecord
from stallmeter.window import Window

from ..rules.windows import step, window


def worked(index: int, samples: int | None, work_s: float, **changes: Any) -> StepRecord:
    """A step of a plain loop, without a wait."""
    own = {"compute_s": 0.75 * work_s, "optimizer_s": 0.25 * work_s, "forward_s": None, "backward_s": None}
    times = {**own, "loop_s": None, "data_wait_s": 0.0, "total_s": work_s}
    return step(index, **{"samples": samples, "epoch_start": False, **times, **changes})


def epochs(count: int, *last: tuple[int, float], steps: int = 20, work_s: float = 0.010) -> Window:
    """Epochs of so many steps with 32 items, and a last one."""
    made, index = [], 0
    for epoch in range(count):
        for at in range(steps):
            made.append(worked(index, 32, work_s, epoch=epoch, epoch_start=at == 0))
            index += 1
        made.append(worked(index, *last[epoch % len(last)], epoch=epoch, outlier=True))
        index += 1
    return window(*made)


def test_the_line_through_both_tells_what_is_fixed() -> None:
    found = epochs(4, (16, 0.006)).sizes.smaller
    assert found is not None
    assert (found.items, found.fewer, found.count) == (32, 16, 4)
    assert (found.work_s, found.fewer_s) == (pytest.approx(0.010), pytest.approx(0.006))
    assert found.fixed_s == pytest.approx(0.002)
    assert found.error_s == pytest.approx(0.0)


def test_the_error_is_that_of_the_smaller_ones() -> None:
    """Of three: the deviation of 2, 4 and 6 ms is 2 ms, and its error over the square root of three."""
    found = epochs(3, (16, 0.006), (16, 0.007), (16, 0.008)).sizes.smaller
    assert found is not None
    assert found.fixed_s == pytest.approx(0.004)
    assert found.error_s == pytest.approx(1.28 * 1.2533 * 0.002 / 3**0.5)


def test_a_slow_one_of_many_does_not_widen_it() -> None:
    found = epochs(9, *[(16, 0.006)] * 8, (16, 0.5)).sizes.smaller
    assert found is not None
    assert (found.fixed_s, found.error_s) == (pytest.approx(0.002), pytest.approx(0.0))


def test_no_more_is_fixed_than_there_is() -> None:
    found = epochs(4, (16, 0.011)).sizes.smaller
    assert found is not None
    assert found.fixed_s == pytest.approx(0.010)


@pytest.mark.parametrize(
    "made",
    [
        lambda: epochs(2, (16, 0.006)),
        lambda: epochs(4, (30, 0.006)),
        lambda: epochs(4, (32, 0.010)),
        lambda: epochs(4, (16, 0.006), steps=3),
        lambda: window(*(worked(i, 32 - i % 5, 0.01) for i in range(200))),
        lambda: window(*(worked(i, None, 0.01) for i in range(200))),
    ],
    ids=["two of them", "nearly as many", "all alike", "few steps", "all sizes", "not known"],
)
def test_not_known(made: Any) -> None:
    assert made().sizes.smaller is None
