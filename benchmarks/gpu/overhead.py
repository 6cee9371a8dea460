"""Added time per step on a GPU: a plain loop through `watch()` and bare, in turn, within one process.

Two kinds of loops: one whose step is a chain of small kernels, so that the host sets the pace and everything that we do
stands in the step; and one whose kernels are long, so that the host runs ahead and only what disturbs the device would
show.
A block ends with the device's last kernel. Figures are of one difference of blocks in each round, in brackets the
interval that holds the true median with 95 % confidence.

    python -m benchmarks.gpu.overhead [--rounds 60] [--seconds 0.25]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable

import torch
from torch import nn

from stallmeter import Monitor

from ..overhead import intervals


def model(layers: int, width: int) -> nn.Module:
    return nn.Sequential(*(m for _ in range(layers) for m in (nn.Linear(width, width), nn.ReLU()))).cuda()


def trainer(net: nn.Module) -> Callable[[torch.Tensor], None]:
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step(batch: torch.Tensor) -> None:
        net(batch.to("cuda", non_blocking=True)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def block(loader: Iterable[torch.Tensor], step: Callable[[torch.Tensor], None]) -> float:
    """Return the mean time of a step, seconds."""
    torch.cuda.synchronize()
    begun, steps = time.perf_counter(), 0
    for batch in loader:
        step(batch)
        steps += 1
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.25, help="of a block")
    arguments = parser.parse_args()
    print(f"device: {torch.cuda.get_device_name(0)}; torch {torch.__version__}\n")
    with tempfile.TemporaryDirectory() as folder, Monitor(directory=folder, trackers=None, console=False) as monitor:
        monitor.run.ending.skip_reports()
        for name, layers, width, rows in (
            ("small kernels", 4, 64, 32),
            ("small kernels", 40, 64, 32),
            ("long kernels", 8, 4096, 4096),
        ):
            step = trainer(model(layers, width))
            batch = torch.rand(rows, width).pin_memory()
            block([batch] * 50, step)
            count = max(10, int(arguments.seconds / block([batch] * 50, step)))
            batches = [batch] * count
            contenders = {"bare": batches, "watch()": monitor.watch(batches)}
            found: dict[str, list[float]] = {key: [] for key in contenders}
            for _ in range(arguments.rounds):
                for key in random.sample(list(contenders), len(contenders)):
                    found[key].append(block(contenders[key], step))
            bare = statistics.median(found["bare"])
            added = [1e6 * (ours - theirs) for ours, theirs in zip(found["watch()"], found["bare"], strict=True)]
            x = intervals.median(added)
            print(
                f"{name}, {layers} layers: step {1e3 * bare:.3f} ms, blocks of {count} steps; watch() "
                f"{x.value:+.1f} µs ({x.low:+.1f} … {x.high:+.1f}), {100 * x.value / (1e6 * bare):+.2f} %",
                flush=True,
            )


if __name__ == "__main__":
    main()
