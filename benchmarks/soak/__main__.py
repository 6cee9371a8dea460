"""A day of training in minutes: 10⁷ steps of 8.64 ms and 5,000 epochs on a clock that is turned by hand.

Everything but the waiting is real: step clock, sampler's tick once a simulated second with a host sample and a batch of
a worker for each step, window, rules, recording on disk, and a forwarder that hands every point to a tracker which only
counts.

    python -m benchmarks.soak [--steps 10000000] [--limit-mb 2]

Exits with 1 when the memory of the process grew by more than the limit after the first 100,000 steps, when a thread or
a file was left behind, or when points or steps are missing.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from stallmeter.delivery.points import points_of
from stallmeter.engine.context import RunContext
from stallmeter.engine.monitor import Monitor
from stallmeter.engine.options import Options
from stallmeter.engine.wiring import assemble
from stallmeter.recording import Reader
from stallmeter.records import HostSample, WorkerBatch
from stallmeter.records.interfaces import Page, Point

STEP_NS = 8_640_000
STEPS_PER_EPOCH = 2_000
STEPS_PER_TICK = 116
"""A tick a simulated second."""
BASE_STEPS = 100_000


class Clock:
    """Nanoseconds that pass when told to."""

    def __init__(self) -> None:
        self.now_ns = 10**12

    def __call__(self) -> int:
        return self.now_ns


class Host:
    """A host whose numbers wander a little, as real ones do."""

    name = "host"

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def sample(self, time_s: float) -> Sequence[HostSample]:
        part = (self.clock.now_ns // 10**9) % 60
        return [
            HostSample(
                time_s=self.clock.now_ns / 1e9, job_cpus=1.0 + part / 100, usable_cpus=4.0,
                others_cpus=0.1, cpu_iowait_pct=0.5, memory_limit_bytes=16 << 30, memory_limit_used_bytes=4 << 30,
            )
        ]  # fmt: skip

    def close(self) -> None:
        """Holds nothing."""


class Workers:
    """Two workers that make a batch for each step."""

    name = "loader"
    overflows = True

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.asked_ns = clock.now_ns

    def sample(self, time_s: float) -> Sequence[WorkerBatch]:
        made = range(self.asked_ns, self.clock.now_ns, STEP_NS)
        self.asked_ns = self.clock.now_ns
        return [
            WorkerBatch(
                worker=i % 2, time_s=ns / 1e9, wall_s=0.012 + i % 7 / 1000, cpu_s=0.01, process_cpu_s=0.01,
                run_queue_s=0.001, collate_s=0.002, read_bytes=0, items=32,
            )
            for i, ns in enumerate(made)
        ]  # fmt: skip

    def close(self) -> None:
        """Holds nothing."""


class Counter:
    """A tracker that counts."""

    name = "counter"
    destination = "nowhere"
    batch_size = 500

    def __init__(self) -> None:
        self.points = 0

    def send(self, points: Sequence[Point]) -> None:
        self.points += len(points)

    def show(self, page: Page) -> None:
        """Shows nothing."""

    def close(self) -> None:
        """Holds nothing."""


def soak(steps: int, folder: Path) -> dict[str, float]:
    """Run it and return what was measured."""
    process = psutil.Process()
    clock, tracker = Clock(), Counter()
    threads = threading.active_count()
    sources = [Host(clock), Workers(clock)]
    options = Options(sources=sources, hardware=False, workers=False, console=False, interval_s=86_400)
    run = assemble(options, RunContext(recordings=folder), find_trackers=lambda: [tracker], now=clock)
    monitor = Monitor.of(run.start())
    done, base_mb = 0, 0.0
    while done < steps:
        for _ in monitor.watch(range(min(STEPS_PER_EPOCH, steps - done))):
            clock.now_ns += STEP_NS
            done += 1
            if done % STEPS_PER_TICK == 0:
                run.collector.tick()
            if done == BASE_STEPS:
                base_mb = resident_mb(process)
                print(f"{'steps':>12s} {'hours':>6s} {'memory MB':>10s} {'recording MB':>13s}")
            if done % (steps // 10) == 0:
                report(process, monitor, done)
    grown_mb = resident_mb(process) - base_mb
    began_s = time.monotonic()
    monitor.close()
    closing_s = time.monotonic() - began_s
    monitor.finish(600)
    drawn_s = time.monotonic() - began_s
    assert monitor.folder is not None
    expected = sum(len(points_of(record)) for record, _ in Reader(monitor.folder, 0))
    ledger = monitor.window.ledger.record
    assert ledger is not None
    gc.collect()
    return {
        "memory grown MB": grown_mb,
        "recording and reports MB": size_mb(monitor.folder),
        "end of the run, s": closing_s,
        "page and pictures beside it, s": drawn_s,
        "steps missing in the ledger": steps - ledger.steps,
        "points missing": expected - tracker.points,
        "threads left": threading.active_count() - threads,
        "files left open": sum(Path(file.path).is_relative_to(folder) for file in process.open_files()),
    }


def report(process: psutil.Process, monitor: Monitor, done: int) -> None:
    assert monitor.folder is not None
    hours = done * STEP_NS / 3.6e12
    print(f"{done:12,d} {hours:6.1f} {resident_mb(process):10.1f} {size_mb(monitor.folder):13.1f}", flush=True)


def resident_mb(process: psutil.Process) -> float:
    """Memory of the process after a collection."""
    gc.collect()
    return process.memory_info().rss / 1e6


def size_mb(folder: Path) -> float:
    """Size of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000_000)
    parser.add_argument("--limit-mb", type=float, default=2.0)
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = soak(arguments.steps, Path(folder))
    for name, value in found.items():
        print(f"{name}: {value:g}")
    print(f"{time.monotonic() - started:.0f} s")
    lost = [v for name, v in found.items() if name.endswith(("missing", "ledger", "left", "open"))]
    sys.exit(1 if any(lost) or found["memory grown MB"] > arguments.limit_mb else 0)


if __name__ == "__main__":
    main()
