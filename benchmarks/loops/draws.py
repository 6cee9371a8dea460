"""What is planted where: each seed draws the sizes, and plants every fault in every loop with them."""

from __future__ import annotations

import random
from dataclasses import dataclass

LOOPS = ("plain", "accelerate", "transformers", "fabric", "keras", "ignite")
REFERENCE = "lightning"
FAULTS = ("no workers", "storage", "too few workers", "slow hook", "validation", "healthy")
HOWS = ("zero-code", "adapter")

UNNAMED = frozenset({("plain", "zero-code"), ("accelerate", "zero-code")})
"""Loops whose hooks are lines of the program: only their stacks tell what they take from what the step takes."""

EXPECTED = {
    "no workers": {"no-workers", "fetch-stall"},
    "storage": {"fetch-stall"},
    "too few workers": {"too-few-workers", "fetch-stall"},
    "slow hook": {"slow-callback"},
    "validation": {"validation-heavy"},
    "healthy": {None, "compute-bound"},
}
"""Primaries that are right. Items wait and compute nothing: for them `fetch-stall` has the same first advice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One program."""

    seed: int
    loop: str
    fault: str
    how: str
    """``zero-code`` or ``adapter``."""
    batch_size: int
    step_s: float
    """What a step takes beside the wait."""
    batch_s: float
    """What making a batch takes, in the one that makes it."""
    workers: int
    alone: bool
    """Whether items are made one at a time, whoever makes them: the store is the limit."""
    hook_s: float
    epochs: int
    batches: int
    """Of an epoch."""
    held_out: int
    """Batches of a validation after each epoch."""
    held_out_s: float
    """What each of them takes."""

    @property
    def name(self) -> str:
        """Of the file with the result."""
        return f"{self.seed}-{self.loop}-{self.fault}-{self.how}".replace(" ", "_")

    @property
    def expected(self) -> set[str | None]:
        """Right primaries; where no bucket holds the cause, it may stay unnamed, but nothing else may be blamed."""
        if self.fault == "slow hook" and (self.loop, self.how) in UNNAMED:
            return {None, "compute-bound", "slow-function"}
        return EXPECTED[self.fault]


def draw(seed: int, loop: str, fault: str, how: str) -> Draw:
    """Return the program of a seed: its sizes are the same in all loops."""
    sizes = random.Random(f"{seed} {fault}")
    step_s = sizes.uniform(0.015, 0.03)
    wait_s = sizes.uniform(0.03, 0.06)
    batch_size = sizes.choice((2, 4, 8))
    workers, batch_s, alone, hook_s, held_out = 2, 0.3 * step_s, False, 0.0, 0
    if fault == "no workers":
        workers, batch_s = 0, wait_s
    elif fault == "storage":
        batch_s, alone = step_s + wait_s, True
    elif fault == "too few workers":
        workers, batch_s = 1, step_s + wait_s
    elif fault == "slow hook":
        hook_s = sizes.uniform(0.5, 1.5) * step_s
    elif fault == "validation":
        held_out = sizes.randint(8, 16)
    step = step_s + hook_s + (wait_s if batch_s > step_s or not workers else 0.0)
    batches = int(5.0 / (1 + (held_out > 0)) / step / 2)
    return Draw(
        seed=seed,
        loop=loop,
        fault=fault,
        how=how,
        batch_size=batch_size,
        step_s=step_s,
        batch_s=batch_s,
        workers=workers,
        alone=alone,
        hook_s=hook_s,
        epochs=2,
        batches=batches,
        held_out=held_out,
        held_out_s=batches * step * sizes.uniform(0.4, 0.8) / held_out if held_out else 0.0,
    )


def drawn(seeds: range, loops: tuple[str, ...] = LOOPS) -> list[Draw]:
    """Return all programs of some seeds, those of one framework after each other."""
    pairs = [(REFERENCE, "adapter"), *((loop, how) for loop in loops for how in HOWS)]
    return [draw(seed, loop, fault, how) for loop, how in pairs for seed in seeds for fault in FAULTS]
