"""Every call of one thread, timed while a few batches are made.

`sys.setprofile` and no sampling thread: such a thread only runs when the one it looks at gives up the GIL, and so sees
its waits and hardly any of its computing. What the profiler itself takes is left out twice: the time inside it is known
exactly, and what the interpreter needs to call it is measured beforehand and taken off for each event. Of the clocks
only the cheap one is read for each event; the thread's CPU time, a system call, only where enough time has passed for
a wait.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from types import CodeType
from typing import NamedTuple

from ...machine.procfs import open_run_queue, read_run_queue, run_queue_ns
from .calls import Budget, Callback, Node, Settle, profile_function
from .fold import Frame, Seen
from .lines import LineTables
from .unprofiled import Part, unprofiled
from .whose import Function, Whose

LEAST = 0.2
"""Part of the time between two events that is the program's own at the least, whatever they cost: small builtins take a
fifth to a third of what they take under a profiler (our measurement: 110 of 480 ns for divmod in a comprehension). Less
would be the difference of two large numbers that are not known as well."""

_NEVER = b"0 0 0"
"""What the kernel says of a thread that has not run."""

_TRIES, _FEW, _CALLS, _TURNS = 4, 10, 100, 10
"""Of the measurement of what an event costs: the quickest try counts."""


class _Costs(NamedTuple):
    """What a profile function costs besides its own time."""

    call_ns: float
    """Of the interpreter for each call of, and return from, a function that is written in Python."""
    builtin_ns: float
    """The same for one that is not."""
    slower: float
    """How many times as long the interpreter takes for code while there is a profile function."""

    def of(self, node: Node) -> float:
        """Return what the events cost whose time is booked on a node, ns."""
        if node.code is None:
            return node.events * self.builtin_ns
        # What it calls is booked on it, and the return from that on what was called.
        builtins = sum(callee.events for callee in node.callees.values() if callee.code is None)
        return builtins * self.builtin_ns + max(0.0, node.events - builtins) * self.call_ns

    def taken_off(self, node: Node) -> tuple[float, float]:
        """Return a node's time without what its events cost, and that, ns."""
        cost_ns = self.of(node)
        return max(LEAST * node.wall_ns, node.wall_ns - cost_ns), cost_ns


class CallTracer:
    """Times the calls of the thread that begins and ends it, any number of times in turn.

    Args:
        whose: Names the functions.
        apart: Of a function. What it takes, with all that it calls, is known without a profiler; see `seen`.
    """

    def __init__(self, whose: Whose, apart: CodeType | None = None) -> None:
        self._whose = whose
        self._apart = apart
        self._budget = Budget(0)
        self._root = Node()
        self._callback: Callback | None = None
        self._settle: Settle = _nothing
        self._fd: int | None = None
        self._measured: list[_Costs] = []
        """See `weigh`."""
        self._lines = LineTables()

    @property
    def is_cut(self) -> bool:
        """Whether there were too many calls to time all of them since the last beginning."""
        return bool(self._budget.spent_at)

    @property
    def _costs(self) -> _Costs:
        if not self._measured:
            return _Costs(0.0, 0.0, 1.0)
        each = zip(*self._measured, strict=True)
        return _Costs(*(sum(values) / len(self._measured) for values in each))

    def begin(self, events: int) -> None:
        """Begin to time the calls that the calling function makes.

        Args:
            events: After so many calls and returns nothing more is timed.
        """
        self._budget = Budget(events)
        self._begin(self._root)

    def end(self) -> bool:
        """Stop; returns whether all went as it should. A profiler that replaced this one meanwhile is left alone."""
        ours = sys.getprofile() is self._callback
        if ours:
            sys.setprofile(None)
            self._settle()
        elif self.is_cut:
            self._book_missed()
        self._callback, self._settle = None, _nothing
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        return ours or self.is_cut

    def _book_missed(self) -> None:
        """Book what has gone by unseen on the function of the user's that was under way: it has the many calls.

        What comes after it in the same batch is then too small; to drop this would make the longest the shortest.
        """
        missed_ns = perf_counter_ns() - self._budget.spent_at
        for node in reversed(self._budget.under_way):
            if node.code is not None and self._whose.code(node.code, node.module).own:
                node.quick_ns += missed_ns
                break

    def weigh(self) -> None:
        """Measure what an event costs, in 3 ms: before and after calls are timed. Not while a profiler is active.

        A shared machine turns half as fast from one moment to the next, or twice.
        """
        if sys.getprofile() is None:  # else it would be switched off
            self._measured.append(_costs())

    def resume(self, events: int) -> None:
        """Go on after there were too many calls: with what the function that was called first calls from now on.

        What has gone by unseen is taken to have been like what was seen, without what that took to be seen. A profiler
        that was begun meanwhile is left alone.

        Args:
            events: So many more.
        """
        if sys.getprofile() is not None:
            return
        missed_ns = perf_counter_ns() - self._budget.spent_at
        _take_off(self._root, self._costs)
        seen_ns = _total_ns(self._root)
        _scale(self._root, 1.0 + missed_ns / seen_ns if seen_ns else 1.0)
        self._budget = Budget(events)
        self._begin(max(self._root.callees.values(), key=_total_ns, default=self._root))

    def forget(self) -> None:
        """Drop what was seen."""
        self._root = Node()
        del self._measured[:-1]

    def seen(self, cpu_s: tuple[float, float] | None = None) -> list[Seen]:
        """Return what was seen. Our own functions are left out; their time is that of who called them.

        Args:
            cpu_s: CPU time of the same work without a profiler, where it is known: of all but what is apart, and of
                that. Before Python 3.12 the interpreter runs all code in a slower way under one, and what libraries
                compute beside it is not slower, nor is an operator of theirs in a line of the program's. How much of a
                function's time is of the one kind cannot be told; the less is put together, the less is mistaken.
        """
        costs = self._costs
        found = list(self._walk(self._root, (), costs))
        if cpu_s is None:
            return [part.seen for part in found]
        parts = ([part for part in found if part.is_apart is apart] for apart in (False, True))
        return [seen for part, s in zip(parts, cpu_s, strict=True) for seen in unprofiled(part, s, costs.slower)]

    def codes(self, functions: set[Function]) -> list[CodeType]:
        """Return the code of functions that were seen: their own, and that of comprehensions in them."""
        found: dict[int, CodeType] = {}
        todo = [self._root]
        while todo:
            node = todo.pop()
            if node.code is not None and self._whose.code(node.code, node.module) in functions:
                found[id(node.code)] = node.code
            todo += node.callees.values()
        return list(found.values())

    def _begin(self, node: Node) -> None:
        if self._fd is None:
            self._fd = open_run_queue()  # it names the thread that opens it
        self._callback, self._settle = profile_function(node, self._budget, self._whose, self._queued_ns)
        sys.setprofile(self._callback)

    def _queued_ns(self) -> int:
        found = None if self._fd is None else run_queue_ns(_NEVER, read_run_queue(self._fd))
        return found or 0

    def _walk(self, node: Node, stack: tuple[Frame, ...], costs: _Costs, *, is_apart: bool = False) -> Iterator[Part]:
        left_ns, cost_ns = costs.taken_off(node)
        wall_ns = left_ns + node.quick_ns
        if stack and wall_ns:
            cpu_ns = max(0.0, wall_ns - node.blocked_ns)
            seen, quick_ns = Seen(stack, wall_ns / 1e9, cpu_ns / 1e9), min(cpu_ns, node.quick_ns)
            yield Part(seen, is_apart, (node.cost_ns + cost_ns) / 1e9, quick_ns / 1e9)
        for callee in node.callees.values():
            if not stack and callee.code is None:
                continue  # the profiler being set, and taken away
            within = is_apart or (callee.code is not None and callee.code is self._apart)
            function = callee.function if callee.code is None else self._whose.code(callee.code, callee.module)
            if function is None or function.file.startswith("stallmeter/"):
                yield from self._walk(callee, stack, costs, is_apart=within)
                continue
            asked = stack
            if stack and node.code is not None:
                line = self._lines.line(node.code, callee.asked_at)
                asked = (*stack[:-1], Frame(stack[-1].function, line, path=node.code.co_filename))
            path = "" if callee.code is None else callee.code.co_filename
            yield from self._walk(callee, (*asked, Frame(function, path=path)), costs, is_apart=within)


def why_not() -> str | None:
    """Return why calls of this thread cannot be timed now, None when they can: somebody else looks at them."""
    if sys.getprofile() is not None:
        return "another profiler is active"
    if sys.gettrace() is not None:
        return "a debugger or a coverage tool is active"
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    if monitoring is not None and any(monitoring.get_tool(tool) for tool in range(6)):
        return "a profiler, a debugger or a coverage tool is active"
    return None


def _nothing() -> None:
    return None


def _costs() -> _Costs:
    """Measure what a profile function costs besides its own time."""

    def empty() -> None:
        return None

    def calls(count: int) -> int:
        began = perf_counter_ns()
        for _ in range(count):
            empty()
        return perf_counter_ns() - began

    def builtins(count: int) -> int:
        began = perf_counter_ns()
        for _ in range(count):
            divmod(7, 3)  # the interpreter has a short way for len and a few others, which it leaves for a profiler
        return perf_counter_ns() - began

    def turns(count: int) -> int:
        began, x = perf_counter_ns(), 0
        for i in range(_TURNS * count):
            x += i * i
        return perf_counter_ns() - began

    plain_ns, slow_ns, _, _ = _in_turn(turns)
    slower = max(1.0, slow_ns / max(1.0, plain_ns))

    def event_ns(of: Callable[[int], int]) -> float:
        plain_ns, _, seen_ns, events = _in_turn(of)
        return max(0.0, seen_ns - slower * plain_ns) / events

    return _Costs(event_ns(calls), event_ns(builtins), slower)


def _in_turn(work: Callable[[int], int]) -> tuple[float, float, float, float]:
    """Return what some work takes without a profile function, with one, and what that saw of it: the least, ns.

    And how many events there are. Each for what many rounds take beyond a few: what is met for the first time costs a
    hundred events, and in a real batch there are thousands for it.
    """
    whose, found = Whose(), []
    for count in (_FEW, _FEW + _CALLS):
        tries = []
        for _ in range(_TRIES):
            plain_ns = work(count)
            root = Node()
            callback, _ = profile_function(root, Budget(10 * count), whose)
            sys.setprofile(callback)
            try:
                slow_ns = work(count)
            finally:
                sys.setprofile(None)
            tries.append((plain_ns, slow_ns, _total_ns(root), _events(root)))
        found.append([min(values) for values in zip(*tries, strict=True)])
    plain, slow, seen, events = (max(0.0, many - few) for few, many in zip(*found, strict=True))
    return plain, slow, seen, max(1.0, events)


def _total_ns(node: Node) -> float:
    return node.wall_ns + node.quick_ns + sum(map(_total_ns, node.callees.values()))


def _events(node: Node) -> float:
    return node.events + sum(map(_events, node.callees.values()))


def _take_off(node: Node, costs: _Costs) -> None:
    """Take off what the events so far have cost, and what the interpreter was slower by, once."""
    left_ns, cost_ns = costs.taken_off(node)  # before its callees: that they were called is booked on it
    computed_ns = max(0.0, left_ns - node.blocked_ns)
    for callee in node.callees.values():
        _take_off(callee, costs)
    node.quick_ns += computed_ns if node.code is None else computed_ns / costs.slower
    node.cost_ns += cost_ns
    node.wall_ns, node.events = node.blocked_ns, 0


def _scale(node: Node, by: float) -> None:
    node.wall_ns *= by
    node.blocked_ns *= by
    node.quick_ns *= by
    node.cost_ns *= by
    for callee in node.callees.values():
        _scale(callee, by)
