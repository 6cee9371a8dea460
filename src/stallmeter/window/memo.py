"""Answers that are kept until something they were made of changes."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T")


class Memo:
    """What a part answered last. A part adds 1 to ``changes`` with each record that it takes.

    Args:
        of: The memos of the other parts that the answers are made of.
    """

    __slots__ = ("_answers", "_of", "changes")

    def __init__(self, *of: Memo) -> None:
        self.changes = 0
        self._of = of
        self._answers: dict[str, tuple[int, Any]] = {}

    def __call__(self, key: str, make: Callable[[], T]) -> T:
        """Return what ``make`` returned the last time, unless something changed in between."""
        state = self.state()
        made_at, answer = self._answers.get(key, (-1, None))
        if made_at != state:
            answer = make()
            # Reports ask from other threads than the sampler's. With the state from before `make`, what changes
            # meanwhile makes this answer an old one.
            self._answers[key] = (state, answer)
        return answer  # type: ignore[no-any-return]

    def state(self) -> int:
        """Return a number that grows with each change, here or in what this is made of."""
        return self.changes + sum(memo.state() for memo in self._of)

    def __deepcopy__(self, copied: dict[int, Any]) -> Self:
        """Return a memo without answers, of the copies of the same parts."""
        twin = type(self)(*deepcopy(self._of, copied))
        twin.changes = self.changes
        return twin
