"""What a second thread wins where torch computes with one, and the other CPU is idle.

Each case is a small network. Steps with one thread and with two take turns in one process. What the rule
``too-few-threads`` promises for twice the threads, by the time that a step computes for each tensor, stands last.

    python -m benchmarks.faults.idle_cpus [--networks N ...] [--seconds 2]
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from stallmeter.rules.rule import THREADS_SHARE
from stallmeter.rules.too_few_threads import TooFewThreads

from .cases import NOISE, in_turn, measured

NETWORKS = ("conv", "wide-conv", "mlp", "tiny-mlp", "wide-mlp", "transformer", "tiny-transformer", "lstm")


def main() -> None:
    """Measure every case, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--seconds", type=float, default=2.0, help="of all rounds of one setting")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(_measure(options.case, options.seconds)))
        return
    print("network           tensors  one thread       two  each tensor  faster  promised")
    inside, told = 0, 0
    low, usual, high = (1.0 / (1.0 - part / 2.0) for part in THREADS_SHARE)
    for name in options.networks:
        said = measured(__spec__.name, name, seconds=options.seconds)
        faster, tensor_ms = said["one_ms"] / said["two_ms"], said["one_ms"] / said["tensors"]
        is_told = tensor_ms >= TooFewThreads().tensor_ms
        told += is_told
        inside += is_told and (1.0 - NOISE) * low <= faster <= (1.0 + NOISE) * high
        print(
            f"{name:17s} {said['tensors']:7d} {said['one_ms']:8.2f} ms {said['two_ms']:6.2f} ms {tensor_ms:9.2f} ms"
            f" {faster:7.2f}  " + (f"{usual:.2f} ({low:.2f} to {high:.2f})" if is_told else "nothing"),
            flush=True,
        )
    print(f"inside the interval, {100 * NOISE:.0f} % of noise allowed for: {inside} of {told}")


def _measure(name: str, seconds: float) -> dict[str, float]:
    import torch

    torch.manual_seed(0)
    model, batch = _network(name)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1e-4)

    def steps(second: bool, number: int) -> tuple[float, float]:
        """Return the seconds of a step, twice: no part of it is asked for."""
        torch.set_num_threads(2 if second else 1)
        began_s = time.perf_counter()
        for _ in range(number):
            optimizer.zero_grad()
            out = model(batch)
            (out[0] if isinstance(out, tuple) else out).square().mean().backward()
            optimizer.step()
        step_s = (time.perf_counter() - began_s) / number
        return step_s, step_s

    (one_s, _), (two_s, _) = in_turn(steps, seconds)
    return {"tensors": len(parameters), "one_ms": 1e3 * one_s, "two_ms": 1e3 * two_s}


def _network(name: str) -> tuple[Any, Any]:
    """Return a network and a batch for it."""
    import torch
    from torch import nn

    kind, is_wide, is_tiny = name.rpartition("-")[2], name.startswith("wide"), name.startswith("tiny")
    if kind == "conv":
        width = 64 if is_wide else 16
        hidden = [part for _ in range(3) for part in (nn.ReLU(), nn.Conv2d(width, width, 3, padding=1))]
        pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)]
        return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *hidden, *pool), torch.randn(16, 3, 32, 32)
    if kind == "mlp":
        width = 2048 if is_wide else 32 if is_tiny else 512
        layers = [nn.Linear(128, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)]
        return nn.Sequential(*layers), torch.randn(128, 128)
    if kind == "transformer":
        width, length = (32, 16) if is_tiny else (192, 64)
        layers = [nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True) for _ in range(3)]
        return nn.Sequential(*layers), torch.randn(16, length, width)
    return nn.LSTM(64, 128, num_layers=2, batch_first=True), torch.randn(16, 64, 64)


if __name__ == "__main__":
    main()
