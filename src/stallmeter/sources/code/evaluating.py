"""What a loop evaluates in the midst of its steps: it computes without gradients, with its model switched to that.

A loader that is iterated without gradients tells so itself. Where batches come from a function or lie in a tensor only
the stack and the text can: ``@torch.no_grad()`` or a ``with`` block of it, and ``model.eval()`` or a name that says so.
Without gradients others compute as well, who plays a game to learn from it, say.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from functools import lru_cache

from .beside import SWITCHES
from .fold import Frame, Seen
from .taken import block_without_gradients

SWITCHED = re.compile(r"\.eval\(\s*\)|\.train\(\s*(?:mode\s*=\s*)?False\s*\)")
"""A model is switched to being evaluated."""

NAMED = re.compile(r"(?:^|[._])(?:eval|valid|test|estimate_loss)")
"""In names of functions that evaluate."""

SHOWS = frozenset({"PIL", "imageio", "matplotlib", "plotly", "seaborn", "tensorboard", "tensorboardX", "wandb"})
"""Packages that draw, and write what was drawn: for somebody who looks at it, and no evaluation of anything."""

NEAR = 15
"""So many lines before a block without gradients a model may be switched."""


def evaluations(seen: Sequence[Seen]) -> list[Seen]:
    """Return the stacks of evaluations, each down to the function that evaluates: all that it calls is its own.

    Args:
        seen: Of the steps.
    """
    found = ((one, _evaluation_at(one.stack)) for one in seen)
    return [Seen(one.stack[: at + 1], one.wall_s, one.cpu_s) for one, at in found if at is not None]


def without_evaluations(seen: Sequence[Seen]) -> list[Seen]:
    """Return the other stacks.

    Args:
        seen: Of the steps.
    """
    return [one for one in seen if _evaluation_at(one.stack) is None]


def _evaluation_at(stack: Sequence[Frame]) -> int | None:
    found = None
    for at, frame in enumerate(stack):
        if frame.function.package in SHOWS:
            return None
        if found is None and frame.function.own and frame.path:
            decorated = at > 0 and stack[at - 1].function.file.startswith(SWITCHES)
            name = frame.function.name.rpartition(".")[2]
            if _evaluates(frame.path, frame.function.first_line, frame.line, name, decorated=decorated):
                found = at
    return found


@lru_cache(maxsize=1024)
def _evaluates(path: str, first_line: int, line: int, name: str, *, decorated: bool) -> bool:
    """Whether a line of a function evaluates.

    Args:
        path: Of the file.
        first_line: Of the function; 0 for a module.
        line: What it does.
        name: Of the function.
        decorated: Whether it computes without gradients from its beginning on.
    """
    lines = linecache.getlines(path)
    if not 0 < line <= len(lines):
        return False
    block = first_line if decorated else block_without_gradients(lines, first_line, line)
    if not block:
        return False
    since = max(first_line, block - NEAR) if not decorated else first_line
    return bool(NAMED.search(name) or SWITCHED.search("".join(lines[max(0, since - 1) : line])))
