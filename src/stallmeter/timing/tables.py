"""Embedding tables whose gradient is dense though a batch uses few of their rows, looked at between two steps.

Such a gradient is as large as the table: each step makes it, fills it with zeros and has the optimizer write all rows.
A few hundred numbers of it are read, never all, and on an accelerator none, which would wait for the device.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from ..records import DenseEmbeddings
from .numbers import ODD, numbers_of

LEAST_ROWS = 10_000
"""Smaller tables are written in no time."""

MOST_TABLES = 8
"""Tables whose gradients are looked at, the largest: a look takes some 50 us for each."""

SAMPLE = 256
"""Rows of a gradient that are looked at, spread over it, each at its beginning, its middle and its end."""

LARGER_SAMPLE = 2048
"""Rows of which one number is looked at, where in none of those a gradient was found."""

MOST_USED = 0.25
"""Share of the rows with a gradient up to which a table counts: beyond it a sparse gradient saves little."""

OTHERS = 16
"""Gradients of other parameters that are looked at, and numbers of each: are all of them zero, they were cleared."""

LONGEST = 100
"""Characters of a part's name."""

WRAPPERS = frozenset({"module", "_orig_mod", "_forward_module"})
"""Attributes in which DDP, torch.compile and Fabric hold the program's own model."""


class _Table(NamedTuple):
    name: str
    kind: str
    weight: Any


def name_inside(name: str, child: str) -> str:
    """Return how a program names a part of a model.

    Args:
        name: Of the model.
        child: What the model calls its part.
    """
    if child in WRAPPERS:
        return name
    return f"{name}[{child}]" if child.isdigit() else f"{name}.{child}"


def dense_embeddings(
    models: Iterable[tuple[str, Any]], parameters: Mapping[int, Any], nn: Any
) -> DenseEmbeddings | None:
    """Return what embedding tables have dense gradients of few rows; None where a gradient cannot be read just now.

    Args:
        models: By the names that the program has for them.
        parameters: Theirs by identity, as far as they may be looked at.
        nn: ``torch.nn``.
    """
    tables: dict[int, _Table] = {}
    for name, model in models:
        for table in _tables_of(name, model, nn):
            if id(table.weight) in parameters:
                tables.setdefault(id(table.weight), table)
    trained = [p for p in parameters.values() if p.grad is not None]
    largest = sorted(tables.values(), key=lambda table: -table.weight.numel())[:MOST_TABLES]
    shares = [_used_share(table.weight) for table in largest]
    found = [(table, share) for table, share in zip(largest, shares, strict=True) if share is not None]
    few = [(table, share) for table, share in found if share <= MOST_USED]
    if len(found) < len(largest) and not few:
        return None
    if few and not any(share for _, share in few) and not _are_there(trained, [table.weight for table, _ in few]):
        return None
    first = few[0][0] if few else None
    numbers = sum(one.weight.numel() for one, _ in few)
    return DenseEmbeddings(
        time_s=time.time(),
        part=first.name[:LONGEST] if first else "",
        kind=first.kind if first else "",
        also=tuple(table.name[:LONGEST] for table, _ in few[1:]),
        tables=len(few),
        rows=sum(one.weight.shape[0] for one, _ in few),
        numbers=numbers,
        used_share=sum(share * one.weight.numel() for one, share in few) / numbers if few else 0.0,
        trained_numbers=sum(p.numel() for p in trained),
    )


def _tables_of(name: str, model: Any, nn: Any) -> Iterator[_Table]:
    """Yield the tables that could have sparse gradients and have none, by torch's own methods."""
    for path, module in nn.Module.named_modules(model):
        if not issubclass(type(module), (nn.Embedding, nn.EmbeddingBag)):
            continue
        told = vars(module)
        # What torch has no sparse gradient for.
        if told.get("sparse") is not False or told.get("scale_grad_by_freq") or told.get("mode") == "max":
            continue
        weight = dict(nn.Module.named_parameters(module, recurse=False)).get("weight")
        if weight is None or weight.dim() != 2 or weight.shape[0] < LEAST_ROWS or not weight.requires_grad:
            continue
        yield _Table(_named(name, path), type(module).__name__, weight)


def _named(name: str, path: str) -> str:
    for child in path.split(".") if path else ():
        name = name_inside(name, child)
    return name


def _used_share(weight: Any, rows: int = SAMPLE) -> float | None:
    """Return which share (0 to 1) of a table's rows has a gradient, by a sample; None where that cannot be read."""
    try:
        numbers = None if weight.grad is None else numbers_of(weight.grad)
        if numbers is None or numbers.shape != tuple(weight.shape):
            return None
        number, width = numbers.shape
        places = (0, width // 2, width - 1) if rows == SAMPLE else (width // 2,)
        used = sum(numbers[:: -(-number // rows), place] != 0 for place in places) > 0
        return float(used.mean())
    except ODD:
        return None


def _are_there(trained: Iterable[Any], tables: Sequence[Any]) -> bool:
    """Whether gradients in whose sample all is zero are of this step: one that was cleared in place looks the same.

    Args:
        trained: All parameters with gradients: those of others were cleared as well, then.
        tables: Weights whose gradients these are; where all parameters are tables, more of their rows are looked at.
    """
    own = set(map(id, tables))
    for parameter in islice((p for p in trained if id(p) not in own), OTHERS):
        try:
            numbers = numbers_of(parameter.grad)
        except ODD:
            continue
        if numbers is not None and numbers.flat[:OTHERS].any():
            return True
    return any(_used_share(weight, LARGER_SAMPLE) for weight in tables)
