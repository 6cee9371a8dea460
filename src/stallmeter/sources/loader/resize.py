"""Another number of workers for a live ``DataLoader``, and the reasons why it may not have one.

``num_workers`` and ``prefetch_factor`` are read when the loader makes an iterator, so setting them between two
iterations is all it takes. Dataset, sampler, batch sampler, generator, ``worker_init_fn``, ``pin_memory`` and
``persistent_workers`` are not touched: a map-style loader hands out the same samples in the same order. What a dataset
draws at random in its workers does change, because torch seeds each worker by its number.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

from ...errors import SettingError
from .dataloader import CANNOT_SET, DEFAULT_PREFETCH, keeps_state, start_method, stop_workers, why_no_other_workers
from .spawn_check import why_no_new_process, why_no_worker


def why_fixed(loader: Any, workers: int) -> str | None:
    """Return why a loader must keep its number of workers, None when it may have ``workers`` of them.

    Args:
        loader: What the loop iterates.
        workers: 0 or more.
    """
    reason = why_no_other_workers(loader)
    if reason is not None:
        return reason
    if keeps_state(loader):
        return f"{type(loader).__name__} saves a state that is only valid for its number of workers"
    now = int(loader.num_workers)
    if workers == 0 and now:
        return _why_not_none(loader)
    if workers and not now:
        return _why_not_first(loader)
    return None


def _why_not_none(loader: Any) -> str | None:
    if loader.timeout:
        return "it has a timeout, which torch allows with workers only"
    if loader.persistent_workers:
        return "it has persistent_workers, which torch allows with workers only"
    if loader.multiprocessing_context is not None:
        return "it has a multiprocessing_context, which torch allows with workers only"
    return None


def _why_not_first(loader: Any) -> str | None:
    if multiprocessing.current_process().daemon:
        return "this process is a daemon and may not start workers"
    method = start_method(loader)
    if method != "fork":
        return why_no_new_process(method)
    held = vars(loader.dataset).values() if hasattr(loader.dataset, "__dict__") else ()
    if any(getattr(value, "is_cuda", False) is True for value in held):
        return "its dataset holds CUDA tensors, which forked workers cannot use"
    return None


def resize(loader: Any, workers: int, *, prefetch_factor: int | None = None) -> None:
    """Give a loader another number of workers, from its next iteration on.

    Call it between two iterations and never in the middle of one: persistent workers are shut down. Where workers
    are not forked, the first ones are tried in one process before, which takes seconds.

    Args:
        loader: A ``torch.utils.data.DataLoader``.
        workers: 0 or more.
        prefetch_factor: Batches that each worker prepares ahead; by default as it was, 2 where it had none.

    Raises:
        SettingError: The number makes no sense or the loader must keep the one it has; it is then left as it was.
    """
    for name, value, least in (("workers", workers, 0), ("prefetch_factor", prefetch_factor, 1)):
        wrong = isinstance(value, bool) or not isinstance(value, int) or value < least
        if wrong and not (value is None and name == "prefetch_factor"):
            raise SettingError(f"{name} is {value!r}; give a whole number from {least} up")
    reason = why_fixed(loader, workers)
    if reason is None and workers and not loader.num_workers and start_method(loader) != "fork":
        reason = why_no_worker(loader, start_method(loader))
    if reason is not None:
        raise SettingError(f"num_workers of this loader is left at {getattr(loader, 'num_workers', None)}: {reason}")
    before = (loader.num_workers, loader.prefetch_factor)
    ahead = (prefetch_factor or loader.prefetch_factor or DEFAULT_PREFETCH) if workers else None
    if (workers, ahead) == before:
        return
    try:
        # torch forbids setting dataset, samplers and the like of a loader that is made, but not these two.
        loader.num_workers, loader.prefetch_factor = workers, ahead
    except CANNOT_SET as exc:
        _put_back(loader, before)
        raise SettingError(f"num_workers of this loader is left at {before[0]}: it cannot be set ({exc})") from exc
    stop_workers(loader)


def _put_back(loader: Any, before: tuple[int, int | None]) -> None:
    for name, value in zip(("num_workers", "prefetch_factor"), before, strict=True):
        if getattr(loader, name) != value:
            setattr(loader, name, value)
