"""What stands around Keras' ``fit`` for as long as there is a callback of ours."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import keras

_callbacks: weakref.WeakSet[Any] = weakref.WeakSet()
_stands: tuple[Any, Any, Any] | None = None
"""Class, its own method, ours."""


def watch_fit(callback: object, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Have what ``around`` makes of ``fit`` stand in its place until this callback and all others are gone."""
    global _stands
    _callbacks.add(callback)
    weakref.finalize(callback, _leave).atexit = False
    if _stands is None:
        kind: Any = next(kind for kind in keras.Model.__mro__ if "fit" in vars(kind))
        own = vars(kind)["fit"]
        ours = around(own)
        _stands = (kind, own, ours)
        kind.fit = ours


def leave_fit(callback: object) -> None:
    """Watch ``fit`` for this callback no more, though somebody may still hold it."""
    _callbacks.discard(callback)
    _leave()


def _leave() -> None:
    global _stands
    if _stands is None or any(True for _ in _callbacks):  # of one that is just going its length knows nothing yet
        return
    kind, own, ours = _stands
    _stands = None
    if vars(kind).get("fit") is ours:
        kind.fit = own
