"""Answers hold until something they are made of changes."""

from __future__ import annotations

from copy import deepcopy

from stallmeter.window.memo import Memo


def test_an_answer_is_made_once():
    """Until a change, here or in what it is made of."""
    base = Memo()
    made = Memo(base)
    count = iter(range(100))
    ask = lambda: made("a", lambda: next(count))  # noqa: E731
    assert (ask(), ask()) == (0, 0)
    made.changes += 1
    assert (ask(), ask()) == (1, 1)
    base.changes += 1
    assert (ask(), ask()) == (2, 2)
    assert made("b", lambda: None) is None
    assert ask() == 2


def test_a_change_meanwhile_makes_an_answer_old():
    """Of two threads one may take a record while the other computes."""
    made = Memo()

    def slow():
        made.changes += 1
        return "old"

    assert made("a", slow) == "old"
    assert made("a", lambda: "new") == "new"


def test_a_copy_follows_the_copies():
    """Not what it was copied from."""
    base = Memo()
    made = Memo(base)
    made("a", lambda: 1)
    other, twin = deepcopy((base, made))
    base.changes += 1
    assert twin.state() == made.state() - 1
    other.changes += 1
    assert twin.state() == made.state()
    assert twin("a", lambda: 2) == 2
