"""What the C library's allocator keeps of this process's memory although the program has given it back."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


class _MallInfo2(ctypes.Structure):
    """glibc's ``struct mallinfo2``, see mallinfo(3)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def free_in_heap() -> int | None:
    """Return the bytes that this process has freed and that malloc keeps for later; None where that is not told.

    glibc tells it since 2.33. Blocks of many sizes, as batches of uneven length are, leave gaps that no later block
    fits into: the process then holds ever more memory and uses no more. The call walks all gaps under the lock of each
    arena, 0.2 µs a gap: a millisecond or more in a heap that is in pieces.
    """
    tells = _mallinfo2()
    return None if tells is None else int(tells().fordblks)


@cache
def _mallinfo2() -> Any:
    try:
        tells = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError, TypeError):  # musl, macOS; Windows takes no None
        return None
    tells.restype = _MallInfo2
    return tells
