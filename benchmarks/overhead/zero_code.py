"""Added time per step where nobody has named the loop: a DataLoader and an optimizer of torch, bare and measured.

In both the body waits until a time has come and then steps the optimizer of a small model. The bare one asks the class
for what it had before, and while it runs torch's optimizers have no hooks. ``--how watch`` measures `watch()` on the
same loop, in a process of its own. Figures as in plain_loop.py: of one difference to the bare loop in each round.

    python benchmarks/overhead/zero_code.py [--how auto watch] [--rounds 40] [--block 50] [--work-ms 1 10]
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time

import intervals
import torch
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset

import stallmeter

now = time.perf_counter_ns
WARM_STEPS = 5
"""Steps at the beginning of a block that are left out."""

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)


def run(iterator, work_s: float) -> list[int]:
    """Return the time of each step, ns."""
    times = []
    model(torch.ones(8, 4)).sum().backward()
    while True:
        began = now()
        if next(iterator, None) is None:
            return times[WARM_STEPS:]
        end = now() + work_s * 1e9
        while now() < end:
            pass
        optimizer.step()
        times.append(now() - began)


def bare(loader: DataLoader) -> list:
    own = getattr(DataLoader.__iter__, "__wrapped__", DataLoader.__iter__)
    return own(loader)


def measure(how: str, rounds: int, block: int, works_ms: list[float], workers: int) -> None:
    loader = DataLoader(TensorDataset(torch.ones(8 * block, 4)), batch_size=8, num_workers=workers)
    with tempfile.TemporaryDirectory() as folder:
        if how == "auto":
            auto = stallmeter.auto(directory=folder, trackers=None, console=False)
            run(iter(loader), 0.0)
            monitor, watched = auto.monitor, loader
        else:
            monitor = stallmeter.Monitor(directory=folder, trackers=None, console=False)
            watched = monitor.watch(loader)
        assert monitor is not None
        monitor.run.ending.skip_reports()
        hooks = optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks
        for work_ms in works_ms:
            found: dict[str, list[list[int]]] = {"bare": [], how: []}
            for _ in range(rounds):
                for name in random.sample(list(found), 2):
                    kept = [dict(known) for known in hooks]
                    if name == "bare":
                        for known in hooks:
                            known.clear()
                    found[name].append(run(bare(loader) if name == "bare" else iter(watched), work_ms / 1e3))
                    for known, before in zip(hooks, kept, strict=True):
                        known.update(before)
            pairs = list(zip(found[how], found["bare"], strict=True))
            median = intervals.median([(statistics.median(a) - statistics.median(b)) / 1e3 for a, b in pairs])
            mean = intervals.mean([(statistics.fmean(a) - statistics.fmean(b)) / 1e3 for a, b in pairs])
            said = " ".join(f"{x.value:+7.2f} ({x.low:+7.2f} … {x.high:+7.2f})" for x in (median, mean))
            print(f"{how:6s} workers {workers} {work_ms:4g} ms   {said}", flush=True)
        monitor.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--how", nargs="*", default=["auto", "watch"])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--block", type=int, default=50)
    parser.add_argument("--work-ms", type=float, nargs="*", default=[1.0, 10.0])
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    if len(arguments.how) == 1:
        measure(arguments.how[0], arguments.rounds, arguments.block, arguments.work_ms, arguments.workers)
        return
    print("median and mean over the bare loop, µs a step, in brackets the 95 % interval", flush=True)
    for how in arguments.how:
        subprocess.run([sys.executable, __file__, "--how", how, *sys.argv[1:]], check=True)


if __name__ == "__main__":
    main()
