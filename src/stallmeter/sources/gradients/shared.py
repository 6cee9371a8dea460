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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from traceback import walk_stack
from types import FrameType
from typing import Any, NamedTuple

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

MOST_HOOKS = 200
"""Nodes of the shared part that may be asked to tell when their turn comes; where it has more ways in, none is."""


@dataclass(slots=True)
class _Pass:
    """A backward pass whose graph is kept for another one, or that goes through one that was."""

    nodes: set[int]
    """Torch's numbers of them."""
    leaves: list[Any]
    """Parameters that get gradients of it."""
    newest: int
    """Number of the newest node there was when it began."""
    took_s: float = 0.0
    handles: list[Any] = field(default_factory=list)
    shared_from_s: float | None = None
    """When the first node had its turn that a pass before has gone through: those of a loss of its own come first, for
    torch goes through the nodes of a graph from the newest to the oldest."""


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
        self._tries = 0
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
            one = self._guard(SHARED, self._before, step, sys._getframe(1), args, kwargs)
            began_s = self._now()
            made = usual(*args, **kwargs)
            self._guard(SHARED, self._after, step, one, began_s, self._now())
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
        if any(root is None for root in roots):
            return None
        newest = max(_number(root) for root in roots)
        # A loss that was made after a pass before is of another turn.
        before = [one for one in step.kept if newest < one.newest]
        walked = _walk(roots, set().union(*(one.nodes for one in before)))
        if walked is None:
            return None
        found = _Pass(walked.nodes, walked.leaves, self._newest())
        if walked.ways_in and _are_kept(found.leaves, before):
            found.handles = [node.register_prehook(partial(self._shared, found)) for node in walked.ways_in]
            step.place = step.place if step.place[0] else _own_place(caller)
        return found

    def _shared(self, one: _Pass, _: object) -> None:
        """A node has its turn that a pass before has gone through; called by torch, in its backward pass."""
        if one.shared_from_s is None:
            one.shared_from_s = self._now()

    def _after(self, step: _Step, one: _Pass | None, began_s: float, ended_s: float) -> None:
        """Note what a pass took, and what of it was in what another pass had gone through."""
        step.took_s += ended_s - began_s
        if one is None:
            return
        for handle in one.handles:
            handle.remove()
        one.handles, one.took_s = [], ended_s - began_s
        if one.shared_from_s is not None:
            # What both go through takes no longer than the shorter of them.
            step.again_s += min(ended_s - one.shared_from_s, max(other.took_s for other in step.kept))
        step.kept.append(one)

    def _newest(self) -> int:
        """Return torch's number of a node that is made now: what has a smaller one was there before."""
        torch = self._modules["torch"]
        with torch.enable_grad():
            return _number(torch.zeros((), device="cpu", requires_grad=True).view(()).grad_fn)

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
    frames = walk_stack(caller)
    return Whose.of_program().first_own((one.f_code, line, one.f_globals.get("__name__")) for one, line in frames)


def _keeps_graph(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether ``torch.autograd.backward`` is asked to keep the graph: without that no other pass can go through it."""
    return bool(args[2] if len(args) > 2 else kwargs.get("retain_graph"))


def _number(node: Any) -> int:
    return int(node._sequence_nr())


class _Walked(NamedTuple):
    """What a graph consists of."""

    nodes: set[int]
    leaves: list[Any]
    ways_in: list[Any]
    """The first of its nodes, from the losses on, that are known."""


def _walk(roots: Iterable[Any], known: Collection[int]) -> _Walked | None:
    """Walk through a graph from its losses on; None for one too large, or with many ways into what is known.

    Args:
        roots: Nodes of the losses.
        known: Numbers of nodes that were gone through before.
    """
    left = [(root, False) for root in roots]
    nodes: set[int] = set()
    leaves: list[Any] = []
    ways_in: dict[int, Any] = {}
    for _ in range(MOST_NODES):
        if not left:
            return _Walked(nodes, leaves, [*ways_in.values()]) if len(ways_in) <= MOST_HOOKS else None
        node, is_inside = left.pop()
        if hasattr(node, "variable"):  # adds up a parameter's gradient, and has no number of its own
            leaves.append(node.variable)
            continue
        number = _number(node)
        is_known = number in known
        if is_known and not is_inside:
            ways_in[number] = node
        if number not in nodes:
            nodes.add(number)
            left.extend((following, is_known) for following, _ in node.next_functions if following is not None)
    return None


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
