"""Trains for two epochs on one of the loaders of `loaders`, by its name, and tells the weights. Knows no stallmeter."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))


def first_tensor(batch: Any) -> torch.Tensor:
    """Return the numbers of a batch, whatever it comes in."""
    if isinstance(batch, dict):
        batch = next(iter(batch.values()))
    while isinstance(batch, (list, tuple)):
        batch = batch[0]
        if isinstance(batch, dict):
            batch = next(iter(batch.values()))
    return torch.as_tensor(batch).double().reshape(-1)


def main(name: str, folder: str) -> None:
    """Train."""
    from tests.ecosystem.loaders import MAKERS

    torch.manual_seed(3)
    loader = MAKERS[name](Path(folder))
    model = torch.nn.Linear(1, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    steps = 0
    for _ in range(2):
        for batch in loader:
            optimizer.zero_grad()
            model(first_tensor(batch)[:1]).sum().backward()
            optimizer.step()
            steps += 1
    print("trained", steps, [float(p) for p in model.parameters()])


if __name__ == "__main__":
    main(*sys.argv[1:])
