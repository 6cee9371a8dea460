"""From stacks with their time to the functions that hold it.

The innermost function of the user's own on a stack owns its time: what a library does beneath it is done for it. On a
stack without one, as with a library's dataset and a library's transforms, the path is followed from the outside in
while one callee holds most of its caller's time, and the library function found there owns it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...records import CodeSpot, CodeStack
from ...records.code import LAMBDA, MACHINERY
from .whose import Function

SPOTS = 12
"""Most functions that are kept."""

STACKS = 200
"""Most stacks that are kept for a flame graph: more are no wider than a pixel of it."""

DEEPEST = 60
"""Most frames of a stack that are shown, the outermost; recursion goes deeper."""

CALLS = 5
"""Most library calls that are named beneath one function."""

LEAST_CALL = 0.1
"""Share of its function's time from which on a library call is named."""

_INNER_LAMBDA = f".<locals>.{LAMBDA}"
"""End of the name of a function without one, which stands in another."""

MOST = 0.5
"""Share of its caller's time from which on a callee holds most of it."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A function on a stack, and where it stands."""

    function: Function
    line: int = 0
    """Of the call to the next frame; of the innermost one, of what it does. 0 where that is not known."""
    at: int = field(default=0, compare=False)
    """Of that call, its place in the function's code: of two calls in one line the one that is made first is before."""
    sleeps: bool = field(default=False, compare=False)
    """Whether that line asks to sleep, as far as its source is at hand. Only the user's own innermost one is asked."""
    interprets: bool = field(default=False, compare=False)
    """Whether it was found between two instructions of Python's, and in no call or operator. Asked of the same one."""
    calls: str = field(default="", compare=False)
    """What it calls of a library that is not written in Python, as far as its source tells. Asked of the same one."""
    path: str = field(default="", compare=False)
    """Of the file that has its text."""

    @property
    def where(self) -> tuple[int, int]:
        """How far its function has come: by the line, and in it by the code."""
        return self.line, self.at


@dataclass(frozen=True, slots=True)
class Seen:
    """Time with one stack of calls, callees' left out."""

    stack: tuple[Frame, ...]
    """The outermost first."""
    wall_s: float
    cpu_s: float | None = None
    """None where it was not measured."""


@dataclass(frozen=True, slots=True)
class Folded:
    """What was seen, by function and by stack, the largest first; both bounded."""

    wall_s: float
    cpu_s: float | None
    spots: tuple[CodeSpot, ...]
    stacks: tuple[CodeStack, ...]
    functions: tuple[Function, ...]
    """Of the spots."""
    unplaced: tuple[bool, ...]
    """Of the spots: whether more of its time has no line than its line has. To be found by looking at lines."""


Lines = Mapping[Function, Mapping[int, float]]
"""Seconds by the lines of a function, callees' left out, where they were looked at one by one."""


def fold(seen: Iterable[Seen], lines: Lines | None = None) -> Folded:
    """Return the functions that hold the time that was seen.

    Args:
        seen: The stacks; the time of all of them is the time that was looked at.
        lines: Of single functions, what was found out about their lines: so is shared out what no stack has a line for.
    """
    stacks = [one for one in seen if one.wall_s > 0 and one.stack]
    parts: dict[Function, list[tuple[Seen, int]]] = defaultdict(list)
    rest = []
    for one in stacks:
        at = owner(one.stack)
        if at is None:
            rest.append(one)
        else:
            parts[one.stack[at].function].append((one, at))
    for function, held in _library(rest):
        parts[function] += held
    ordered = sorted(parts.items(), key=lambda part: (-_wall(part[1]), part[0].file, part[0].name))[:SPOTS]
    found = [_spot(function, held, (lines or {}).get(function)) for function, held in ordered]
    return Folded(
        wall_s=sum(one.wall_s for one in stacks),
        cpu_s=_cpu(stacks),
        spots=tuple(spot for spot, _ in found),
        stacks=_stacks(stacks),
        functions=tuple(function for function, _ in ordered),
        unplaced=tuple(unplaced for _, unplaced in found),
    )


def owner(stack: Sequence[Frame]) -> int | None:
    """Return which frame owns a stack's time: the innermost of the user's own; None without one.

    A lambda is part of the function that it stands in, while that one runs: no user thinks of ``sorted(key=lambda …)``
    as two functions.
    """
    at = next((i for i in reversed(range(len(stack))) if stack[i].function.own), None)
    while at is not None and stack[at].function.name.endswith(_INNER_LAMBDA):
        function = stack[at].function
        around = function.name.removesuffix(_INNER_LAMBDA)
        inside = (
            i
            for i in reversed(range(at))
            if (stack[i].function.name, stack[i].function.file) == (around, function.file)
        )
        outer = next(inside, None)
        if outer is None:
            break
        at = outer
    return at


Held = list[tuple[Seen, int]]
"""Stacks of one function, each with the place of the function in it."""


def _wall(held: Held) -> float:
    return sum(one.wall_s for one, _ in held)


def _cpu(stacks: Iterable[Seen]) -> float | None:
    cpu = [one.cpu_s for one in stacks]
    return None if None in cpu else sum(c for c in cpu if c is not None)


def _spot(function: Function, held: Held, known: Mapping[int, float] | None) -> tuple[CodeSpot, bool]:
    line_s: dict[int, float] = defaultdict(float)
    call_s: dict[str, float] = defaultdict(float)
    there_s: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    total_s = self_s = 0.0
    for one, at in held:
        total_s += one.wall_s
        line_s[one.stack[at].line] += one.wall_s
        call = _call(one.stack[at + 1 :])
        there_s[one.stack[at].line][call or one.stack[at].calls] += one.wall_s
        if call is None:
            self_s += one.wall_s
        else:
            call_s[call] += one.wall_s
    nowhere_s = line_s.pop(0, 0.0)
    is_unplaced = not known and nowhere_s > max(line_s.values(), default=0.0)
    own = {line: s for line, s in (known or {}).items() if line > 0 and s > 0}
    own_s = sum(own.values())
    for line, s in own.items():
        line_s[line] += nowhere_s * s / own_s
        there_s[line][""] += nowhere_s * s / own_s
    if is_unplaced:  # the lines that are known hold less than those that are not
        line_s.clear()
    line = max(line_s, key=lambda at: (line_s[at], -at), default=function.first_line)
    calls = sorted((name for name, s in call_s.items() if s >= LEAST_CALL * total_s), key=lambda n: (-call_s[n], n))
    if calls and call_s[calls[0]] < self_s:
        calls = []  # it is the function itself
    there = there_s.get(line) if line else None
    called = max(there, key=lambda name: (there[name], name)) if there else ""
    if there and not calls and there[called] < MOST * sum(there.values()):
        called = ""
    spot = CodeSpot(
        file=function.file,
        line=max(1, line),
        function=function.name,
        own=function.own,
        wall_s=total_s,
        cpu_s=_cpu(one for one, _ in held),
        calls=tuple(calls[:CALLS]),
        called_there=called if there and calls else called or None,
        line_share=line_s[line] / total_s if line and line in line_s and total_s else None,
    )
    return spot, is_unplaced


def _call(beneath: Sequence[Frame]) -> str | None:
    """Name what a function called: the first that a user would call by its name, else the first.

    What a private module defines is often called by another name than its own; what decorates it never is.
    """
    functions = [frame.function for frame in beneath if not (frame.function.generated or frame.function.own)]
    if not functions:
        return None
    public = (f for f in functions if f.is_public)
    chosen = next(public, None) or next((f for f in functions if f.has_public_name), functions[0])
    return chosen.dotted or chosen.name


def _library(rest: list[Seen]) -> Iterable[tuple[Function, Held]]:
    """Share out the time of stacks without a function of the user's: the largest path, then that of what is left."""
    while rest:
        path = _widest(rest)
        at = _named(path)
        prefix = [frame.function for frame in path[: at + 1]]
        held = [one for one in rest if [frame.function for frame in one.stack[: at + 1]] == prefix]
        if not held:  # a stack without frames
            return
        yield path[at].function, [(one, at) for one in held]
        taken = set(map(id, held))
        rest = [one for one in rest if id(one) not in taken]


def _widest(rest: list[Seen]) -> list[Frame]:
    """Return the path on which each callee holds most of its caller's time, the first one whatever it holds."""
    path: list[Frame] = []
    inside, total_s = rest, 0.0
    while True:
        depth = len(path)
        callee_s: dict[Function, float] = defaultdict(float)
        for one in inside:
            if len(one.stack) > depth:
                callee_s[one.stack[depth].function] += one.wall_s
        if not callee_s:
            return path
        function, wall_s = max(callee_s.items(), key=lambda item: (item[1], item[0].file, item[0].name))
        if path and wall_s < MOST * total_s:
            return path
        inside = [one for one in inside if len(one.stack) > depth and one.stack[depth].function == function]
        path.append(Frame(function))
        total_s = wall_s


def _named(path: Sequence[Frame]) -> int:
    """Return which function of a path stands for it: a public method of the package above the innermost one.

    Where ``torchvision`` calls ``PIL``: the transform, and not how an image is turned. What comes with Python belongs
    to who called it, and the loader that called the dataset is nobody's culprit.
    """
    foreign = [i for i, frame in enumerate(path) if not (frame.function.standard or frame.function.generated)]
    written = [i for i in foreign if path[i].function.file]
    inside = [i for i in written if not path[i].function.file.startswith(MACHINERY)] or written
    if not inside:
        return max(0, len(path) - 1)
    last = path[foreign[-1]].function.package
    packages = [path[i].function.package for i in inside if path[i].function.package != last]
    package = packages[-1] if packages else last
    among = [i for i in inside if path[i].function.package == package] or inside
    public = [i for i in among if path[i].function.is_public]
    methods = [i for i in public if "." in path[i].function.name]
    return (methods or public or among)[-1]


def _stacks(seen: Iterable[Seen]) -> tuple[CodeStack, ...]:
    wall_s: dict[tuple[tuple[str, bool], ...], float] = defaultdict(float)
    for one in seen:
        wall_s[_shown(one.stack)] += one.wall_s
    ordered = sorted(wall_s.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        CodeStack(
            frames=tuple(name for name, _ in frames), wall_s=s, own=tuple(i for i, (_, own) in enumerate(frames) if own)
        )
        for frames, s in ordered[:STACKS]
        if frames
    )


def _shown(stack: Sequence[Frame]) -> tuple[tuple[str, bool], ...]:
    """Return the names of the functions, and which are the user's."""
    shown: list[tuple[str, bool]] = []
    before: Function | None = None
    for frame in stack:
        if frame.function != before:  # a comprehension is part of its function
            shown.append((show(frame.function), frame.function.own))
        before = frame.function
    return tuple(shown[:DEEPEST])


def show(function: Function) -> str:
    """Return how a function stands in a flame graph: ``Rotate.__call__ (transforms.py:80)``."""
    if not function.file:
        return function.dotted or function.name
    return f"{function.name} ({function.file}:{function.first_line})"
