"""Whether a function does nothing of its own between two places in it: what passes there is the end of what it called.

A function's variables are freed after its profiler was told that it returns, and before its caller goes on. A list of
tokens or of tuples takes a tenth of the time to free that it took to make, and would be the caller's.
"""

from __future__ import annotations

import dis
from types import CodeType

LEAST_NS = 20_000
"""Less is not asked for: it is nobody's large part."""

_IDLE = frozenset(
    [
        "BUILD_LIST",
        "BUILD_MAP",
        "BUILD_TUPLE",
        "CACHE",
        "COPY",
        "DUP_TOP",
        "EXTENDED_ARG",
        "KW_NAMES",
        "LOAD_ATTR",
        "LOAD_CLOSURE",
        "LOAD_CONST",
        "LOAD_DEREF",
        "LOAD_GLOBAL",
        "LOAD_METHOD",
        "LOAD_NAME",
        "LOAD_SMALL_INT",
        "NOP",
        "NOT_TAKEN",
        "POP_TOP",
        "PRECALL",
        "PUSH_NULL",
        "RESUME",
        "ROT_THREE",
        "ROT_TWO",
        "STORE_DEREF",
        "SWAP",
        "UNPACK_SEQUENCE",
    ]
)
"""Instructions of Python 3.10 to 3.14 that take next to no time, whatever they are given."""

_IDLE_KINDS = ("LOAD_FAST", "STORE_FAST")
"""And all that begin so."""


class Idle:
    """Answers for one thread, and keeps the answers."""

    def __init__(self) -> None:
        # By the identity of the codes, which are kept: a code's hash reads all of its instructions.
        self._known: dict[tuple[int, int, int], tuple[CodeType, bool]] = {}

    def between(self, code: CodeType, since: int, until: int) -> bool:
        """Return whether all instructions between two are such that take next to no time, and none is jumped over.

        Args:
            code: Of the function.
            since: Offset of the first, in bytes; it has been carried out.
            until: Offset of the second, which is about to be.
        """
        known = self._known.get((id(code), since, until))
        if known is None:
            between = (one for one in dis.get_instructions(code) if since < one.offset < until)
            is_idle = since < until and all(
                one.opname in _IDLE or one.opname.startswith(_IDLE_KINDS) for one in between
            )
            known = self._known[id(code), since, until] = code, is_idle
        return known[1]
