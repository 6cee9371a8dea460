"""What dense gradients of embedding tables cost: steps that write all rows of a table of which a batch uses few.

Each case is a table, whose rows are chosen at random, beneath a small network. Steps with ``sparse=False`` and one
optimizer for all, and with ``sparse=True`` and an optimizer for the table that takes sparse gradients, take turns in
one process. What the rule ``dense-embeddings`` promises from the optimizer's time and the table's share of the numbers
stands last.

    python -m benchmarks.faults.embeddings [--kinds K ...] [--much-used] [--lookups 1] [--seconds 2]
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from stallmeter.rules.dense_embeddings import LEAST_PCT, saves

from .cases import NOISE, in_turn, measured

KINDS = ("sgd", "momentum", "adam", "adagrad", "rmsprop")
NAMES = {"sgd": "SGD", "momentum": "SGD", "adam": "Adam", "adagrad": "Adagrad", "rmsprop": "RMSprop"}
"""What the rule knows of the optimizer: its class."""

CASES = ((100_000, 16, 256), (100_000, 64, 1024), (300_000, 64, 256), (1_000_000, 16, 1024))
"""Rows, numbers of a row, and items of a batch."""

MUCH_USED = (
    (100_000, 64, 2048),
    (100_000, 64, 4096),
    (100_000, 16, 4096),
    (50_000, 64, 1024),
    (50_000, 64, 2048),
    (20_000, 64, 1024),
    (20_000, 64, 2048),
    (20_000, 128, 512),
    (150_000, 32, 2048),
    (60_000, 32, 1024),
    (60_000, 32, 2048),
    (30_000, 32, 1024),
)
"""As well, tables of which a batch uses 5 to 34 % of the rows."""

FIELDS = 4
"""Rows that an item uses."""


def main() -> None:
    """Measure every case, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--seconds", type=float, default=2.0, help="of all rounds of one setting")
    parser.add_argument("--much-used", action="store_true", help="tables of which a batch uses many rows")
    parser.add_argument("--lookups", type=int, default=1, help="calls of the table in a step, each with its own rows")
    parser.add_argument("--case", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        kind, *numbers = options.case
        print(json.dumps(_measure(kind, *map(int, numbers), seconds=options.seconds)))
        return
    print("optimizer      rows  numbers  batch   table  used      step     sparse  optimizer  faster  promised")
    inside = told = 0
    for kind in options.kinds:
        for rows, width, batch in MUCH_USED if options.much_used else CASES:
            said = measured(__spec__.name, kind, rows, width, batch, options.lookups, seconds=options.seconds)
            faster = said["step_ms"] / said["sparse_ms"]
            a_table = 1e3 / said["step_ms"]
            parts = saves(NAMES[kind], said["optimizer"], said["share"], said["used"], tables_per_s=a_table)
            low, usual, high = (1.0 / (1.0 - part) for part in parts)
            is_told = 100.0 * parts[1] >= LEAST_PCT
            told += is_told
            inside += is_told and (1.0 - NOISE) * low <= faster <= (1.0 + NOISE) * high
            words = f"{usual:.1f} ({low:.1f} to {high:.1f})" if is_told else "nothing"
            print(
                f"{kind:9s} {rows:9,d} {width:8d} {batch:6d} {100 * said['share']:5.0f} % {100 * said['used']:4.1f} %"
                f" {said['step_ms']:6.2f} ms {said['sparse_ms']:7.2f} ms {100 * said['optimizer']:8.0f} %"
                f" {faster:7.1f}  {words}",
                flush=True,
            )
    print(f"inside the interval, {100 * NOISE:.0f} % of noise allowed for: {inside} of {told}")


def _measure(kind: str, rows: int, width: int, batch: int, lookups: int, *, seconds: float) -> dict[str, float]:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    makers = {sparse: _network(kind, rows, width, sparse=sparse) for sparse in (False, True)}
    ids = torch.randint(rows, (64, lookups, batch, FIELDS))

    def steps(sparse: bool, number: int) -> tuple[float, float]:
        """Return the seconds of a step, and those of its optimizers."""
        table, rest, optimizers = makers[sparse]
        spent_s, began_s = 0.0, time.perf_counter()
        for index in range(number):
            for optimizer in optimizers:
                optimizer.zero_grad()
            found = sum(table(each) for each in ids[index % len(ids)])
            rest(found.flatten(1)).square().mean().backward()
            at_s = time.perf_counter()
            for optimizer in optimizers:
                optimizer.step()
            spent_s += time.perf_counter() - at_s
        return (time.perf_counter() - began_s) / number, spent_s / number

    (step_s, optimizer_s), (sparse_s, _) = in_turn(steps, seconds)
    numbers = sum(p.numel() for p in makers[False][1].parameters())
    return {
        "share": rows * width / (rows * width + numbers),
        "used": len(ids[0].unique()) / rows,
        "step_ms": 1e3 * step_s,
        "sparse_ms": 1e3 * sparse_s,
        "optimizer": optimizer_s / step_s,
    }


def _network(kind: str, rows: int, width: int, *, sparse: bool) -> tuple[Any, Any, list[Any]]:
    """Return a table, the network above it, and their optimizers."""
    import torch
    from torch import nn

    table = nn.Embedding(rows, width, sparse=sparse)
    rest = nn.Sequential(nn.Linear(FIELDS * width, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))
    make = {
        "sgd": lambda held: torch.optim.SGD(held, lr=1e-3),
        "momentum": lambda held: torch.optim.SGD(held, lr=1e-3, momentum=0.9),
        "adam": lambda held: torch.optim.Adam(held, lr=1e-3),
        "adagrad": lambda held: torch.optim.Adagrad(held, lr=1e-3),
        "rmsprop": lambda held: torch.optim.RMSprop(held, lr=1e-3),
    }[kind]
    if not sparse:
        return table, rest, [make([*table.parameters(), *rest.parameters()])]
    cures = {"adam": torch.optim.SparseAdam, "rmsprop": torch.optim.SparseAdam, "adagrad": torch.optim.Adagrad}
    own = cures.get(kind, torch.optim.SGD)
    return table, rest, [own(table.parameters(), lr=1e-3), make(rest.parameters())]


if __name__ == "__main__":
    main()
