"""Added time per step of `watch()` in a job of two ranks, beside the same in a run of one.

Each rank takes steps that wait until a time has come and then make a small backward pass of their own: an exchange in
them would be a hundred times noisier than what is to be seen. Collectives stand between the blocks, so that all that
ranks have is at work: the folder they share, posts to rank 0, the flight recorder, the ends of backward passes.

    python benchmarks/overhead/two_ranks.py [--rounds 60] [--block 100] [--work-ms 1 10]
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

import intervals
import torch
import torch.distributed as dist

from stallmeter import Monitor

now = time.perf_counter_ns
WARM_STEPS = 5
"""Steps at the beginning of a block that are left out."""

model = torch.nn.Linear(4, 1)


def run(iterator, work_s: float) -> list[int]:
    """Return the time of each step, ns."""
    times = []
    while True:
        began = now()
        if next(iterator, None) is None:
            return times[WARM_STEPS:]
        end = now() + work_s * 1e9
        while now() < end:
            pass
        model(torch.ones(8, 4)).sum().backward()
        times.append(now() - began)


def measure(rounds: int, block: int, works_ms: list[float], folder: str) -> None:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    batches = [torch.ones(8, 4)] * block
    with Monitor(directory=folder, trackers=None, console=False) as monitor:
        monitor.run.ending.skip_reports()
        watched = monitor.watch(batches)
        draw = random.Random(0)  # the same order on all ranks
        for work_ms in works_ms:
            found: dict[str, list[list[int]]] = {"bare": [], "watch": []}
            for _ in range(rounds):
                for name in draw.sample(list(found), 2):
                    if ranks > 1:
                        dist.all_reduce(torch.ones(1))
                    found[name].append(run(iter(batches if name == "bare" else watched), work_ms / 1e3))
            pairs = zip(found["watch"], found["bare"], strict=True)
            added = intervals.median([(statistics.median(a) - statistics.median(b)) / 1e3 for a, b in pairs])
            if os.environ.get("RANK", "0") == "0":
                said = f"{added.value:+7.2f} ({added.low:+7.2f} … {added.high:+7.2f})"
                print(f"{ranks} rank{'s' * (ranks > 1)}, {work_ms:4g} ms: {said} µs a step", flush=True)
    if ranks > 1:
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--block", type=int, default=100)
    parser.add_argument("--work-ms", type=float, nargs="*", default=[1.0, 10.0])
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder:
        measure(arguments.rounds, arguments.block, arguments.work_ms, arguments.folder)
        return
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for launcher in ([sys.executable], torchrun):
        with tempfile.TemporaryDirectory() as folder:
            command = [*launcher, __file__, "--folder", folder, *sys.argv[1:]]
            subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    main()
