"""Everything that steps change in the objects of a training, kept and put back in place, bit for bit.

Nothing is replaced: tensors keep their storage, dicts and lists their identity, so that whoever holds a reference sees
the old values again. That is more than ``state_dict`` keeps: gradients, modes, counters in attributes, the device.
"""

from __future__ import annotations

import copy
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

from .tensors import keep_tensor

GENERATOR_DEPTH = 4
"""How deep a dataset is searched for random generators: dataset, wrapped dataset, transforms, one transform."""

GENERATOR_MEMBERS = 200
"""Longer containers of a dataset hold its items, no generators."""

_CONTAINERS = (dict, list, set, deque, tuple)


def is_stateful(thing: object) -> bool:
    """Whether something is kept by `Snapshot` with all its attributes: modules, optimizers, schedulers, scalers."""
    kind = type(thing)
    return all(callable(getattr(kind, name, None)) for name in ("state_dict", "load_state_dict"))


class Snapshot:
    """The state of some objects at the time of its making. `restore` may be called more than once.

    Follows dicts, lists, tuples, sets, tensors, random generators and whatever has a ``state_dict``. Attributes of
    other objects are followed only where they are a root.

    Args:
        roots: What is kept, with all its attributes.

    Raises:
        SettingError: A tensor is not initialised, or of a kind that cannot be kept.
    """

    def __init__(self, *roots: object) -> None:
        self._seen: dict[int, object] = {}
        self._undo: list[Callable[[], None]] = []
        self._waiting: list[object] = []
        for root in roots:
            itself = _is_value(root) or not hasattr(root, "__dict__")
            self._waiting.append(root if itself else vars(root))
        while self._waiting:
            self._keep(self._waiting.pop())

    def restore(self) -> None:
        """Put everything back. What fails is raised once all the rest was put back."""
        import torch

        with torch.no_grad():
            all_of(self._undo)

    def _keep(self, thing: Any) -> None:
        if thing is None or isinstance(thing, (str, bytes, int, float, complex)) or id(thing) in self._seen:
            return
        self._seen[id(thing)] = thing
        from torch import Tensor

        if isinstance(thing, Tensor):
            self._keep_tensor(thing)
        elif isinstance(thing, _CONTAINERS):
            self._keep_container(thing)
        elif restore := _generator(thing):
            self._undo.append(restore)
        elif is_stateful(thing) and hasattr(thing, "__dict__"):
            self._waiting.append(vars(thing))

    def _keep_container(self, thing: Any) -> None:
        if isinstance(thing, dict):
            before: Any = dict(thing)
            self._waiting += [*before.keys(), *before.values()]
            self._undo.append(lambda: None if _same(thing, before) else _refill(thing, thing.update, before))
            return
        before = tuple(thing)
        self._waiting += before
        if isinstance(thing, (list, deque)):
            self._undo.append(lambda: None if _alike(thing, before) else _refill(thing, thing.extend, before))
        elif isinstance(thing, set):
            self._undo.append(lambda: None if thing == set(before) else _refill(thing, thing.update, before))

    def _keep_tensor(self, tensor: Any) -> None:
        parts, put_back = keep_tensor(tensor)
        leaf = tensor.is_leaf
        grad, requires_grad = (tensor.grad if leaf else None), tensor.requires_grad

        def undo() -> None:
            put_back()
            if leaf and (tensor.requires_grad != requires_grad or tensor.grad is not grad):
                tensor.requires_grad_(requires_grad)
                tensor.grad = grad

        self._undo.append(undo)
        self._waiting += [*parts, grad]


def random_state() -> Callable[[], None]:
    """Keep the state of all global random generators, and return a function that puts it back.

    Python's, numpy's where it is loaded, torch's on the CPU and on its devices. A CUDA device is woken for it:
    only then does it have a state that can be kept.
    """
    import torch

    kept: list[tuple[Callable[[Any], Any], Any]] = [
        (random.setstate, random.getstate()),
        (torch.set_rng_state, torch.get_rng_state()),
    ]
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        kept.append((numpy.random.set_state, numpy.random.get_state()))
    if torch.cuda.is_available():
        kept.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    if torch.backends.mps.is_available():
        kept.append((torch.mps.set_rng_state, torch.mps.get_rng_state()))

    return lambda: all_of(partial(put_back, state) for put_back, state in kept)


def all_of(calls: Iterable[Callable[[], object]]) -> None:
    """Call one after the other, also where one fails.

    Raises:
        BaseException: What the last one raised that failed.
    """
    with ExitStack() as stack:
        for call in reversed(list(calls)):
            stack.callback(call)


def generators_in(thing: object, depth: int = GENERATOR_DEPTH) -> list[object]:
    """Return the random generators that a dataset holds in its attributes, those of what it wraps included."""
    if _generator(thing) is not None:
        return [thing]
    if depth == 0 or thing is None or isinstance(thing, (str, bytes, int, float, type)):
        return []
    members: Iterable[object] = ()
    if isinstance(thing, (list, tuple, dict)):
        members = (thing.values() if isinstance(thing, dict) else thing) if len(thing) <= GENERATOR_MEMBERS else ()
    elif not callable(getattr(thing, "data_ptr", None)):
        members = list(getattr(thing, "__dict__", {}).values())
    return [found for member in members for found in generators_in(member, depth - 1)]


def _is_value(thing: object) -> bool:
    from torch import Tensor

    return isinstance(thing, (Tensor, *_CONTAINERS)) or _generator(thing) is not None


def _generator(thing: Any) -> Callable[[], None] | None:
    """Keep a random generator's state; return what puts it back, None for anything else."""
    if isinstance(thing, type):
        return None
    if isinstance(thing, random.Random):
        state: Any = thing.getstate()
        return lambda: thing.setstate(state)
    root = type(thing).__module__.partition(".")[0]
    if root == "numpy" and hasattr(thing, "bit_generator"):
        bits = thing.bit_generator
        state = copy.deepcopy(bits.state)
        return lambda: setattr(bits, "state", copy.deepcopy(state))
    if root in ("numpy", "torch") and type(thing).__name__ in ("RandomState", "Generator"):
        state = thing.get_state()
        return lambda: thing.set_state(state)
    return None


def _same(thing: dict[Any, Any], before: dict[Any, Any]) -> bool:
    return len(thing) == len(before) and all(
        key is old and value is was for (key, value), (old, was) in zip(thing.items(), before.items(), strict=True)
    )


def _alike(thing: Iterable[object], before: tuple[object, ...]) -> bool:
    now = tuple(thing)
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))


def _refill(thing: Any, fill: Callable[[Any], Any], before: object) -> None:
    thing.clear()
    fill(before)
