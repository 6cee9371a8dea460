"""What a callback, a logger or a checkpoint does itself, on stacks with the training around and the model beneath it.

Around it: the line of the user's that calls a library which then calls the model in each step. It drives the training,
and owns nothing of what that library calls in turn. Beneath it: the model, which all steps call; that a callback calls
it as well is the callback's doing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import dropwhile, pairwise, takewhile

from .fold import Frame, Seen
from .roles import MODULE
from .whose import Function

TORCH = "torch"
"""Package whose call by the user's code is the model's, or drives nothing."""


class Handlers:
    """What is known of the training by stacks of its steps.

    Args:
        steps: Stacks of steps, of whatever part of them.
    """

    def __init__(self, steps: Iterable[Seen]) -> None:
        self._drivers: set[tuple[Function, int]] = set()
        """Functions of the user's, and the place of the call."""
        self._driving: set[Function] = set()
        """Functions of what drives it, on the way to the model."""
        self._models: set[Function] = set()
        """Functions of the user's that steps call for their model."""
        for one in steps:
            self._learn(one.stack)

    def own(self, one: Seen) -> Seen:
        """Return the part of a stack that a handler is to answer for: all of it where none of it would be left."""
        drivers = [i for i, frame in enumerate(one.stack) if (frame.function, frame.at) in self._drivers]
        stack = one.stack
        if drivers:
            stack = tuple(dropwhile(lambda frame: frame.function in self._driving, stack[drivers[-1] + 1 :])) or stack
        model = next((i for i, frame in enumerate(stack) if self._is_models(frame)), len(stack))
        called = any(frame.function.own for frame in stack[:model])
        return replace(one, stack=stack[:model] if called else stack)

    def _learn(self, stack: Sequence[Frame]) -> None:
        model = next((i for i, frame in enumerate(stack) if frame.function.file.startswith(MODULE)), None)
        if model is None:
            return
        drives = [i for i, (frame, called) in enumerate(pairwise(stack[: model + 1])) if _drives(frame, called)]
        self._drivers.update((stack[i].function, stack[i].at) for i in drives)
        begins = drives[-1] + 1 if drives else model
        self._driving.update(f.function for f in takewhile(lambda f: not f.function.own, stack[begins:model]))
        self._models.update(frame.function for frame in stack[begins:] if frame.function.own)

    def _is_models(self, frame: Frame) -> bool:
        return frame.function in self._models or frame.function.file.startswith(MODULE)


def _drives(frame: Frame, called: Frame) -> bool:
    """Whether the user's code calls a library there; what comes with Python, or was generated, is none."""
    function = called.function
    return (
        frame.function.own
        and not (function.own or function.standard or function.generated or not function.file)
        and (function.package != TORCH)
    )
