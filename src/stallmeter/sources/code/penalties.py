"""Penalties on the weights that steps compute beside their loss: functions, or lines, that go through parameters.

A loss takes what the model made. A penalty, of the squares of all weights say, takes the weights themselves, and a
gradient flows to each of them. By its place it is a part of the loss; the text tells which of the two it is.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from .beside import from_model_to_gradients, stands_in_block_without_gradients
from .fold import Seen
from .outline import blanked
from .taken import UNTRAINED

ASKS = r"(?:named_)?parameters\s*\("
"""How the text asks for the parameters of a model."""

AT_ONCE = re.compile(r"\bparameters_to_vector\s*\(")
"""Takes all of them at once, with their gradients."""

KEPT = re.compile(rf"\b(\w+)\s*=[^=\n]*\b{ASKS}")
"""Gives them a name."""

BESIDES = frozenset(("device", "dim", "dtype", "grad", "is_leaf", "ndim", "nelement", "numel", "requires_grad"))
"""What is had of a parameter through these are not its values."""

LONGEST = 400
"""Most lines of a function that are read."""

PART = ("<dictcomp>", "<genexpr>", "<lambda>", "<listcomp>", "<setcomp>")
"""Ends of the names of code that is a part of the function around it."""


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement that is not made of others, or the head of one that is."""

    begin: int
    """Its first line, counted from 1."""
    end: int
    indent: int
    text: str
    """Without strings and comments."""


def penalties(seen: Sequence[Seen], *, optimizer: bool = False) -> list[tuple[Seen, Seen]]:
    """Return which stacks are of a penalty on weights, each as it is and as the function that computes it.

    That is the first one below the training that goes through the parameters, or the training's own function.

    Args:
        seen: Of the steps.
        optimizer: Whether a step of an optimizer was heard of, as in `stallmeter.sources.code.beside.after_gradients`.
    """
    found = []
    for one, around in from_model_to_gradients(seen, optimizer=optimizer):
        at = _computes_at(one, around)
        if at is not None:
            innermost = max(i for i, frame in enumerate(one.stack) if frame.function.own)
            found.append((one, replace(one, stack=(*one.stack[: at + 1], *one.stack[innermost + 1 :]))))
    return found


def _computes_at(one: Seen, around: int) -> int | None:
    """Return which frame is the penalty's; None where there is none, or no gradient flows through it."""
    own = [at for at in range(around, len(one.stack)) if one.stack[at].function.own]
    if any(stands_in_block_without_gradients(one.stack[at]) for at in own):
        return None
    called = [at for at in own[1:] if not one.stack[at].function.name.endswith(PART)]
    if called:
        frames = ((at, one.stack[at]) for at in called)
        return next((at for at, f in frames if function_takes_weights(f.path, f.function.first_line)), None)
    frame = one.stack[around]
    return around if line_takes_weights(frame.path, frame.function.first_line, frame.line) else None


@lru_cache(maxsize=256)
def function_takes_weights(path: str, first_line: int) -> bool:
    """Whether a function goes through the parameters of a model and computes with their values, gradients with them.

    Args:
        path: Of the file.
        first_line: Of the function's code, counted from 1.

    Returns:
        False where the text is not at hand, or does not tell.
    """
    return _takes_weights("\n".join(one.text for one in _statements(path, first_line)))


@lru_cache(maxsize=256)
def line_takes_weights(path: str, first_line: int, line: int) -> bool:
    """Whether a line does so: the statement that it is in, with the loops around it.

    Args:
        path: Of the file.
        first_line: Of the code of the function that it is in, counted from 1.
        line: Counted from 1.

    Returns:
        False where the text is not at hand, or does not tell.
    """
    statements = _statements(path, first_line)
    at = next((i for i, one in enumerate(statements) if one.begin <= line <= one.end), None)
    if at is None:
        return False
    said, indent = [statements[at].text], statements[at].indent
    for one in reversed(statements[1:at]):
        if one.indent < indent:
            indent = one.indent
            said += [one.text] if one.text.lstrip().startswith("for ") else []
    return _takes_weights("\n".join(reversed(said)))


def _takes_weights(text: str) -> bool:
    if AT_ONCE.search(text):
        return True
    names = "".join(rf"|\b{name}\b" for name in KEPT.findall(text))
    loops = re.finditer(rf"\bfor\b([\w\s,()*]+?)\bin\b[^:\n]*?(?:\b{ASKS}{names})", text)
    return any(_has_values(text, name, loop) for loop in loops for name in re.findall(r"\w+", loop.group(1)))


def _has_values(text: str, name: str, loop: re.Match[str]) -> bool:
    """Whether the text has the values of what a loop gives this name, and not as a key."""
    for use in re.finditer(rf"(?<![\w.]){name}\b(?:\s*\.\s*(\w+))?", text):
        if loop.start() <= use.start() < loop.end():
            continue
        follows = text[use.end() :].lstrip()
        is_index = text[: use.start()].rstrip().endswith("[") and follows.startswith("]")
        is_key = is_index or follows.startswith((":", "in "))  # of a dictionary; in another loop
        if not is_key and use.group(1) not in UNTRAINED | BESIDES:
            return True
    return False


@lru_cache(maxsize=64)
def _statements(path: str, first_line: int) -> tuple[_Statement, ...]:
    """Return the statements of a function, its head first; none where its text is not at hand."""
    lines = linecache.getlines(path)
    if not 0 < first_line <= len(lines):
        return ()
    found: list[_Statement] = []
    texts: list[str] = []
    begin, depth, head = first_line, 0, -1
    for number, text in enumerate(blanked(lines[first_line - 1 : first_line - 1 + LONGEST]), start=first_line):
        if not texts and not text.strip(" )"):
            continue
        if not texts:
            begin, depth = number, 0
        texts.append(text)
        depth += sum(map(text.count, "([{")) - sum(map(text.count, ")]}"))
        if depth > 0 or text.endswith("\\"):
            continue
        indent = len(texts[0]) - len(texts[0].lstrip())
        if head >= 0 and indent <= head:
            break
        if head < 0 and not texts[0].lstrip().startswith("@"):
            head = indent
        found.append(_Statement(begin, number, indent, " ".join(map(str.strip, texts))))
        texts = []
    return tuple(found)
