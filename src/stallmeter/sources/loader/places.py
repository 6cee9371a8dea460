"""Where the functions are defined that a loader was given: what starts its workers, what makes a batch of items."""

from __future__ import annotations

import functools
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..code.whose import Function


def defined(found: Any) -> Function | None:
    """Return what a function, a method or an object that is called is; None without Python code of its own.

    Args:
        found: What the loader was given; parts of functions are followed to these.
    """
    while isinstance(found, functools.partial):
        found = found.func
    called = getattr(found, "__func__", found)
    code = getattr(called if hasattr(called, "__code__") else type(called).__call__, "__code__", None)
    if found is None or not isinstance(code, CodeType):
        return None
    from ..code.whose import Whose  # not where this module is imported: spawned workers do that when they start

    return Whose.of_program().code(code)


def collate_of(loader: Any) -> dict[str, Any]:
    """Return where a loader's collate function is defined, as `LoaderInfo` says it; nothing of a library's."""
    found = loader.collate_fn
    if str(getattr(found, "__module__", "")).startswith("torch."):  # as a rule; asked for in each epoch
        return {}
    function = defined(found)
    if function is None or not function.own:
        return {}
    return {
        "collate_file": function.file,
        "collate_line": function.first_line,
        "collate_function": function.name,
    }
