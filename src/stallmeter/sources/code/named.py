"""Which function a place in some code calls that is not written in Python: it is on no stack of Python's.

The text of the call names it, and what its module's names stand for is looked up where they are: no code of the
program's is run for it. Of a method of an object nothing is known, nor before Python 3.11, where code does not tell
from which column to which an instruction stands.
"""

from __future__ import annotations

import ast
import linecache
import sys
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType

LONGEST = 20
"""Most lines of a call that are read."""


class NamedCalls:
    """Names what is called, from the text. No answer is kept: who asks has each place once."""

    def __init__(self) -> None:
        self._modules: dict[str, ModuleType] = {}

    def at(self, code: CodeType, at: int) -> str:
        """Return the function of a library that is called at an offset in the bytecode; empty where that is not known.

        Args:
            code: Of the function that calls it.
            at: Bytes from its beginning; -1 before it has begun.
        """
        names = _names(_text(code, at))
        module = self._module(code.co_filename) if names else None
        if module is None or names[0] in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            return ""
        found: object = vars(module).get(names[0])
        shown = found.__name__ if isinstance(found, ModuleType) else ""
        for name in names[1:]:
            # Of a module alone: asking another object for an attribute may run code.
            found = vars(found).get(name) if isinstance(found, ModuleType) else None
            shown = found.__name__ if isinstance(found, ModuleType) else f"{shown}.{name}"
        if not callable(found) or isinstance(found, (FunctionType, MethodType, type)):
            return ""
        return shown or _imported(found)

    def _module(self, path: str) -> ModuleType | None:
        if path not in self._modules:
            for module in list(sys.modules.values()):
                file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
                if isinstance(file, str):
                    self._modules[file] = module
        return self._modules.get(path)


def _imported(function: object) -> str:
    """Return the name of a function that was imported by its own name: ``from torch import tensor``."""
    module, name = (getattr(function, what, None) for what in ("__module__", "__qualname__"))
    return f"{module}.{name}" if module and name and module != "builtins" else ""


def _text(code: CodeType, at: int) -> str:
    """Return what stands at an instruction, from its first to its last column; empty where that is not known."""
    positions = getattr(code, "co_positions", None)
    if positions is None or at < 0:
        return ""
    first, last, begin, end = next(islice(positions(), at // 2, None), (None, None, None, None))
    if first is None or last is None or begin is None or end is None or last - first >= LONGEST:
        return ""
    lines = [linecache.getline(code.co_filename, line).encode() for line in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    return b"".join(lines).decode(errors="replace")


def _names(text: str) -> list[str]:
    """Return the names by which something is called, as ``np`` and ``dot``; empty where it is no call by names."""
    try:
        call = ast.parse(f"({text})", mode="eval").body if text else None
    except (SyntaxError, ValueError, MemoryError):
        return []
    of = call.func if isinstance(call, ast.Call) else None
    names: list[str] = []
    while isinstance(of, ast.Attribute):
        names.insert(0, of.attr)
        of = of.value
    return [of.id, *names] if isinstance(of, ast.Name) else []
