"""The callback for ``fit`` of Keras 3 on torch. Importing this module does not import Keras."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engine.lazily import imports

if TYPE_CHECKING:
    from .callback import StallCallback as StallCallback

__all__ = ["StallCallback"]

__getattr__ = imports(__name__, "StallCallback", "callback", "keras", "keras")
