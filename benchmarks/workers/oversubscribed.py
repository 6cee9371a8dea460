"""How much longer a step takes where torch has more threads than there are CPUs, and what the training thread does.

Each case is a process of its own, without stallmeter, bound to two CPUs. The last column is what a step gains with two
threads, over what it would gain if it took as long as the training thread runs: see the rule ``too-many-threads``.

    python -m benchmarks.workers.oversubscribed [--networks N ...] [--threads 3 4 8 16 64] [--seconds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from .threads import CPUS, ITEMS, NETWORKS, network_of

WARM_STEPS = 5


class Case(NamedTuple):
    """A step, and the shares of its time that the training thread runs and waits for a CPU."""

    step_ms: float
    runs: float
    waits: float


def main() -> None:
    """Measure every number of threads beside two, network by network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--threads", type=int, nargs="*", default=[3, 4, 8, 16, 64])
    parser.add_argument("--seconds", type=float, default=3.0, help="of each case")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(_measure(given.case[0], int(given.case[1]), given.seconds)))
        return
    for network in given.networks:
        few = _case(network, CPUS, given.seconds)
        print(f"{network}: {few.step_ms:.2f} ms with {CPUS} threads", flush=True)
        for threads in given.threads:
            many = _case(network, threads, given.seconds)
            slower = many.step_ms / few.step_ms
            seen = max(1e-9, 1.0 / many.runs - 1.0)
            print(
                f"  {threads:3d} threads: {many.step_ms:8.2f} ms, {slower:6.2f} times; "
                f"runs {many.runs:.2f}, waits {many.waits:.2f}; {(slower - 1.0) / seen:.2f} of what is seen",
                flush=True,
            )


def _case(network: str, threads: int, seconds: float) -> Case:
    command = [sys.executable, "-m", __spec__.name, "--case", network, str(threads), "--seconds", str(seconds)]
    return Case(*json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def _measure(network: str, threads: int, seconds: float) -> Case:
    import torch

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CPUS])
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    model, prepared = network_of(network)
    optimizer = torch.optim.Adam(model.parameters())
    inputs = prepared(torch.randn(ITEMS, 64))
    targets = torch.arange(len(inputs)) % 3

    def step() -> None:
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for _ in range(WARM_STEPS):
        step()
    before, began, steps = _scheduled_s(), time.perf_counter(), 0
    while (took_s := time.perf_counter() - began) < seconds or not steps:
        step()
        steps += 1
    runs_s, waits_s = (now - then for now, then in zip(_scheduled_s(), before, strict=True))
    return Case(1e3 * took_s / steps, runs_s / took_s, waits_s / took_s)


def _scheduled_s() -> tuple[float, float]:
    words = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()
    return int(words[0]) / 1e9, int(words[1]) / 1e9


if __name__ == "__main__":
    main()
