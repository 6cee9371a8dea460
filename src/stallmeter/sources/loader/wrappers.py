"""What lies inside a wrapper: the DataLoaders that it iterates, and their iterators while it does.

Objects are looked at and nothing of theirs is called: no property, no ``__getattr__``, no ``len``. Both walks are
bounded and keep away from datasets, samplers, models and tensors.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

MOST_OBJECTS = 256
MOST_ITERATED = 512
MOST_MEMBERS = 32
MOST_DEPTH = 6

OF_THE_LOADER = frozenset(
    {
        "_iterator",
        "batch_sampler",
        "collate_fn",
        "dataset",
        "generator",
        "gradient_state",
        "multiprocessing_context",
        "sampler",
        "synchronized_generator",
        "worker_init_fn",
    }
)
"""What a DataLoader, or what passes for one, keeps in these leads to no other loader of the same loop. Accelerate's
``gradient_state`` is one for the whole process and remembers other loops' loaders."""

IN_THIS_THREAD = frozenset(
    {"accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "torchdata", "webdataset"}
)
"""Packages whose wrappers iterate the loader in the thread that iterates them."""

_LEAVES = (str, bytes, bytearray, int, float, complex, type, ModuleType, FunctionType, BuiltinFunctionType, CodeType)
_FOREIGN = frozenset({"numpy", "pandas", "PIL", "pyarrow", "threading", "multiprocessing", "logging", "_thread"})


def loaders_in(loader: object) -> list[Any]:
    """Return the DataLoaders in something that a loop iterates, itself the first if it is one.

    What merely passes its attributes on to an inner one is none itself.
    """
    kind, data, model, tensor = _torch()
    if kind is None:
        return []
    found: list[Any] = []
    held_until_done: list[object] = []  # an id is only good while its object lives
    queue, seen = deque([(loader, 0)]), set[int]()
    while queue and len(seen) < MOST_OBJECTS:
        part, depth = queue.popleft()
        if id(part) in seen or issubclass(type(part), _LEAVES):
            continue
        seen.add(id(part))
        held_until_done.append(part)
        is_loader = issubclass(type(part), kind)
        if is_loader and "worker_init_fn" in attributes(part):
            found.append(part)
        stops = issubclass(type(part), (model, tensor)) or (
            depth > 0 and issubclass(type(part), data) and not is_pipeline(part)
        )
        if depth < MOST_DEPTH and not stops:
            queue.extend((member, depth + 1) for member in _members(part, is_loader=is_loader))
    return found


def iterates_here(loader: object) -> bool:
    """Whether a wrapper is known to ask its loaders in the thread that asks it."""
    return any(kind.__module__.partition(".")[0] in IN_THIS_THREAD for kind in type(loader).__mro__)


def iterators_in(iterator: object) -> list[Any]:
    """Return the iterators of DataLoaders that an iterator holds, be it a generator in the midst of its work.

    The garbage collector is asked what each object refers to: that runs no code of theirs, and sees the variables of
    generators and what ``zip`` and ``map`` hold.
    """
    kind, data, model, tensor = _torch()
    if kind is None:
        return []
    stops = (*_LEAVES, kind, data, model, tensor)
    found: list[Any] = []
    queue, seen = deque([iterator]), {id(iterator): iterator}
    while queue and len(seen) < MOST_ITERATED:
        part = queue.popleft()
        if is_loader_iterator(part):
            found.append(part)
            continue
        for member in gc.get_referents(part):
            if id(member) in seen or issubclass(type(member), stops) or _is_namespace(member):
                continue
            seen[id(member)] = member
            queue.append(member)
    return found


def is_loader_iterator(iterator: object) -> bool:
    """Whether something is the iterator of a DataLoader, torch's own or torchdata's."""
    held = attributes(iterator)
    return "_num_yielded" in held and ("_task_info" in held or "_dataset_fetcher" in held)


def is_pipeline(part: object) -> bool:
    """Whether something is a pipeline of webdataset, which is a dataset even where a loader is its first stage."""
    return any(kind.__module__.partition(".")[0] == "webdataset" for kind in type(part).__mro__)


def _torch() -> tuple[Any, Any, Any, Any]:
    if "torch.utils.data" not in sys.modules:  # importing it takes seconds
        return None, None, None, None
    import torch
    from torch.utils.data import DataLoader, Dataset

    return DataLoader, Dataset, torch.nn.Module, torch.Tensor


def attributes(part: object) -> dict[str, Any]:
    """Return what an object holds by name, without asking the object."""
    try:
        held = object.__getattribute__(part, "__dict__")
    except AttributeError:
        return {}
    return held if type(held) is dict else {}


def _members(part: object, *, is_loader: bool) -> Iterator[object]:
    if type(part) is dict:
        yield from list(part.values())[:MOST_MEMBERS]
    elif type(part) is list or type(part) is tuple:
        yield from part[:MOST_MEMBERS]
    elif type(part) is GeneratorType:
        yield from _first(part.gi_frame.f_locals.values() if part.gi_frame is not None else ())
    elif type(part) is MethodType:
        yield part.__self__
    elif is_loader or type(part).__module__.partition(".")[0] not in (*_FOREIGN, "torch"):
        yield from _first(value for name, value in attributes(part).items() if name not in OF_THE_LOADER)
        yield from _slots(part)


def slots_of(part: object) -> list[MemberDescriptorType]:
    """Return the slots of an object's classes, which need not be set."""
    return [one for kind in type(part).__mro__ for one in vars(kind).values() if type(one) is MemberDescriptorType]


def _slots(part: object) -> Iterator[object]:
    if type(part).__module__ == "builtins":
        return
    for slot in slots_of(part)[:MOST_MEMBERS]:
        with suppress(AttributeError):  # never set
            yield slot.__get__(part)


def _first(values: Iterable[object]) -> list[object]:
    return list(values)[: 4 * MOST_MEMBERS]


def _is_namespace(part: object) -> bool:
    return type(part) is dict and "__builtins__" in part
