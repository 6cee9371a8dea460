"""Which data a rank's loaders go through, so that it can be held against the other ranks'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..records import EvaluationBatches, LoaderInfo

KINDS = frozenset({"DataLoader", "StatefulDataLoader"})
"""Loaders that give each rank what its own sampler draws."""

SKIPS = 1.5
"""Batches of a step from which on a loop may keep those of its rank alone, and skip the others; our choice."""


@dataclass(frozen=True, slots=True)
class DataRead:
    """What a loader goes through, drawn by a sampler of torch's that knows no rank."""

    items: int
    drawn: int
    """Items in a pass."""
    batch_size: int
    sampler: str
    """Its class."""
    digest: str
    """Of what the dataset is made of; the same for the same data, empty where that is not known."""
    order: str
    """Of what the order is drawn from; empty where it is not known."""

    @property
    def share(self) -> float:
        """Part (0 to 1) of the items that a pass draws."""
        return self.drawn / self.items if self.items else 0.0


def read_in_training(loader: object) -> DataRead | None:
    """Return which data the training's loader goes through; None where it may be a part of this rank's own.

    Args:
        loader: What is known of it.
    """
    if not isinstance(loader, LoaderInfo) or loader.kind not in KINDS or (loader.batches_per_step or 1.0) >= SKIPS:
        return None
    return _read(
        loader.items, loader.items_drawn, loader.batch_size, loader.sampler, loader.data_digest, loader.order_digest
    )


def read_in_evaluation(evaluated: object) -> DataRead | None:
    """Return the same of evaluations.

    Args:
        evaluated: The newest that is known of them.
    """
    if not isinstance(evaluated, EvaluationBatches):
        return None
    one = evaluated
    return _read(one.items, one.items_drawn, one.batch_size, one.sampler, one.data_digest, "")


def are_whole(read: Sequence[DataRead | None], *, least: float) -> bool:
    """Whether ranks go through the same data, all of it.

    Args:
        read: By each rank.
        least: Part of the items that counts as all.
    """
    known = [one for one in read if one is not None and one.digest and one.share >= least]
    return len(known) == len(read) > 1 and len({(one.items, one.drawn, one.sampler, one.digest) for one in known}) == 1


def _read(
    items: int | None, drawn: int | None, batch_size: int | None, sampler: str, digest: str, order: str
) -> DataRead | None:
    return DataRead(items, drawn, batch_size, sampler, digest, order) if items and drawn and batch_size else None
