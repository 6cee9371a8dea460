"""Functions of the program that its model calls and that compute in Python itself: a mask, or a graph, made anew."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ...records import CodeSpot
from .fold import Frame, Seen, fold


def in_modules(seen: Sequence[Seen]) -> tuple[CodeSpot, ...]:
    """Return the functions of the user's that modules of theirs call, each with all that it calls but other modules.

    Args:
        seen: Of the steps.
    """
    found: list[Seen] = []
    interpreting_s: dict[tuple[str, str], float] = defaultdict(float)
    for one in seen:
        at = _helper_at(one.stack)
        if at is None:
            continue
        function = one.stack[at].function
        found.append(replace(one, stack=one.stack[: at + 1]))
        interpreting_s[function.file, function.name] += one.wall_s if one.stack[-1].interprets else 0.0
    return tuple(
        replace(spot, interpreting_s=min(spot.wall_s, interpreting_s[spot.file, spot.function]))
        for spot in fold(found).spots
    )


def _helper_at(stack: Sequence[Frame]) -> int | None:
    """Return which frame is the first function that a module's own code calls; None without one.

    What torch computes below it does not count against it: whether it is Python that it takes is asked of its lines.
    """
    called = [i for i, frame in enumerate(stack) if frame.function.role.is_module]
    if not called or any(frame.function.role.computes_gradients for frame in stack):
        return None
    at = called[-1] + 2  # the module's own method, and what that calls
    if len(stack) <= at or not stack[at - 1].function.own or not stack[at].function.own:
        return None
    if stack[at].function.name.startswith(f"{stack[at - 1].function.name}.<locals>."):
        return None  # a comprehension or a lambda is a part of the method
    return at
