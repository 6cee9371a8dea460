"""Derivatives of one output that steps ask for one input at a time: each goes through all of its graph again.

``torch.autograd.grad`` takes several inputs, and goes through the graph once for all of them. The looks tell where it
is called, directly or by a function of the program's own; the text of the function around that tells how often it is
called there for the same output.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from .fold import Seen
from .parsed import called, function_at

ASKS = "torch/autograd/__init__.py", "grad"
"""File and name of torch's function for derivatives."""

HELPERS = 3
"""Functions of the program's own between that one and the one whose text tells, and that itself."""

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


@dataclass(frozen=True, slots=True)
class _Calls:
    """Calls in one function with one output, each for another input; all are made if one of them is."""

    name: str
    lines: tuple[tuple[int, int], ...]
    """First and last line of each, counted from 1 within the file."""


def in_derivatives(seen: Sequence[Seen]) -> list[Seen]:
    """Return the stacks in which derivatives are computed as the program asks for them.

    Args:
        seen: Of the steps.
    """
    return [one for one in seen if _asked_at(one) is not None]


def repeated_derivatives(seen: Sequence[Seen]) -> list[Seen]:
    """Return what would be spared if each output's derivatives were computed once, by who asks for them several times.

    Args:
        seen: Of the steps.
    """
    found = []
    for one in seen:
        asked = _asked_at(one)
        told = None if asked is None else _asked_often(one, asked)
        if told is not None:
            at, times = told
            found.append(replace(one, stack=one.stack[: at + 1], wall_s=one.wall_s * (times - 1) / times, cpu_s=None))
    return found


def _asked_at(one: Seen) -> int | None:
    """Return which frame is torch's function, the outermost one, called by a function of the program's own."""
    frames = enumerate(one.stack)
    asked = next((i for i, f in frames if (f.function.file, f.function.name) == ASKS), None)
    return asked if asked and one.stack[asked - 1].function.own else None


def _asked_often(one: Seen, asked: int) -> tuple[int, int] | None:
    """Return which frame asks for derivatives of one output several times, and how often; None where none does."""
    name = ""
    for at in range(asked - 1, max(-1, asked - 1 - HELPERS), -1):
        frame = one.stack[at]
        if not frame.function.own:
            return None
        for calls in repeats(frame.path, frame.function.first_line):
            same = calls.name == name if name else calls.name.endswith(ASKS[1])
            if same and any(first <= frame.line <= last for first, last in calls.lines):
                return at, len(calls.lines)
        name = frame.function.name.rpartition(".")[2]
    return None


@lru_cache(maxsize=256)
def repeats(path: str, first_line: int) -> tuple[_Calls, ...]:
    """Return the calls in a function that name the same first argument, or ``outputs``, and others as the second.

    What comes after these has to be the same: derivatives in several directions are not had by one plain call.

    Args:
        path: Of the file.
        first_line: Of the function's code, counted from 1.
    """
    function = function_at(path, first_line)
    if function is None:
        return ()
    found: dict[tuple[object, ...], list[ast.Call]] = defaultdict(list)
    for block, call in _calls(function, ()):
        output = _output(call)
        if output is not None and called(call):
            found[(block, called(call), ast.dump(output), *_directions(call))].append(call)
    assigned = list(_assigned(function))
    return tuple(
        _Calls(key[1], tuple((first_line - 1 + c.lineno, first_line - 1 + (c.end_lineno or c.lineno)) for c in calls))
        for key, calls in found.items()
        if len({_inputs(call) for call in calls}) == len(calls) > 1
        and isinstance(key[1], str)
        and not _changes(calls, assigned)
    )


def _calls(node: ast.AST, block: tuple[object, ...]) -> Iterator[tuple[tuple[object, ...], ast.Call]]:
    """Yield the calls below a node, each with the blocks of statements that it is in."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                inside = (*block, (id(node), name)) if name in _BLOCKS and isinstance(node, ast.stmt) else block
                if isinstance(child, ast.Call):
                    yield inside, child
                yield from _calls(child, inside)


def _output(call: ast.Call) -> ast.expr | None:
    """Return what a call takes the derivatives of: a name, an attribute or a part of one, and no call of its own."""
    named = next((keyword.value for keyword in call.keywords if keyword.arg == "outputs"), None)
    output = call.args[0] if call.args else named
    if output is None or any(isinstance(one, (ast.Call, ast.Starred)) for one in ast.walk(output)):
        return None
    return output if any(isinstance(one, ast.Name) for one in ast.walk(output)) else None


def _inputs(call: ast.Call) -> str:
    """Return what a call takes the derivatives by, as text; empty where it does not say."""
    named = (keyword.value for keyword in call.keywords if keyword.arg == "inputs")
    inputs = call.args[1] if len(call.args) > 1 else next(named, None)
    return "" if inputs is None else ast.dump(inputs)


def _directions(call: ast.Call) -> tuple[str, ...]:
    others = [keyword for keyword in call.keywords if keyword.arg not in ("inputs", "outputs")]
    return tuple(map(ast.dump, (*call.args[2:], *others)))


def _assigned(function: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the names that a function gives new values, each with the line."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def _changes(calls: Sequence[ast.Call], assigned: Sequence[tuple[int, str]]) -> bool:
    """Whether the output is another one for a later call."""
    output = _output(calls[0])
    names = {one.id for one in ast.walk(output) if isinstance(one, ast.Name)} if output is not None else set()
    first, last = calls[0].lineno, calls[-1].lineno
    return any(first <= line < last and name in names for line, name in assigned)
