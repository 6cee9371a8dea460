"""Gradients that one optimizer's step leaves behind for another one's parameters, and that are dropped before use.

Networks that are trained in turn, each by an optimizer of its own: a generator and a discriminator, an actor and a
critic. For a few steps each parameter tells when it has got a gradient, by torch's own hook for that, and each
optimizer when it has made its step. A gradient that is another tensor by the time of its own optimizer's step was
cleared in between; if another optimizer has made a step meanwhile, it was computed for that one's sake. What a gradient
took is the time since the one before it in the same backward pass. The hooks are taken back after these steps, nothing
is written, and no tensor is kept alive.

So are those of parameters that no optimizer has, of models that running functions know by name: a target network, say,
that follows the trained one by means of its weights. Their gradients are in vain where they are added up all the time
and never cleared, and the parameters change all the same. What never changes is told of as `UnusedGradients`.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from threading import get_ident
from types import FrameType
from typing import Any

from ...records import DroppedGradients
from ...timing.clock import Register, StepClock
from ...timing.tables import LONGEST
from .models import DEEPEST, is_plain, largest_part, models_of, parameters_of
from .seen import Seen

FIRST_STEP = 5
"""Steps before it may be warm-up."""

LISTENED = 25
"""Steps in which it is heard which optimizers there are."""

UNHEARD = 4
"""Steps in which somebody hears of an optimizer's step, or nobody does: then torch is asked to tell of them."""

TRIES = 20
"""So often, where none makes a step: gradients are accumulated over as many batches now and then."""

ENOUGH = 6
"""Steps of each optimizer that are looked at."""

LEAST = 3
"""Steps of an optimizer that count as a look at it."""

MOST_STEPS = 60
"""The look ends after so many, whatever has been seen."""

MOST_VALUES = 64
"""Values of parameters without an optimizer that are held against those of the end."""

NOBODY = -1
"""In place of an optimizer."""

MOST_TENSORS = 2_000
"""Of larger models none is looked at: each gradient then takes the training thread some 2 us more."""

MOST_GRADIENTS = 50_000
"""The look ends after so many, some 10 MB of them."""

OF_A_LAYER = 2
"""Parameters of most layers: weights, and what is added."""

PASSING_ON = 0.5
"""Part of a layer's backward pass in which the gradient of its input is computed: it has as many operations as that
of its weights."""

HearSteps = Callable[[Callable[..., None], Callable[..., None]], list[Any]]
"""Has torch's optimizers tell what is called before and after each step; returns handles."""


class _Gradient:
    """A parameter has got one."""

    __slots__ = ("dropped", "made", "parameter", "pass_", "settled", "tensor", "time_ns")

    def __init__(self, time_ns: int, parameter: int, tensor: Any, pass_: int, made: int) -> None:
        self.time_ns = time_ns
        self.parameter = parameter
        self.tensor = weakref.ref(tensor)
        self.pass_ = pass_
        """Torch's number of the backward pass."""
        self.made = made
        """Steps that optimizers had made by then."""
        self.settled = self.dropped = False


@dataclass(slots=True)
class _Spent:
    """Nanoseconds of a step by whose gradients, and for whose step."""

    beneath: dict[tuple[int, int], int]
    above: dict[tuple[int, int], int]
    every: int = 0


class DroppedGradientSource:
    """The source of `DroppedGradients`.

    Args:
        register: How to be called between two steps.
        hear_steps: How to hear of optimizers' steps.
        is_compiling: Returns what says whether torch is tracing what calls it.
        modules: Where torch is looked for; it is never imported.
    """

    name = "dropped gradients"

    def __init__(
        self,
        register: Register,
        hear_steps: HearSteps,
        is_compiling: Callable[[], Callable[[], bool]],
        modules: Mapping[str, Any] | None = None,
    ) -> None:
        self._hear_steps = hear_steps
        self._is_compiling = is_compiling
        self._modules = sys.modules if modules is None else modules
        self._due = FIRST_STEP
        self._thread = 0
        self._compiling: Callable[[], bool] = bool
        self._clock: StepClock | None = None
        self._stages: Iterator[int] = iter(())
        self._handles: list[Any] = []
        self._optimizers: dict[int, weakref.ref[Any]] = {}
        self._look: _Look | None = None
        self._found: DroppedGradients | None = None  # set by the training thread, taken by the sampler's
        register(self.name, self.between_steps)

    def sample(self, time_s: float) -> Sequence[DroppedGradients]:  # noqa: ARG002
        """Return what was found since the last call.

        Args:
            time_s: Unix time of this poll.
        """
        found, self._found = self._found, None
        return () if found is None else (found,)

    def close(self) -> None:
        """Take all hooks back; not while torch goes through those of a step."""
        if self._clock is not None:
            self._clock.on_update = None
        while self._handles:
            self._handles.pop().remove()
        if self._look is not None:
            self._look.close()
            self._look = None

    def between_steps(self, clock: StepClock) -> bool:
        """Listen, look or tell, when it is time; for the training thread. Returns whether to call it again."""
        if not clock.open or clock.index < self._due:
            return True
        if self._clock is None:
            self._thread, self._clock, self._stages = get_ident(), clock, self._run(clock)
        steps = next(self._stages, None)
        self._due = clock.index + (steps or 0)
        return steps is not None

    def _run(self, clock: StepClock) -> Iterator[int]:
        """Go through all stages, and yield after how many steps to go on."""
        yield from self._listen(clock)
        yield from self._look_at(clock)
        while self._handles and _is_in_update():
            yield 1
        self.close()

    def _listen(self, clock: StepClock) -> Iterator[int]:
        """Hear which optimizers make steps: of who hears of them all anyway, else of torch."""
        self._compiling = self._is_compiling()
        clock.on_update = self._stepped
        yield UNHEARD
        asked = not self._optimizers
        if asked:
            clock.on_update = None
        for _ in range(TRIES):
            # Torch goes through its hooks by a dict, in which none may be added meanwhile. A loop without a loader is
            # timed by its optimizers' steps: there a step of the loop ends among them.
            if asked and not self._handles and not _is_in_update():
                self._handles = self._hear_steps(_pass_by, self._stepped)
            yield LISTENED
            if self._optimizers:
                return

    def _look_at(self, clock: StepClock) -> Iterator[int]:
        """Look at the gradients of all optimizers, if there are several."""
        optimizers = [one for one in [known() for known in self._optimizers.values()] if one is not None]
        if not optimizers:
            return
        torch = self._modules["torch"]
        # Torch names its passes for its own checkpoints only: without that two passes of one step are not told apart.
        number = getattr(torch._C, "_current_graph_task_id", None)
        parameters = [_of_optimizer(optimizer, torch.nn.Parameter) for optimizer in optimizers]
        strays = _without_optimizer(models_of(sys._getframe(), torch.nn.Module), parameters, torch.nn)
        if len(optimizers) == 1 and not strays:
            self._found = DroppedGradients(time_s=time.time())
            return
        if number is None or sum(map(len, parameters)) + len(strays) > MOST_TENSORS:
            return
        self._look = look = _Look(clock, optimizers, parameters, strays, number)
        look.begin((*chain.from_iterable(parameters), *strays))
        del optimizers, parameters, strays  # variables live as long as this is not through
        while look.goes_on:
            yield 1
            look.boundary(clock.index)
        self._found = look.told(sys._getframe(), torch.nn.Module)

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        if self._compiling() or get_ident() != self._thread:
            return
        if self._look is None:
            self._optimizers.setdefault(id(optimizer), weakref.ref(optimizer))
        else:
            self._look.stepped(optimizer)


class _Look:
    """Some steps in which each parameter of several optimizers tells of its gradients."""

    def __init__(
        self,
        clock: StepClock,
        optimizers: Sequence[Any],
        parameters: Sequence[list[Any]],
        strays: Sequence[Any],
        number: Callable[[], int],
    ) -> None:
        self._now = clock.ledger.now
        self._number = number
        self._places = {id(optimizer): place for place, optimizer in enumerate(optimizers)}
        owned = [{id(p) for p in of} for of in parameters]
        self._owner = {
            key: place for place, keys in enumerate(owned) for key in keys if sum(key in one for one in owned) == 1
        }
        """Whose optimizer's a parameter is; one that two of them update is left out."""
        self._owner |= {id(p): NOBODY for p in strays}
        every = len(strays) // MOST_VALUES + 1
        self._strays = {id(p): Seen.of(p, with_value=at % every == 0) for at, p in enumerate(strays)}
        self._gradients: list[_Gradient] = []
        self._waiting: dict[int, list[_Gradient]] = {}
        """Gradients whose optimizer has not made its step since."""
        self._steps: list[int] = []
        """Which optimizer has made each step."""
        self._boundaries = [(clock.index, 0)]
        """Steps of the loop, and how many gradients there had been."""
        self._clear = True
        """Whether gradients are used as they are: where another tensor takes their place, nothing is known of any."""
        self._handles: list[Any] = []

    def begin(self, parameters: Iterable[Any]) -> None:
        """Have parameters tell; what could be done is taken back by `close`, whatever happens here."""
        for p in parameters:
            if id(p) in self._owner and p.requires_grad:
                self._handles.append(p.register_post_accumulate_grad_hook(self._got))

    def close(self) -> None:
        """Take the hooks back."""
        while self._handles:
            self._handles.pop().remove()

    @property
    def goes_on(self) -> bool:
        if not self._clear or self._boundaries[-1][0] - self._boundaries[0][0] >= MOST_STEPS:
            return False
        if len(self._gradients) >= MOST_GRADIENTS:
            return False
        return any(self._steps.count(place) < ENOUGH for place in self._places.values())

    def boundary(self, index: int) -> None:
        """The loop has made a step."""
        self._boundaries.append((index, len(self._gradients)))

    def _got(self, parameter: Any) -> None:
        """A parameter has got a gradient. On the thread that computes it, and in a backward pass: it must not raise."""
        gradient = parameter.grad
        # Used at once, or others are added to it out of place: then another tensor need not be another gradient.
        if gradient is None or gradient.requires_grad or gradient.is_sparse:
            self._clear = False
            return
        got = _Gradient(self._now(), id(parameter), gradient, self._number(), len(self._steps))
        self._gradients.append(got)
        self._waiting.setdefault(got.parameter, []).append(got)

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has made its step, on the loop's thread: its gradients are those that are there now."""
        place = self._places.get(id(optimizer))
        if place is None:  # made meanwhile
            self._clear = False
            return
        made = len(self._steps)
        for parameter in chain.from_iterable(group["params"] for group in optimizer.param_groups):
            gradient, waiting = parameter.grad, self._waiting.pop(id(parameter), ())
            for got in waiting:
                got.settled = True
                got.dropped = got.tensor() is not gradient and got.made < made
            if waiting and waiting[-1].tensor() is not gradient:
                self._clear = False
        for key in self._strays:
            for got in self._waiting.pop(key, ()):
                got.settled = got.dropped = True
        self._steps.append(place)

    def told(self, frame: FrameType, kind: Any) -> DroppedGradients | None:
        """Return what was seen; None where that is not known.

        Args:
            frame: The innermost; of the training thread.
            kind: ``torch.nn.Module``.
        """
        settled = next((at for at, got in enumerate(self._gradients) if not got.settled), len(self._gradients))
        index, number = max((one for one in self._boundaries if one[1] <= settled), default=self._boundaries[0])
        steps = index - self._boundaries[0][0]
        gradients = self._gradients[:number]
        rare = any(self._steps.count(place) < LEAST for place in self._places.values())
        if not self._clear or steps < 1 or rare or any(a.pass_ > b.pass_ for a, b in pairwise(gradients)):
            return None
        used = self._used_strays(gradients)
        gradients = [got for got in gradients if got.parameter not in used]
        spent = self._spent(gradients)
        models = models_of(frame, kind)
        beneath, above = (max(one, key=lambda pair: one[pair], default=None) for one in (spent.beneath, spent.above))
        under, over = self._named(beneath, models, kind), self._named(above, models, kind)
        return DroppedGradients(
            time_s=time.time(),
            beneath=under[0],
            beneath_during=under[1],
            beneath_s=sum(spent.beneath.values()) / 1e9 / steps,
            above=over[0],
            above_during=over[1],
            above_trained=above is None or above[0] != NOBODY,
            above_s=sum(spent.above.values()) / 1e9 / steps,
            backward_s=spent.every / 1e9 / steps,
            tensors=len({got.parameter for got in gradients if got.dropped}),
            steps=steps,
        )

    def _used_strays(self, gradients: Sequence[_Gradient]) -> frozenset[int]:
        """Return parameters without an optimizer of which nothing is said: cleared by somebody, or never written into.

        What changes with one of them changes with all: the values of some are known.
        """
        tensors: dict[int, set[int]] = {key: set() for key in self._strays}
        gone = set()
        for got in gradients:
            if got.parameter in tensors:
                tensor = got.tensor()
                tensors[got.parameter].add(id(tensor))
                if tensor is None:
                    gone.add(got.parameter)
        parameters = {key: seen.parameter() for key, seen in self._strays.items()}
        changed = {key for key, p in parameters.items() if p is not None and not self._strays[key].is_unchanged(p)}
        if not changed:
            return frozenset(tensors)
        return frozenset(key for key, held in tensors.items() if key in gone or len(held) != 1)

    def _spent(self, gradients: Sequence[_Gradient]) -> _Spent:
        """Return what gradients took that were dropped: after the last that was used of their pass, and before it."""
        last = {got.pass_: at for at, got in enumerate(gradients) if not got.dropped}
        spent = _Spent({}, {})
        before: _Gradient | None = None
        used: list[int] = []
        """What the used ones of this pass took, since one was dropped."""
        for at, got in enumerate(gradients):
            follows = before is not None and before.pass_ == got.pass_
            took = got.time_ns - before.time_ns if before is not None and follows else 0
            before = got
            spent.every += took
            used = used if follows else []
            if not got.dropped:
                used.append(took)
                continue
            is_beneath = at > last.get(got.pass_, -1)
            part = spent.beneath if is_beneath else spent.above
            pair = (self._owner[got.parameter], self._steps[got.made])
            # The layer above has passed its gradient on in the same call that computed that of its own weights.
            passed_on = int(PASSING_ON * max(used[-OF_A_LAYER:], default=0)) if is_beneath else 0
            part[pair] = part.get(pair, 0) + took + passed_on
            used = []
        return spent

    def _named(self, pair: tuple[int, int] | None, models: Sequence[tuple[str, Any]], kind: Any) -> tuple[str, str]:
        """Return the names of the largest parts of models that two optimizers update."""
        if pair is None:
            return "", ""
        of = [{key for key, owner in self._owner.items() if owner == place} for place in pair]
        first, second = (largest_part(models, kind, own, self._owner.keys() - own).name[:LONGEST] for own in of)
        return first, second


def _is_in_update() -> bool:
    """Whether an optimizer of torch is making its step, and this is called by a hook of it."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(DEEPEST):
        if frame is None:
            break
        if frame.f_globals.get("__name__") == "torch.optim.optimizer":
            return True
        frame = frame.f_back
    return False


def _pass_by(*_: Any) -> None:
    """What is called before an optimizer's step."""


def _of_optimizer(optimizer: Any, plain: object) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"] if is_plain(p, plain)]


def _without_optimizer(models: Iterable[tuple[str, Any]], owned: Iterable[list[Any]], nn: Any) -> list[Any]:
    """Return the parameters of models that ask for gradients and that no optimizer has."""
    known = {id(p) for p in chain.from_iterable(owned)}
    found = {}
    for _, model in models:
        for p in parameters_of(model, nn.Module):
            if id(p) not in known and is_plain(p, nn.Parameter) and p.requires_grad and p.is_leaf:
                found[id(p)] = p
    return list(found.values())
