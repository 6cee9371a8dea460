"""Steps as columns: what is read of a recording, and which steps of several ranks are the same."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from stallmeter.ranks.steps import COLUMNS, RankSteps, common, rank_steps, tail_of, with_starts

NAN = float("nan")


def columns(**given: list[float]) -> dict[str, array[float]]:
    count = len(given["index"])
    whole = {name: [NAN] * count for name in COLUMNS} | {"outlier": [0.0] * count, "epoch_start": [0.0] * count} | given
    return {name: array("d", values) for name, values in whole.items()}


def ranked(rank: int, index: list[int], updates: list[int | None] | None = None, wait_s: float = 1.0) -> RankSteps:
    seconds = {"data_wait": [wait_s * (i + 1) for i in index], "compute": [2.0] * len(index)}
    return RankSteps(rank, index, [float(i) for i in index], seconds, updates or [None] * len(index), "a", index[:1])


def test_of_columns() -> None:
    """What took no time is left out, and what was not measured; so are outliers, which count for one step only."""
    found = rank_steps(
        3,
        columns(
            index=[4, 5, 6, 8],
            time_s=[10.0, 11.0, 12.0, 14.0],
            data_wait_s=[0.5, 0.25, 9.0, 0.125],
            forward_s=[0.0, 0.0, 0.0, 0.0],
            callbacks_s=[NAN, 1.0, 9.0, NAN],
            logging_s=[NAN, NAN, 9.0, NAN],
            optimizer_step=[2, NAN, 3, 4],
            epoch_start=[1.0, 0.0, 0.0, 0.0],
            outlier=[0.0, 0.0, 1.0, 0.0],
        ),
        "a",
    )
    assert list(found.index) == [4, 5, 8]
    assert list(found.ends_s) == [10.0, 11.0, 14.0]
    assert {name: list(values) for name, values in found.seconds.items()} == {
        "data_wait": [0.25, 0.25, 0.125],
        "worker_startup": [0.25, 0.0, 0.0],
        "callbacks": [0.0, 1.0, 0.0],
    }
    assert found.optimizer_step == [2, None, 4]
    assert (found.rank, found.host, list(found.starts), len(found)) == (3, "a", [4], 3)


def test_a_start_beside_what_was_measured_as_one() -> None:
    seconds = {"data_wait": [1.0, 0.25], "worker_startup": [3.0, 0.0]}
    booked = with_starts(seconds, [0])
    assert {name: list(values) for name, values in booked.items()} == {
        "data_wait": [0.25, 0.25],
        "worker_startup": [3.75, 0.0],
    }
    # A loop that makes its batches itself has no start: each is waited for.
    here = with_starts({"data_wait": [2.0, 2.5, 2.0, 1.5]}, [0, 3])
    assert {name: list(values) for name, values in here.items()} == {
        "data_wait": [2.0, 2.5, 2.0, 1.5],
        "worker_startup": [0.0, 0.0, 0.0, 0.0],
    }
    assert with_starts(seconds, []) is seconds
    assert with_starts({"compute": [1.0]}, [0]) == {"compute": [1.0]}


def test_workers_that_live_on_start_with_the_first_epoch_alone() -> None:
    read = columns(
        index=[0, 1, 2, 3, 4],
        time_s=[1.0, 2.0, 3.0, 4.0, 5.0],
        data_wait_s=[0.75, 0.25, 0.25, 0.75, 0.25],
        forward_s=[0.0] * 5,
        callbacks_s=[NAN] * 5,
        logging_s=[NAN] * 5,
        optimizer_step=[NAN] * 5,
        epoch_start=[1.0, 0.0, 0.0, 1.0, 0.0],
        outlier=[0.0] * 5,
    )
    for live_on, starts in ((False, [0.5, 0.0, 0.0, 0.5, 0.0]), (True, [0.5, 0.0, 0.0, 0.0, 0.0])):
        found = rank_steps(0, read, live_on=live_on)
        assert list(found.seconds["worker_startup"]) == starts
        assert list(found.starts) == [0, 3]


def test_steps_that_all_have() -> None:
    first, second, third = ranked(0, [0, 1, 2, 3, 4]), ranked(1, [0, 2, 4, 6]), ranked(2, [2, 3, 4])
    found = common([first, second, third])
    assert [list(rank.index) for rank in found] == [[2, 4]] * 3
    assert list(found[0].seconds["data_wait"]) == [3.0, 5.0]
    assert [list(rank.ends_s) for rank in found] == [[2.0, 4.0]] * 3
    assert [list(rank.starts) for rank in found] == [[], [], [2]]
    assert common([]) == []
    assert [len(rank) for rank in common([first, ranked(1, [9])])] == [0, 0]


def test_one_rank_has_skipped_a_batch() -> None:
    """The number of a step is another batch on each; the weight update is the same."""
    first = ranked(0, [0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6])
    second = ranked(1, [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], wait_s=10.0)
    found = common([first, second])
    assert [list(rank.index) for rank in found] == [[1, 2, 3, 4, 5, 6]] * 2
    assert list(found[0].seconds["data_wait"]) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert list(found[1].seconds["data_wait"]) == [20.0, 30.0, 40.0, 50.0, 60.0, 70.0]
    assert [list(rank.starts) for rank in found] == [[1], [1]]


def test_batches_of_an_update_are_one_step() -> None:
    """The batch whose step ends with the update belongs to it; updates of which a part is missing are left out."""
    updates: list[int | None] = [0, 0, 1, 1, 1, 2, 2, 2, 3]
    first = ranked(0, list(range(9)), updates)
    second = ranked(1, list(range(2, 11)), updates)
    found = common([first, second])
    assert [list(rank.index) for rank in found] == [[2, 3]] * 2
    assert list(found[0].seconds["compute"]) == [6.0, 6.0]
    assert list(found[0].seconds["data_wait"]) == [4.0 + 5.0 + 6.0, 7.0 + 8.0 + 9.0]
    assert list(found[0].ends_s) == [5.0, 8.0]


@pytest.mark.parametrize("unknown", [0, 1])
def test_updates_that_one_does_not_know(unknown: int) -> None:
    """Then steps go by their number."""
    ranks = [ranked(0, [0, 1, 2, 3], [1, 2, 3, 4]), ranked(1, [0, 1, 2, 3], [2, 3, 4, 5])]
    ranks[unknown] = replace(ranks[unknown], optimizer_step=[None] * 4)
    assert [list(rank.index) for rank in common(ranks)] == [[0, 1, 2, 3]] * 2


def test_one_died_inside_its_last_step() -> None:
    """One update that differs is no shift."""
    first, second = ranked(0, [0, 1, 2], [1, 2, 3]), ranked(1, [0, 1, 2], [1, 2, 2])
    assert [list(rank.index) for rank in common([first, second])] == [[0, 1, 2]] * 2


def test_tail() -> None:
    seconds = {"other": [1.0, 2.0], "data_wait": [9.0, 9.0], "callbacks": [4.0, 8.0], "backward": [9.0, 9.0]}
    assert tail_of(RankSteps(0, [0, 1], [0.0, 0.0], seconds)) == [5.0, 10.0]
    assert tail_of(RankSteps(0, [0, 1], [0.0, 0.0], {"compute": [1.0, 1.0]})) == [0.0, 0.0]
    assert tail_of(RankSteps(0, [], [], {})) == []
