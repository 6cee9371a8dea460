"""Added time per step in a plain loop: `watch()` against the bare loop and against two bare timestamps, in turn.

python benchmarks/overhead/plain_loop.py [--rounds 400] [--block 50]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time

import torch

from stallmeter import Monitor
from stallmeter.records.stats import percentile

now = time.perf_counter_ns
WORK_S = {"0.2 ms": 0.0002, "1 ms": 0.001, "10 ms": 0.01}


def spin(seconds: float) -> None:
    end = now() + seconds * 1e9
    while now() < end:
        pass


def run(loader, work_s: float, *, stamps: bool) -> list[int]:
    times = []
    iterator = iter(loader)
    while True:
        t = now()
        try:
            next(iterator)
        except StopIteration:
            return times[5:]
        if stamps:
            now()
            now()
        spin(work_s)
        times.append(now() - t)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--block", type=int, default=50)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Monitor(directory=folder, trackers=None, console=False) as monitor:
        monitor.run.ending.skip_reports()
        print(f"{'step':8s} {'contender':24s} {'median µs':>10s} {'p99 µs':>10s} {'over bare µs':>13s}")
        for label, work_s in WORK_S.items():
            batches = [torch.ones(8, 4)] * min(arguments.block, int(0.2 / work_s))
            contenders = {
                "bare loop": (batches, False),
                "two timestamps": (batches, True),
                "watch(), everything on": (monitor.watch(batches), False),
            }
            blocks: dict[str, list[list[int]]] = {name: [] for name in contenders}
            for _ in range(arguments.rounds):
                for name in random.sample(list(contenders), len(contenders)):
                    loader, stamps = contenders[name]
                    blocks[name].append(run(loader, work_s, stamps=stamps))
            bare = [statistics.median(b) for b in blocks["bare loop"]]
            for name, times in blocks.items():
                every = sorted(t for b in times for t in b)
                over = statistics.median(statistics.median(b) - a for a, b in zip(bare, times, strict=True))
                print(
                    f"{label:8s} {name:24s} {statistics.median(every) / 1e3:10.1f} "
                    f"{percentile(every, 0.99) / 1e3:10.1f} {over / 1e3:+13.2f}"
                )


if __name__ == "__main__":
    main()
