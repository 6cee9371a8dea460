"""Values in a key-value store of torch's, read without waiting for them.

``get`` waits for a key that is not there, and not every torch has ``check``. ``compare_set`` does not wait; but up to
torch 2.4 it makes its answer without the interpreter's lock (pytorch issues 123983 and 125990), which ends a program
that makes objects in another thread: on torch 2.2 one training of two ranks in twelve (our measurement). There a
counter beside each value tells whether it is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..machine.installed import torch_version

T = TypeVar("T")

_NOTHING = "(nothing)"

SAFE_SINCE = (2, 5)
"""Version of torch from which on ``compare_set`` is known to hold the lock: mended in June 2024, while 2.4 was made."""

_COUNTER = "/n"
"""End of the key of the counter beside a value."""


def calling(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call what may fail as torch's stores do.

    Raises:
        ConnectionError: It failed.
    """
    try:
        return call(*args, **kwargs)
    except RuntimeError as exc:  # all that torch's stores raise
        raise ConnectionError(str(exc)[:500]) from exc


class Values:
    """The values of a store.

    Args:
        store: A client that no other thread uses.
    """

    def __init__(self, store: Any) -> None:
        self._store = store

    def read(self, key: str) -> str | None:
        """Return a value, None where there is none.

        Replacing what no value equals changes nothing, and returns the value, or this when there is none.
        """
        value: bytes = calling(self._store.compare_set, key, _NOTHING, _NOTHING)
        return None if value == _NOTHING.encode() else value.decode(errors="replace")

    def is_there(self, key: str) -> bool:
        """Whether there is a value."""
        return self.read(key) is not None

    def write(self, key: str, value: str) -> None:
        """Set a value."""
        calling(self._store.set, key, value)

    def remove(self, key: str) -> None:
        """Remove a value, if there is one."""
        calling(self._store.delete_key, key)

    def replace(self, key: str, before: str, value: str) -> None:
        """Set a value if it is still what it was before."""
        calling(self._store.compare_set, key, before, value)

    def count(self, key: str, more: int) -> int:
        """Add to a counter and return what it is then."""
        return int(calling(self._store.add, key, more))

    def total(self, key: str) -> int:
        """Return what a counter is; a store in a file grows by each that is added to."""
        return int(self.read(key) or 0)


class CountedValues(Values):
    """The same without ``compare_set``: each key is removed by one rank alone, or read by one alone."""

    def read(self, key: str) -> str | None:
        """Return a value, None where there is none."""
        if not self.is_there(key):
            return None
        value: bytes = calling(self._store.get, key)
        return value.decode(errors="replace")

    def is_there(self, key: str) -> bool:
        """Whether there is a value."""
        return self.total(key + _COUNTER) > 0

    def total(self, key: str) -> int:
        """Return what a counter is."""
        return self.count(key, 0)

    def write(self, key: str, value: str) -> None:
        """Set a value, and then count it: who reads never waits."""
        super().write(key, value)
        self.count(key + _COUNTER, 1)

    def remove(self, key: str) -> None:
        """Remove a value, its counter first."""
        super().remove(key + _COUNTER)
        super().remove(key)

    def replace(self, key: str, before: str, value: str) -> None:
        """Set a value if it is still what it was before; one that is set at this very moment is lost."""
        if self.read(key) == before:
            calling(self._store.set, key, value)


def values_of(store: Any) -> Values:
    """Return the values of a store, as they can be read with this torch.

    Args:
        store: A client that no other thread uses.
    """
    return Values(store) if torch_version() >= SAFE_SINCE else CountedValues(store)
