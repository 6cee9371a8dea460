"""What torch's ``DataLoader`` says about itself, and how its workers are ended.

Torch is never imported here for a program that has not imported it: nothing in that can be one of its loaders.
"""

from __future__ import annotations

import sys
import time
from multiprocessing import get_all_start_methods
from typing import Any

from ...records import LoaderInfo
from .data import data_of
from .identity import shards_of, splits_itself, why_counted_by_worker
from .places import collate_of

DEFAULT_PREFETCH = 2
"""What torch takes when workers are asked for and nothing is said."""

CANNOT_SET = (AttributeError, TypeError, ValueError)
"""What setting an attribute of somebody's loader can raise."""


def is_dataloader(loader: object) -> bool:
    """Whether something is a ``torch.utils.data.DataLoader``."""
    if "torch.utils.data" not in sys.modules:  # importing it takes seconds
        return False
    from torch.utils.data import DataLoader

    return isinstance(loader, DataLoader)


def is_iterable(loader: Any) -> bool:
    """Whether the dataset of a DataLoader, or of one of its iterators, is an iterable one."""
    return bool(loader._dataset_kind != 0)


def keeps_state(loader: object) -> bool:
    """Whether a loader can save where it stands, as torchdata's ``StatefulDataLoader`` does."""
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def why_no_other_workers(loader: Any) -> str | None:
    """Return why no loader of this kind can have another number of workers and give the same samples; None if it can.

    Args:
        loader: What the loop iterates.
    """
    if not is_dataloader(loader):
        return f"{type(loader).__name__} is no torch.utils.data.DataLoader"
    if not is_iterable(loader):
        return None
    if not splits_itself(loader):
        return "its dataset is iterable: another number of workers may repeat or drop samples"
    return why_counted_by_worker(loader)


def describe(loader: Any) -> LoaderInfo:
    """Return a DataLoader's settings."""
    workers = int(loader.num_workers)
    batch_size = loader.batch_size
    if batch_size is None:
        batch_size = getattr(loader.batch_sampler, "batch_size", None)
    iterable = is_iterable(loader)
    snapshot = getattr(loader, "snapshot_every_n_steps", None)  # torchdata's
    return LoaderInfo(
        time_s=time.time(),
        kind=type(loader).__name__,
        num_workers=workers,
        batch_size=batch_size if isinstance(batch_size, int) else None,
        prefetch_factor=loader.prefetch_factor,
        pin_memory=bool(loader.pin_memory),
        persistent_workers=bool(loader.persistent_workers),
        start_method=start_method(loader) if workers else None,
        iterable=iterable,
        stateful=keeps_state(loader),
        snapshot_every_batches=snapshot if isinstance(snapshot, int) and workers else None,
        in_order=getattr(loader, "in_order", None),
        shards_itself=splits_itself(loader) if iterable else None,
        shards=shards_of(loader) if iterable else None,
        torch_threads=torch_threads(),
        **collate_of(loader),
        **data_of(loader),
    )


def describe_other(kind: str, why_not: str, number: int = 0) -> LoaderInfo:
    """Return what is known of what is no DataLoader, or of no loader at all.

    Args:
        kind: Its class.
        why_not: Why its workers are not probed.
        number: Of the loader among the training's.
    """
    return LoaderInfo(time_s=time.time(), kind=kind, why_not=why_not, loader=number, torch_threads=torch_threads())


def torch_threads() -> int | None:
    """Return how many threads torch's operations use in this process; None where torch is not imported.

    For the training thread: torch keeps a number for each.
    """
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def start_method(loader: Any) -> str:
    """Return how the workers of a DataLoader start: ``fork``, ``spawn`` or ``forkserver``."""
    from torch import multiprocessing

    # Asked without allow_none, multiprocessing would settle on its default and refuse to have it set later.
    chosen = (loader.multiprocessing_context or multiprocessing).get_start_method(allow_none=True)
    return str(chosen or get_all_start_methods()[0])


def stop_workers(loader: object) -> None:
    """End the workers that a DataLoader keeps between epochs, if it has any."""
    iterator: Any = getattr(loader, "_iterator", None) if is_dataloader(loader) else None
    if iterator is not None:
        loader._iterator = None  # type: ignore[attr-defined]
        iterator._shutdown_workers()
