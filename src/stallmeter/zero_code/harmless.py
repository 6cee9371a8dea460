"""Keeps our errors from a program that asked for nothing in its code, as long as no monitor's guard is there to do so.

An import of ours may fail in the midst of a training: no file can be opened any more, memory is short, the package was
taken away. What is needed to go on then is all here, imported when the program starts.
"""

from __future__ import annotations

import atexit
import io
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from ..engine.environment import MEASURED, WITNESS, variable

T = TypeVar("T")

_open = io.open  # the program may patch it; and pathlib takes 5 ms to import

_why: list[str] = []
_told: list[str] = []


def harmless(call: Callable[[], T]) -> T | None:
    """Return what a call returns; None where it fails, and from then on without calling.

    The first failure is told on stderr in one line.
    """
    if _why:
        return None
    try:
        return call()
    except Exception as exc:  # noqa: BLE001 - the program goes on as if nobody had asked
        _why.append(f"{type(exc).__name__}: {exc}")
    _tell()
    atexit.register(_tell)  # what was short may be there again
    return None


def forget() -> None:
    """Begin anew: what was wrapped has been taken back."""
    _why.clear()
    _told.clear()


def _tell() -> None:
    with suppress(Exception):
        if _why and not _told:
            sys.stderr.write(f"stallmeter: nothing more is recorded of this program: {_why[0]}\n")
            _told.extend(_why)
    # Whoever waits for the program's end need say nothing then.
    folder = variable(WITNESS)
    with suppress(Exception):
        if folder and _told:
            _open(f"{folder}/{MEASURED}", "ab").close()
