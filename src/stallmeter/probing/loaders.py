"""Copies of a loader with other settings. The loader that was given is never touched."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

from ..errors import SettingError
from ..sources.loader.dataloader import DEFAULT_PREFETCH, is_dataloader, is_iterable
from .snapshot import generators_in


class NoBatchError(SettingError):
    """An epoch of a loader has no batch."""


class FreeData:
    """A loader that costs nothing: the same batch again and again."""

    def __init__(self, batch: object) -> None:
        self._batch = batch

    def __iter__(self) -> Iterator[object]:
        return repeat(self._batch)


def check_loader(loader: object, *, batches: bool) -> None:
    """Refuse what is not one loader that can be iterated over more than once.

    Args:
        loader: As it was given.
        batches: Whether a list may be one of batches; Lightning takes it for one of loaders.

    Raises:
        SettingError: It says what to give.
    """
    several = isinstance(loader, (list, tuple)) and not (batches and not any(map(is_dataloader, loader)))
    if several or isinstance(loader, dict):
        raise SettingError(f"the probe takes one training loader, not a {type(loader).__name__}")
    if not hasattr(loader, "__iter__"):
        raise SettingError(f"the probe needs a loader to iterate over, not {type(loader).__name__}")
    if hasattr(loader, "__next__"):
        raise SettingError(
            f"{type(loader).__name__} can be read only once, and the probe reads several times; give the loader itself"
        )


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    """Iterate epoch after epoch.

    Raises:
        NoBatchError: An epoch has no batch.
    """
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise NoBatchError("the loader yields no batch; with drop_last it needs a batch's worth of items")


def workers_of(loader: object) -> int | None:
    """Return a DataLoader's number of workers; None for other iterables."""
    return int(loader.num_workers) if is_dataloader(loader) else None  # type: ignore[attr-defined]


def batch_size_of(loader: object) -> int | None:
    """Return the batch size that a DataLoader was set to; None where it leaves that to others."""
    size = getattr(loader, "batch_size", None)
    return size if isinstance(size, int) else None


def why_batch_size_fixed(loader: Any, batch_size: int) -> str | None:
    """Return why the loader cannot be made again with this batch size; None when it can."""
    if not is_dataloader(loader):
        return f"{type(loader).__name__} is no torch.utils.data.DataLoader"
    if loader.batch_size is None:
        return "the loader has a batch sampler of its own, or its dataset makes the batches"
    items = None if is_iterable(loader) else _length(loader.sampler)
    if items is not None and items < batch_size:
        return f"an epoch has only {items} items"
    return None


def _length(sampler: Any) -> int | None:
    """Return how many items a sampler gives; None where it does not say, which torch does not ask of it."""
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return None


def copy_of(loader: Any, *, workers: int | None = None, batch_size: int | None = None) -> Any:
    """Copy a loader: same dataset, sampler, collate function and hooks, with workers of its own.

    The workers live on between epochs, so that their start-up is paid once and not measured as throughput.

    Args:
        loader: A DataLoader; anything else is returned as it is.
        workers: As many; by default as the loader has.
        batch_size: By default the loader's own.
    """
    if not is_dataloader(loader):
        return loader
    from torch.utils.data import BatchSampler

    count = int(loader.num_workers) if workers is None else workers
    clone = copy.copy(loader)
    # Past __setattr__, which refuses to change what a loader was made with.
    changed = vars(clone)
    changed.update(num_workers=count, _iterator=None, persistent_workers=count > 0)
    changed["prefetch_factor"] = (loader.prefetch_factor or DEFAULT_PREFETCH) if count else None
    if not count:
        changed["timeout"] = 0
    if batch_size is not None:
        sampler = BatchSampler(loader.sampler, batch_size, loader.drop_last)
        changed.update(batch_size=batch_size, batch_sampler=sampler)
    return clone


def touched_by_reading(loader: object) -> list[object]:
    """Return what iterating over a loader changes: its own attributes, its samplers, its dataset's generators."""
    found: list[object] = [loader]
    for name in ("sampler", "batch_sampler"):
        sampler = getattr(loader, name, None)
        found += [sampler, getattr(sampler, "sampler", None)]
    return [*found, *generators_in(getattr(loader, "dataset", None))]
