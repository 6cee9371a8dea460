"""Instance patches that leave no trace: picklable, deep-copyable, undone exactly."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

_ABSENT = object()


class Patch(functools.partial):  # type: ignore[type-arg]
    """A callable set on an instance. Pickled or copied, it becomes the original again.

    A `functools.partial` because calling one costs almost nothing.
    """

    original: Callable[..., Any]

    def __reduce__(self) -> Any:
        return _original, (self.original,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.original, memo)


def _original(original: Any) -> Any:
    return original


class Patches:
    """Patches on the instances of others, undone together, in any order with those of others."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, Patch]] = []

    def set(self, owner: object, name: str, replacement: Callable[..., Any]) -> None:
        """Put ``replacement`` in place of ``owner.name`` on this one instance.

        Raises:
            AttributeError: The instance has no such attribute or takes none.
        """
        patch = Patch(replacement)
        patch.original = getattr(owner, name)
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, patch)
        self._undo.append((owner, name, before, patch))

    def undo(self) -> None:
        """Restore what was there, where our patch still stands."""
        while self._undo:
            owner, name, before, patch = self._undo.pop()
            if vars(owner).get(name) is not patch:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
