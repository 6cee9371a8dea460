"""Settings of a live ``DataLoader``, and of torch, that are changed between two epochs besides the number of workers.

Each is read when the loader makes an iterator. Batches hold the same samples in the same order with any of them; that
is also made sure of for workers that are kept, see `KeptSeeds`. What a dataset draws at random in its workers changes
where workers are kept, as it does with another number of them: torch seeds workers when they start.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Collection, Iterable
from itertools import chain
from types import FunctionType, MethodType
from typing import Any
from weakref import ref
from zlib import crc32

from ...errors import SettingError
from .dataloader import CANNOT_SET, is_dataloader, stop_workers, torch_threads
from .spawn_check import why_no_new_process

SIMPLE = (bool, int, float, str, bytes, type(None))
"""Values that are compared from epoch to epoch."""

DEEP = 3
"""Objects inside objects that are looked into: a subset of a subset of a dataset, and its transform."""

MANY, MOST = 200, 2000
"""Attributes of one object, and of all, that are looked at."""

CONTENT_BYTES, BYTES_A_MEMBER = 64 << 20, 64
"""So much of containers and arrays is compared, between two epochs, in some 50 ms; a member of a container takes as
long as so many bytes of an array. What holds more is not known to stay the same."""


class LoaderSettings:
    """Sets one loader's settings; on the training thread, between two epochs."""

    def __init__(self) -> None:
        self._seen: dict[str, object] | None = None
        self._changes = ""
        """Which attribute of the dataset has changed between two epochs, or may have."""
        self._kept: KeptSeeds | None = None
        self._context: object = None

    def boundary(self, loader: Any) -> str | None:
        """Look at the loader between two epochs; returns why its workers must not be kept any more, None if they may.

        Args:
            loader: The training's.
        """
        now = state_of(loader)
        before, self._seen = self._seen, now
        if before is not None and before != now and not self._changes:
            name = next(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
            what = "holds too much to be compared" if isinstance(now.get(name), _Unknown) else "changes"
            self._changes = f"{name} {what}"
        if self._kept is not None:
            self._kept.renew(loader)
            return self._why_not_kept(loader)
        return None

    def why_not(self, loader: Any, setting: str, value: object) -> str | None:
        """Return why a loader must not have a setting changed; None if it may.

        Args:
            loader: The training's.
            setting: One of `stallmeter.workers.settings`.
            value: What it would be.
        """
        if setting == "torch.set_num_threads":
            torch = sys.modules["torch"]
            if torch.are_deterministic_algorithms_enabled():
                return "the program is deterministic, and sums over fewer threads may differ in their last bit"
            return None
        if not is_dataloader(loader):
            return f"{type(loader).__name__} is no torch.utils.data.DataLoader"
        if setting == "pin_memory":
            return None if _has_device() else "there is no device"
        if not loader.num_workers:
            return "it has no workers"
        if setting == "persistent_workers" and value:
            return self._why_not_kept(loader)
        if setting == "multiprocessing_context":
            if value not in multiprocessing.get_all_start_methods():
                return f"workers cannot be started by {value} here"
            return why_no_new_process(str(value))
        return None

    def set(self, loader: Any, setting: str, value: Any) -> None:
        """Change a setting, from the loader's next iteration on.

        Raises:
            SettingError: It must stay as it is.
        """
        reason = self.why_not(loader, setting, value)
        if reason is not None:
            raise SettingError(f"{setting} is left as it is: {reason}")
        if setting == "torch.set_num_threads":
            sys.modules["torch"].set_num_threads(value)
            return
        try:
            self._set(loader, setting, value)
        except CANNOT_SET as exc:
            raise SettingError(f"{setting} of this loader cannot be set ({exc})") from exc

    def threads(self) -> int | None:
        """Return how many threads torch's operations use in this process; None where torch is not imported."""
        return torch_threads()

    def _set(self, loader: Any, setting: str, value: Any) -> None:
        if setting == "persistent_workers":
            stop_workers(loader)
            # Past the loader's own __setattr__, which refuses it; it is read anew for each iterator.
            vars(loader)[setting] = value
            self._kept = KeptSeeds() if value else None
            return
        if setting == "multiprocessing_context":
            before = loader.multiprocessing_context
            is_old = self._context is not None and value == start_method_of(self._context)
            loader.multiprocessing_context = self._context if is_old else value
            self._context = before
        else:
            setattr(loader, setting, value)
        stop_workers(loader)

    def _why_not_kept(self, loader: Any) -> str | None:
        for part in (loader.dataset, loader.collate_fn):
            if hasattr(part, "set_epoch"):
                return f"{type(part).__name__} is told the epoch, which workers that are kept would not hear of"
        if self._changes:
            return f"the dataset's {self._changes} between epochs, and workers that are kept would not see a change"
        return None


class KeptSeeds:
    """Keeps the order of batches what it would be without kept workers.

    An iterator draws one number for its workers' seeds when it is made, from the generator that the sampler draws its
    order from. One that is kept draws none: the same number is then drawn for nothing.
    """

    def __init__(self) -> None:
        self._of: ref[Any] | None = None

    def renew(self, loader: Any) -> None:
        """See to the loader's iterator, once it has one that is kept."""
        iterator = getattr(loader, "_iterator", None)
        if iterator is None or (self._of is not None and iterator is self._of()):
            return
        self._of = ref(iterator)
        iterator._reset = _drawing(iterator)


def _drawing(iterator: Any) -> Callable[..., None]:
    """Return what an iterator is renewed by from now on.

    It holds the iterator weakly: one that held itself would outlive its loader until garbage is collected, with its
    workers, and where a process forked meanwhile collects it, torch complains of a child that is none of its own.
    """
    kept, reset = ref(iterator), type(iterator)._reset

    def drawn(loader: Any, first_iter: bool = False) -> None:
        torch = sys.modules["torch"]
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        reset(kept(), loader, first_iter)

    return drawn


def start_method_of(context: Any) -> str:
    """Return how a context of multiprocessing starts processes."""
    return str(context.get_start_method())


def state_of(loader: Any) -> dict[str, object]:
    """Return what tells the values that a loader's dataset and collate function hold, by the way to them."""
    found: dict[str, object] = {}
    left = [CONTENT_BYTES]
    for name in ("dataset", "collate_fn"):
        _note(getattr(loader, name, None), name, found, left, DEEP)
    return found


def _note(part: object, path: str, found: dict[str, object], left: list[int], depth: int) -> None:
    if isinstance(part, SIMPLE):
        found[path] = part
    elif isinstance(part, (list, tuple, dict, set, frozenset)):
        found[path] = _members(part, left)
    elif hasattr(part, "__array_interface__"):
        found[path] = _array(part, left)
    elif callable(getattr(part, "data_ptr", None)):
        found[path] = _tensor(part)
    elif (
        depth
        and len(found) < MOST
        and hasattr(part, "__dict__")
        and not isinstance(part, (type, FunctionType, MethodType))
    ):
        for name, value in list(vars(part).items())[:MANY]:
            _note(value, f"{path}.{name}", found, left, depth - 1)


def _members(part: Collection[object], left: list[int]) -> object:
    """Return what tells a container's members: their values where they are plain, else which objects they are.

    What such an object holds itself is not compared.
    """
    left[0] -= BYTES_A_MEMBER * len(part)
    if left[0] < 0:
        return _Unknown()
    members: Iterable[object] = chain.from_iterable(part.items()) if isinstance(part, dict) else part
    return type(part), hash(tuple((type(one), one) if isinstance(one, SIMPLE) else id(one) for one in members))


def _array(part: Any, left: list[int]) -> object:
    """Return what tells an array's values. What a file or memory that is shared holds, workers see themselves."""
    where, size = part.__array_interface__, int(getattr(part, "nbytes", 0))
    if type(part).__name__ == "memmap":
        return where["data"], where["shape"], where["typestr"]
    left[0] -= size
    if left[0] < 0:
        return _Unknown()
    return where["shape"], where["typestr"], crc32(part.tobytes())


def _tensor(part: Any) -> object:
    """Return what tells a tensor's values: where they are, and how often torch has changed them there."""
    try:
        return part.data_ptr(), getattr(part, "_version", None), tuple(part.shape)
    except (NotImplementedError, RuntimeError):  # a sparse one's, say
        return id(part), getattr(part, "_version", None)


class _Unknown:
    """Stands for values that are too many to be compared: it equals none, itself included."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def _has_device() -> bool:
    torch = sys.modules.get("torch")
    accelerator = getattr(torch, "accelerator", None)  # from torch 2.6 on
    if accelerator is not None:
        return bool(accelerator.is_available())
    return bool(torch is not None and torch.cuda.is_available())
