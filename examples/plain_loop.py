"""A plain PyTorch loop: `stallmeter.watch` around the loader is the whole change.

Run it with ``python examples/plain_loop.py``; it needs ``pip install 'stallmeter[demo]'`` and takes about 15 s.
Then see where the time went with ``stallmeter report``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

import stallmeter
from stallmeter.demo.crops import Crops, write_crops


def main(epochs: int = 3, num_workers: int = 0, count: int = 1500) -> None:
    files = write_crops(Path("demo-output/crops") if count == 1500 else Path(f"demo-output/crops-{count}"), count)
    loader = DataLoader(Crops(files, augment=True), batch_size=32, shuffle=True, num_workers=num_workers)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 2)
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    loss_of = nn.CrossEntropyLoss()

    for epoch in range(epochs):
        for images, labels in stallmeter.watch(loader):  # was: for images, labels in loader:
            loss = loss_of(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
