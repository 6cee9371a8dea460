"""What sending more than a batch holds costs."""

from __future__ import annotations

import pytest

from stallmeter.window import Window
from stallmeter.workers.spare import PER_BYTE_S, spare_s

from ..rules.waiting import waiting


def sent(spare_bytes: int | None, **changes: object) -> Window:
    """1,000 steps that wait for 50 ms each."""
    return waiting(workers=1, batch_s=0.03, spare_bytes=spare_bytes, **changes)  # type: ignore[arg-type]


def test_each_byte_costs_a_loop_that_waits() -> None:
    assert spare_s(sent(40_000_000)) == pytest.approx([1000 * 4e7 * each for each in PER_BYTE_S])


def test_no_more_than_the_loop_waits() -> None:
    assert spare_s(sent(1_000_000_000)) == pytest.approx([50.0, 50.0, 50.0])


def test_a_loop_beside_which_workers_copy_loses_more() -> None:
    busy = {"wait_s": 0.001, "cpus": 1.0, "queue_share": 0.3}
    least_s, usual_s, most_s = spare_s(sent(60_000_000, **busy))
    assert pytest.approx(1.0) == least_s < usual_s < most_s


@pytest.mark.parametrize("spare_bytes", [None, 0])
def test_nothing_spare(spare_bytes: int | None) -> None:
    assert spare_s(sent(spare_bytes)) == (0.0, 0.0, 0.0)


def test_nothing_known() -> None:
    assert spare_s(Window()) == (0.0, 0.0, 0.0)
