"""Loaders that are too slow: by their number of workers, by what an item costs, or by a store that all share."""

from __future__ import annotations

import math
import random
from typing import Any

from ..cause import Cause, Lever, Planted
from ..program import COMPUTES, CPUS, GIL_HELD, GIL_RELEASED, READS, SHARED, WAITS, Program, Work

SPREADS = (0.0, 0.0, 0.4, 0.8)
COMPUTING = (*GIL_HELD, *GIL_HELD, *GIL_RELEASED)
"""Python's own work twice: it is what most loaders do, and what is hardest to see."""
WAITING = (*WAITS, "sleep", *READS)


def work_of(rng: random.Random, kind: str, batch_s: float, program: Program, spread: float | None = None) -> Work:
    """Return work by which a batch costs so many seconds."""
    spread = rng.choice(SPREADS) if spread is None else spread
    return Work(kind=kind, amount_s=batch_s / program.batch_size, spread=spread)


MIXED_PART = 0.25
"""Of an item's time: items of which at least so much waits and so much computes have two cures."""


def items_levers(works: tuple[Work, ...]) -> tuple[Lever, ...]:
    """Return the work on the data that helps: storage that answers at once, items that need no CPU."""
    computing = tuple(w for w in works if w.kind in COMPUTES)
    waiting = tuple(w for w in works if w.kind not in COMPUTES)
    part = sum(w.amount_s for w in waiting) / sum(w.amount_s for w in works)
    mixed = MIXED_PART <= part <= 1 - MIXED_PART
    storage = Lever(
        name="instant storage",
        rules=("fetch-stall",),
        changes=({"work": computing if mixed else ()},),
        setting=False,
    )
    cheap = Lever(
        name="cheap items", rules=("prep-stall",), changes=({"work": waiting if mixed else ()},), setting=False
    )
    return (storage, cheap) if mixed else (storage,) if part > 0.5 else (cheap,)


def input_levers(program: Program, more: tuple[int, ...]) -> tuple[Lever, ...]:
    """Return what helps a loader: more workers, where there may be more, and items that cost nothing."""
    items = items_levers(program.work)
    waits = any("fetch-stall" in lever.rules for lever in items)
    if not program.workers:
        names: tuple[str, ...] = ("no-workers",)
    else:
        names = ("too-few-workers", "fetch-stall") if waits else ("too-few-workers",)
    changes = tuple({"workers": n} for n in sorted(set(more)) if n > program.workers)
    return (Lever(name="more workers", rules=names, changes=changes), *items) if changes else items


def _planted(program: Program, rule: str, works: tuple[Work, ...], more: tuple[int, ...], **fields: Any) -> Planted:
    whole = program.changed({"work": works, **fields})
    mechanism = " + ".join(w.kind for w in works)
    levers = input_levers(whole, more)
    return Planted(fields={"work": works, **fields}, causes=(Cause(rule=rule, mechanism=mechanism, levers=levers),))


def _enough(batch_s: float, device_s: float) -> int:
    return min(8, math.ceil(batch_s / device_s) + 1)


def no_workers(rng: random.Random, program: Program) -> Planted:
    """Make items in the loop."""
    computes = rng.random() < 0.6
    batch_s = program.device_s * rng.uniform(0.3, 2.2)
    kind = rng.choice(COMPUTING if computes else WAITING)
    more = (2, 3) if computes else (2, _enough(batch_s, program.device_s))
    return _planted(program, "no-workers", (work_of(rng, kind, batch_s, program),), more, workers=0)


def too_few_workers(rng: random.Random, program: Program) -> Planted:
    """Have one worker where two CPUs are free, or few that wait."""
    if rng.random() < 0.65:
        batch_s = program.device_s * rng.uniform(1.25, 2.2)
        works = (work_of(rng, rng.choice(COMPUTING), batch_s, program),)
        return _planted(program, "too-few-workers", works, (2, 3), workers=1, device="sleep")
    workers = rng.choice((1, 1, 2))
    batch_s = program.device_s * workers * rng.uniform(1.3, 3.0)
    part = rng.uniform(0.5, 0.9)  # of it waits
    works = (
        work_of(rng, rng.choice(WAITING), part * batch_s, program),
        work_of(rng, rng.choice(COMPUTING), (1 - part) * batch_s, program),
    )
    return _planted(program, "too-few-workers", works, (_enough(batch_s, program.device_s),), workers=workers)


def prep_stall(rng: random.Random, program: Program) -> Planted:
    """Have as many busy workers as CPUs, or more."""
    workers = rng.choice((2, 2, 3, 4))
    batch_s = program.device_s * CPUS * rng.uniform(1.3, 2.5)
    works: tuple[Work, ...] = (work_of(rng, rng.choice(COMPUTING), batch_s, program),)
    if rng.random() < 0.3:
        works += (work_of(rng, "sleep", 0.15 * batch_s, program),)
    return _planted(program, "prep-stall", works, (workers + 1,), workers=workers)


def fetch_stall(rng: random.Random, program: Program) -> Planted:
    """Have several workers that wait."""
    workers = rng.choice((2, 3, 4))
    batch_s = program.device_s * workers * rng.uniform(1.3, 2.8)
    kind = rng.choice(WAITING)
    works: tuple[Work, ...] = (work_of(rng, kind, batch_s, program),)
    if rng.random() < 0.4:
        works += (work_of(rng, rng.choice(COMPUTING), 0.2 * program.device_s, program),)
    return _planted(program, "fetch-stall", works, (_enough(batch_s, program.device_s),), workers=workers)


def shared_store(rng: random.Random, program: Program) -> Planted:
    """Have a lock or a slow store that all workers share."""
    workers = rng.choice((1, 2, 2, 4))
    batch_s = program.device_s * rng.uniform(1.3, 2.5)
    works: tuple[Work, ...] = (work_of(rng, rng.choice(SHARED), batch_s, program, spread=0.0),)
    if rng.random() < 0.4:
        works += (work_of(rng, rng.choice(COMPUTING), 0.2 * program.device_s, program),)
    return _planted(program, "fetch-stall", works, (workers + 3,), workers=workers)
