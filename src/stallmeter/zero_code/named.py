"""Calls of a loop of one's own that say what they are: saving, logging, calling the callbacks.

While a loop is recorded their time is booked under that name, where without it all would be `compute`. Elsewhere, and
on other threads, they are what they were.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..timing.ledger import CALLBACKS, CHECKPOINT, LOGGING, Span
from ..timing.tracebacks import let_out
from .patches import ledger_here

Method = Callable[..., Any]


def _booked(bucket: int, name: str | None = None) -> Callable[[Method], Method]:
    def make(own: Method) -> Method:
        @functools.wraps(own)
        def booked(*args: Any, **kwargs: Any) -> Any:
            try:
                ledger = ledger_here()
                if ledger is None or any(ledger.slots[slot][0] == bucket for slot in ledger.stack):
                    return own(*args, **kwargs)
                said = str(args[1]) if name is None and bucket == CALLBACKS and len(args) > 1 else name
                with Span(ledger, ledger.slot(bucket, said)):
                    return own(*args, **kwargs)
            except BaseException as exc:
                let_out(exc)
                raise

        return booked

    return make


_FABRIC = tuple(
    ("Fabric", name, _booked(bucket, said))
    for name, bucket, said in (
        ("call", CALLBACKS, None),  # the hook's name
        ("log", LOGGING, "Fabric.log"),
        ("log_dict", LOGGING, "Fabric.log"),
        ("save", CHECKPOINT, None),
    )
)

CALLS: dict[str, tuple[tuple[str | None, str, Callable[[Method], Method]], ...]] = {
    "torch.serialization": ((None, "save", _booked(CHECKPOINT)),),
    "accelerate.accelerator": (
        ("Accelerator", "log", _booked(LOGGING, "Accelerator.log")),
        ("Accelerator", "save", _booked(CHECKPOINT)),
        ("Accelerator", "save_state", _booked(CHECKPOINT)),
        ("Accelerator", "save_model", _booked(CHECKPOINT)),
    ),
    "lightning.fabric.fabric": _FABRIC,
    "lightning_fabric.fabric": _FABRIC,
}
"""Class (None: of the module itself), name and what takes its place, by the module that defines them."""
