"""Looks of later rounds stand for all that a place has taken since the round before."""

from __future__ import annotations

import pytest

from stallmeter.sources.stacks.rounds import GROWS, ROUND, Rounds
from stallmeter.sources.stacks.sampler import STEADY, Look
from stallmeter.sources.stacks.tally import Tally

PLACE = ("loop", "steps", "")
SLOT, OTHER_SLOT = 7, 8
MS = 1_000_000


def early() -> None:
    """What the first steps are in."""


def late() -> None:
    """What later ones are in."""


def look(function: object = early, slot: int = SLOT, weight_ns: int = 20 * MS) -> Look:
    return Look(slot, STEADY, weight_ns, ((function.__code__, 0),))  # type: ignore[attr-defined]


def seen(*looks: Look) -> dict[int, Tally]:
    """The first round."""
    tallies: dict[int, Tally] = {}
    for one in looks:
        tallies.setdefault(one.slot, Tally(0)).add(one)
    return tallies


def share_of(function: object, tallies: dict[int, Tally]) -> float:
    whole = sum(tally.wall_ns for tally in tallies.values())
    code = function.__code__  # type: ignore[attr-defined]
    return sum(ns for tally in tallies.values() for stack, ns in tally.items() if stack[-1][0] is code) / whole


def test_a_later_round_stands_for_what_came_since() -> None:
    """200 looks in the first 4 s, then 40 each: what takes all of the last 8 s of 12 takes two thirds."""
    rounds, tallies = Rounds(), seen(*[look()] * 200)
    assert not rounds.wants(PLACE, 4000 * MS, tallies)
    assert not rounds.wants(PLACE, int(4000 * MS * GROWS) - 1, tallies)
    assert rounds.wants(PLACE, 11_200 * MS, tallies)
    for _ in range(ROUND):
        assert rounds.wants(PLACE, 11_500 * MS, tallies)
        assert rounds.add(PLACE, look(late), 0)
    assert not rounds.wants(PLACE, 12_000 * MS, tallies)
    assert share_of(late, tallies) == pytest.approx(2 / 3)
    assert sum(tally.count for tally in tallies.values()) == 200 + ROUND
    assert not rounds.add(PLACE, look(late), 0)
    assert not rounds.wants(PLACE, 17_000 * MS, tallies)
    assert rounds.wants(PLACE, 18_000 * MS, tallies)


def test_what_stays_the_same_keeps_its_share() -> None:
    rounds, tallies = Rounds(), seen(*[look()] * 150, *[look(late)] * 50)
    taken_ns = 4000 * MS
    assert not rounds.wants(PLACE, taken_ns, tallies)
    for _ in range(6):
        taken_ns = int(taken_ns * 2)
        assert rounds.wants(PLACE, taken_ns, tallies)
        for one in [look()] * 30 + [look(late)] * 10:
            rounds.add(PLACE, one, 0)
        assert not rounds.wants(PLACE, taken_ns, tallies)
    assert share_of(late, tallies) == pytest.approx(0.25)


def test_each_slot_has_its_part() -> None:
    """The backward pass grows and the forward pass does not; a slot that is new has no looks to add to."""
    rounds, tallies = Rounds(), seen(*[look()] * 100, *[look(late, OTHER_SLOT)] * 100)
    rounds.wants(PLACE, 4000 * MS, tallies)
    assert rounds.wants(PLACE, 8000 * MS, tallies)
    for one in [look()] * 10 + [look(late, OTHER_SLOT)] * 30 + [look(late, 9)] * 10:
        rounds.add(PLACE, one, 0)
    assert not rounds.wants(PLACE, 8000 * MS, tallies)
    assert set(tallies) == {SLOT, OTHER_SLOT}
    assert share_of(late, tallies) == pytest.approx((100 + 200 * 0.6) / (200 + 200 * 0.8))


def test_a_place_that_has_become_another_begins_anew() -> None:
    rounds, tallies = Rounds(), seen(*[look()] * 200)
    rounds.wants(PLACE, 4000 * MS, tallies)
    assert rounds.wants(PLACE, 8000 * MS, tallies)
    rounds.forget(PLACE)
    assert not rounds.add(PLACE, look(), 0)
    assert not rounds.wants(PLACE, 9000 * MS, tallies)


def test_other_places_have_rounds_of_their_own() -> None:
    rounds, tallies = Rounds(), seen(*[look()] * 200)
    rounds.wants(PLACE, 4000 * MS, tallies)
    assert rounds.wants(PLACE, 8000 * MS, tallies)
    assert not rounds.add(("loop", "callbacks", "Meter"), look(), 0)
    assert not rounds.wants(("loop", "callbacks", "Meter"), 8000 * MS, {})
