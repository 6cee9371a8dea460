"""Whether a call takes anything that its function has computed from some line on, by the text of the lines.

Two calls of ``x, y = next_batch()`` and ``loss = criterion(out, y)`` may stand at the same place, between the model and
its gradients: the second takes what the model made, the first is the next batch, which has come early.
"""

from __future__ import annotations

import builtins
import io
import keyword
import linecache
import tokenize
from collections.abc import Iterable, Sequence
from functools import lru_cache

NAMES_OF_PYTHON = frozenset((*keyword.kwlist, *vars(builtins)))


@lru_cache(maxsize=256)
def takes_nothing_since(path: str, since: int, line: int) -> bool:
    """Whether no name in what a line calls was mentioned from an earlier line on, up to the line before it.

    An attribute counts as the object that has it: a method may take what another one has left there.

    Args:
        path: Of the file.
        since: Counted from 1.
        line: Of a statement that begins and ends there; of others nothing is known.

    Returns:
        False where the text is not at hand, or does not tell.
    """
    lines = linecache.getlines(path)
    if not 0 < since < line <= len(lines):
        return False
    asked, before = _tokens(lines[line - 1 : line]), _tokens(lines[since - 1 : line - 1])
    if asked is None or before is None:
        return False
    given = [i for i, (text, depth) in enumerate(asked) if text == "=" and not depth]
    taken = _names(asked[given[-1] + 1 :] if given else asked)
    return bool(taken) and not taken & _names(before)


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
