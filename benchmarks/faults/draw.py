"""Draws a run from a seed: a family, its sizes, the library, the loop, how long, and how busy the host is.

Odd and even seeds are dealt from decks of their own, so that each half sees every family.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import Any

from .cause import Cause, Planted, quiet_host
from .families import FAMILIES, SECOND
from .program import LOOPS, READS, SHARDED, SHARED, WAITS, Program, sized

BUSY_PART = 0.2
"""Of the draws: other work runs on the host now and then."""
SECOND_PART = 0.18
"""Of the draws with a cause: another one beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One run, and what was planted in it."""

    seed: int
    family: str
    program: Program
    causes: tuple[Cause, ...]
    busy: bool
    seconds: float
    """How long it should train."""

    @property
    def described(self) -> str:
        """The draw in a line."""
        p = self.program
        works = ", ".join(
            f"{w.kind} {1e3 * w.amount_s:.2g} ms{f' ± {w.spread:g}' if w.spread else ''}"
            f"{f' every {w.every}' if w.every > 1 else ''}"
            for w in p.work
        )
        planted = " + ".join(f"{c.rule} ({c.mechanism})" for c in self.causes) or "nothing"
        return (
            f"{self.seed} {self.family}: {planted}; {p.loop}, {p.library}, {p.workers} workers, "
            f"batch {p.batch_size} of [{works}], device {1e3 * p.device_s:.0f} ms {p.device}, "
            f"{p.epochs} x {p.steps} steps"
            f"{f', neighbours {p.neighbours:.1f}' if p.neighbours else ''}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return dataclasses.asdict(self)


def family_of(seed: int) -> str:
    """Return the family of a seed."""
    half, at = seed % 2, seed // 2
    deck = [name for name, (_, cards) in FAMILIES.items() for _ in range(cards)]
    random.Random(f"deck {half} {at // len(deck)}").shuffle(deck)
    return deck[at % len(deck)]


def draw(seed: int) -> Draw:
    """Return the run of a seed."""
    family = family_of(seed)
    rng = random.Random(f"draw {seed}")
    plain = _plain(rng)
    planted = FAMILIES[family][0](rng, plain)
    program, causes = plain.changed(planted.fields), planted.causes
    if causes and rng.random() < SECOND_PART:
        program, causes = _with_second(rng, program, causes)
    busy = not program.neighbours and not program.quota_cpus and rng.random() < BUSY_PART
    if busy:
        program = program.changed({"neighbours": rng.uniform(0.7, 1.4)})
        causes = _with_neighbours(program, causes)
    program = _fitting(program)
    seconds = _seconds(rng)
    if family == "worker-startup":
        seconds = min(seconds, 7.0)
    return Draw(seed=seed, family=family, program=sized(program, seconds), causes=causes, busy=busy, seconds=seconds)


def _plain(rng: random.Random) -> Program:
    loop = rng.choices(LOOPS, (12, 6, 2, 2))[0]
    libraries = {
        "lightning": (
            "map",
            "map",
            "map",
            "iterable",
            "webdataset",
            "webloader",
            "datasets",
            "litdata",
            "stateful",
            "combined",
        ),
        "plain": ("map", "map", "iterable", "webdataset", "webloader", "datasets", "litdata", "stateful"),
        "fabric": ("map", "iterable"),
        "accelerate": ("map", "iterable"),
    }[loop]
    return Program(
        loop=loop,
        library=rng.choice(libraries),
        device_s=10 ** rng.uniform(-2.1, -1.4),
        device=rng.choices(("sleep", "matmul"), (5, 1))[0],
        batch_size=rng.choice((1, 2, 4, 8, 8, 16, 32, 64, 128, 256)),
        workers=rng.choice((0, 0, 1, 2)),
        epochs=rng.choice((1, 1, 1, 2)),
        persistent=rng.random() < 0.6,
        floats=rng.choice((16, 256, 3_072)),
        shards=rng.choice((12, 16, 24)),
    )


def _with_second(rng: random.Random, program: Program, causes: tuple[Cause, ...]) -> tuple[Program, tuple[Cause, ...]]:
    name = rng.choice([n for n in SECOND if n != causes[0].rule])
    second: Planted = FAMILIES[name][0](rng, program)
    touched = [f for c in causes for lever in c.levers for change in lever.changes for f in change]
    if any(field in touched for field in second.fields):
        return program, causes
    return program.changed(second.fields), (*causes, *second.causes)


def _with_neighbours(program: Program, causes: tuple[Cause, ...]) -> tuple[Cause, ...]:
    """Say that the host is busy, which may be as true as what was planted: it is measured like the others."""
    quiet = quiet_host(program)
    found = tuple(dataclasses.replace(c, levers=(quiet, *c.levers)) if _about_input(c) else c for c in causes)
    if any(map(_about_input, causes)):
        return found
    return (*causes, Cause(rule="noisy-neighbour", mechanism="busy host", levers=(quiet,), extra=True))


def _about_input(cause: Cause) -> bool:
    return not cause.always and any(not lever.setting for lever in cause.levers)


def _fitting(program: Program) -> Program:
    """Return the program with sizes that its library and its kinds of work can have."""
    kinds = {w.kind for w in program.work}
    most = 256
    if kinds & {*WAITS, *READS, *SHARED} or program.library not in ("map", "iterable", "stateful", "combined"):
        most = 16 if "http" in kinds or "bandwidth" in kinds else 32
    least = 2 if program.library == "combined" else 1
    size = min(most, max(least, program.batch_size))
    works = tuple(
        dataclasses.replace(w, amount_s=w.amount_s * program.batch_size / size)
        if w.every == 1
        else dataclasses.replace(w, every=max(1, w.every * size // program.batch_size))
        for w in program.work
    )
    fields: dict[str, Any] = {"batch_size": size, "work": works}
    if program.tensors > 1:
        fields["floats"] = max(16, min(program.floats, 256))
        fields["batch_size"] = min(size, 16)
    if program.library in SHARDED and program.workers > program.shards and program.shards > 2:
        fields["shards"] = program.workers
    return program.changed(fields)


def _seconds(rng: random.Random) -> float:
    kind = rng.random()
    if kind < 0.84:
        return rng.uniform(5.0, 7.5)
    return rng.uniform(7.5, 14.0) if kind < 0.95 else rng.uniform(14.0, 30.0)
