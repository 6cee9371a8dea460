"""Finds what a step function trains: the modules, optimizers and the like that it names."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from .snapshot import is_stateful

DEPTH = 5
"""Functions call functions, and trainers hold dicts of optimizers; deeper than this nobody looks."""

MEMBERS = 200
"""Longer containers hold data."""


def find_stateful(function: object) -> list[object]:
    """Return what has a ``state_dict`` and is named by a function: in its closure, its globals, its object.

    Functions of the same module that it names are followed. What it fetches by a string, or makes anew on each call,
    is not found.
    """
    found: dict[int, object] = {}
    seen: set[int] = set()
    waiting: list[tuple[object, int]] = [(function, DEPTH)]
    home = getattr(_plain(function), "__module__", None)
    while waiting:
        thing, depth = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if is_stateful(thing):
            found[id(thing)] = thing
        elif depth and (thing is function or _is_followed(thing, home)):
            waiting += [(member, depth - 1) for member in _named_by(thing)]
    return list(found.values())


def _plain(function: Any) -> Any:
    """Take partials and decorators off."""
    while True:
        inner = function.func if isinstance(function, functools.partial) else getattr(function, "__wrapped__", None)
        if inner is None:
            return function
        function = inner


def _is_followed(thing: object, home: str | None) -> bool:
    if isinstance(thing, (list, tuple, dict)):
        return len(thing) <= MEMBERS
    if isinstance(thing, (functools.partial, types.MethodType)):
        return True
    if isinstance(thing, types.FunctionType):
        return thing.__module__ == home
    return not isinstance(thing, type) and type(thing).__module__ == home


def _named_by(thing: Any) -> Iterator[object]:
    if isinstance(thing, dict):
        yield from thing.values()
    elif isinstance(thing, (list, tuple)):
        yield from thing
    elif isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, types.MethodType):
        yield from (thing.__self__, thing.__func__)
    elif isinstance(thing, types.FunctionType):
        yield from _named_by_function(thing)
    else:
        yield from getattr(thing, "__dict__", {}).values()
        yield inspect.getattr_static(type(thing), "__call__", None)


def _named_by_function(function: types.FunctionType) -> Iterator[object]:
    if wrapped := getattr(function, "__wrapped__", None):
        yield wrapped
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # a name that is assigned later
            yield cell.cell_contents
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]


def _names(code: types.CodeType) -> Iterator[str]:
    """Names that some code and the functions inside it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
