"""Programs with nothing wrong."""

from __future__ import annotations

import random

from ..cause import Planted
from ..program import Program
from .loading import COMPUTING, WAITING, work_of


def tiny_items(rng: random.Random, program: Program) -> Planted:
    """Make tiny items in the loop."""
    works = (work_of(rng, rng.choice(COMPUTING), 0.02 * program.device_s, program),) if rng.random() < 0.5 else ()
    return Planted(fields={"workers": 0, "work": works})


def enough_workers(rng: random.Random, program: Program) -> Planted:
    """Have workers that keep up."""
    computes = rng.random() < 0.6
    workers = 2 if computes else rng.choice((1, 2, 3, 4))
    free = 1 if computes else workers
    batch_s = program.device_s * free * rng.uniform(0.1, 0.6)
    kind = rng.choice(COMPUTING if computes else WAITING)
    return Planted(fields={"workers": workers, "work": (work_of(rng, kind, batch_s, program),), "device": "sleep"})


def many_workers(rng: random.Random, program: Program) -> Planted:
    """Have more workers than are of use; they cost memory and no time."""
    batch_s = program.device_s * rng.uniform(0.3, 0.8)
    works = (work_of(rng, rng.choice(("sleep", *COMPUTING)), batch_s, program),)
    return Planted(fields={"workers": rng.choice((6, 8, 12)), "work": works, "device_s": rng.uniform(0.02, 0.04)})


def extras(rng: random.Random, program: Program) -> Planted:
    """Have everything that ordinary programs have, in moderation."""
    works = (work_of(rng, rng.choice(COMPUTING), program.device_s * rng.uniform(0.1, 0.5), program),)
    return Planted(
        fields={
            "workers": rng.choice((1, 2)),
            "work": works,
            "device": "sleep",
            "callback_s": 0.01 * program.device_s,
            "logger_s": 0.002,
            "log_every": 25,
            "save_every": 100,
            "save_s": 0.02,
            "weights_bytes": 1_000_000,
            "validate_every": 120,
            "validate_steps": 3,
            "validate_s": 0.01,
        }
    )


def long_epochs(rng: random.Random, program: Program) -> Planted:
    """Start workers anew in two or three long epochs, and accumulate gradients."""
    works = (work_of(rng, rng.choice(COMPUTING), program.device_s * rng.uniform(0.1, 0.5), program),)
    return Planted(
        fields={
            "workers": 2,
            "work": works,
            "epochs": rng.choice((2, 3)),
            "accumulate": rng.choice((1, 2, 4)),
            "device": "sleep",
            "library": rng.choice(("map", "iterable")),
        }
    )
