"""What one training program does. Every fault is a deviation from the plain default; curing one changes fields back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LOOPS = ("lightning", "plain", "fabric", "accelerate")
LIBRARIES = ("map", "iterable", "stateful", "webdataset", "webloader", "datasets", "litdata", "combined")
SHARDED = frozenset({"iterable", "webdataset", "webloader", "datasets", "litdata"})
"""Libraries whose datasets share their items out among the workers themselves."""

GIL_HELD = ("tokenise", "json", "regex")
GIL_RELEASED = ("zlib", "hash", "sort", "jpeg", "threads")
WAITS = ("sleep", "http")
READS = ("file",)
SHARED = ("lock", "flock", "bandwidth")
"""One at a time gets through, however many workers ask."""
KINDS = (*GIL_HELD, *GIL_RELEASED, *WAITS, *READS, *SHARED)
COMPUTES = frozenset((*GIL_HELD, *GIL_RELEASED))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One thing that making an item costs."""

    kind: str
    """What it does and what it holds meanwhile: one of `KINDS`."""
    amount_s: float
    """CPU seconds of what computes, seconds of what waits, for a typical item."""
    spread: float = 0.0
    """Sigma of the logarithm of an item's own factor, whose mean is 1: 0 is even."""
    every: int = 1
    """Only each so-many-th item costs this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a run does. Seconds are sleeps unless the name says ``cpu``."""

    loop: str = "lightning"
    library: str = "map"
    device_s: float = 0.015
    """Compute of the accelerator, in each step."""
    device: str = "sleep"
    """``sleep`` leaves the CPU free, as an accelerator does; ``matmul`` takes one CPU, as training on the host does."""
    epochs: int = 1
    steps: int = 200
    """Batches an epoch."""
    batch_size: int = 8
    accumulate: int = 1

    work: tuple[Work, ...] = ()
    workers: int = 0
    prefetch: int | None = None
    persistent: bool = False
    start_method: str | None = None
    shards: int = 16
    """Of a dataset that shares out its items itself."""
    tensors: int = 1
    """Tensors in a batch."""
    floats: int = 16
    """Numbers in an item."""
    worker_init_s: float = 0.0
    fork_wait_s: float = 0.0
    """What a handler that runs before every fork waits."""
    cached: bool = False
    """What was read stays in the page cache; else each read comes from the disk."""
    cold: bool = False
    """The files leave the page cache before the run."""

    callback_s: float = 0.0
    """After each batch."""
    callback: str = "sleep"
    """``sleep``, ``cpu``, or ``hook``: in the module's own ``on_train_batch_end``."""
    logger_s: float = 0.0
    """In the logger, each time it is written to."""
    log_every: int = 50
    save_every: int = 0
    """Steps between checkpoints; 0 writes none."""
    save_s: float = 0.0
    """What the storage takes for a checkpoint, besides writing it."""
    weights_bytes: int = 0
    validate_every: int = 0
    """Steps between validations; 0 validates never."""
    validate_steps: int = 10
    validate_s: float = 0.01
    """Device time of a validation step."""
    validate_workers: int = 0
    setup_s: float = 0.0
    """Before the loop: in the module's ``setup``."""
    prepare_s: float = 0.0
    """Before the loop: while the loader is made."""
    first_steps: int = 0
    """The first steps that are slow, as compiled or autotuned ones are."""
    first_step_s: float = 0.0
    """What those take longer, together."""

    pause_every: int = 0
    """Each so-many-th step pauses."""
    pause_s: float = 0.0
    drift_s: float = 0.0
    """How much longer the last step takes than the first; in between it rises evenly."""
    drift: str = "sleep"
    """``sleep`` in the forward pass, ``python`` over a growing list there, or ``callback``."""
    garbage: int = 0
    """Objects that the program holds while it makes the collector look at all of them."""
    garbage_every: int = 0
    """Steps between full collections that it asks for; 0 lets a buffer of objects that come and go cause them."""
    gc_off: bool = False
    shapes: int = 0
    """Distinct lengths of the batches that a compiled model sees; 0 compiles nothing."""

    leak_bytes: int = 0
    """Kept for ever, each step."""
    leak_item_bytes: int = 0
    """Kept for ever by the dataset, each item."""
    leak_files: int = 0
    """Opened in the course of the run and never closed."""
    shm_bytes: int = 0
    """Size of a /dev/shm of its own; 0 leaves the machine's."""

    neighbours: float = 0.0
    """CPUs that processes outside the job keep busy."""
    quota_cpus: float = 0.0
    """CPUs that a cgroup allows; 0 makes none."""

    def changed(self, fields: Mapping[str, Any]) -> Program:
        """Return the same program with some fields changed."""
        return dataclasses.replace(self, **fields)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return dataclasses.asdict(self)


def program_of(fields: Mapping[str, Any]) -> Program:
    """Return the program that `Program.to_dict` or a lever described."""
    return Program().changed(plain_fields(fields))


def plain_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields as `Program` has them, from JSON."""
    result = dict(fields)
    if "work" in result:
        result["work"] = tuple(w if isinstance(w, Work) else Work(**w) for w in result["work"])
    return result


def service_s(program: Program) -> float:
    """Return the seconds that a batch takes to make, in a process that has a CPU of its own."""
    return program.batch_size * sum(w.amount_s / w.every for w in program.work)


def cpu_of_batch_s(program: Program) -> float:
    """Return the CPU seconds that a batch takes to make."""
    works = [w for w in program.work if w.kind in COMPUTES]
    return program.batch_size * sum(w.amount_s / w.every for w in works)


def serial_s(program: Program) -> float:
    """Return the seconds of a batch that only one worker at a time gets through."""
    works = [w for w in program.work if w.kind in SHARED]
    return program.batch_size * sum(w.amount_s / w.every for w in works)


HANDOVER_S = 0.0015
TENSOR_S = 0.00017
CPUS = 2


def step_s(program: Program) -> float:
    """Estimate what a step takes, to choose how many fit into a run."""
    making = service_s(program)
    beside = (
        program.callback_s
        + program.logger_s / max(1, program.log_every)
        + (program.pause_s / program.pause_every if program.pause_every else 0.0)
        + program.drift_s / 2
        + 0.003
    )
    if program.save_every:
        beside += program.save_s / program.save_every
    if program.validate_every:
        beside += program.validate_steps * (program.validate_s + 0.001) / program.validate_every
    own = program.device_s + beside
    if not program.workers:
        return own + making
    free = max(0.5, min(CPUS, program.quota_cpus or CPUS) - program.neighbours / 2 - (program.device == "matmul"))
    shards = program.shards if program.library in SHARDED else program.workers
    busy = max(1, min(program.workers, shards))
    handing = HANDOVER_S + TENSOR_S * program.tensors
    return max(own + handing, making / busy, cpu_of_batch_s(program) / free, serial_s(program))


def sized(program: Program, seconds: float) -> Program:
    """Return the program with as many steps as take about so many seconds."""
    each = step_s(program)
    total = max(40.0, seconds / each)
    return program.changed({"steps": max(12, round(total / program.epochs))})
