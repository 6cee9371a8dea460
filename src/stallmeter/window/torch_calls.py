"""What looks into the steps saw of torch's own functions, and of work that is given to it beside the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..records import CodeStack
from .beside import Parts, RepeatedDerivatives, WeightPenalties, repeated_derivatives, weight_penalties
from .ledger import LedgerSignals

WAITS_IN_TORCH = ("torch/cuda/", "torch/distributed/", "torch/multiprocessing/", "torch/utils/")
"""Of torch's folders, what waits for others or asks for batches, and what runs the program's own functions."""


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What backward passes compute again because a checkpoint did not keep it."""

    seconds: float
    """In all steps."""
    samples: int
    """Looks that met it, about."""


class TorchCallSignals:
    """Seconds of the steps in functions of torch's.

    Args:
        parts: Returns the looks into the steps.
        ledger: Of the same run.
    """

    def __init__(self, parts: Callable[[], Parts], ledger: LedgerSignals) -> None:
        self._parts = parts
        self._ledger = ledger

    @property
    def tracing_s(self) -> float | None:
        """Seconds of the steps in which torch notes stacks of calls, to tell of anomalies; None where nobody looked."""
        parts = self._parts()
        return math.fsum(look.tracing_s / look.wall_s * part_s for look, part_s in parts) if parts else None

    @property
    def recomputed(self) -> Recomputed | None:
        """Activations that are computed again, none of them as well; None where nobody looked. Torch on CPUs."""
        found = [
            (look.recomputed_s / look.wall_s, look.seen, part_s)
            for look, part_s in self._parts()
            if look.recomputed_s is not None
        ]
        if not found:
            return None
        seconds = math.fsum(share * part_s for share, _, part_s in found)
        return Recomputed(seconds, round(math.fsum(share * seen for share, seen, _ in found)))

    @property
    def weight_penalties(self) -> WeightPenalties | None:
        """Penalties on weights that steps compute beside their loss; None where nobody looked. Torch on CPUs."""
        return weight_penalties(self._parts(), self._ledger)

    @property
    def repeated_derivatives(self) -> RepeatedDerivatives | None:
        """Derivatives that steps ask for one input at a time; None where nobody looked. Torch on CPUs."""
        return repeated_derivatives(self._parts())

    @property
    def computing_s(self) -> float | None:
        """Seconds of the steps in which the training thread is in a function of torch's; None where nobody looked.

        An operator in the program's own code is none of these: whether that computes or stands still is not told.
        """
        found = [(look.stacks, part_s) for look, part_s in self._parts() if any(one.wall_s > 0 for one in look.stacks)]
        if not found:
            return None
        return math.fsum(
            part_s * math.fsum(one.wall_s for one in stacks if _computes(one)) / math.fsum(one.wall_s for one in stacks)
            for stacks, part_s in found
        )


def _computes(stack: CodeStack) -> bool:
    _, _, where = "".join(stack.frames[-1:]).rpartition(" (")
    return where.startswith("torch/") and not where.startswith(WAITS_IN_TORCH)
