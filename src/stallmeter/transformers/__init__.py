"""The callback for the Trainer of Hugging Face's ``transformers``. Importing this module does not import that."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from ..errors import MissingPackageError

if TYPE_CHECKING:
    from .callback import StallCallback as StallCallback

__all__ = ["StallCallback"]


def __getattr__(name: str) -> Any:
    if name != "StallCallback":
        raise AttributeError(f"module 'stallmeter.transformers' has no attribute {name!r}")
    if importlib.util.find_spec("transformers") is None:
        raise MissingPackageError("transformers", "transformers", "stallmeter.transformers.StallCallback")
    return importlib.import_module(".callback", __package__).StallCallback
