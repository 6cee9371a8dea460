"""What a call beside the model is for, by the text of the lines: what it takes, and who takes what it gives.

Two calls of ``x, y = next_batch()`` and ``loss = criterion(out, y)`` may stand at the same place, between the model and
its gradients: the second takes what the model made, the first is the next batch, which has come early. A third one,
``draw(words)``, gives nothing that the model is called with: it is neither. Nor is ``score(out.detach(), y)``, through
which no gradient flows, nor ``weights = rarity(y)``.
"""

from __future__ import annotations

import builtins
import io
import keyword
import linecache
import re
import tokenize
from collections.abc import Iterable, Sequence
from functools import lru_cache

NAMES_OF_PYTHON = frozenset((*keyword.kwlist, *vars(builtins)))

BEFORE = 30
"""So many lines before the model's call may say what it is called with: ``x = batch["x"].float()``, and then it."""

UNTRAINED = frozenset(
    ("argmax", "argsort", "bool", "data", "detach", "int", "item", "long", "numpy", "shape", "size", "tolist")
)
"""What is had of a tensor through these no gradient flows through."""

UNDER = re.compile(r"with\b.*\b(?:no_grad|inference_mode)\b")
"""Begin of a block in which none are recorded."""


@lru_cache(maxsize=256)
def makes_next_batch(path: str, since: int, line: int) -> bool:
    """Whether a line, behind the one that calls the model, gives names to what stands at or before that call.

    And whether no name in what it calls was mentioned since that call. An attribute counts as the object that has it: a
    method may take what another one has left there.

    Args:
        path: Of the file.
        since: Where the model is called; counted from 1.
        line: Of a statement that begins and ends there; of others nothing is known.

    Returns:
        False where the text is not at hand, or does not tell.
    """
    said = _assignment(path, since, line)
    if said is None:
        return False
    gives, value, met = said
    lines = linecache.getlines(path)
    called_with = "".join(lines[_begin(lines, since) : since])
    is_used = any(re.search(rf"(?<![\w.]){name}\b", called_with) for name in _names(gives))
    return is_used and bool(_names(value)) and not _names(value) & met


@lru_cache(maxsize=256)
def takes_nothing_made(path: str, since: int, line: int) -> bool:
    """Whether a line, behind the one that calls the model, calls something with names none of which it has met since.

    Weights of samples, say, that are computed of the labels: nothing that was made since is had by it, and so no
    gradient flows through it. An attribute counts as the object that has it, as in `makes_next_batch`.

    Args:
        path: Of the file.
        since: Where the model is called; counted from 1.
        line: Of a statement that begins and ends there; of others nothing is known.

    Returns:
        False where the text is not at hand, or does not tell.
    """
    said = _assignment(path, since, line)
    if said is None:
        return False
    gives, value, met = said
    called = next((i for i, (text, _) in enumerate(value) if text == "("), len(value))
    calls = bool(_names(value[called:])) and all(text != "(" for text, _ in gives)
    return calls and not _names(value) & met


@lru_cache(maxsize=256)
def takes_no_gradient(path: str, since: int, line: int) -> bool:
    """Whether no gradient flows through what a line calls, behind the one that calls the model.

    It stands in a block without gradients, or has all that was given a name since that call by `UNTRAINED` alone.

    Args:
        path: Of the file.
        since: Where the model is called; counted from 1.
        line: Of a statement that begins and ends there; of others nothing is known.

    Returns:
        False where the text is not at hand, or does not tell.
    """
    lines = _lines(path, since, line)
    if lines and block_without_gradients(lines, since + 1, line):
        return True
    read = _call_and_before(lines, since, line)
    if read is None:
        return False
    asked, before = read
    made = _given(before)
    called = next((i for i, (text, _) in enumerate(asked) if text == "("), len(asked))
    taken = [i for i in range(called + 1, len(asked)) if asked[i][0] in made and asked[i - 1][0] != "."]
    return bool(taken) and all(UNTRAINED & set(_attributes(asked, i)) for i in taken)


@lru_cache(maxsize=256)
def stands_without_gradients(path: str, since: int, line: int) -> bool:
    """Whether a line stands in a block without gradients, as far as the text is at hand.

    Args:
        path: Of the file.
        since: Where its function begins; counted from 1.
        line: Of the function.
    """
    lines = _lines(path, since, line)
    return bool(lines) and block_without_gradients(lines, since + 1, line) > 0


def block_without_gradients(lines: Sequence[str], since: int, line: int) -> int:
    """Return the line in which a block without gradients begins that a line stands in; 0 where there is none.

    Args:
        lines: Of the file.
        since: The first line that may begin it.
        line: Counted from 1, as the others.
    """
    deepest = len(lines[line - 1]) - len(lines[line - 1].lstrip())
    for at in range(line - 1, max(0, since - 1), -1):
        text = lines[at - 1]
        indent = len(text) - len(text.lstrip())
        if text.strip() and indent < deepest:
            deepest = indent
            if UNDER.match(text.lstrip()):
                return at
    return 0


def _assignment(
    path: str, since: int, line: int
) -> tuple[list[tuple[str, int]], list[tuple[str, int]], set[str]] | None:
    """Return the tokens of what a line gives names to and of what it gives, and the names from ``since`` on to it.

    None where it gives none, and where the text is not at hand or does not tell.
    """
    read = _call_and_before(_lines(path, since, line), since, line)
    if read is None:
        return None
    asked, before = read
    given = [i for i, (text, depth) in enumerate(asked) if text == "=" and not depth]
    return (asked[: given[-1]], asked[given[-1] + 1 :], _names(before)) if given else None


def _begin(lines: Sequence[str], since: int) -> int:
    """Return after how many lines those begin that may say what a line calls: `BEFORE` at most, of its function."""
    indent = len(lines[since - 1]) - len(lines[since - 1].lstrip())
    for at in range(since - 1, max(0, since - BEFORE), -1):
        text = lines[at - 1].lstrip()
        if text.startswith(("def ", "async def ")) and len(lines[at - 1]) - len(text) < indent:
            return at
    return max(0, since - BEFORE)


def _lines(path: str, since: int, line: int) -> list[str]:
    """Return the lines of a file; none where the text is not at hand, or the two do not stand there in this order."""
    lines = linecache.getlines(path)
    return lines if 0 < since < line <= len(lines) else []


def _call_and_before(
    lines: Sequence[str], since: int, line: int
) -> tuple[list[tuple[str, int]], list[tuple[str, int]]] | None:
    """Return the tokens of a line, and of those before it from another one on; None where brackets stay open."""
    asked, before = _tokens(lines[line - 1 : line]), _tokens(lines[since - 1 : line - 1])
    return None if asked is None or before is None else (asked, before)


def _given(tokens: Sequence[tuple[str, int]]) -> set[str]:
    """Return the names that are given to something: those before each ``=`` outside all brackets, back to a line's end.

    Lines are not told apart here: a name before another one is an end, ``loss = f(x)`` and then ``y = 2``.
    """
    found: set[str] = set()
    for at, (text, depth) in enumerate(tokens):
        if text != "=" or depth:
            continue
        for before in range(at - 1, -1, -1):
            name = tokens[before][0]
            if tokens[before][1] or not (name.isidentifier() or name in (",", ".", "=")):
                break
            if name.isidentifier():
                found.add(name)
                if before and tokens[before - 1][0] not in (",", ".", "="):
                    break
    return found - NAMES_OF_PYTHON


def _attributes(tokens: Sequence[tuple[str, int]], at: int) -> list[str]:
    """Return the attributes that are asked of a name, one after the other: ``out.logits[0].detach()`` has two."""
    depth, found = tokens[at][1], []
    for before, (text, level) in zip(tokens[at:], tokens[at + 1 :], strict=False):
        if level < depth or (level == depth and text not in (".", "(", ")", "[", "]") and before[0] != "."):
            break
        if level == depth and before[0] == ".":
            found.append(text)
    return found


def _names(tokens: Sequence[tuple[str, int]]) -> set[str]:
    """Return the names among tokens, without attributes and what is Python's."""
    texts = [text for text, _ in tokens]
    names = {text for before, text in zip(["", *texts], texts, strict=False) if text.isidentifier() and before != "."}
    return names - NAMES_OF_PYTHON


def _tokens(lines: Sequence[str]) -> list[tuple[str, int]] | None:
    """Return the tokens of lines, each with the brackets that are open around it; None where some stay open."""
    found, depth = [], 0
    text = "".join(f"{line.strip()}\n" for line in lines)  # how far they are indented tells nothing here
    try:
        read: Iterable[tokenize.TokenInfo] = tokenize.generate_tokens(io.StringIO(text).readline)
        for token in read:
            depth -= token.string in (")", "]", "}") and token.type == tokenize.OP
            if token.type in (tokenize.NAME, tokenize.OP):
                found.append((token.string, depth))
            depth += token.string in ("(", "[", "{") and token.type == tokenize.OP
    except (tokenize.TokenError, SyntaxError):
        return None
    return found if depth == 0 else None
