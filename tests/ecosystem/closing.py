"""What a training leaves behind: its weights, and whatever of stallmeter stayed. The programs beside it print both."""

from __future__ import annotations

import functools
import gc
import hashlib
import json
import threading
import types
from typing import Any

_NAMED = (type, types.FunctionType, types.MethodType, type(functools.cache(int)))
"""What says itself in which module it was defined."""


def close(model: Any) -> None:
    """Print a digest of the final weights and what of stallmeter is still patched in, as one line of JSON."""
    print(json.dumps({"weights": digest(model), "left": leftovers()}))


def digest(model: Any) -> str:
    """SHA-256 over the name and the bytes of every parameter and buffer."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def leftovers() -> list[str]:
    """Attributes of other people's objects, classes and modules that hold something of stallmeter."""
    gc.collect()
    found = []
    for owner in gc.get_objects():
        attributes = _attributes(owner)
        if attributes and not _is_ours(owner) and not _holds_by_itself(owner):
            found += [f"{_name(owner)}.{name}" for name, value in list(attributes.items()) if _is_ours(value)]
    return sorted(found)


def _holds_by_itself(owner: Any) -> bool:
    """Whether it is no patch: a type that is spelled with one of ours, a thread of ours, or what started the run."""
    kind = type(owner)
    if kind.__module__ == "typing":
        return True
    if issubclass(kind, threading.Thread):  # what is left to be sent is sent beside the program
        return bool(owner.name.startswith("stallmeter"))
    return issubclass(kind, types.ModuleType) and owner.__name__ == "sitecustomize"


def _attributes(owner: Any) -> Any:
    # Not vars(): a proxy or a lazy module would run code.
    try:
        return (type if issubclass(type(owner), type) else object).__getattribute__(owner, "__dict__")
    except (AttributeError, TypeError):
        return None


def _is_ours(value: Any) -> bool:
    kind = type(value)  # not isinstance, which asks proxies for their class
    if issubclass(kind, functools.partial):
        return _is_ours(value.func)
    if issubclass(kind, types.ModuleType):
        return str(value.__name__).split(".")[0] == "stallmeter"
    return str(getattr(value if issubclass(kind, _NAMED) else kind, "__module__", "")).split(".")[0] == "stallmeter"


def _name(owner: Any) -> str:
    named = owner if issubclass(type(owner), type) else type(owner)
    return f"{named.__module__}.{named.__qualname__}"
