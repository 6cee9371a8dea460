"""What the loop gets in place of its loader's iterator: the same batches, the same attributes, and somebody listens."""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ..timing.batches import batch_size, given_size, makes_items
from ..timing.tracebacks import let_out

if TYPE_CHECKING:
    from .loop import Loop

now = time.perf_counter_ns

MOST_BATCHES = 4096
"""So many batches are remembered while it is not known what they are for."""

ENOUGH_GRADIENTS = 3
"""After so many batches with gradients and no step of an optimizer none is waited for."""


_set_type = object.__dict__["__class__"].__set__


class Fetch(NamedTuple):
    """A batch that was asked for before it was known whether it is one of the training's."""

    asked: int
    got: int
    samples: int | None
    grad: bool
    """Whether gradients were being recorded."""


class Iteration:
    """One iteration of a loader that was not asked to be watched. What it does with a batch is its class.

    No object of ours refers back to it: when the loop lets go of it, it is gone at once, and says so.

    Args:
        loop: Of the process.
        loader: What is iterated.
        iterator: The loader's own.
        began: When the loader was asked for it, ns.
        made: When it was there.
        grad: Whether gradients were being recorded then.
    """

    __slots__ = (
        "__weakref__",
        "began",
        "exhausted",
        "fetches",
        "grad",
        "gradients",
        "iterator",
        "loader",
        "loop",
        "made",
        "thread",
        "timed",
        "updates",
    )

    def __init__(self, loop: Loop, loader: Any, iterator: Iterator[Any], began: int, made: int, grad: bool) -> None:
        self.loop = loop
        self.loader = loader
        self.iterator = iterator
        self.began = began
        self.made = made
        self.grad = grad
        self.thread = get_ident()
        self.timed: Any = iterator
        """What times it; the loader's own iterator where nobody does."""
        self.fetches: list[Fetch] = []
        self.updates = loop.updates
        """Of all optimizers when it was begun."""
        self.gradients = 0
        """Batches after which gradients were computed."""
        self.exhausted = False

    @property
    def __class__(self) -> type:
        """What ``isinstance`` asks for: that of the loader's own iterator. What this does is its type."""
        return self.iterator.__class__

    @__class__.setter
    def __class__(self, kind: type[Iteration]) -> None:
        _set_type(self, kind)

    def __iter__(self) -> Iteration:
        return self

    def __next__(self) -> Any:
        try:
            return next(self.timed)
        except BaseException as exc:
            let_out(exc)
            raise

    def __len__(self) -> int:
        try:
            return len(self.iterator)  # type: ignore[arg-type]
        except BaseException as exc:
            let_out(exc)
            raise

    def __bool__(self) -> bool:
        return bool(self.iterator)  # not every iterator has a length, and Python asks for that first

    def __getattr__(self, name: str) -> Any:
        if name in Iteration.__slots__:
            raise AttributeError(name)
        try:
            return getattr(self.iterator, name)
        except BaseException as exc:
            let_out(exc)
            raise

    def __setattr__(self, name: str, value: object) -> None:
        # The program's own, and torch's, belong to the iterator; `__class__` has a setter.
        if name in _OURS:
            object.__setattr__(self, name, value)
        else:
            setattr(self.iterator, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.iterator, name)

    def __reduce__(self) -> NoReturn:
        raise NotImplementedError("the iterator of a DataLoader cannot be pickled")

    def __del__(self, _ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _ends():  # then even the names of modules are gone
            self.loop.left(self)


_OURS = frozenset(("__class__", *Iteration.__slots__))


class Timed(Iteration):
    """Training or validation, and known to be that."""

    __slots__ = ()


class Asking(Timed):
    """Training, while it is not known what another iteration is for that has begun in the midst of it."""

    __slots__ = ()

    def __next__(self) -> Any:
        self.__class__ = Timed
        self.loop.before_batch(self)
        try:
            return next(self.timed)
        except BaseException as exc:
            let_out(exc)
            raise


class Validating(Iteration):
    """Validation that has not begun: there may be a long time between the making of an iterator and its use."""

    __slots__ = ()

    def __next__(self) -> Any:
        self.loop.begin_validation(self)
        try:
            return next(self.timed)
        except BaseException as exc:
            let_out(exc)
            raise


class Undecided(Iteration):
    """Nobody knows yet what it is for: remembers when it was asked, so that the first step counts in hindsight.

    It may be kept for the whole training and be asked now and then, as loaders are whose workers never end.
    """

    __slots__ = ()

    def __next__(self) -> Any:
        loop, before = self.loop, self.loop.fetching
        grad = records_gradients()
        if self.grad and not grad and loop.monitor is not None:
            loop.begin_validation(self)
            try:
                return next(self.timed)
            except BaseException as exc:
                let_out(exc)
                raise
        self.thread = loop.fetching = get_ident()
        asked = now()
        try:
            batch = next(self.iterator)
        except BaseException as exc:
            loop.fetching = before
            if isinstance(exc, StopIteration):
                self.exhausted = True
                loop.left(self)
            let_out(exc)
            raise
        finally:
            loop.fetching = before
        if len(self.fetches) < MOST_BATCHES:
            got = now()
            size = 1 if makes_items(self.loader) else batch_size(batch, given_size(self.loader))
            self.fetches.append(Fetch(asked, got, size, grad))
        return batch


def records_gradients() -> bool:
    """Whether the calling thread records gradients: not under ``no_grad`` or ``inference_mode``."""
    return bool(sys.modules["torch"].is_grad_enabled())


def alive(known: list[weakref.ref[Iteration]]) -> list[Iteration]:
    """Return which iterations somebody still has, and forget the others."""
    found = [iteration for iteration in (reference() for reference in known) if iteration is not None]
    if len(found) < len(known):
        known[:] = [weakref.ref(iteration) for iteration in found]
    return found


def asked_here(asked: Sequence[Iteration]) -> list[Iteration]:
    """Return which of the iterations that were asked for batches the calling thread's update is for.

    A batch that somebody took before the newest of them was begun is another matter, and is forgotten.
    """
    here = [one for one in asked if one.thread == get_ident() and (one.fetches[-1].grad or not one.grad)]
    newest = max((one.began for one in here), default=0)
    found = [one for one in here if one.fetches[-1].asked >= newest]
    for one in here:
        if one not in found:
            one.fetches.clear()
    return found


def begun_beside(training: Iteration, others: Sequence[Iteration]) -> list[Iteration]:
    """Return which others were asked for batches on the calling thread since a training began, of other loaders."""
    return [
        one
        for one in others
        if one.fetches
        and one.thread == get_ident()
        and one.fetches[0].asked >= training.began
        and one.loader is not training.loader
    ]


def has_enough_gradients(iteration: Iteration) -> bool:
    """Note that gradients were computed on this thread; returns whether that makes an iteration a training."""
    # A function, for an iteration has the attributes of what it stands for.
    if iteration.thread != get_ident() or iteration.gradients >= len(iteration.fetches):
        return False
    iteration.gradients += 1
    return iteration.gradients >= ENOUGH_GRADIENTS


def in_this_process(loop: Loop) -> bool:
    """Whether a loop is that of this process, and not of the one that it was forked from."""
    return loop.pid == os.getpid()
