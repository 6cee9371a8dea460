"""The frames of all threads, asked for without the risk that the interpreter comes to a halt."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Mapping
from operator import methodcaller
from types import FrameType

CAN_LOOK = hasattr(sys, "_current_frames")
"""Whether this interpreter tells of other threads."""

_call = methodcaller("__call__")


def current_frames() -> Mapping[int, FrameType]:
    """Return the newest frame of each thread by its identity, of this one the caller's; nothing where none is told.

    Up to Python 3.12.0 `sys._current_frames` holds a lock of the interpreter's while it allocates. If a collection of
    garbage begins there, and a callback of it lets go of the GIL, a thread that starts waits for that lock and holds
    the GIL: for ever (https://github.com/python/cpython/issues/106883). So no collection may begin meanwhile.
    """
    if not CAN_LOOK:
        return {}
    frames = _collected_by_nobody() if gc.isenabled() else sys._current_frames()
    return {**frames, threading.get_ident(): sys._getframe(1)}


def _collected_by_nobody() -> Mapping[int, FrameType]:
    try:
        # One instruction of the interpreter: no other thread runs in between, or finds the collector switched off.
        _, frames, _ = map(_call, (gc.disable, sys._current_frames, gc.enable))
    except BaseException:  # an audit hook's, or memory ran out
        gc.enable()
        raise
    return frames  # type: ignore[no-any-return]
