"""From stacks, as the interpreter tells them, to the functions and lines that are shown."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable
from dataclasses import replace
from dis import opmap
from types import CodeType

from ...machine.frames import Stack
from ...records.code import DRIVERS
from .fold import Frame, Seen
from .lines import LineTables
from .named import NamedCalls
from .whose import Function, Whose

ASKED = frozenset(opmap[name] for name in ("RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE") if name in opmap)
"""Instructions at which the interpreter looks whether another thread asks for its lock."""

_SLEEP = re.compile(r"\bsleep\(")


class Reading:
    """Turns stacks into what is shown of them.

    Args:
        whose: Names functions.
    """

    def __init__(self, whose: Whose) -> None:
        self._whose = whose
        self._lines = LineTables()
        self._calls = NamedCalls()
        # By the identity of the code, which is kept, and by whether it is where the stack ends: a program stands in the
        # same places again and again.
        self._known: dict[tuple[int, int, bool], tuple[CodeType, Frame]] = {}

    def seen(self, stacks: Iterable[tuple[Stack, int]]) -> list[Seen]:
        """Return stacks with their time.

        Args:
            stacks: Each with the nanoseconds that it stands for.
        """
        return [Seen(self._frames(stack), ns / 1e9) for stack, ns in stacks]

    def _frames(self, stack: Stack) -> tuple[Frame, ...]:
        frames = [self._frame(code, at, innermost=False) for code, at in stack[:-1]]
        frames += [self._frame(code, at, innermost=True) for code, at in stack[-1:]]
        driver = next((i for i, frame in enumerate(frames) if frame.function.file.startswith(DRIVERS)), 0)
        return tuple(frames[driver:])

    def _frame(self, code: CodeType, at: int, *, innermost: bool) -> Frame:
        known = self._known.get((id(code), at, innermost))
        if known is None:
            known = self._known[id(code), at, innermost] = code, self._find(code, at, innermost=innermost)
        return known[1]

    def _find(self, code: CodeType, at: int, *, innermost: bool) -> Frame:
        frame = Frame(_imported(self._whose.code(code)), self._lines.line(code, at), at, path=code.co_filename)
        if not innermost or not frame.function.own:
            return frame
        return replace(
            frame,
            sleeps=_sleeps(code.co_filename, frame.line),
            interprets=_interprets(code, at),
            calls=self._calls.at(code, at),
        )


def _sleeps(file: str, line: int) -> bool:
    """Whether a line asks to sleep. A function of C is on no stack of Python's: the source of its call names it."""
    return _SLEEP.search(linecache.getline(file, line)) is not None


def _interprets(code: CodeType, at: int) -> bool:
    """Whether a thread that gave up the interpreter's lock there did so because it was asked to, in code of Python.

    At the beginning of a function and of each round of a loop the interpreter looks whether it is asked to. Operators
    and calls that compute with tensors give the lock up by themselves, and so are found there: of 2,300 looks at five
    losses none was between two instructions, of 400 at each of two functions in pure Python 6 and 16 % were (ours).
    """
    return 0 <= at < len(code.co_code) and code.co_code[at] in ASKED


def _imported(function: Function) -> Function:
    """Return a library's module, which is executed while it is imported, under the name of that."""
    if function.own or function.name != "<module>":
        return function
    name = f"import {function.dotted.removesuffix('.<module>')}"
    return replace(function, name=name, dotted=name)
