"""Instance patches that leave no trace: picklable, deep-copyable, undone exactly."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ..timing.tracebacks import let_out

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
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: object, name: str, replacement: Callable[..., Any]) -> None:
        """Put ``replacement`` in place of ``owner.name`` on this one instance.

        Raises:
            AttributeError: The instance has no such attribute or takes none.
        """
        patch = Patch(replacement)
        patch.original = getattr(owner, name)
        self._undo.append(_put(owner, name, patch) or _assign(owner, name, patch))

    def around(self, owner: object, name: str, span: AbstractContextManager[Any]) -> None:
        """Have each call of ``owner.name`` on this one instance run in a span, where the calling thread makes it.

        Raises:
            AttributeError: The instance has no such attribute or takes none.
        """
        original, thread = getattr(owner, name), threading.get_ident()

        def spanned(*args: Any, **kwargs: Any) -> Any:
            try:
                if threading.get_ident() != thread:  # a checkpoint written in the background, say: not the ledger's
                    return original(*args, **kwargs)
                with span:
                    return original(*args, **kwargs)
            except BaseException as exc:
                let_out(exc)
                raise

        self.set(owner, name, spanned)

    def undo(self) -> None:
        """Restore what was there, where our patch still stands."""
        while self._undo:
            self._undo.pop()()


def _put(owner: object, name: str, patch: Patch) -> Callable[[], None] | None:
    """Put a patch where the instance keeps its attributes; return how to take it back, None if that has no effect.

    Not by ``setattr`` and ``delattr``: a proxy may hand them on to what it stands for, and a `Mock` takes a deletion as
    the wish never to have the attribute again.
    """
    attributes = getattr(owner, "__dict__", None)
    if not isinstance(attributes, dict):
        return None
    before = attributes.get(name, _ABSENT)

    def take_back() -> None:
        if attributes.get(name) is not patch:
            return
        if before is _ABSENT:
            del attributes[name]
        else:
            attributes[name] = before

    attributes[name] = patch
    if getattr(owner, name, None) is patch:
        return take_back
    take_back()  # a descriptor of the class, or a __getattribute__ that looks elsewhere
    return None


def _assign(owner: object, name: str, patch: Patch) -> Callable[[], None]:
    """Set a patch through a slot, a property or whatever else the class takes attributes by."""
    setattr(owner, name, patch)

    def take_back() -> None:
        if getattr(owner, name, None) is patch:
            setattr(owner, name, patch.original)

    return take_back
