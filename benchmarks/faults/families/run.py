"""What happens once in a run, or grows through it."""

from __future__ import annotations

import dataclasses
import random

from ..cause import Cause, Lever, Planted, gone
from ..program import Program
from .loading import COMPUTING, items_levers, work_of


def _at_start(rule: str, mechanism: str, change: dict[str, object]) -> tuple[Cause, ...]:
    return (dataclasses.replace(gone(rule, mechanism, change, whole=True), from_start=True),)


def slow_start(rng: random.Random, program: Program) -> Planted:
    """Prepare for long before the first step."""
    seconds = rng.choice((0.15, 2.0, 3.5, 6.0))
    part = rng.choice((0.0, 0.5, 1.0))
    fields = {"setup_s": seconds * part, "prepare_s": seconds * (1 - part)}
    return Planted(fields=fields, causes=_at_start("slow-start", "long set-up", {"setup_s": 0.0, "prepare_s": 0.0}))


def long_first_steps(rng: random.Random, program: Program) -> Planted:
    """Take long for the first steps, as compiling or autotuning does."""
    fields = {"first_steps": rng.choice((1, 1, 2, 4)), "first_step_s": rng.choice((0.2, 2.5, 5.0, 9.0))}
    cured = {"first_steps": 0}
    return Planted(fields=fields, causes=_at_start("slow-start", f"{fields['first_steps']} long first steps", cured))


def cold_cache(rng: random.Random, program: Program) -> Planted:
    """Read from the disk in the first epoch; later ones read the same from the page cache."""
    device_s = rng.uniform(0.005, 0.010)
    changed = program.changed({"device_s": device_s, "batch_size": rng.choice((4, 8, 16))})
    fields = {
        "device_s": device_s,
        "batch_size": changed.batch_size,
        "work": (work_of(rng, "file", device_s * rng.uniform(2.5, 4.0), changed, spread=0.0),),
        "workers": rng.choice((1, 1, 2)),
        "cached": True,
        "cold": True,
        "epochs": rng.choice((4, 5, 6)),
        "library": "map",
        "persistent": True,
    }
    cause = gone("cold-cache", "files read once from the disk", {"cold": False}, whole=True)
    # Readers that wait for a disk read side by side: where these win as much, it is right to ask for them.
    more = tuple({"workers": fields["workers"] + n} for n in (1, 2))
    readers = Lever(name="more workers", rules=("too-few-workers", "fetch-stall"), changes=more, whole=True)
    return Planted(fields=fields, causes=(dataclasses.replace(cause, levers=(*cause.levers, readers)),))


def host_memory_growth(rng: random.Random, program: Program) -> Planted:
    """Keep memory, with every step or with every item."""
    if program.workers and rng.random() < 0.3:
        fields = {"leak_item_bytes": round(rng.uniform(1e6, 4e6) / program.batch_size)}
    else:
        fields = {"leak_bytes": round(10 ** rng.uniform(6.0, 6.9))}
    # To fill memory costs time, too, and more than a small model does.
    none = Lever(
        name="no leak",
        rules=("host-memory-growth", "slow-function" if "leak_bytes" in fields else "prep-stall"),
        changes=(dict.fromkeys(fields, 0),),
        setting=False,
    )
    cause = Cause(rule="host-memory-growth", mechanism=" ".join(fields), levers=(none,), always=True)
    return Planted(fields=fields, causes=(cause,))


def open_files_growth(rng: random.Random, program: Program) -> Planted:
    """Open files and never close them: most of the 1,024 that are usual."""
    fields = {"leak_files": rng.randint(300, 850)}
    return Planted(fields=fields, causes=(Cause(rule="open-files-growth", mechanism=f"{fields['leak_files']} files"),))


def shm_near_limit(rng: random.Random, program: Program) -> Planted:
    """Have a small /dev/shm, as containers have, and batches that nearly fill it."""
    workers, batch_size = rng.choice((2, 3)), rng.choice((4, 8, 16))
    batch_bytes = rng.choice((4, 6, 8)) << 20
    fields = {
        "workers": workers,
        "batch_size": batch_size,
        "floats": batch_bytes // 4 // batch_size,
        # Two batches a worker are queued or being made, and one is in use.
        "shm_bytes": round((2 * workers + 1) * batch_bytes / rng.uniform(0.88, 0.95)),
        "work": (work_of(rng, rng.choice(COMPUTING), 0.2 * program.device_s, program),),
        "library": "map",
    }
    levers = items_levers(fields["work"])
    cause = Cause(rule="shm-near-limit", mechanism="large batches", levers=levers, always=True)
    return Planted(fields=fields, causes=(cause,))
