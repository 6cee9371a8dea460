"""Rank 0 orders a number for an epoch to come; who hears late takes it later, and rank 0 knows."""

from __future__ import annotations

import json

import pytest

from stallmeter.records.diagnosis import WorkerAdvice
from stallmeter.workers.agreement import (
    ALONE,
    FOLLOW_S,
    FORMING,
    JOIN_S,
    STOPPED,
    TAKEN_S,
    TOGETHER,
    Follower,
    Leader,
    Order,
    Word,
)
from stallmeter.workers.trial import Proposal

LEAD_S = 3.0
MORE = Proposal(before=2, workers=6)


def leader(world_size: int = 2, **words: str) -> Leader:
    """Rank 0 after all have said that they have two workers."""
    made = Leader(world_size, LEAD_S)
    made.loader(2, "", 0.0)
    for rank in range(1, world_size):
        made.hear(rank, words.get(f"rank{rank}", Word(workers=2).text()))
    made.loader(2, "", 1.0)
    return made


def ordered(made: Leader, now_s: float, proposal: Proposal | None = MORE) -> Order | None:
    """Draft, and post."""
    before = made.order
    made.draft(proposal, None, now_s)
    made.posted()
    return None if made.order is before else made.order


def took(made: Leader, rank: int, epoch: int, **changes: object) -> None:
    assert made.order is not None
    made.hear(rank, json.dumps({"workers": 6, "taken": made.order.number, "epoch": epoch, **changes}))


# -- getting together --------------------------------------------------------------------------------------------------


def test_all_that_say_the_same_number_are_together() -> None:
    made = Leader(3, LEAD_S)
    made.loader(2, "", 0.0)
    assert (made.mode, made.awaited, made.ready) == (FORMING, [1, 2], False)
    made.hear(2, Word(workers=2).text())
    made.hear(1, Word(workers=None).text())  # its loader is not known yet
    made.loader(2, "", 1.0)
    assert (made.mode, made.awaited) == (FORMING, [1])
    made.hear(1, Word(workers=2).text())
    made.loader(2, "", 2.0)
    assert (made.mode, made.awaited, made.ready) == (TOGETHER, [], True)


@pytest.mark.parametrize(
    ("word", "mode", "why"),
    [
        (Word(workers=4), STOPPED, "the ranks began with different numbers: rank 1 has 4 workers, rank 0 2"),
        (Word(workers=2, why_fixed="it has a state"), STOPPED, "rank 1: it has a state"),
        (Word(workers=2, alone=True), ALONE, "rank 1 was not reached in time"),
    ],
)
def test_ranks_that_cannot_change_together_do_not(word: Word, mode: str, why: str) -> None:
    made = leader(rank1=word.text())
    assert (made.mode, made.why) == (mode, why)
    assert ordered(made, 100.0) is None
    follower = Follower()
    follower.hear(made.text())
    assert (follower.mode, follower.why) == (mode, why)


def test_rank_0_that_must_keep_its_number_says_so() -> None:
    made = Leader(2, LEAD_S)
    made.loader(None, "there are several training loaders", 0.0)
    assert (made.mode, made.why) == (STOPPED, "rank 0: there are several training loaders")


def test_without_each_other_each_decides_for_itself() -> None:
    made, follower = Leader(2, LEAD_S), Follower()
    for part, wait_s in ((made, JOIN_S), (follower, FOLLOW_S)):
        part.loader(None, "", 0.0)
        part.loader(None, "", 1e4)  # waits for the loader, however long a validation before it takes
        part.loader(2, "", 1e4)
        part.loader(2, "", 1e4 + wait_s - 1)
        assert part.mode == FORMING
        part.loader(2, "", 1e4 + wait_s)
        assert part.mode == ALONE
    assert made.why == "rank 1 was not heard of in 75 s"
    assert follower.word.alone
    follower.hear(leader().text())  # too late
    assert (follower.mode, follower.order) == (ALONE, None)


# -- when an order holds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("now_s", "epoch"), [(20.0, None), (24.0, 1), (1000.0, 1)])
def test_the_first_epoch_may_end_at_any_time(now_s: float, epoch: int | None) -> None:
    order = ordered(leader(), now_s)
    assert (order and order.epoch) == epoch


@pytest.mark.parametrize(
    ("ended_s", "now_s", "epoch"),
    [
        ((10.0,), 11.0, 2),  # ends at 20: there is time
        ((10.0,), 18.0, 3),  # not any more
        ((10.0,), 25.0, 3),  # it takes longer than expected, and may end any moment
        ((10.0, 11.0, 12.0), 12.5, 7),  # epochs of a second: three seconds are three of them
        ((30.0, 40.0, 41.0), 41.0, 6),  # the shortest counts
    ],
)
def test_an_order_leaves_time_to_hear_of_it(ended_s: tuple[float, ...], now_s: float, epoch: int) -> None:
    made = leader()
    for number, at_s in enumerate(ended_s):
        made.crossed(number + 1, 0, at_s)
    order = ordered(made, now_s)
    assert order is not None
    assert order.epoch == epoch


def test_an_order_holds_once_it_was_posted() -> None:
    made, follower = leader(), Follower()
    made.crossed(1, 0, 10.0)
    made.draft(MORE, None, 11.0)
    assert made.order is None
    made.draft(MORE, None, 18.0)  # it could not be posted meanwhile
    follower.hear(made.text())
    made.posted()
    assert follower.order == made.order
    assert made.order is not None
    assert (made.order.epoch, made.order.proposal) == (3, MORE)
    assert not made.ready


# -- who has it --------------------------------------------------------------------------------------------------------


def test_there_is_no_second_order_before_all_have_the_first() -> None:
    made = leader(3)
    made.crossed(1, 0, 10.0)
    assert ordered(made, 11.0) is not None
    assert made.awaited == [1, 2]
    took(made, 1, 2)
    made.crossed(2, 1, 20.0)
    assert (made.awaited, made.ready) == ([2], False)
    assert ordered(made, 21.0, Proposal(before=6, workers=8)) is None
    took(made, 2, 2)
    assert made.ready
    assert ordered(made, 21.0, Proposal(before=6, workers=8)) is not None


def test_an_epoch_counts_in_which_all_had_the_same_number() -> None:
    made = leader()
    made.crossed(1, 0, 10.0)
    assert made.is_common(1)
    ordered(made, 11.0)
    made.crossed(2, 1, 20.0)
    assert not made.is_common(3)  # rank 1 has not said a word
    took(made, 1, 3)  # it heard too late, and took it before the next epoch
    made.crossed(3, 0, 30.0)
    assert not made.is_common(3)
    assert made.is_common(4)


def test_what_a_rank_cannot_take_all_others_take_back() -> None:
    made = leader()
    made.crossed(1, 0, 10.0)
    ordered(made, 11.0)
    made.crossed(2, 1, 20.0)
    took(made, 1, 0, taken=0, workers=2, why_fixed="this process is a daemon")
    made.loader(6, "", 21.0)
    order = ordered(made, 21.0, None)
    assert order is not None
    assert order.proposal == Proposal(before=6, workers=2, revert=True, abandoned=True)
    made.draft(None, None, 22.0)
    assert (made.mode, made.why) == (STOPPED, "rank 1: this process is a daemon")
    follower = Follower()
    follower.hear(made.text())
    assert follower.order == order  # still to be carried out


def test_a_rank_that_falls_silent_ends_it() -> None:
    made = leader()
    made.crossed(1, 0, 10.0)
    ordered(made, 11.0)
    for epoch in (2, 3, 4):
        made.crossed(epoch, epoch == 2, 10.0 * epoch)
        made.loader(6, "", 10.0 * epoch)
        assert ordered(made, 10.0 * epoch, None) is None
    made.loader(6, "", 20.0 + TAKEN_S + 1)
    order = ordered(made, 20.0 + TAKEN_S + 1, None)
    assert order is not None
    assert order.proposal is not None
    assert (order.proposal.workers, order.proposal.abandoned) == (2, True)
    made.draft(None, None, 52.0)
    assert made.why == "rank 1 has not said that it took the number"


# -- what is said ------------------------------------------------------------------------------------------------------


def test_orders_and_trials_arrive_as_they_were_sent() -> None:
    made, follower = leader(), Follower()
    advice = WorkerAdvice(
        current=2,
        recommended=6,
        predicted_step_time_s=0.1,
        predicted_gain_pct=90.0,
        limited_by="compute",
        reason="ä",
        confidence=0.9,
        most=7,
    )
    made.crossed(1, 0, 10.0)
    made.trial("first")
    made.trial("second")
    made.draft(None, advice, 11.0)
    assert follower.hear(made.text()) == ["first", "second"]
    made.posted()
    assert follower.order == made.order
    assert follower.order is not None
    assert follower.order.advice == advice
    made.trial("third")
    assert follower.hear(made.text()) == ["third"]
    assert follower.hear(made.text()) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"mode": "together", "order": 3, "trials": []}', '"x"'])
def test_what_is_no_message_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Follower().hear(text)


@pytest.mark.parametrize("text", ["", "[]", "3", '{"workers": 2, "mood": "good"}'])
def test_what_is_no_word_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Leader(2, LEAD_S).hear(1, text)
