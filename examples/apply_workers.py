"""`stallmeter.watch` sets the number of workers itself: images come over HTTP from a store that answers slowly.

The store is a server on this machine that waits 20 ms before it answers, as an object store does; everything else is
real. The loop starts with a loader without workers, and nobody changes that but stallmeter, between two epochs.

Run it with ``python examples/apply_workers.py``; it needs ``pip install 'stallmeter[demo]'`` and takes about a minute.
"""

from __future__ import annotations

import functools
import http.server
import io
import multiprocessing
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

import stallmeter
from stallmeter.demo.crops import write_crops

LATENCY_S = 0.02


class SlowStore(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        time.sleep(LATENCY_S)
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


def serve(folder: Path, tell: Connection) -> None:
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(SlowStore, directory=str(folder))
    ) as server:
        tell.send(server.server_port)
        server.serve_forever()


@contextmanager
def store(folder: Path) -> Iterator[str]:
    told, tell = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=serve, args=(folder, tell), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{told.recv()}"
    finally:
        process.terminate()
        process.join()


class Remote(Dataset):
    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses

    def __len__(self) -> int:
        return len(self.addresses)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with urllib.request.urlopen(self.addresses[index], timeout=60) as answer:
            image = Image.open(io.BytesIO(answer.read())).convert("RGB").resize((96, 96))
        pixels = torch.from_numpy(np.array(image, dtype=np.float32) / 255).permute(2, 0, 1)
        return pixels, "flower" in self.addresses[index]


def main(epochs: int = 6, num_workers: int = 0, count: int = 960) -> None:
    folder = Path(f"demo-output/crops-{count}")
    files = write_crops(folder, count)
    network = nn.Sequential(nn.Conv2d(3, 8, 5, stride=3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
    network.append(nn.Linear(128, 2))
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    loss_of = nn.CrossEntropyLoss()

    with store(folder) as address:
        dataset = Remote([f"{address}/{file.relative_to(folder).as_posix()}" for file in files])
        loader = DataLoader(dataset, batch_size=32, shuffle=True, num_workers=num_workers)
        for epoch in range(epochs):
            began = time.perf_counter()
            for images, labels in stallmeter.watch(loader, on_num_workers="apply"):
                loss = loss_of(network(images), labels.long())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            rate = count / (time.perf_counter() - began)
            print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.0f} images/s with {loader.num_workers} workers")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
