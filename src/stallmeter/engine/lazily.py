"""Adapters are imported with their framework: the room of one can be imported without it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from ..errors import MissingPackageError


def imports(room: str, name: str, module: str, needs: str, extra: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a room with one public name.

    Args:
        room: Full name of the room.
        name: The name.
        module: Module of the room that has it.
        needs: Package that this imports.
        extra: Of ours that installs the package.
    """

    def find(asked: str) -> Any:
        if asked != name:
            raise AttributeError(f"module {room!r} has no attribute {asked!r}")
        if importlib.util.find_spec(needs) is None:
            raise MissingPackageError(needs, extra, f"{room}.{name}")
        return getattr(importlib.import_module(f".{module}", room), name)

    return find
