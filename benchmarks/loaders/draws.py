"""What a program of the benchmark is: how its batches are made, and what making one costs."""

from __future__ import annotations

import random
from dataclasses import dataclass

MECHANISMS = (
    "generator",
    "one thread ahead",
    "DataLoader behind a thread",
    "threads and a queue",
    "executor",
    "pool of processes",
    "torchdata.nodes",
    "grain",
    "datasets",
)
"""`generator`, `datasets`: in the loop's own thread. The others have ``producers`` threads or processes."""

IN_LOOP = frozenset({"generator", "datasets"})
ALONE = frozenset({"one thread ahead", "DataLoader behind a thread"})
PROCESSES = frozenset({"pool of processes"})

WORKS = ("python", "c", "sleep", "socket", "healthy")
"""Python code, code that lets go of Python's lock, waits for storage that sleeps or answers over a connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One program."""

    seed: int
    mechanism: str
    work: str
    producers: int
    """Threads or processes that make batches."""
    batch_s: float
    """What making one costs."""
    step_s: float
    """What the loop does with one, most of it on a device: the thread sleeps."""
    computes: bool
    """Whether the loop computes for a fifth of that."""


def draw(seed: int) -> Draw:
    """Return the program of a seed. Mechanisms and works take turns, so that a few seeds have all of them."""
    rng = random.Random(seed)
    mechanism = MECHANISMS[seed % len(MECHANISMS)]
    work = WORKS[seed % len(WORKS)]  # their numbers have no common divisor
    producers = 1 if mechanism in IN_LOOP | ALONE else rng.choice((2, 3, 4))
    step_s = rng.uniform(0.005, 0.02)
    if work == "healthy":
        batch_s = step_s * (rng.uniform(0.05, 0.08) if mechanism in IN_LOOP else rng.uniform(0.1, 0.3))
    else:
        # Slower than the loop by 1.3 to 3 times: all producers together, or each of them where they take turns anyway.
        together = producers if work in ("sleep", "socket") else rng.choice((1, producers))
        batch_s = step_s * rng.uniform(1.3, 3.0) * together
    return Draw(
        seed=seed,
        mechanism=mechanism,
        work=work,
        producers=producers,
        batch_s=batch_s,
        step_s=step_s,
        computes=rng.random() < 0.5,
    )
