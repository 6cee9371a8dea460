"""How much longer a CPU computes with numbers next to zero, by the share of them: products, and steps of Adam.

On one thread; the shares take turns, and of each the median counts.

    python -m benchmarks.faults.subnormal [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

SHARES = (0.0, 0.01, 0.05, 0.1, 0.3, 1.0)
SMALL = 1e-40
SIZE = 512
ROWS, WIDTH = 50_000, 16


def main() -> None:
    """Measure both, and print a row for each share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kinds = {"product of matrices": _product, "step of Adam": _step}
    calls = {(name, share): make(share) for name, make in kinds.items() for share in SHARES}
    took: dict[tuple[str, float], list[float]] = {key: [] for key in calls}
    for _ in range(options.rounds):
        for key, call in calls.items():
            began_s = time.perf_counter()
            call()
            took[key].append(time.perf_counter() - began_s)
    print("subnormal   " + "  ".join(f"{name:>28s}" for name in kinds))
    for share in SHARES:
        row = []
        for name in kinds:
            median_s = statistics.median(took[name, share])
            times = median_s / statistics.median(took[name, 0.0])
            row.append(f"{1e3 * median_s:12.2f} ms {times:7.1f} times")
        print(f"{100 * share:7.0f} %   " + "  ".join(f"{one:>28s}" for one in row))


def _product(share: float) -> Callable[[], object]:
    """Return a product of two matrices; of the numbers of one, spread over it, such a share is subnormal."""
    left, right = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    left.view(-1)[torch.randperm(SIZE * SIZE)[: int(share * SIZE * SIZE)]] = SMALL
    return lambda: left @ right


def _step(share: float) -> Callable[[], object]:
    """Return a step of Adam without gradients, whose means are subnormal in such a share of the rows."""
    table = torch.nn.Embedding(ROWS, WIDTH)
    optimizer = torch.optim.Adam(table.parameters())
    table.weight.grad = torch.zeros_like(table.weight)
    optimizer.step()
    state = optimizer.state[table.weight]
    state["exp_avg"][: int(share * ROWS)] = SMALL
    state["exp_avg_sq"].fill_(1e-10)
    return optimizer.step


if __name__ == "__main__":
    main()
