"""What each worker does for the items of all others, before it leaves these out.

An iterable dataset that numbers its items and keeps every so many of them has to leave the others out before they
cost something. The text of its functions says where it does: at a test, a slice or an ``islice`` that asks which
worker it is in. What a function does in an earlier line it does for all items, in each worker.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from .fold import Frame, Seen
from .parsed import called, function_at

WORKER = "worker"
"""Part of the names by which a program asks which worker it is in, and of how many: ``get_worker_info``,
``num_workers``."""


def repeated(seen: Iterable[Seen]) -> list[Seen]:
    """Return the stacks of what is done for other workers' items as well.

    Args:
        seen: Of a worker; of the innermost function of a stack the line is not asked.
    """
    return [one for one in seen if any(map(_is_for_all, one.stack[:-1]))]


def _is_for_all(frame: Frame) -> bool:
    return frame.function.own and 0 < frame.line <= last_line_for_all(frame.path, frame.function.first_line)


@lru_cache(maxsize=256)
def last_line_for_all(path: str, first_line: int) -> int:
    """Return the line of a function at which it leaves other workers' items out: what it does up to there is for all.

    Args:
        path: Of the file.
        first_line: Of the function's code, counted from 1.

    Returns:
        0 where it leaves none out, or its text is not at hand.
    """
    function = function_at(path, first_line)
    if function is None:
        return 0
    known, whole = _names_of_workers(function), _gone_through(function)
    ends = [end for node in ast.walk(function) if (end := _leaves_out(node, known, whole))]
    return first_line - 1 + min(ends) if ends else 0


def _names_of_workers(function: ast.AST) -> frozenset[str]:
    """Return the names that hold a worker's number, or their count, or what was computed from these."""
    known: frozenset[str] = frozenset()
    while True:
        found = {name for node in ast.walk(function) for name in _assigned(node, known)} | known
        if found == known:
            return known
        known = frozenset(found)


def _assigned(node: ast.AST, known: frozenset[str]) -> Iterator[str]:
    if isinstance(node, ast.Assign):
        targets: Sequence[ast.expr] = node.targets
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
        targets = [node.target]
    else:
        return
    if node.value is not None and _asks(node.value, known) and not _is_part(node.value):
        yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))


def _is_part(value: ast.expr) -> bool:
    """Whether it is what a worker keeps of something, and not a number of its own."""
    return isinstance(value, (ast.Subscript, ast.ListComp)) or (
        isinstance(value, ast.Call) and called(value) in ("islice", "list", "next")
    )


def _asks(node: ast.AST, known: frozenset[str]) -> bool:
    """Whether an expression depends on which worker this is."""
    return any(
        (isinstance(one, ast.Name) and (one.id in known or WORKER in one.id.lower()))
        or (isinstance(one, ast.Attribute) and WORKER in one.attr.lower())
        for one in ast.walk(node)
    )


def _leaves_out(node: ast.AST, known: frozenset[str], whole: frozenset[ast.AST]) -> int:
    """Return the last line of the function before items are left out, by an expression or statement; 0 for others.

    Of a slice or an ``islice`` that line is the one in which it ends, where it is all that a loop goes through: what it
    takes its items of is made for all. Within a call of something else, that is made for some.
    """
    if isinstance(node, ast.If):
        return node.test.end_lineno or 0 if _is_test(node, known) else 0
    if isinstance(node, ast.Call) and called(node) == "islice":
        leaves = any(_asks(one, known) for one in node.args[1:])
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and node.slice.step is not None:
        leaves = _asks(node.slice.step, known)
    else:
        return 0
    return (node.end_lineno or 0 if node in whole else node.lineno - 1) if leaves else 0


def _gone_through(function: ast.AST) -> frozenset[ast.AST]:
    """Return what loops go through, and what is given a name or given away, as a whole."""
    found = set()
    for node in ast.walk(function):
        value = node.iter if isinstance(node, ast.For) else None
        if isinstance(node, (ast.Assign, ast.YieldFrom)):
            value = node.value
        if value is not None:
            found.add(value)
    return frozenset(found)


def _is_test(node: ast.If, known: frozenset[str]) -> bool:
    """Whether one item after the other is tested: the rest of the loop, or the body, is for those of this worker."""
    if not _asks(node.test, known):
        return False
    counted = any(isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod) for one in ast.walk(node.test))
    if isinstance(node.body[-1], ast.Continue):
        return True
    return counted and any(isinstance(one, (ast.Yield, ast.YieldFrom)) for body in node.body for one in ast.walk(body))
