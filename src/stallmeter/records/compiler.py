"""What torch.compile has done so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerSample:
    """Counters of torch.compile in the training process since the run began; read when they have changed."""

    time_s: float
    compilations: int
    """Pieces of code that were compiled, those compiled again included."""
    recompilations: int | None = None
    """Of them those that had been compiled before, for other shapes or values; None where that is not counted."""
    seconds: float | None = None
    """Time that all of it took; None where that is not measured."""
    recompile_s: float | None = None
    """Time that compiling again took, at the least: it counts as many of the shortest compilations."""
