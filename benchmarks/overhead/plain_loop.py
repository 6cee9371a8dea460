"""Added time per step in a plain loop: `watch()` against the bare loop and against other things one could do, in turn.

A step of 10 ms leaves nothing of what happens between two steps in the CPU's caches, so everything costs more there.
The control says how much more: Python that knows nothing of stallmeter and takes as long as `watch()` while it is warm.

Figures are of one difference to the bare loop in each round, in brackets the interval that holds the true value with
95 % confidence: of the whole step, and of the time inside ``next()`` alone, which says the same with less noise. What
our own thread does beside the loop is in neither, for the body waits until a time has come and does not do an amount of
work. It stands below: Python runs one thread at a time, so its CPU time is the most that it can add to the mean step.

    python benchmarks/overhead/plain_loop.py [--rounds 100] [--block 200] [--work-ms 0.2 1 10]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time

import intervals
import torch

from stallmeter import Monitor

now = time.perf_counter_ns
WARM_STEPS = 5
"""Steps at the beginning of a block that are left out."""


def spin(seconds: float) -> None:
    end = now() + seconds * 1e9
    while now() < end:
        pass


class Loader:
    """Batches that are there already. It says how large they are, as a DataLoader does."""

    batch_size = 8

    def __init__(self, batches: list[torch.Tensor]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


class NoOp:
    """The least that anything can be that stands between a loader and its loop."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __iter__(self):
        self.iterator = iter(self.loader)
        return self

    def __next__(self):
        return next(self.iterator)


class Stamped(NoOp):
    """The least that a tool can do: the floor."""

    def __next__(self):
        self.asked = now()
        batch = next(self.iterator)
        self.got = now()
        return batch


class Control(NoOp):
    """Some plain Python between two batches."""

    entries = 0

    def __next__(self):
        squares = {}
        for number in range(self.entries):
            squares[number] = [number * number * 1000]
        return next(self.iterator)


def run(loader, work_s: float) -> list[tuple[int, int]]:
    """Return each step's time, and how much of it was inside ``next()``, ns."""
    times = []
    iterator = iter(loader)
    while True:
        t = now()
        try:
            next(iterator)
        except StopIteration:
            return times[WARM_STEPS:]
        got = now()
        spin(work_s)
        times.append((now() - t, got - t))


def warm_cost_ns(loader) -> float:
    """Time of one batch with nothing in between, the fastest of some iterations."""
    return min(statistics.median(inside for _, inside in run(loader, 0.0)) for _ in range(20))


def make_control(loader: Loader, like) -> Control:
    """The control that takes about as long as something else, both warm."""
    control, wanted = Control(loader), warm_cost_ns(like)
    while warm_cost_ns(control) < wanted:
        control.entries += 1
    return control


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--block", type=int, default=200, help="most steps of a block; it takes 0.5 s at most")
    parser.add_argument("--work-ms", type=float, nargs="*", default=[0.2, 1.0, 10.0])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Monitor(directory=folder, trackers=None, console=False) as monitor:
        monitor.run.ending.skip_reports()
        columns = ("step", "contender", "median µs", "median over bare, µs", "inside next()", "its mean")
        print("{:7s} {:24s} {:>9s} {:>26s} {:>26s} {:>26s}".format(*columns))
        for work_ms in arguments.work_ms:
            batches = [torch.ones(8, 4)] * min(arguments.block, int(500 / work_ms))
            loader = Loader(batches)
            watched = monitor.watch(loader)
            contenders = {
                "bare loop": loader,
                "no-op wrapper": NoOp(loader),
                "two timestamps": Stamped(loader),
                "control: as much Python": make_control(loader, watched),
                "watch()": watched,
                "watch(), size not stated": monitor.watch(batches),
            }
            blocks: dict[str, list[list[tuple[int, int]]]] = {name: [] for name in contenders}
            for _ in range(arguments.rounds):
                for name in random.sample(list(contenders), len(contenders)):
                    blocks[name].append(run(contenders[name], work_ms / 1e3))
            for name, found in blocks.items():
                every = statistics.median(t for block in found for t, _ in block)
                figures = (
                    intervals.median(over(found, blocks["bare loop"], 0, statistics.median)),
                    intervals.median(over(found, blocks["bare loop"], 1, statistics.median)),
                    intervals.mean(over(found, blocks["bare loop"], 1, statistics.fmean)),
                )
                said = " ".join(f"{x.value:+7.2f} ({x.low:+7.2f} … {x.high:+7.2f})" for x in figures)
                print(f"{work_ms:4g} ms {name:24s} {every / 1e3:9.1f} {said}", flush=True)
        print_own_thread(monitor)


def over(ours, bare, part: int, of) -> list[float]:
    """One difference a round, µs."""
    return [(of([t[part] for t in a]) - of([t[part] for t in b])) / 1e3 for a, b in zip(ours, bare, strict=True)]


def print_own_thread(monitor: Monitor) -> None:
    """Say what the sampler thread took, most of it for other contenders' steps."""
    time.sleep(1.5)  # the last steps are taken
    ledger = monitor.run.window.ledger.record
    if ledger is not None and ledger.thread_cpu_s is not None:
        share = ledger.thread_cpu_s / ledger.wall_s
        print(f"own thread: {100 * share:.2f} % of a CPU, with {ledger.steps / ledger.wall_s:.0f} steps a second")


if __name__ == "__main__":
    main()
