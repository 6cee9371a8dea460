"""Weights that get gradients and never change: a part of the model that nothing but its optimizer leaves alone.

A few times, between two steps: which models do the functions that are running know by name, which of their parameters
got new gradients since the last look, and has nobody written into them? Torch counts what is written into a tensor
(``Tensor._version``), by whichever optimizer. What goes past that counter (``.data``, fused optimizers, kernels of
others) is noticed by some of the values. Nothing is registered with torch, and no tensor is kept alive in between.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from types import FrameType
from typing import Any

from ...records import DenseEmbeddings, SubnormalTensors, UnusedGradients
from ...timing.clock import Register, StepClock
from ...timing.subnormal import subnormal_in
from ...timing.tables import LONGEST, dense_embeddings
from .dropped import DroppedGradientSource
from .models import Part, attributes, is_plain, largest_parts, models_of, parameters_of
from .seen import Seen
from .shared import SharedGraphSource

__all__ = ["DroppedGradientSource", "GradientSource", "SharedGraphSource", "models_of"]

FIRST_STEP = 5
"""Steps before it may be warm-up, in which nobody updates anything."""

BETWEEN = 12
"""Steps from one look to the next, of which there are two: models that are trained in turn take fewer for a turn, as a
rule. Many trainings have some dozens of steps."""

BETWEEN_LONG, LONG_S = 7, 0.3
"""The same where a step takes so many seconds: of a run of some seconds there are hardly more. One turn of two models
in turn, of five steps and one, is still within them."""

TRIES = 20
"""So often it is looked whether anything was updated: gradients are accumulated over as many steps now and then."""

LAST = 250
"""Steps to the last look, which takes back what has been updated after all."""

MOST_TENSORS = 5_000
"""Of larger models none is looked at: a look takes the training thread some 3 us for each tensor."""

MOST_VALUES = 64
"""Parameters on a device of which a value is held against that of the last look."""

MOST_READ = 1_000
"""The same of those in the host's memory: some 5 us each."""

NUMBER_LOOKS = (30, 300, 1_000, 3_000, 10_000, 30_000)
"""Steps after which numbers next to zero are looked for. A running mean of Adam's that gets nothing more, as of a row
that is not used, is one after some 830 steps, and stays so."""

TABLE_LOOKS = 4
"""So often embedding tables are looked at where their gradients are gone each time."""


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
        self._due, self._between = FIRST_STEP, BETWEEN
        self._begun: tuple[int, int] | None = None
        """Nanoseconds of the ledger, and number of the step, when it was first called."""
        self._models: list[tuple[str, Any]] = []
        """What is known by name, and their parameters by identity: while a look goes on, and not in between."""
        self._parameters: dict[int, Any] = {}
        self._fused: frozenset[int] = frozenset()
        """Parameters of fused optimizers that are known by name: torch does not count what these write."""
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
        if not clock.open:
            return True
        begun_ns, first = self._begun = self._begun or (clock.ledger.now(), clock.index)
        if clock.index < self._due:
            return True
        # The first steps may be long for their own reasons: it is asked each time.
        is_long = clock.ledger.now() - begun_ns >= LONG_S * 1e9 * max(1, clock.index - first)
        self._between = BETWEEN_LONG if is_long else BETWEEN
        frame = sys._getframe(1)
        try:
            self._find_models(frame)
            steps = next(self._looks, None)
            self._look_at_tables()
            self._look_at_numbers(frame, clock.index)
        finally:
            self._models, self._parameters = [], {}
        if steps is None and self._table_looks:
            steps = self._between
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
        kept = [attributes(optimizer).get("state") for _, optimizer in models_of(frame, kind)]
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
        every = chain.from_iterable(parameters_of(model, nn.Module) for _, model in self._models)
        found = {id(p): p for p in islice(every, MOST_TENSORS + 1) if is_plain(p, nn.Parameter)}
        self._parameters = found if len(found) <= MOST_TENSORS else {}
        optimizers = models_of(frame, self._modules["torch"].optim.Optimizer)
        self._fused = frozenset(id(p) for _, optimizer in optimizers for p in _of_fused(optimizer))

    def _look(self) -> Iterator[int]:
        """Look, and yield after how many steps to go on. What is kept in between holds no tensor."""
        while getattr(self._modules.get("torch"), "nn", None) is None:
            yield self._between
        before = self._snapshot()
        updated = suspects = frozenset[int]()
        for _ in range(TRIES):
            yield from self._wait()
            updated, suspects = self._compare(before)
            if updated:
                break
        if not updated:
            return
        if suspects:
            before = self._snapshot(suspects)
            yield from self._wait()
            # What has changed meanwhile is updated past torch's counter, or now and then.
            suspects = frozenset() if self._changed(before) else self._compare(before)[1]
        self._found = self._told(suspects, updated)
        if not suspects:
            return
        before = self._snapshot(suspects)
        yield LAST
        if self._changed(before):
            self._found = self._told(frozenset(), updated)

    def _wait(self) -> Iterator[int]:
        """Wait for a later step; one more where no gradient is there, for a validation may have cleared all."""
        yield self._between
        if self._parameters and all(p.grad is None for p in self._parameters.values()):
            yield 1

    def _snapshot(self, only: Collection[int] | None = None) -> Mapping[int, Seen]:
        """Return all parameters, or some of them, with the values of a few of these."""
        found = {key: p for key, p in self._parameters.items() if only is None or key in only}
        near = sum(p.device.type == "cpu" for p in found.values())
        of_cpu = near // MOST_READ + 1
        # Reading from a device waits for it: of suspects alone.
        of_device = (len(found) - near) // MOST_VALUES + 1 if only is not None else 0

        def is_read(place: int, parameter: Any) -> bool:
            every = of_cpu if parameter.device.type == "cpu" else of_device
            return every > 0 and place % every == 0

        return {key: Seen.of(p, with_value=is_read(place, p)) for place, (key, p) in enumerate(found.items())}

    def _compare(self, before: Mapping[int, Seen]) -> tuple[frozenset[int], frozenset[int]]:
        """Return which parameters were updated since, and which got gradients in vain."""
        updated, suspects, past = set(), set(), False
        for key, parameter in self._parameters.items():
            seen = before.get(key)
            if seen is None:
                continue
            if key in self._fused or not seen.is_unchanged(parameter):
                updated.add(key)
                past = past or seen.is_written_past(parameter)
            elif parameter.requires_grad and seen.got_another(parameter):
                suspects.add(key)
        # Where torch's counter misses writes, nothing is known of those without a value.
        known = {key for key in suspects if before[key].value is not None} if past else suspects
        return frozenset(updated), frozenset(known)

    def _changed(self, before: Mapping[int, Seen]) -> bool:
        now = self._parameters
        return any(key not in now or not seen.is_unchanged(now[key]) for key, seen in before.items())

    def _told(self, suspects: frozenset[int], updated: frozenset[int]) -> UnusedGradients:
        kind = self._modules["torch"].nn.Module
        part, *others = largest_parts(self._models, kind, suspects, updated) or [Part("", "", 0)]
        parameters = self._parameters
        return UnusedGradients(
            time_s=time.time(),
            part=part.name[:LONGEST],
            kind=part.kind,
            also=tuple(one.name[:LONGEST] for one in others),
            tensors=len(suspects),
            numbers=sum(p.numel() for key, p in parameters.items() if key in suspects),
            updated_numbers=sum(p.numel() for key, p in parameters.items() if key in updated),
        )


def _of_fused(optimizer: Any) -> Iterator[Any]:
    """Yield the parameters that a fused optimizer updates."""
    groups = attributes(optimizer).get("param_groups")
    for group in groups if isinstance(groups, list) else ():
        rate = group.get("lr")
        if group.get("fused") and not (isinstance(rate, (int, float)) and not rate):
            yield from group["params"]


def _states(kept: Iterable[Any], parameters: Iterable[Any]) -> Iterator[Any]:
    """Yield what optimizers keep for each number of some parameters: tensors of as many."""
    held = [of for of in kept if isinstance(of, dict)]
    for parameter in parameters:
        for of in held:
            state = of.get(parameter)
            for tensor in state.values() if isinstance(state, dict) else ():
                if type(tensor) is type(parameter.data) and tensor.shape == parameter.shape:
                    yield tensor
