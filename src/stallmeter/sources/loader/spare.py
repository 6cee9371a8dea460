"""What a worker hands over with a batch that the batch does not hold. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEPTH = 4
"""So deep in lists and mappings tensors are looked for."""

MOST_TENSORS = 1024
"""Of a batch with more of them nothing is said: a look would take a millisecond."""


def spare_bytes(batch: object) -> int | None:
    """Return how many bytes the storages beneath a batch's tensors have beyond what the tensors hold.

    Tensors are put into shared memory with all of their storage: of a crop, which is a view, that is the picture. What
    lies there already is not copied once more.

    Args:
        batch: As it was collated, before it is sent.

    Returns:
        0 where all is used, or more than once; None where there is no tensor, or too many.
    """
    tensors: list[Any] = []
    _find(batch, tensors, DEPTH)
    if not tensors or len(tensors) > MOST_TENSORS:
        return None
    held = 0
    storages: dict[int, int] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if not storage.is_shared():
            storages[storage.data_ptr()] = storage.nbytes()
            held += tensor.nelement() * tensor.element_size()
    return max(0, sum(storages.values()) - held)


def _find(batch: object, found: list[Any], depth: int) -> None:
    # Of a sparse tensor, or a nested one, the parts are sent: a layout tells of these.
    if hasattr(batch, "untyped_storage"):
        if str(getattr(batch, "layout", "")) == "torch.strided" and not getattr(batch, "is_nested", False):
            found.append(batch)
        return
    if depth == 0 or len(found) > MOST_TENSORS:
        return
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for member in batch:
            if isinstance(member, (str, bytes, int, float)):
                return  # and so are the others
            _find(member, found, depth - 1)
