"""What a worker hands over with a batch that the batch does not hold. Nothing here imports torch."""

from __future__ import annotations

from itertools import islice
from typing import Any

from ...timing.numbers import tensors_in

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
    tensors = list(islice(filter(_is_strided, tensors_in(batch, DEPTH)), MOST_TENSORS + 1))
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


def _is_strided(tensor: Any) -> bool:
    # Of a sparse tensor, or a nested one, the parts are sent: a layout tells of these.
    if not hasattr(tensor, "untyped_storage"):
        return False
    return str(getattr(tensor, "layout", "")) == "torch.strided" and not getattr(tensor, "is_nested", False)
