"""Which stacks of steps meet other ranks by a call of the program's own, and who calls that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .beside import PICKLES, Where
from .fold import Frame, Seen
from .roles import WRAPS
from .whose import Function

BARRIER = "barrier"
"""What exchanges nothing, and waits for the last rank."""

OF_DDP, SENDS_BUFFERS = "torch/nn/parallel/distributed.py", "._sync_buffers"
"""File of DDP, and end of the name of what sends the model's buffers to the other ranks; torch 2.2 to 2.13."""


def buffers_s(seen: Sequence[Seen]) -> float:
    """Return the seconds in which DDP sends the model's buffers, before it calls the model.

    Args:
        seen: Of the steps.
    """
    return sum(one.wall_s for one in seen if any(_sends_buffers(frame.function) for frame in one.stack))


def _sends_buffers(function: Function) -> bool:
    return function.file == OF_DDP and function.name.endswith(SENDS_BUFFERS)


def in_collectives(seen: Sequence[Seen]) -> list[Seen]:
    """Return the stacks in which the program meets other ranks by its own call.

    Barriers are left out, but for those of a call that exchanges something as well: a library makes one before each
    value that it shares.

    Args:
        seen: Of the steps.
    """
    met = [one for one in seen if _meets_others(one.stack)]
    calls = {_calls_them(one.stack) for one in met if not _is_at_barrier(one.stack)}
    return [one for one in met if _calls_them(one.stack) in calls]


def collectives(found: Sequence[Seen]) -> list[Seen]:
    """Return the stacks of `in_collectives` without what a library does between the user's call and the collective."""
    return [replace(one, stack=(*one.stack[: _own_before(one.stack) + 1], _collective(one.stack))) for one in found]


def _collective(stack: Sequence[Frame]) -> Frame:
    called = [frame for frame in stack if frame.function.role.is_of_ranks]
    return next((frame for frame in called if not frame.function.file.startswith(WRAPS)), called[0])


def _calls_them(stack: Sequence[Frame]) -> tuple[Function, Where]:
    frame = stack[_own_before(stack)]
    return frame.function, frame.where


def _own_before(stack: Sequence[Frame]) -> int:
    """Return which is the last frame of the user's before other ranks are met; there must be one."""
    at = next(i for i, frame in enumerate(stack) if frame.function.role.is_of_ranks)
    return max(i for i, frame in enumerate(stack[:at]) if frame.function.own)


def _meets_others(stack: Sequence[Frame]) -> bool:
    at = next((i for i, frame in enumerate(stack) if frame.function.role.is_of_ranks), None)
    if at is None or not any(frame.function.own for frame in stack[:at]):
        return False
    of_training = any(frame.function.role.is_model or frame.function.role.is_of_optimizer for frame in stack[:at])
    # A module of the user's that calls one itself is the program as well; torch's own, to share a batch's mean, is not.
    of_training = of_training and not stack[at - 1].function.own
    return not of_training and not any(frame.function.name in PICKLES for frame in stack[at:])


def _is_at_barrier(stack: Sequence[Frame]) -> bool:
    return any(frame.function.role.is_of_ranks and frame.function.name == BARRIER for frame in stack)
