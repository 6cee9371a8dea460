"""The calls of one thread as a tree, and the profile function that adds to it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter_ns, thread_time_ns
from types import CodeType, FrameType
from typing import Any

from .freeing import LEAST_NS, Idle
from .whose import Function, Whose

MAY_WAIT_NS = 30_000
"""Between two events; a shorter time is taken for computing."""

MAY_QUEUE_NS = 200_000
"""A shorter time without a CPU is taken for a wait of the program's own."""

DEEPEST = 200
"""Calls deeper than that are added to the one at this depth."""

MOST_NODES = 20_000
"""Different stacks; what calls in more ways than that is not understood by looking at them."""

_TRIES = 4
"""So often is a clock read that was held up."""


class Node:
    """One stack of calls: a function, called from one place in another one."""

    __slots__ = (
        "asked_at",
        "blocked_ns",
        "callees",
        "code",
        "cost_ns",
        "events",
        "function",
        "module",
        "quick_ns",
        "wall_ns",
    )

    def __init__(
        self,
        code: CodeType | None = None,
        function: Function | None = None,
        asked_at: int = 0,
        module: str | None = None,
    ) -> None:
        self.code = code
        """None where it is not written in Python."""
        self.function = function
        self.asked_at = asked_at
        """Offset in the caller's code."""
        self.module = module
        self.callees: dict[Any, Node] = {}
        self.wall_ns: float = 0
        """Without its callees."""
        self.blocked_ns: float = 0
        self.events: float = 0
        self.quick_ns: float = 0
        """Of computing that went by unseen, and of what was seen before, at the speed without a profiler. Apart."""
        self.cost_ns: float = 0
        """Of the events before that."""


class Returned:
    """A function that has just returned."""

    __slots__ = ("_at", "_caller", "node")

    def __init__(self, node: Node, caller: FrameType | None) -> None:
        self.node = node
        self._caller = caller
        self._at = -1 if caller is None else caller.f_lasti

    def node_of(self, took_ns: int, node: Node, running: FrameType | None, idle: Idle) -> Node:
        """Return whose the time since then is: its own where its caller has done nothing, for its variables were freed.

        Args:
            took_ns: The time.
            node: The caller's node.
            running: What runs now.
            idle: Knows which instructions do nothing.
        """
        caller = self._caller
        if took_ns < LEAST_NS or caller is None or running is not caller:
            return node
        return self.node if idle.between(caller.f_code, self._at, caller.f_lasti) else node


class Budget:
    """What may still be spent."""

    __slots__ = ("events", "nodes", "spent_at", "under_way")

    def __init__(self, events: int) -> None:
        self.events = events
        self.nodes = MOST_NODES
        self.spent_at = 0
        """When nothing was left, ns; 0 while there is."""
        self.under_way: list[Node] = []
        """The stack of that moment, the outermost first."""

    def called(self, caller: Node, depth: int, frame: FrameType, at: int) -> Node:
        """Return a new node for a function that was called from one place for the first time.

        Args:
            caller: Who calls it.
            depth: Of the caller; at `DEEPEST` it is the caller's time.
            frame: Of the function.
            at: Offset of the call in the caller's code.
        """
        if depth >= DEEPEST:
            return caller
        self.nodes -= 1
        callee = caller.callees[id(frame.f_code), at] = Node(frame.f_code, None, at, frame.f_globals.get("__name__"))
        return callee

    def called_builtin(self, caller: Node, key: tuple[str, int], function: Function) -> Node:
        """The same of one that is not written in Python, by its name and the offset of the call."""
        self.nodes -= 1
        callee = caller.callees[key] = Node(None, function, key[1])
        return callee


class Waits:
    """Parts the time for which the thread did not compute: it waited, or others had its CPU.

    Args:
        queued: Returns the time for which the thread has waited for a CPU, ns.
    """

    __slots__ = ("_behind", "_queued", "_queued_ns")

    def __init__(self, queued: Callable[[], int]) -> None:
        self._queued = queued
        self._queued_ns = queued()
        self._behind = perf_counter_ns() - thread_time_ns()
        """How far the CPU time is behind the wall clock: it falls behind further where one waits."""

    def skip(self) -> int:
        """Leave out what has gone by, which is booked on nobody; returns when that ends."""
        for _ in range(_TRIES):  # a CPU that is lost between reading the clock and this would be taken off what follows
            began = perf_counter_ns()
            self._queued_ns = self._queued()
            ends = perf_counter_ns()
            if ends - began < MAY_QUEUE_NS:
                break
        self._behind = ends - thread_time_ns()
        return ends

    def take(self, node: Node, asked: int, took: int) -> None:
        """Book what of the time until now, part of that since the last event, was none of computing."""
        before, self._behind = self._behind, asked - thread_time_ns()
        waited = min(took, max(0, self._behind - before))
        if waited > MAY_QUEUE_NS:
            before, self._queued_ns = self._queued_ns, self._queued()
            beside = perf_counter_ns() - asked  # the CPU may have been lost after the clock was read
            kept = min(waited, max(0, self._queued_ns - before - beside))
            node.wall_ns -= kept
            waited -= kept
        node.blocked_ns += waited


Callback = Callable[[FrameType, str, Any], None]
Settle = Callable[[], None]


def profile_function(
    root: Node, budget: Budget, whose: Whose, queued: Callable[[], int] = lambda: 0
) -> tuple[Callback, Settle]:
    """Return a profile function that adds to a tree, and what adds the time since its last call.

    It is called for every call of the program: hence one function whose state are cells, and nothing looked up twice.
    It must not raise, for that would be raised in the program.
    """
    now, last = perf_counter_ns, perf_counter_ns()
    node, nodes = root, [root]
    frames: list[FrameType | None] = [None]
    waits, idle = Waits(queued), Idle()
    wait = waits.take
    returned: Returned | None = None

    def settle() -> None:
        asked = now()
        node.wall_ns += asked - last
        wait(node, asked, asked - last)

    def callback(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal node, last, returned
        asked = now()
        took = asked - last
        spent_by = node
        if returned is not None:
            spent_by, returned = returned.node_of(took, node, frames[-1], idle), None
        spent_by.wall_ns += took
        spent_by.events += 1
        if took > MAY_WAIT_NS:
            wait(spent_by, asked, took)
        if event == "call":
            caller, code = frames[-1], frame.f_code
            at = -1 if caller is None else caller.f_lasti
            node = node.callees.get((id(code), at)) or budget.called(node, len(nodes), frame, at)
            nodes.append(node)
            frames.append(frame)
        elif event == "c_call":
            key = arg.__name__, frame.f_lasti
            node = node.callees.get(key) or budget.called_builtin(node, key, whose.builtin(arg))
            nodes.append(node)
            frames.append(frame)
        elif frames[-1] is frame and len(frames) > 1:  # return, c_return, c_exception
            frames.pop()
            nodes.pop()
            returned = Returned(node, frames[-1]) if event == "return" else None
            node = nodes[-1]
        elif event == "return" and frame in frames:  # what it called ended without a word
            at = frames.index(frame)
            del frames[at:], nodes[at:]
            node = nodes[-1]
        budget.events -= 1
        if budget.events < 0 or budget.nodes < 0:
            budget.spent_at, budget.under_way = now(), nodes[:]
            frames.clear()
            sys.setprofile(None)
        last = now()
        if last - asked > MAY_QUEUE_NS:  # others had the CPU meanwhile
            last = waits.skip()

    return callback, settle
