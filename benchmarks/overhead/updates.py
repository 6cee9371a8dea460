"""Added time per step where a loop asks no loader: its steps are the updates of its optimizer, and hooks hear of them.

Blocks with the hooks and without take turns in one process. ``--touch-mb`` is read, and a dictionary filled, in each
step, so that nothing of us is left in the CPU's caches. Figures as in plain_loop.py.

    python benchmarks/overhead/updates.py [--rounds 40] [--block 150] [--touch-mb 0 4]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

import intervals
import numpy as np
import torch
from torch.optim import optimizer as optimizers

import stallmeter

now = time.perf_counter_ns
WARM_STEPS = 5
"""Steps at the beginning of a block that are left out."""

ATTACH_S = 3.0
"""So long it trains before it is measured: without a loader a second of updates decides that they are steps."""

torch.set_num_threads(1)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
batch = torch.randn(4, 16)
kept = [object() for _ in range(8000)]


def step(touched: np.ndarray) -> None:
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    if len(touched):
        touched.sum()
        dict.fromkeys(map(id, kept))


def run(steps: int, touched: np.ndarray) -> float:
    """Return the mean time of a step, ns."""
    for _ in range(WARM_STEPS):
        step(touched)
    began = now()
    for _ in range(steps):
        step(touched)
    return (now() - began) / steps


def measure(rounds: int, block: int, touch_mb: float) -> None:
    touched = np.random.default_rng(0).random(int(touch_mb * 1e6 / 8))
    registers = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
    ours = [dict(register) for register in registers]
    bare, added = [], []
    for _ in range(rounds):
        for register in registers:
            register.clear()
        bare.append(run(block, touched))
        for register, hooks in zip(registers, ours, strict=True):
            register.update(hooks)
        added.append(run(block, touched) - bare[-1])
    found = intervals.median([one / 1e3 for one in added])
    whole_us = statistics.median(bare) / 1e3
    print(
        f"{touch_mb:4g} MB {whole_us:8.1f} µs   {found.value:+6.1f} ({found.low:+.1f} … {found.high:+.1f})", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--block", type=int, default=150)
    parser.add_argument("--touch-mb", type=float, nargs="+", default=[0.0, 4.0])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        auto = stallmeter.auto(directory=folder, trackers=None, console=False)
        end = time.monotonic() + ATTACH_S
        while time.monotonic() < end:
            step(np.empty(0))
        if not optimizers._global_optimizer_pre_hooks:
            raise SystemExit("nothing hears of the updates: is the benchmark run with the stallmeter that it is for?")
        print("read in a step, the step alone, and what hooks add, µs, in brackets the 95 % interval", flush=True)
        for touch_mb in given.touch_mb:
            measure(given.rounds, given.block, touch_mb)
        assert auto.monitor is not None
        auto.monitor.run.ending.skip_reports()
        auto.monitor.close()


if __name__ == "__main__":
    main()
