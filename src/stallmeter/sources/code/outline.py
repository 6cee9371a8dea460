"""The qualified name of a function from its file's text, before Python 3.11, where code does not carry it.

Classes and functions around it are found by their indentation. `ast.parse` would tell, too, but it holds the GIL while
it reads a whole file: 0.1 s of a long one, in which the training thread stands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_BESIDES_CODE = re.compile(
    r"#[^\n]*"
    r'|"""(?:[^\\"]|\\.|"(?!""))*"""'
    r"|'''(?:[^\\']|\\.|'(?!''))*'''"
    r'|"(?:[^\\"\n]|\\.)*"'
    r"|'(?:[^\\'\n]|\\.)*'",
    re.DOTALL,
)
_HEAD = re.compile(r"\s*(class|(?:async\s+)?def)\s+(\w+)")
_CLOSING = tuple(")]}")
"""A line that begins so ends a statement that began above, and its indentation tells nothing. So do the last lines of
strings, which are blanked to such."""


def blanked(lines: Sequence[str]) -> list[str]:
    """Return the lines of a file without what stands in its strings and comments."""
    return _BESIDES_CODE.sub(_blank, "".join(lines)).expandtabs().split("\n")


def _blank(found: re.Match[str]) -> str:
    ended = found.group().count("\n")
    return "\n" * ended + ")" if ended else ""


def qualified(lines: Sequence[str], first_line: int, name: str) -> str:
    """Return ``__qualname__`` of a function.

    Args:
        lines: Of its file, as `blanked` gives them.
        first_line: Of its code, counted from 1: of its first decorator where it has one.
        name: Of its code.
    """
    if not 0 < first_line <= len(lines):
        return name
    here = lines[first_line - 1]
    parts = [name]
    at = _HEAD.match(here)
    if at is not None and name.startswith("<"):  # in a function of one line
        parts.append(_scope(at))
    depth = _depth(here)
    for line in reversed(lines[: first_line - 1]):
        if depth == 0:
            break
        stripped = line.lstrip()
        if not stripped or stripped.startswith(_CLOSING) or _depth(line) >= depth:
            continue
        depth = _depth(line)
        at = _HEAD.match(line)
        if at is not None:
            parts.append(_scope(at))
    return ".".join(reversed(parts))


def _scope(head: re.Match[str]) -> str:
    return head.group(2) if head.group(1) == "class" else f"{head.group(2)}.<locals>"


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())
