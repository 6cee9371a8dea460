"""What a loop gets in place of its loader's iterator: the program's attributes are the iterator's."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from stallmeter.zero_code import patches
from stallmeter.zero_code.iteration import Iteration, Timed, Undecided


class Numbers:
    """An iterator."""

    handed_out = 0

    def __iter__(self) -> Numbers:
        return self

    def __next__(self) -> int:
        self.handed_out += 1
        return self.handed_out


def around(iterator: Numbers, kind: type[Iteration] = Undecided) -> Any:
    loop: Any = SimpleNamespace(updates=0, left=lambda iteration: None)
    return kind(loop, None, iterator, 0, 0, True)


@pytest.mark.parametrize("kind", [Undecided, Timed])
def test_what_a_program_sets_is_the_iterators(kind: type[Iteration]) -> None:
    own = Numbers()
    iteration = around(own, kind)
    iteration.epoch = 3
    iteration.handed_out = 7
    assert (own.epoch, own.handed_out) == (3, 7)  # type: ignore[attr-defined]
    assert iteration.epoch == 3
    del iteration.epoch
    assert not hasattr(own, "epoch")
    with pytest.raises(AttributeError, match="epoch"):
        del iteration.epoch
    assert isinstance(iteration, Numbers)


def test_ours_are_none_of_the_iterators() -> None:
    own = Numbers()
    iteration = around(own)
    iteration.exhausted = True
    iteration.__class__ = Timed
    assert type(iteration) is Timed
    assert vars(own) == {}


def test_what_records_a_run_is_there_before_the_first_batch() -> None:
    patches._import_all()
    assert all(f"stallmeter.{name}" in sys.modules for name in patches.RECORDING)
