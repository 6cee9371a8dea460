"""Lines of functions: which one a place in the bytecode belongs to, and how long each of them takes.

Lines are timed one by one where a function's own code holds the time, for no call tells which. `sys.settrace` looks at
no other function's lines. What is called from a line counts as the line's, but for other functions that are looked at:
they have lines of their own. Each of them may use up as many events: a loop in the first leaves room for the others.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from types import CodeType, FrameType
from typing import Any

Local = Callable[[FrameType, str, Any], Any]


class LineTables:
    """The line of a place in some code; each table is made once."""

    def __init__(self) -> None:
        # By the identity of the codes, which are kept: a code's hash reads all of its instructions.
        self._known: dict[int, tuple[CodeType, list[int], list[int]]] = {}

    def line(self, code: CodeType, at: int) -> int:
        """Return the line at an offset in the bytecode; that of the function where none is told.

        Args:
            code: Of the function.
            at: Bytes from its beginning; -1 before it has begun.
        """
        known = self._known.get(id(code))
        if known is None:
            table = [(begin, line) for begin, _, line in code.co_lines() if line is not None]
            known = self._known[id(code)] = code, [begin for begin, _ in table], [line for _, line in table]
        which = bisect_right(known[1], at) - 1
        return known[2][which] if which >= 0 else code.co_firstlineno


class LineTimer:
    """Times the lines of some functions in the thread that begins and ends it.

    Args:
        codes: Of the functions.
        most_events: So many calls and lines, a part for the lines of each function; when they are used up nothing more
            is timed.
    """

    def __init__(self, codes: Sequence[CodeType], most_events: int) -> None:
        self._codes = {id(code): code for code in codes}
        self._left = self._most_events = most_events
        self._room = dict.fromkeys(self._codes, most_events // (len(self._codes) + 1))
        """Lines that may still be timed, by code."""
        self._trace: Local | None = None
        self._spent: dict[int, dict[int, int]] = {at: defaultdict(int) for at in self._codes}

    def again(self) -> LineTimer:
        """Return one for the same functions that has seen nothing yet."""
        return LineTimer([*self._codes.values()], self._most_events)

    def begin(self) -> None:
        """Begin to time lines: of functions that are called from now on."""
        self._trace = self._new_trace()
        sys.settrace(self._trace)

    def end(self) -> bool:
        """Stop; returns whether all went as it should. What replaced the trace function meanwhile is left alone."""
        ours = sys.gettrace() is self._trace
        if ours:
            sys.settrace(None)
        self._trace = None
        return ours or self._left < 0

    @property
    def lines_s(self) -> list[tuple[CodeType, dict[int, float]]]:
        """Seconds by line, for each code that was looked at."""
        return [(self._codes[at], {line: ns / 1e9 for line, ns in spent.items()}) for at, spent in self._spent.items()]

    def _has_room(self, frame: FrameType) -> bool:
        """Take one off what is left for a function's lines; none of this call are told any more where nothing is."""
        code = id(frame.f_code)
        self._room[code] -= 1
        frame.f_trace_lines = self._room[code] > 0
        return frame.f_trace_lines

    def _new_trace(self) -> Local:
        """Return a trace function. It must not raise, for that would be raised in the program."""
        now, all_spent = perf_counter_ns, self._spent
        beyond: dict[int, int] = defaultdict(int)
        """Time of functions that have used up their part: of no line."""
        # The functions that are running, each with the line it is at. Only the innermost one's clock runs.
        running: list[tuple[dict[int, int], FrameType]] = []
        line, last = 0, now()

        def switch(to: int) -> None:
            nonlocal line, last
            asked = now()
            if running:
                running[-1][0][line] += asked - last
            line = to

        def spend() -> None:
            self._left -= 1
            if self._left < 0 and sys.gettrace() is trace:  # else another one has replaced it
                sys.settrace(None)

        def trace(frame: FrameType, event: str, arg: Any) -> Any:  # noqa: ARG001
            nonlocal last
            spent = all_spent.get(id(frame.f_code))
            if spent is None:
                spend()
                return None
            switch(frame.f_lineno)
            running.append((spent if self._has_room(frame) else beyond, frame))
            spend()
            last = now()
            return local

        def local(frame: FrameType, event: str, arg: Any) -> Any:  # noqa: ARG001
            nonlocal line, last
            asked = now()
            if running and running[-1][1] is frame:
                running[-1][0][line] += asked - last
                if event == "return":
                    running.pop()
                    line = running[-1][1].f_lineno if running else 0
                elif event == "line":
                    line = frame.f_lineno
                    if not self._has_room(frame):
                        running[-1] = beyond, frame
            spend()
            last = now()
            return local

        return trace
