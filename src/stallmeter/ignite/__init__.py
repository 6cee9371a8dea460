"""The handler for PyTorch Ignite's ``Engine``. Importing this module does not import Ignite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engine.lazily import imports

if TYPE_CHECKING:
    from .handler import StallHandler as StallHandler

__all__ = ["StallHandler"]

__getattr__ = imports(__name__, "StallHandler", "handler", "ignite", "ignite")
