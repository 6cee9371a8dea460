"""Weights that get gradients and never change: a part of the model that nothing but its optimizer leaves alone.

A few times, between two steps: which models do the functions that are running know by name, which of their parameters
got new gradients since the last look, and has nobody written into them? Torch counts what is written into a tensor
(``Tensor._version``), by whichever optimizer. What goes past that counter (``.data``, kernels of others) is noticed by
some of the values. Nothing is registered with torch, and no tensor is kept alive in between.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter
from types import FrameType, FunctionType, GetSetDescriptorType, ModuleType
from typing import Any

from ..records import DenseEmbeddings, SubnormalTensors, UnusedGradients
from ..timing.clock import Register, StepClock
from ..timing.subnormal import subnormal_in
from ..timing.tables import LONGEST, dense_embeddings, name_inside

FIRST_STEP = 5
"""Steps before it may be warm-up, in which nobody updates anything."""

BETWEEN = 25
"""Steps from one look to the next: two models that are trained in turn take fewer for a turn, as a rule."""

TRIES = 20
"""So often it is looked whether anything was updated: gradients are accumulated over as many steps now and then."""

LAST = 250
"""Steps to the last look, which takes back what has been updated after all."""

MOST_TENSORS = 5_000
"""Of larger models none is looked at: a look takes the training thread some 3 us for each tensor."""

MOST_VALUES = 64
"""Values that are held against those of the last look, of all suspects together."""

MOST_HELD = 64
"""Members of a list, a dict or an object that are looked at: a model that is trained stands among the first."""

DEEPEST = 100
"""Frames that are looked at, the innermost."""

OPTIMIZED = 0x1
"""``inspect.CO_OPTIMIZED``: of code whose names are no dict, a function's."""

ASKS_FOR_NAMES = frozenset({"locals", "vars", "dir", "eval", "exec"})
"""Up to Python 3.12 these return the dict that a look would fill anew: who calls them is left alone."""

OF_A_COPY = 3
"""References to a copy of a frame's variables that nobody else holds, while they are counted."""

NUMBER_LOOKS = (30, 300, 1_000, 3_000, 10_000, 30_000)
"""Steps after which numbers next to zero are looked for. A running mean of Adam's that gets nothing more, as of a row
that is not used, is one after some 830 steps, and stays so."""

TABLE_LOOKS = 4
"""So often embedding tables are looked at where their gradients are gone each time."""


_writes = attrgetter("_version")
"""What torch counts of a tensor: how often something was written into it."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A parameter at a look."""

    parameter: weakref.ref[Any]
    writes: int
    gradient: weakref.ref[Any] | None
    gradient_writes: int
    value: float | complex | None

    @classmethod
    def of(cls, parameter: Any, *, with_value: bool) -> _Seen:
        value = _value(parameter) if with_value else None
        gradient = parameter.grad
        if gradient is None:
            return cls(weakref.ref(parameter), _writes(parameter), None, -1, value)
        return cls(weakref.ref(parameter), _writes(parameter), weakref.ref(gradient), _writes(gradient), value)

    def is_unchanged(self, parameter: Any) -> bool:
        """Whether nobody has written into it since."""
        if _writes(parameter) != self.writes or self.parameter() is not parameter:
            return False
        return self.value is None or _value(parameter) == self.value

    def got_another(self, parameter: Any) -> bool:
        """Whether it got a gradient since: a tensor that is new, or more of it in the one that was there."""
        gradient = parameter.grad
        if gradient is None:
            return False
        if _writes(gradient) != self.gradient_writes:
            return True
        return self.gradient is None or self.gradient() is not gradient


class GradientSource:
    """The source of `UnusedGradients`, and of `DenseEmbeddings` and `SubnormalTensors`, which the same looks find.

    Args:
        register: How to be called between two steps.
        modules: Where torch is looked for; it is never imported.
        number_looks: Steps after which numbers next to zero are looked for.
    """

    name = "unused gradients"

    def __init__(
        self,
        register: Register,
        modules: Mapping[str, Any] | None = None,
        number_looks: Sequence[int] = NUMBER_LOOKS,
    ) -> None:
        self._modules = sys.modules if modules is None else modules
        self._looks = self._look()
        self._due = FIRST_STEP
        self._models: list[tuple[str, Any]] = []
        """What is known by name, and their parameters by identity: while a look goes on, and not in between."""
        self._parameters: dict[int, Any] = {}
        self._found: UnusedGradients | None = None  # set by the training thread, taken by the sampler's
        self._dense: DenseEmbeddings | None = None  # as well
        self._table_looks = TABLE_LOOKS
        self._subnormal: SubnormalTensors | None = None  # as well
        self._number_looks = [*number_looks]
        register(self.name, self.between_steps)

    def sample(self, time_s: float) -> Sequence[UnusedGradients | DenseEmbeddings | SubnormalTensors]:  # noqa: ARG002
        """Return what was found since the last call.

        Args:
            time_s: Unix time of this poll.
        """
        found, self._found = self._found, None
        dense, self._dense = self._dense, None
        subnormal, self._subnormal = self._subnormal, None
        return tuple(one for one in (found, dense, subnormal) if one is not None)

    def close(self) -> None:
        """Nothing is held but weak references."""

    def between_steps(self, clock: StepClock) -> bool:
        """Look, when it is time; for the training thread. Returns whether it wants to be called again."""
        if not clock.open or clock.index < self._due:
            return True
        frame = sys._getframe(1)
        try:
            self._find_models(frame)
            steps = next(self._looks, None)
            self._look_at_tables()
            self._look_at_numbers(frame, clock.index)
        finally:
            self._models, self._parameters = [], {}
        if steps is None and self._table_looks:
            steps = BETWEEN
        if steps is None and self._number_looks:
            steps = self._number_looks[0] - clock.index
        self._due = clock.index + (steps or 0)
        return steps is not None

    def _look_at_tables(self) -> None:
        """Look once at the gradients of embedding tables, unless that is settled: they may be cleared just now."""
        nn = getattr(self._modules.get("torch"), "nn", None)
        if nn is None or not self._table_looks:
            return
        self._table_looks -= 1
        found = dense_embeddings(self._models, self._parameters, nn) if self._parameters else None
        if found is not None:
            self._dense, self._table_looks = found, 0

    def _look_at_numbers(self, frame: FrameType, index: int) -> None:
        """Look for numbers next to zero among the gradients, and in what optimizers keep, when it is time."""
        torch, due = self._modules.get("torch"), self._number_looks
        if not due or index < due[0]:
            return
        while due and due[0] <= index:
            due.pop(0)
        kind = getattr(getattr(torch, "optim", None), "Optimizer", None)
        if kind is None or not self._parameters:
            return
        parameters = self._parameters.values()
        kept = [_attributes(optimizer).get("state") for _, optimizer in models_of(frame, kind)]
        found = SubnormalTensors(
            time_s=time.time(),
            gradients=subnormal_in(p.grad for p in parameters if p.grad is not None),
            states=subnormal_in(_states(kept, parameters)),
        )
        if (found.gradients, found.states) != (None, None):
            self._subnormal = found

    def _find_models(self, frame: FrameType) -> None:
        nn = getattr(self._modules.get("torch"), "nn", None)
        if nn is None:  # not imported, or kept from being so
            return
        self._models = models_of(frame, nn.Module)
        every = chain.from_iterable(_parameters_of(model, nn.Module) for _, model in self._models)
        found = {id(p): p for p in islice(every, MOST_TENSORS + 1) if _is_plain(p, nn.Parameter)}
        self._parameters = found if len(found) <= MOST_TENSORS else {}

    def _look(self) -> Iterator[int]:
        """Look, and yield after how many steps to go on. What is kept in between holds no tensor."""
        while getattr(self._modules.get("torch"), "nn", None) is None:
            yield BETWEEN
        before = self._snapshot()
        updated = suspects = frozenset[int]()
        for _ in range(TRIES):
            yield BETWEEN
            updated, suspects = self._compare(before)
            if updated:
                break
        if not updated:
            return
        if suspects:
            before = self._snapshot(suspects)
            yield BETWEEN
            # What has changed meanwhile is updated past torch's counter, or now and then.
            suspects = frozenset() if self._changed(before) else self._compare(before)[1]
        self._found = self._told(suspects, updated)
        if not suspects:
            return
        before = self._snapshot(suspects)
        yield LAST
        if self._changed(before):
            self._found = self._told(frozenset(), updated)

    def _snapshot(self, only: Collection[int] | None = None) -> Mapping[int, _Seen]:
        """Return all parameters, or some of them, with the values of a few of these."""
        found = {key: p for key, p in self._parameters.items() if only is None or key in only}
        every = len(found) // MOST_VALUES + 1
        return {
            key: _Seen.of(p, with_value=only is not None and place % every == 0)
            for place, (key, p) in enumerate(found.items())
        }

    def _compare(self, before: Mapping[int, _Seen]) -> tuple[frozenset[int], frozenset[int]]:
        """Return which parameters were updated since, and which got gradients in vain."""
        updated, suspects = set(), set()
        for key, parameter in self._parameters.items():
            seen = before.get(key)
            if seen is None:
                continue
            if not seen.is_unchanged(parameter):
                updated.add(key)
            elif parameter.requires_grad and seen.got_another(parameter):
                suspects.add(key)
        return frozenset(updated), frozenset(suspects)

    def _changed(self, before: Mapping[int, _Seen]) -> bool:
        now = self._parameters
        return any(key not in now or not seen.is_unchanged(now[key]) for key, seen in before.items())

    def _told(self, suspects: frozenset[int], updated: frozenset[int]) -> UnusedGradients:
        kind = self._modules["torch"].nn.Module
        parts = [part for name, model in self._models for part in _parts(name, model, kind, suspects, updated)]
        part = max(parts, key=lambda found: (found.numbers, -len(found.name)), default=_Part("", "", 0))
        parameters = self._parameters
        return UnusedGradients(
            time_s=time.time(),
            part=part.name[:LONGEST],
            kind=part.kind,
            tensors=len(suspects),
            numbers=sum(p.numel() for key, p in parameters.items() if key in suspects),
            updated_numbers=sum(p.numel() for key, p in parameters.items() if key in updated),
        )


def models_of(frame: FrameType | None, kind: type) -> list[tuple[str, Any]]:
    """Return the modules that the functions of a stack know by name: as variables, in lists, as attributes of objects.

    Args:
        frame: The innermost; of the thread that asks.
        kind: ``torch.nn.Module``.
    """
    found: dict[int, tuple[str, Any]] = {}
    spaces: set[int] = set()
    for _ in range(DEEPEST):
        if frame is None:
            break
        if not str(frame.f_globals.get("__name__")).startswith(("stallmeter.", "torch.")):
            held = _variables(frame)
            if id(frame.f_globals) not in spaces:
                spaces.add(id(frame.f_globals))
                held += list(frame.f_globals.items())
            for name, value in held:
                for path, model in _held(name, value, kind):
                    found.setdefault(id(model), (path, model))
        frame = frame.f_back
    return list(found.values())


def _variables(frame: FrameType) -> list[tuple[str, Any]]:
    """Return the variables of a function that runs; of a module they are its globals."""
    code = frame.f_code
    if not code.co_flags & OPTIMIZED or not ASKS_FOR_NAMES.isdisjoint(code.co_names):
        return []
    names = frame.f_locals
    found = list(names.items())
    # Up to Python 3.12 the frame keeps this copy, and with it what the function lets go of later. Whoever has asked for
    # it before us has the same dict: its references are the frame's, the one here, and the question's.
    if isinstance(names, dict) and sys.getrefcount(names) <= OF_A_COPY:
        names.clear()
    return found


def _held(name: str, value: Any, kind: type) -> Iterator[tuple[str, Any]]:
    # By its type: asking an object for its class may run code of the program.
    type_ = type(value)
    if issubclass(type_, kind):
        yield name, value
        return
    members: Iterable[tuple[Any, Any]]
    if type_ in (list, tuple):
        members = ((f"{name}[{place}]", one) for place, one in enumerate(value[:MOST_HELD]))
    elif type_ is dict:
        # Names, and no data of the program's.
        members = [(f"{name}[{key!r}]", one) for key, one in _first(value) if type(key) is str and key.isidentifier()]
    elif issubclass(type_, (type, ModuleType, FunctionType)):
        return
    else:
        members = [(key if name == "self" else f"{name}.{key}", one) for key, one in _first(_attributes(value))]
    for path, one in members:
        if issubclass(type(one), kind):
            yield path, one


def _first(held: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    return list(islice(held.items(), MOST_HELD))


def _attributes(value: Any) -> Mapping[Any, Any]:
    """Return what an object holds, by Python's own descriptor: another one is code of the program's."""
    descriptor = next((base.__dict__["__dict__"] for base in type(value).__mro__ if "__dict__" in base.__dict__), None)
    found = descriptor.__get__(value) if isinstance(descriptor, GetSetDescriptorType) else None
    return found if type(found) is dict else {}


@dataclass(frozen=True, slots=True)
class _Part:
    """A module all of whose gradients are in vain."""

    name: str
    kind: str
    numbers: int


def _parts(name: str, module: Any, kind: Any, suspects: Collection[int], updated: Collection[int]) -> Iterator[_Part]:
    """Return the largest parts of a model that have suspects, and nothing that is updated."""
    own = list(_parameters_of(module, kind))
    theirs = [p for p in own if id(p) in suspects]
    if not theirs:
        return
    if not any(id(p) in updated for p in own):
        yield _Part(name, type(module).__name__, sum(p.numel() for p in theirs))
        return
    for child, part in kind.named_children(module):
        yield from _parts(name_inside(name, child), part, kind, suspects, updated)


def _states(kept: Iterable[Any], parameters: Iterable[Any]) -> Iterator[Any]:
    """Yield what optimizers keep for each number of some parameters: tensors of as many."""
    held = [of for of in kept if isinstance(of, dict)]
    for parameter in parameters:
        for of in held:
            state = of.get(parameter)
            for tensor in state.values() if isinstance(state, dict) else ():
                if type(tensor) is type(parameter.data) and tensor.shape == parameter.shape:
                    yield tensor


def _parameters_of(module: Any, kind: Any) -> Iterator[Any]:
    """Yield a module's parameters by torch's own method: another one is code of the program's, or of Keras'."""
    return (parameter for _, parameter in kind.named_parameters(module))


def _is_plain(parameter: Any, plain: object) -> bool:
    """Whether it is a tensor of this process alone, with values, whose writes torch counts."""
    if type(parameter) is not plain:
        return False
    return parameter.device.type != "meta" and not parameter.is_inference()


def _value(parameter: Any) -> float | complex:
    """Return one of a tensor's values, the first; 0 of one that has none."""
    found: float | complex = parameter.detach()[(0,) * parameter.dim()].item() if parameter.numel() else 0.0
    return found
