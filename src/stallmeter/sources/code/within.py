"""Functions that the program's model calls and through which no gradient flows: a mask, or a graph, made anew."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ...records import CodeSpot
from ...records.packages import NO_MODEL
from .beside import SWITCHES, stands_in_block_without_gradients
from .fold import Frame, Seen, fold


def in_modules(seen: Sequence[Seen]) -> tuple[CodeSpot, ...]:
    """Return the functions of the user's that modules of theirs call, each with all that it calls but other modules.

    Of a module's own method what it calls itself of a library that holds no model, which then has `CodeSpot.trains`.

    Args:
        seen: Of the steps.
    """
    found: list[Seen] = []
    interpreting_s: dict[_Name, float] = defaultdict(float)
    untrained_s: dict[_Name, float] = defaultdict(float)
    methods: set[_Name] = set()
    for one in seen:
        helper = _helper_at(one.stack)
        if helper is None:
            continue
        at, is_untrained = helper
        function = one.stack[at].function
        if function.own:
            innermost = max(i for i, frame in enumerate(one.stack) if frame.function.own)
            found.append(replace(one, stack=(*one.stack[: at + 1], *one.stack[innermost + 1 :])))
            interpreting_s[function.file, function.name] += one.wall_s if one.stack[-1].interprets else 0.0
            untrained_s[function.file, function.name] += one.wall_s if is_untrained else 0.0
        else:
            found.append(one)
            methods.add((one.stack[at - 1].function.file, one.stack[at - 1].function.name))
    return tuple(
        replace(
            spot,
            interpreting_s=min(spot.wall_s, interpreting_s[spot.file, spot.function]),
            untrained_s=min(spot.wall_s, untrained_s[spot.file, spot.function]),
            trains=(spot.file, spot.function) in methods,
        )
        for spot in fold(found).spots
    )


_Name = tuple[str, str]
"""File and name of a function."""


def _helper_at(stack: Sequence[Frame]) -> tuple[int, bool] | None:
    """Return which frame is the first function that a module's own code calls; None without one.

    And whether it records no gradients. A module that records none at all is a helper as a whole, with what its own
    functions compute: one that matches boxes, say. What torch computes below a helper does not count against it:
    whether it is Python that it takes is asked of its lines. Of a library only what holds no model is one.
    """
    called = [i for i, frame in enumerate(stack) if frame.function.role.is_module]
    if not called or any(frame.function.role.computes_gradients for frame in stack):
        return None
    method = _past_switches(stack, called[-1] + 1)
    if len(stack) <= method or not stack[method].function.own:
        return None
    if method > called[-1] + 1 or any(stands_in_block_without_gradients(frame) for frame in stack[: called[-1]]):
        return method, True
    at = _past_switches(stack, method + 1)
    if len(stack) <= at:
        return None
    function = stack[at].function
    if not function.own:
        own = any(frame.function.own for frame in stack[at:])  # a library that calls the program back
        return (at, False) if function.package in NO_MODEL and not own else None
    if function.name.startswith(f"{stack[method].function.name}.<locals>."):
        return None  # a comprehension or a lambda is a part of the method
    return at, at > method + 1 or stands_in_block_without_gradients(stack[method])


def _past_switches(stack: Sequence[Frame], at: int) -> int:
    """Return the place of what is called there, or of the program's function that is decorated with ``no_grad``."""
    decorated = len(stack) > at + 1 and stack[at].function.file.startswith(SWITCHES) and stack[at + 1].function.own
    return at + 1 if decorated else at
