"""How much faster steps of convolutions are on this CPU with bfloat16, with their channels last, and with both.

Each case is a small network in a process of its own; steps of both kinds take turns. bfloat16 is ``torch.autocast``,
which only a CPU with instructions for it computes quicker with; the heading says whether this one has them. The batch
is made as the change wants it, before the steps.

    python -m benchmarks.faults.convolutions [--networks N ...] [--changes N ...] [--threads 1 2] [--seconds S]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

from stallmeter.machine.cpu_features import BFLOAT16, computes_16_bits

from .cases import in_turn, measured

CHANGES = ("bfloat16", "channels last", "both")


def _blocks(channels: int, *, first: int = 3, stride: int = 2, grouped: bool = False) -> list[Any]:
    """Return three convolutions, each with twice the channels of the one before, their norms and activations."""
    from torch import nn

    made: list[Any] = [nn.Conv2d(first, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
    for _ in range(2):
        groups = channels if grouped else 1
        if grouped:
            made += [nn.Conv2d(channels, channels, 3, stride=stride, padding=1, groups=groups)]
            made += [nn.Conv2d(channels, 2 * channels, 1)]
        else:
            made += [nn.Conv2d(channels, 2 * channels, 3, stride=stride, padding=1)]
        channels *= 2
        made += [nn.BatchNorm2d(channels), nn.ReLU()]
    return [*made, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]


def _dense(channels: int) -> list[Any]:
    """Return an autoencoder of convolutions, which makes a picture of a picture."""
    from torch import nn

    down = [nn.Conv2d(3, channels, 4, 2, 1), nn.ReLU(), nn.Conv2d(channels, 2 * channels, 4, 2, 1), nn.ReLU()]
    up = [nn.ConvTranspose2d(2 * channels, channels, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(channels, 3, 4, 2, 1)]
    return [*down, *up]


def _sounds(channels: int) -> list[Any]:
    from torch import nn

    made = [nn.Conv1d(1, channels, 9, 2), nn.ReLU(), nn.Conv1d(channels, 2 * channels, 9, 2), nn.ReLU()]
    return [*made, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2 * channels, 10)]


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "8 channels": (lambda: _blocks(8), (64, 3, 28, 28)),
    "16 channels": (lambda: _blocks(16), (32, 3, 48, 48)),
    "32 channels": (lambda: _blocks(32), (16, 3, 64, 64)),
    "64 channels": (lambda: _blocks(64), (8, 3, 64, 64)),
    "small batch": (lambda: _blocks(32), (2, 3, 64, 64)),
    "grouped": (lambda: _blocks(32, grouped=True), (16, 3, 96, 96)),
    "no stride": (lambda: _blocks(16, stride=1), (8, 3, 64, 64)),
    "autoencoder": (lambda: _dense(32), (16, 3, 64, 64)),
    "sounds": (lambda: _sounds(32), (16, 1, 8000)),
}


def main() -> None:
    """Measure every case, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--changes", nargs="*", default=list(CHANGES), choices=CHANGES)
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=2.0, help="of all rounds without the change")
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        name, change, threads = options.case
        print(json.dumps(_measure(name, change, int(threads), options.seconds)))
        return
    has = (computes_16_bits() or {}).get(BFLOAT16)
    print(f"instructions for {BFLOAT16}: { {True: 'yes', False: 'no', None: 'not known'}[has] }")
    print("network        threads  change          before     after  times as fast")
    for name in options.networks:
        for threads in options.threads:
            for change in options.changes:
                said = measured(__spec__.name, name, change, threads, seconds=options.seconds)
                before, after = said["before_ms"], said["after_ms"]
                ratio = before / after
                print(
                    f"{name:14s} {threads:7d}  {change:13s} {before:6.2f} ms {after:6.2f} ms {ratio:9.2f}", flush=True
                )


def _measure(name: str, change: str, threads: int, seconds: float) -> dict[str, float]:
    import torch

    torch.set_num_threads(threads)
    before, after = _training(name, change=""), _training(name, change=change)

    def steps(changed: bool, number: int) -> tuple[float, float]:
        """Return the seconds of a step, and nothing of a part of it."""
        model, batch, optimizer = after if changed else before
        began_s = time.perf_counter()
        for _ in range(number):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=changed and change != CHANGES[1]):
                loss = model(batch).float().square().mean()
            loss.backward()
            optimizer.step()
        return (time.perf_counter() - began_s) / number, 0.0

    (before_s, _), (after_s, _) = in_turn(steps, seconds)
    return {"before_ms": 1e3 * before_s, "after_ms": 1e3 * after_s}


def _training(name: str, change: str) -> tuple[Any, Any, Any]:
    """Return a network, a batch for it and its optimizer."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    parts: Sequence[Any] = make()
    model, batch = nn.Sequential(*parts), torch.randn(*shape)
    if change in CHANGES[1:] and batch.dim() == 4:
        model, batch = model.to(memory_format=torch.channels_last), batch.to(memory_format=torch.channels_last)
    return model, batch, torch.optim.SGD(model.parameters(), lr=1e-4)


if __name__ == "__main__":
    main()
