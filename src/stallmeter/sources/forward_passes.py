"""Numbers of 64 bits within a model whose weights have 32 or fewer, and weights that are made anew at each use.

The former NumPy made, as a rule, and nobody asked for them. PyTorch computes with the wider type where two meet, and so
does all that follows, forward and backward. In a few steps hooks of torch's for all modules look at the types of what
these hold, and of what operations made, by the graph for the backward pass; and they time what makes weights. No value
is read, and between these steps no hook is there.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..records import Convolutions, MadeWeights, WideNumbers
from ..timing.clock import Register, StepClock
from ..timing.module_hooks import hooked
from ..timing.numbers import tensors_in

FORWARD = "looking at forward passes"

DUE = (8, 90)
"""Steps that are looked at: when the first ones are over, and once later."""

MOST_CALLS = 5_000
MOST_OPERATIONS = 10_000
"""Calls of modules, and operations, that are looked at in a step: each takes some microseconds."""

NO_WORK = tuple(
    f"{name}Backward"
    for name in (
        "AsStrided",
        "Expand",
        "Permute",
        "Select",
        "Slice",
        "Split",
        "Squeeze",
        "T",
        "Transpose",
        "UnsafeView",
        "View",
    )
)
"""How the names of operations begin that compute nothing."""

WEIGHT = "AccumulateGrad"
"""A weight's own node, whose numbers nothing made."""

MAKES = "ParametrizationList"
"""Class of torch's whose call makes a weight of others (``torch.nn.utils.parametrize``)."""


class ForwardSource:
    """The source of `WideNumbers`, `MadeWeights` and `Convolutions`.

    Args:
        register: How to be called between two steps.
        guard: Calls what is given it, and keeps errors away: a hook is called in the program's forward pass.
        modules: Where torch is looked for; it is never imported.
    """

    name = FORWARD

    def __init__(self, register: Register, guard: Callable[..., Any], modules: Mapping[str, Any] | None = None) -> None:
        self._guard = guard
        self._modules = sys.modules if modules is None else modules
        self._due = list(DUE)
        self._look: ForwardLook | None = None
        self._found: tuple[
            WideNumbers | MadeWeights | Convolutions, ...
        ] = ()  # set by the training thread, taken by the sampler's
        register(self.name, self.between_steps)

    def sample(self, time_s: float) -> Sequence[WideNumbers | MadeWeights | Convolutions]:  # noqa: ARG002 - a Source's signature
        """Return what was found since the last call.

        Args:
            time_s: Unix time of this poll.
        """
        found, self._found = self._found, ()
        return found

    def close(self) -> None:
        """Take the hook back where a step has not ended."""
        look, self._look = self._look, None
        if look is not None:
            look.remove()

    def between_steps(self, clock: StepClock) -> bool:
        """Begin or end to look; for the training thread. Returns whether it wants to be called again."""
        look, self._look = self._look, None
        if look is not None:
            look.remove()
            told = (look.told(), look.made(), look.convolutions())
            self._found = tuple(one for one in told if one is not None) or self._found
        if not self._due:
            return False
        if clock.open and clock.index >= self._due[0]:
            self._due.pop(0)
            self._look = self._begin()
        return True

    def _begin(self) -> ForwardLook | None:
        found = hooked(self._modules)
        return None if found is None else ForwardLook(*found, self._guard)


@dataclass(slots=True)
class _Made:
    kind: str
    times: int = 0
    ns: int = 0


def _kind_of(kind: Any, module: Any) -> str:
    """Return the class name of what makes a weight, the first where there are several."""
    return next((type(part).__name__.lstrip("_") for part in kind.children(module)), "")


class ForwardLook:
    """One step's modules, as far as they are called on the thread that made it, and the operations of their graphs."""

    def __init__(
        self, torch: Any, nn: Any, guard: Callable[..., Any], now: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._guard, self._now = guard, now
        # Others run code of the program's, or of a library's, when they are asked for their type.
        self._tensors, self._learns = (torch.Tensor, torch.nn.Parameter), torch.is_grad_enabled
        self._kind = torch.nn.Module
        self._types = (torch.float64, torch.complex128)
        self._thread = threading.get_ident()
        self._calls = self._depth = self._wide = self._numbers = 0
        self._trained_wide = False
        self._of_operations: Counter[str] = Counter()
        self._buffer: tuple[int, str] = (0, "")
        self._nodes: set[Any] = set()
        """Operations that were counted. They are held: a new one would have the identity of one that is gone."""
        self._began_ns = self._all_ns = self._passes = 0
        self._making_ns: list[int] = []
        """When what is making a weight began."""
        self._made: dict[int, _Made] = {}
        kinds = torch.nn
        self._of_pictures = (kinds.Conv2d, kinds.ConvTranspose2d)
        others = (kinds.Conv1d, kinds.ConvTranspose1d, kinds.Conv3d, kinds.ConvTranspose3d)
        self._convolves = (*self._of_pictures, *others)
        self._channels_last = torch.channels_last
        self._convolution_ns: list[int] = []
        """When the convolution began that is under way."""
        self._convolved = [0, 0, 0]
        """Nanoseconds of all, of those of pictures, and of these with their channels last."""
        self._handles = [
            nn.register_module_forward_pre_hook(self._before),
            nn.register_module_forward_hook(self._after),
        ]

    def remove(self) -> None:
        """Take the hooks back, and let go of the graph."""
        while self._handles:  # torch goes through a copy of its hooks
            self._handles.pop().remove()
        self._nodes.clear()

    def told(self) -> WideNumbers | None:
        """Return what was seen; None where nothing was."""
        if not self._numbers:
            return None
        operation = max(self._of_operations, key=lambda name: self._of_operations[name], default="")
        return WideNumbers(
            time_s=time.time(),
            wide=self._wide,
            numbers=self._numbers,
            trained_wide=self._trained_wide,
            operation=operation,
            buffer=self._buffer[1],
            buffer_numbers=self._buffer[0],
        )

    def made(self) -> MadeWeights | None:
        """Return how often weights were made; None where no module was called."""
        if not self._all_ns:
            return None
        most = max(self._made.values(), key=lambda one: one.ns, default=None)
        return MadeWeights(
            time_s=time.time(),
            weights=len(self._made),
            made=sum(one.times for one in self._made.values()),
            passes=self._passes,
            kind="" if most is None else most.kind,
            share=sum(one.ns for one in self._made.values()) / self._all_ns,
        )

    def convolutions(self) -> Convolutions | None:
        """Return how much of the time in modules is convolutions; None where no module was called."""
        if not self._all_ns:
            return None
        all_ns, pictures_ns, last_ns = self._convolved
        return Convolutions(
            time_s=time.time(),
            share=min(1.0, all_ns / self._all_ns),
            forward_s=self._all_ns / 1e9,
            channels_last=last_ns / pictures_ns if pictures_ns else None,
        )

    def _before(self, module: Any, _: Any) -> None:
        if threading.get_ident() == self._thread and self._learns() and not self._guard(FORWARD, self._begins, module):
            self._fail()

    def _after(self, module: Any, given: Any, made: Any) -> None:
        if (
            threading.get_ident() == self._thread
            and self._learns()
            and not self._guard(FORWARD, self._ends, module, given, made)
        ):
            self._fail()

    def _fail(self) -> None:
        self.remove()
        self._numbers = self._all_ns = 0

    def _begins(self, module: Any) -> bool:
        if not self._depth:
            self._began_ns = self._now()
        if type(module).__name__ == MAKES:
            self._making_ns.append(self._now())
        if isinstance(module, self._convolves):
            self._convolution_ns.append(self._now())
        self._depth += 1
        self._calls += 1
        if self._calls > MOST_CALLS:
            self.remove()
            return True
        self._trained_wide = self._trained_wide or any(
            p.dtype in self._types
            for _, p in self._kind.named_parameters(module, recurse=False)
            if type(p) in self._tensors
        )
        for name, buffer in self._kind.named_buffers(module, recurse=False):
            # A single number makes nothing wider.
            if type(buffer) in self._tensors and buffer.dim() and buffer.dtype in self._types:
                self._buffer = max(self._buffer, (int(buffer.numel()), f"{type(module).__name__}.{name}"))
        return True

    def _ends(self, module: Any, given: Any, made: Any) -> bool:
        self._depth -= 1
        if self._convolution_ns and isinstance(module, self._convolves):
            self._add_convolution(module, given[0] if given else None, self._now() - self._convolution_ns.pop())
        makes = type(module).__name__ == MAKES
        if makes and self._making_ns:
            one = self._made.setdefault(id(module), _Made(_kind_of(self._kind, module)))
            one.times, one.ns = one.times + 1, one.ns + self._now() - self._making_ns.pop()
        if not self._depth:
            self._all_ns += self._now() - self._began_ns
            self._passes += not makes
            self._count([tensor.grad_fn for tensor in tensors_in(made) if type(tensor) in self._tensors])
        return True

    def _add_convolution(self, module: Any, given: Any, ns: int) -> None:
        self._convolved[0] += ns
        if isinstance(module, self._of_pictures) and type(given) in self._tensors and given.dim() == 4:
            self._convolved[1] += ns
            # With one channel both are the same.
            last = given.shape[1] > 1 and given.is_contiguous(memory_format=self._channels_last)
            self._convolved[2] += ns if last else 0

    def _count(self, nodes: list[Any]) -> None:
        """Count the numbers that operations made, by the graph that a backward pass goes through."""
        while nodes and len(self._nodes) < MOST_OPERATIONS:
            node = nodes.pop()
            if node is None or node in self._nodes:
                continue
            self._nodes.add(node)
            kind = type(node).__name__
            nodes.extend(before for before, _ in node.next_functions)
            if kind == WEIGHT or kind.startswith(NO_WORK):
                continue
            # A private attribute, as is what it holds. Torch 2.2 has none: nothing is told there.
            for made in getattr(node, "_input_metadata", None) or ():
                numbers = math.prod(getattr(made, "shape", ()))
                self._numbers += numbers
                if getattr(made, "dtype", None) in self._types:
                    self._wide += numbers
                    self._of_operations[kind] += numbers
