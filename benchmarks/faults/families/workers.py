"""Loaders whose workers are fast enough, and yet the loop waits."""

from __future__ import annotations

import random

from ..cause import Cause, Lever, Planted, gone, quiet_host
from ..program import CPUS, Program, Work
from .loading import COMPUTING, input_levers, work_of


def slow_batches(rng: random.Random, program: Program) -> Planted:
    """Make one item in many slow: it holds up the batches behind it."""
    workers = rng.choice((2, 3, 4))
    between = rng.randint(12, 40)
    slow_s = program.device_s * between * rng.uniform(0.5, 0.9)
    even = (work_of(rng, rng.choice(("sleep", *COMPUTING)), 0.15 * program.device_s, program),)
    kind = rng.choice(("sleep", "sleep", *COMPUTING))
    slow = Work(kind=kind, amount_s=slow_s, every=between * program.batch_size)
    return Planted(
        fields={"workers": workers, "work": (*even, slow), "prefetch": 2},
        causes=(gone("slow-batches", f"slow {kind}", {"work": even}),),
    )


def batch_handoff(rng: random.Random, program: Program) -> Planted:
    """Make batches of many tensors: quick to make, slow to hand over."""
    tensors = round(rng.uniform(0.6, 2.5) * program.device_s / 0.00017)
    works = (work_of(rng, rng.choice(("sleep", "zlib")), 0.3 * program.device_s, program, spread=0.0),)
    return Planted(
        fields={"workers": 2, "tensors": min(400, max(60, tensors)), "work": works},
        causes=(gone("batch-handoff", "many tensors", {"tensors": 1}),),
    )


def too_many_workers(rng: random.Random, program: Program) -> Planted:
    """Have workers for items that cost less than their hand-over."""
    fewer = Lever(name="fewer workers", rules=("too-many-workers",), changes=({"workers": 0}, {"workers": 1}))
    return Planted(
        fields={"workers": rng.choice((3, 4, 6, 8)), "device_s": rng.uniform(0.001, 0.005), "work": ()},
        causes=(Cause(rule="too-many-workers", mechanism="tiny items", levers=(fewer,)),),
    )


def worker_startup(rng: random.Random, program: Program) -> Planted:
    """Start workers anew in each short epoch, where that takes long."""
    how = rng.choice(("init", "init", "fork", "spawn"))
    epochs = {"init": rng.randint(3, 6), "fork": rng.randint(3, 6), "spawn": 3}[how]
    fields = {
        "workers": 2,
        "epochs": epochs,
        "work": (work_of(rng, rng.choice(COMPUTING), 0.3 * program.device_s, program),),
        "worker_init_s": rng.uniform(0.3, 1.0) if how == "init" else 0.0,
        "fork_wait_s": rng.uniform(0.15, 0.5) if how == "fork" else 0.0,
        "start_method": "spawn" if how == "spawn" else None,
        "library": "map",
        "persistent": False,
    }
    return Planted(fields=fields, causes=(gone("worker-startup", how, {"persistent": True}, whole=True),))


def idle_workers(rng: random.Random, program: Program) -> Planted:
    """Have fewer shards than workers."""
    library = rng.choice(("iterable", "webdataset", "datasets"))
    shards = rng.choice((1, 2))
    batch_s = program.device_s * shards * rng.uniform(1.4, 2.0)
    works = (work_of(rng, "sleep", batch_s, program, spread=0.0),)
    return Planted(
        fields={"workers": 4, "shards": shards, "library": library, "work": works},
        causes=(gone("idle-workers", f"{library}, {shards} shards", {"shards": 16}),),
    )


def noisy_neighbour(rng: random.Random, program: Program) -> Planted:
    """Have workers that keep up when the CPUs are theirs, and processes beside them that take these."""
    batch_s = program.device_s * CPUS * rng.uniform(0.6, 0.8)
    kind = rng.choice(COMPUTING)
    fields = {
        "workers": rng.choice((2, 2, 3)),
        "work": (work_of(rng, kind, batch_s, program, spread=0.0),),
        "neighbours": rng.choice((2.0, 3.0, 4.0, 6.0)),
        "device": "sleep",
    }
    levers = (quiet_host(program), *input_levers(program.changed(fields), ()))
    return Planted(fields=fields, causes=(Cause(rule="noisy-neighbour", mechanism=kind, levers=levers),))


def cpu_throttled(rng: random.Random, program: Program) -> Planted:
    """Have a cgroup that allows less than the workers need."""
    batch_s = program.device_s * CPUS * rng.uniform(0.55, 0.75)
    kind = rng.choice(COMPUTING)
    fields = {
        "workers": 2,
        "work": (work_of(rng, kind, batch_s, program, spread=0.0),),
        "quota_cpus": rng.choice((0.4, 0.5, 0.7)),
        "device": "sleep",
    }
    quota = Lever(name="no quota", rules=("cpu-throttled",), changes=({"quota_cpus": 0.0},))
    levers = (quota, *input_levers(program.changed(fields), ()))
    return Planted(fields=fields, causes=(Cause(rule="cpu-throttled", mechanism=kind, levers=levers),))
