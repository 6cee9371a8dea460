"""All signals by name, as rules list them in `needs`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from operator import attrgetter

from .memo import Memo
from .window import Window


@cache
def signals() -> Mapping[str, str]:
    """Return what every signal says by its dotted name, for example ``gpu.utilization_pct``: properties of parts."""
    return dict(sorted(_properties("", Window())))


def read_signal(window: Window, name: str) -> object:
    """Return a signal by its dotted name; None when it was not measured.

    Raises:
        AttributeError: There is no such signal.
    """
    return attrgetter(name)(window)


def _properties(path: str, part: object) -> Iterator[tuple[str, str]]:
    for name, known in inspect.getmembers(type(part), lambda member: isinstance(member, property)):
        if not name.startswith("_"):
            yield f"{path}{name}", (known.__doc__ or "").partition("\n")[0]
    for name, inside in getattr(part, "__dict__", {}).items():
        if not name.startswith("_") and _is_part(inside):
            yield from _properties(f"{path}{name}.", inside)


def _is_part(value: object) -> bool:
    """Parts are of this package; of a window in which nothing was measured nothing else is, but for memos."""
    return type(value).__module__.startswith(f"{__package__}.") and not isinstance(value, Memo)
