"""The callback for the Trainer of Hugging Face's ``transformers``. Importing this module does not import that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engine.lazily import imports

if TYPE_CHECKING:
    from .callback import StallCallback as StallCallback

__all__ = ["StallCallback"]

__getattr__ = imports(__name__, "StallCallback", "callback", "transformers", "transformers")
