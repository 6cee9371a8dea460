"""Whether a training on a CPU calls its modules with ``torch.autocast("cpu")``.

That is known to the training thread alone, and within the block alone. So the thread asks in a few steps: a hook of
torch's for all modules is registered before such a step, and asks at each of its first calls, for the block may be the
model's own. Nothing is patched, and between these steps nothing is there. Nobody asks where the CPU's instructions are
not known.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..machine.cpu_features import computes_16_bits
from ..records import CpuAutocast
from ..timing.clock import Register, StepClock
from ..timing.module_hooks import hooked

DUE = (12, 60, 300)
"""Steps that are looked at: when the first ones are over, and twice later, where autocast is begun late."""

MOST_CALLS = 64
"""Calls of modules in a step that are asked, the first ones: each takes some microseconds."""


class AutocastSource:
    """The source of `CpuAutocast`.

    Args:
        register: How to be called between two steps.
        modules: Where torch is looked for; it is never imported.
        computes: What the CPU has instructions for: where that is not known, nothing is asked.
    """

    name = "autocast on a CPU"

    def __init__(
        self,
        register: Register,
        modules: Mapping[str, Any] | None = None,
        computes: Callable[[], Mapping[str, bool] | None] = computes_16_bits,
    ) -> None:
        self._modules = sys.modules if modules is None else modules
        self._due = list(DUE)
        self._hook: _Hook | None = None
        self._found: CpuAutocast | None = None  # set by the training thread, taken by the sampler's
        known = computes()
        if known:
            register(self.name, self.between_steps)

    def sample(self, time_s: float) -> Sequence[CpuAutocast]:  # noqa: ARG002 - a Source's signature
        """Return what was found since the last call.

        Args:
            time_s: Unix time of this poll.
        """
        found, self._found = self._found, None
        return () if found is None else (found,)

    def close(self) -> None:
        """Take the hook back where a step has not ended."""
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()

    def between_steps(self, clock: StepClock) -> bool:
        """Begin or end to ask; for the training thread. Returns whether it wants to be called again."""
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()
            if hook.calls:
                self._found = CpuAutocast(time_s=time.time(), kind=hook.kind)
                if hook.kind:
                    return False
        if not self._due:
            return False
        if clock.open and clock.index >= self._due[0]:
            self._due.pop(0)
            self._hook = self._begin()
        return True

    def _begin(self) -> _Hook | None:
        found = hooked(self._modules)
        if found is None or found[0].cuda.is_initialized():
            return None
        torch, nn = found
        return _Hook(nn.register_module_forward_pre_hook, *_asks(torch))


class _Hook:
    """Asks at calls of modules on the thread that made it, until autocast is met or enough were asked."""

    def __init__(self, register: Callable[[Any], Any], is_on: Callable[[], bool], kind: Callable[[], object]) -> None:
        self._is_on, self._kind = is_on, kind
        self._thread = threading.get_ident()
        self.calls = 0
        self.kind = ""
        self.remove: Callable[[], None] = register(self._called).remove

    def _called(self, *_: object) -> None:
        if threading.get_ident() != self._thread:
            return
        self.calls += 1
        if self._is_on():
            self.kind = str(self._kind()).removeprefix("torch.")
        if self.kind or self.calls >= MOST_CALLS:
            self.remove()  # torch goes through a copy of its hooks, and a second removal is none


def _asks(torch: Any) -> tuple[Callable[[], bool], Callable[[], object]]:
    """Return what tells whether autocast is on for the CPU, and its type: from torch 2.4 on by the device's name."""
    if hasattr(torch, "get_autocast_dtype"):
        return lambda: torch.is_autocast_enabled("cpu"), lambda: torch.get_autocast_dtype("cpu")
    return torch.is_autocast_cpu_enabled, torch.get_autocast_cpu_dtype
