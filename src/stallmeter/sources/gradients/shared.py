"""Backward passes of one step that go through the same graph, one after the other.

``loss_a.backward(retain_graph=True)`` and ``loss_b.backward()`` each go through all that both losses depend on. Their
sum goes through it once, and makes the same gradients. In a few steps ``torch.autograd.backward``, which all ways to
ask for a backward pass call, is another one that walks through the graph: nodes are known again by the numbers that
torch gives them, for the time of the step. Nothing is kept alive, and between these steps nothing is replaced.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from ...records import RepeatedBackward
from ...timing.clock import Register, StepClock
from ..code.whose import Whose

SHARED = "repeated backward"

FIRST_STEP = 6
"""Steps before it may be warm-up."""

LOOKS = 5
"""Steps that are looked at, the first that have a backward pass."""

TRIES = 60
"""Steps after which it is over where none has: they are tried one after the other."""

MOST_NODES = 20_000
"""Of larger graphs none is walked through: a node takes some 1 us."""

HEAVY, LIGHT = 10.0, 1.0
"""What nodes count that multiply matrices or convolve, and others; our choice: layers take nearly all of the time."""

_MULTIPLY = ("Addmm", "Mm", "Bmm", "Baddbmm", "Convolution", "Lstm", "Rnn", "Gru", "Attention", "Linear", "Embedding")
"""Within the names of these nodes."""


@dataclass(slots=True)
class _Pass:
    """A backward pass whose graph is kept for another one."""

    nodes: dict[int, float]
    """What each counts, by torch's number."""
    leaves: list[Any]
    """Some parameters that get gradients of it."""
    newest: int
    """Number of the newest node there was when it began."""
    took_s: float = 0.0


@dataclass(slots=True)
class _Step:
    """What was seen of one step."""

    passes: int = 0
    took_s: float = 0.0
    again_s: float = 0.0
    kept: list[_Pass] = field(default_factory=list)
    place: tuple[str, int, str] = ("", 0, "")


class SharedGraphSource:
    """The source of `RepeatedBackward`.

    Args:
        register: How to be called between two steps.
        guard: Calls what is given it, and keeps errors away: it is called where the program asks for gradients.
        modules: Where torch is looked for; it is never imported.
        now: Seconds.
    """

    name = SHARED

    def __init__(
        self,
        register: Register,
        guard: Callable[..., Any],
        *,
        modules: Mapping[str, Any] | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._guard, self._now = guard, now
        self._modules = sys.modules if modules is None else modules
        self._step: _Step | None = None
        self._usual: Callable[..., Any] | None = None
        self._own: Callable[..., Any] | None = None
        self._thread = 0
        self._looks = self._tries = 0
        self._seen: list[_Step] = []
        self._found: RepeatedBackward | None = None  # set by the training thread, taken by the sampler's
        register(self.name, self.between_steps)

    def sample(self, time_s: float) -> Sequence[RepeatedBackward]:  # noqa: ARG002 - a Source's signature
        """Return what was found since the last call.

        Args:
            time_s: Unix time of this poll.
        """
        found, self._found = self._found, None
        return () if found is None else (found,)

    def close(self) -> None:
        """Put torch's function back where a step has not ended."""
        self._step = None
        self._put_back()

    def between_steps(self, clock: StepClock) -> bool:
        """Begin or end to look; for the training thread. Returns whether it wants to be called again."""
        step, self._step = self._step, None
        if step is not None:
            self._put_back()
            self._tries += 1
            if step.passes:
                self._seen.append(step)
                self._found = self._told()
        if len(self._seen) >= LOOKS or self._tries >= TRIES:
            return False
        if clock.open and clock.index >= FIRST_STEP:
            self._begin()
        return True

    def _begin(self) -> None:
        autograd: Any = self._modules.get("torch.autograd")
        usual = getattr(autograd, "backward", None)
        if usual is None:
            return
        self._thread, self._step, self._usual = threading.get_ident(), _Step(), usual

        def backward(*args: Any, **kwargs: Any) -> Any:
            # It stays in the way where somebody has put another one around it meanwhile: then it only calls torch's.
            step = self._step
            if step is None or threading.get_ident() != self._thread:
                return usual(*args, **kwargs)
            began = self._guard(SHARED, self._before, step, sys._getframe(1), args, kwargs)
            began_s = self._now()
            made = usual(*args, **kwargs)
            self._guard(SHARED, self._after, step, began, self._now() - began_s)
            return made

        self._own = backward
        autograd.backward = backward

    def _put_back(self) -> None:
        autograd: Any = self._modules.get("torch.autograd")
        own, self._own = self._own, None
        if own is None:
            return
        if getattr(autograd, "backward", None) is own:
            autograd.backward = self._usual
        else:
            self._tries = TRIES  # somebody has put another one around it, as we do

    def _before(self, step: _Step, caller: FrameType, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Pass | None:
        """Walk through the graph of a pass, if it is kept for another one or one before was; returns it."""
        step.passes += 1
        if not (step.kept or _keeps_graph(args, kwargs)):
            return None
        tensors: Any = args[0] if args else kwargs.get("tensors")
        roots = [one.grad_fn for one in (tensors if isinstance(tensors, (list, tuple)) else [tensors])]
        walked = _walk(roots)
        if walked is None or any(root is None for root in roots):
            return None
        found = _Pass(*walked, self._newest())
        found.took_s = -_again(found, step.kept, max(_number(root) for root in roots))
        if found.took_s and not step.place[0]:
            step.place = _own_place(caller)
        return found

    def _after(self, step: _Step, began: _Pass | None, took_s: float) -> None:
        """Note what a pass took, and which part of it was in what another pass had gone through."""
        step.took_s += took_s
        if began is not None:
            again, began.took_s = -began.took_s, took_s
            before_s = max((one.took_s for one in step.kept), default=0.0)
            # What both go through takes no longer than the shorter of them.
            step.again_s += again * min(took_s, before_s)
            step.kept.append(began)

    def _newest(self) -> int:
        """Return torch's number of a node that is made now: what has a smaller one was there before."""
        torch = self._modules["torch"]
        with torch.enable_grad():
            return _number(torch.zeros((), requires_grad=True).view(()).grad_fn)

    def _told(self) -> RepeatedBackward:
        seen = self._seen
        file, line, function = next((one.place for one in seen if one.place[0]), ("", 0, ""))
        return RepeatedBackward(
            time_s=time.time(),
            steps=len(seen),
            passes=max(one.passes for one in seen),
            backward_s=sum(one.took_s for one in seen) / len(seen),
            again_s=sum(one.again_s for one in seen) / len(seen),
            file=file,
            line=line,
            function=function,
        )


def _own_place(caller: FrameType) -> tuple[str, int, str]:
    """Return file, line and name of the program's own function that asks for a pass; of nobody where none does."""
    whose, frame = Whose.of_program(), caller
    while frame is not None:
        function = whose.code(frame.f_code, frame.f_globals.get("__name__"))
        if function.own:
            return function.file, frame.f_lineno, function.name
        frame = frame.f_back  # type: ignore[assignment]
    return "", 0, ""


def _keeps_graph(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether ``torch.autograd.backward`` is asked to keep the graph: without that no other pass can go through it."""
    return bool(args[2] if len(args) > 2 else kwargs.get("retain_graph"))


def _number(node: Any) -> int:
    return int(node._sequence_nr())


def _walk(roots: Iterable[Any]) -> tuple[dict[int, float], list[Any]] | None:
    """Return what each node of a graph counts, by torch's number, and some parameters; None of one too large."""
    left = [root for root in roots if root is not None]
    nodes: dict[int, float] = {}
    leaves: list[Any] = []
    for _ in range(MOST_NODES):
        if not left:
            return nodes, leaves
        node = left.pop()
        if hasattr(node, "variable"):  # adds up a parameter's gradient, and has no number of its own
            leaves.append(node.variable)
            continue
        number = _number(node)
        if number not in nodes:
            nodes[number] = HEAVY if any(part in type(node).__name__ for part in _MULTIPLY) else LIGHT
            left.extend(_next(node))
    return None


def _next(node: Any) -> Iterator[Any]:
    return (following for following, _ in node.next_functions if following is not None)


def _again(one: _Pass, kept: Sequence[_Pass], root: int) -> float:
    """Return which part (0 to 1) of a pass those before went through, where one pass could do for both.

    Args:
        one: The pass.
        kept: Those before it in this step.
        root: Number of the node that it begins with. A loss that was made after a pass before is of another turn.
    """
    before = [other for other in kept if root < other.newest]
    known = set().union(*(other.nodes for other in before))
    shared = sum(count for number, count in one.nodes.items() if number in known)
    if not shared or not _are_kept(one.leaves, before):
        return 0.0
    return shared / sum(one.nodes.values())


def _are_kept(leaves: Sequence[Any], before: Sequence[_Pass]) -> bool:
    """Whether gradients of passes before are still there: those that were cleared are wanted apart."""
    known = {id(leaf) for other in before for leaf in other.leaves}
    shared = [leaf for leaf in leaves if id(leaf) in known]
    if not shared:
        return True  # they go through to what learns nothing
    gradients = [leaf.grad for leaf in shared]
    if any(gradient is None for gradient in gradients):
        return False
    least = min(gradients, key=lambda gradient: gradient.numel())
    return least.device.type != "cpu" or bool(least.detach().any())
