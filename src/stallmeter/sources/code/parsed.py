"""The text of one function, parsed. Not of a whole file: that takes 0.1 s of a long one, and holds the GIL."""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
import tokenize

LONGEST = 400
"""Most lines of a function that are read."""


def function_at(path: str, first_line: int) -> ast.AST | None:
    """Return a function's text as a tree, whose lines are counted from 1; None where it is not at hand or is none.

    Args:
        path: Of the file.
        first_line: Of the function's code, counted from 1.
    """
    lines = linecache.getlines(path)[first_line - 1 : first_line - 1 + LONGEST] if first_line > 0 else []
    if not lines:
        return None
    try:
        return ast.parse(textwrap.dedent("".join(inspect.getblock(lines))))
    except (SyntaxError, ValueError, tokenize.TokenError):  # no function of its own: a lambda in the midst of a call
        return None


def called(node: ast.Call) -> str:
    """Return by which name a function is called, without what it is of."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
