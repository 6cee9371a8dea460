"""Torch's hooks for all modules, in whose forward passes they are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def hooked(modules: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Return torch and the module of it that takes such hooks; None where none should be put.

    What is compiled asks whether there are any: it would be compiled once more.

    Args:
        modules: Where torch is looked for; it is never imported.
    """
    torch, nn = modules.get("torch"), modules.get("torch.nn.modules.module")
    if torch is None or nn is None:
        return None
    compiled = getattr(modules.get("torch._dynamo.convert_frame"), "FRAME_COMPILE_COUNTER", None)
    return None if compiled else (torch, nn)
