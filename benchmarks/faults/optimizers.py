"""What ``fused=True`` saves of an optimizer's time on a CPU, whose step torch computes one tensor after the other.

Each case is a small network with one of torch's optimizers that can be fused. Steps with and without it take turns in
one process. What the rule ``slow-optimizer`` promises for such a share of the time stands last.

    python -m benchmarks.faults.optimizers [--networks N ...] [--kinds K ...] [--threads 1 2] [--seconds 1.5]
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from stallmeter.rules.fusing import KINDS, LEAST_PCT, saves

from .cases import NOISE, in_turn, measured

NETWORKS = ("mlp", "wide", "transformer", "conv", "tiny-tensors", "embedding")
SETTINGS = {"Adam": {}, "AdamW": {}, "SGD": {"momentum": 0.9}, "Adagrad": {}}
"""Of the optimizers that can be fused."""


def main() -> None:
    """Measure every case, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--kinds", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=1.5, help="of all rounds of one setting")
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        name, kind, threads = options.case
        print(json.dumps(_measure(name, kind, int(threads), options.seconds)))
        return
    print("network       optimizer threads tensors      step    fused  optimizer's  saved of it  faster  promised")
    inside, told = 0, 0
    for name in options.networks:
        for kind in options.kinds:
            for threads in options.threads:
                said = measured(__spec__.name, name, kind, threads, seconds=options.seconds)
                faster = said["step_ms"] / said["fused_ms"]
                low, usual, high = (1.0 / (1.0 - said["share"] * part) for part in saves(said["share"]))
                is_told = kind in KINDS and said["share"] >= LEAST_PCT / 100.0
                told += is_told
                inside += is_told and (1.0 - NOISE) * low <= faster <= (1.0 + NOISE) * high
                print(
                    f"{name:13s} {kind:9s} {threads:7d} {said['tensors']:7d} {said['step_ms']:6.2f} ms"
                    f" {said['fused_ms']:5.2f} ms {100 * said['share']:10.0f} % {100 * said['saved']:10.0f} %"
                    f" {faster:7.2f}  " + (f"{usual:.2f} ({low:.2f} to {high:.2f})" if is_told else "nothing"),
                    flush=True,
                )
    print(f"inside the interval, {100 * NOISE:.0f} % of noise allowed for: {inside} of {told}")


def _measure(name: str, kind: str, threads: int, seconds: float) -> dict[str, float]:
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, batch = _network(name)
    parameters = [p for p in model.parameters() if p.requires_grad]
    make = getattr(torch.optim, kind)
    optimizers = {fused: make(parameters, lr=1e-4, fused=fused or None, **SETTINGS[kind]) for fused in (False, True)}

    def steps(fused: bool, number: int) -> tuple[float, float]:
        """Return the seconds of a step, and those of the optimizer in it."""
        optimizer, spent_s, began_s = optimizers[fused], 0.0, time.perf_counter()
        for _ in range(number):
            model.zero_grad()
            model(batch).square().mean().backward()
            at_s = time.perf_counter()
            optimizer.step()
            spent_s += time.perf_counter() - at_s
        return (time.perf_counter() - began_s) / number, spent_s / number

    (step_s, own_s), (fused_s, own_fused_s) = in_turn(steps, seconds)
    return {
        "tensors": len(parameters),
        "step_ms": 1e3 * step_s,
        "fused_ms": 1e3 * fused_s,
        "share": own_s / step_s,
        "saved": 1.0 - own_fused_s / own_s,
    }


def _network(name: str) -> tuple[Any, Any]:
    import torch
    from torch import nn

    if name == "mlp":
        return nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)), (
            torch.randn(64, 128)
        )
    if name == "wide":
        return nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)), torch.randn(32, 512)
    if name == "transformer":
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(16, 24, 64)
    if name == "conv":
        hidden = [part for _ in range(3) for part in (nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())]
        return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *hidden), torch.randn(8, 3, 32, 32)
    if name == "tiny-tensors":
        return nn.Sequential(*(nn.Linear(8, 8) for _ in range(200))), torch.randn(16, 8)
    table = nn.Sequential(nn.Embedding(20_000, 64), nn.Flatten(), nn.Linear(64 * 16, 32))
    return table, torch.randint(0, 20_000, (64, 16))


if __name__ == "__main__":
    main()
