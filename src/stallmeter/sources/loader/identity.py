"""Whether an iterable dataset splits itself among its workers, so that another number of them gives the same samples.

A dataset that splits itself must know how many workers there are and which of them it is in: it reads ``num_workers``
and ``id`` of what ``torch.utils.data.get_worker_info`` returns. Inside a worker that is seen: an object of a subclass
stands in its place and notes what is read of it. ``id`` or ``seed`` alone may be for a seed and tells nothing. Without
workers nothing is read, and the code of the dataset's classes has to say it.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from operator import itemgetter
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from .wrappers import attributes

ASKED_NUMBER, ASKED_ID, ASKED_SEED = 1, 2, 4
"""What was read of a worker's identity, as bits of one word."""

SPLITS = ASKED_NUMBER | ASKED_ID

_BITS = {"num_workers": ASKED_NUMBER, "id": ASKED_ID, "seed": ASKED_SEED}
_ASKING = frozenset({"get_worker_info", "num_workers", "id"})
_ODD = (AttributeError, KeyError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""What somebody's dataset can raise where it is not as expected."""

MOST_PARTS = 64
MOST_MEMBERS = 16
MOST_DEPTH = 4
"""So far a dataset is looked into for others that it wraps."""

_LIBRARIES = frozenset(
    {
        ("datasets", "IterableDataset"),
        ("litdata", "StreamingDataset"),
        ("litdata", "CombinedStreamingDataset"),
        ("litdata", "ParallelStreamingDataset"),
        ("streaming", "StreamingDataset"),
    }
)
"""Packages and classes that split among workers, as their documentation says."""

_seen: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
"""Loaders whose workers ran, and whether their dataset asked which worker it is in."""


# -- inside a worker --------------------------------------------------------------------------------------------------


class Identity:
    """What is read of the worker's identity in this process. `tell` gets the bits, all of them each time."""

    def __init__(self) -> None:
        self.bits = 0
        self.tell: Callable[[int], None] = _ignore

    def note(self, name: str, reader: str) -> None:
        """Somebody in module ``reader`` reads an attribute."""
        bits = self.bits | _BITS.get(name, 0)
        if bits != self.bits and not reader.startswith(("torch.utils.data.", "stallmeter.")):
            self.bits = bits
            self.tell(bits)


def watch_identity() -> Identity | None:
    """Have it noted what is read of this worker's identity from now on; again returns the same.

    Returns:
        None in a process that is no worker.
    """
    module = sys.modules["torch.utils.data._utils.worker"]
    info: Any = module._worker_info
    if info is None:
        return None
    known: Identity | None = getattr(type(info), "stallmeter_identity", None)
    if known is None:
        known = Identity()
        module._worker_info = _noting(info, known)  # type: ignore[attr-defined]
    return known


def _noting(info: Any, identity: Identity) -> Any:
    """Return a twin of torch's object that is one of the same class, says the same, and notes what is read."""
    base: Any = type(info)

    def read(self: Any, name: str) -> Any:
        if name in _BITS:
            identity.note(name, sys._getframe(1).f_globals.get("__name__") or "")
        return object.__getattribute__(self, name)

    # A pickle or copy of it is torch's own again.
    content = {
        "__getattribute__": read,
        "__reduce_ex__": lambda self, protocol: (itemgetter(0), ((info,),)),  # noqa: ARG005
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "stallmeter_identity": identity,
    }
    twin: Any = object.__new__(type(base.__name__, (base,), content))
    names = [name for kind in base.__mro__ for name in vars(kind).get("__slots__", ())]
    for name in (*names, *getattr(info, "__dict__", {})):
        object.__setattr__(twin, name, getattr(info, name))
    return twin


def _ignore(bits: int) -> None:
    del bits


# -- in the training process ------------------------------------------------------------------------------------------


def remember(loader: Any, *, splits: bool) -> None:
    """The loader's workers have run: what they showed holds for the rest of the process."""
    with suppress(TypeError):  # a loader of which there can be no weak reference
        _seen[loader] = splits


def splits_itself(loader: Any) -> bool | None:
    """Return whether the iterable dataset of a DataLoader splits itself among workers; None when that is not known."""
    parts = list(_parts(loader.dataset))
    pipelines = [part for part in parts if _is_pipeline(part)]
    if pipelines:
        # These ask for the identity of their node by the same function, whether they split or not.
        return True if all(map(_pipeline_splits, pipelines)) else None
    if any(_of_library(part) or hasattr(type(part), "apply_sharding") for part in parts):
        return True
    with suppress(TypeError):  # as in `remember`
        seen = _seen.get(loader)
        if seen is not None:
            return seen
    return True if any(map(_code_splits, parts)) else None


def shards_of(loader: Any) -> int | None:
    """Return into how many parts at most the dataset of a DataLoader can be split; None when it does not say."""
    with suppress(*_ODD):
        found = {count for part in _parts(loader.dataset) if (count := _shards(part)) is not None}
        return found.pop() if len(found) == 1 else None
    return None


def why_counted_by_worker(loader: Any) -> str | None:
    """Return why an epoch of a dataset that splits itself still depends on the number of workers; None if it does not.

    Args:
        loader: A DataLoader over it.
    """
    for part in _parts(loader.dataset):
        if _is_pipeline(part) and getattr(part, "nsamples", -1) > 0:
            return "with_epoch() of its dataset counts in each worker: set it on the loader instead"
    return None


def _parts(dataset: object) -> Iterator[Any]:
    """A dataset and what it wraps, near ones first. Attributes alone are read, no property and no code of its own."""
    queue, seen = deque([(dataset, 0)]), set[int]()
    while queue and len(seen) < MOST_PARTS:
        part, depth = queue.popleft()
        if id(part) in seen or issubclass(type(part), (str, bytes, int, float, type, ModuleType, BuiltinFunctionType)):
            continue
        seen.add(id(part))
        if type(part) is list or type(part) is tuple:
            members: Iterable[object] = part[:MOST_MEMBERS]
        elif type(part) is dict:
            members = list(part.values())[:MOST_MEMBERS]
        elif _root(type(part)) in ("torch", "numpy", "builtins", "pandas", "pyarrow") and not _is_data(part):
            continue
        else:
            yield part
            members = list(attributes(part).values())[: 4 * MOST_MEMBERS] if type(part) is not FunctionType else ()
        if depth < MOST_DEPTH:
            queue.extend((member, depth + 1) for member in members)


def _is_data(part: object) -> bool:
    from torch.utils.data import Dataset

    return issubclass(type(part), Dataset)


def _root(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _of_library(part: object) -> bool:
    return any((_root(kind), kind.__name__) in _LIBRARIES for kind in type(part).__mro__)


def _is_pipeline(part: object) -> bool:
    kinds = type(part).__mro__
    return any((_root(kind), kind.__name__) == ("webdataset", "DataPipeline") for kind in kinds)


def _stages(pipeline: Any) -> list[Any]:
    return [stage for stage in getattr(pipeline, "pipeline", ()) if stage is not None]


def _pipeline_splits(pipeline: Any) -> bool:
    """Shards are split among workers, or each worker draws its own from all of them."""
    stages = _stages(pipeline)
    names = {getattr(stage, "__name__", "") for stage in stages}
    kinds = {type(stage).__name__ for stage in stages}
    if "split_by_worker" in names or kinds & {"ResampledShards", "ResampledShardList"}:
        return True
    own = [stage for stage in stages if isinstance(stage, FunctionType) and _root_of(stage) != "webdataset"]
    return any(_names_of(stage) >= _ASKING for stage in own)


def _shards(part: Any) -> int | None:
    if _is_pipeline(part):
        stages = _stages(part)
        urls = [stage.urls for stage in stages if type(stage).__name__ == "SimpleShardList"]
        if len(urls) != 1:
            return None
        nodes = _world_size() if any(getattr(s, "__name__", "") == "split_by_node" for s in stages) else 1
        return -(-len(urls[0]) // nodes)
    if any((_root(kind), kind.__name__) == ("datasets", "IterableDataset") for kind in type(part).__mro__):
        count = part.num_shards if hasattr(part, "num_shards") else part.n_shards
        return count if isinstance(count, int) and count > 0 else None
    return None


def _world_size() -> int:
    distributed: Any = sys.modules.get("torch.distributed")
    ready = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return int(distributed.get_world_size()) if ready else 1


def _code_splits(part: object) -> bool:
    """Whether some function of a dataset's classes, or one that it calls, has the words to split by."""
    if not hasattr(type(part), "__iter__"):
        return isinstance(part, FunctionType) and _names_of(part) >= _ASKING
    own = [kind for kind in type(part).__mro__ if _root(kind) not in ("builtins", "torch", "typing", "abc")]
    functions = [value for kind in own for value in vars(kind).values() if isinstance(value, FunctionType)]
    return any(_names_of(function) >= _ASKING for function in functions)


def _names_of(function: FunctionType) -> set[str]:
    names = set(_names_in(function.__code__))
    scope = function.__globals__
    modules = [scope[name] for name in names if isinstance(scope.get(name), ModuleType)]
    called = [scope.get(name) for name in names]
    called += [vars(module).get(name) for module in modules for name in names]
    for other in called:
        if isinstance(other, FunctionType) and _root_of(other) != "torch":
            names |= _names_in(other.__code__)
    return names


def _root_of(function: FunctionType) -> str:
    return (function.__module__ or "").partition(".")[0]


def _names_in(code: CodeType) -> set[str]:
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return set(code.co_names).union(*map(_names_in, inner))
