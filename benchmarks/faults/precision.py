"""How long steps with numbers of 16 or 64 bits take on this CPU, against steps with 32: weights, or ``torch.autocast``.

Each case is a small network on one thread, in a process of its own; steps of both kinds take turns. Whether the CPU has
instructions for the type stands in the heading. oneDNN can be kept from using them, which shows its own emulation: not
that of torch's other operations, nor an older CPU.

    python -m benchmarks.faults.precision [--bits 16|autocast|64] [--kind bfloat16|float16] [--networks N ...]
    ONEDNN_MAX_CPU_ISA=AVX512_CORE python -m benchmarks.faults.precision
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

from stallmeter.machine.cpu_features import computes_16_bits

from .cases import in_turn, measured

NETWORKS = ("mlp", "conv", "transformer")
BITS = ("16", "autocast", "64")
LIMIT = "ONEDNN_MAX_CPU_ISA"


def main() -> None:
    """Measure every case, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", nargs="*", default=list(BITS), choices=BITS)
    parser.add_argument("--kind", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--seconds", type=float, default=2.0, help="of all rounds with 32 bits")
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(_measure(*options.case, options.seconds)))
        return
    has = (computes_16_bits() or {}).get(options.kind)
    limit = f"; oneDNN may use {os.environ[LIMIT]} at the most" if LIMIT in os.environ else ""
    print(f"instructions for {options.kind}: { {True: 'yes', False: 'no', None: 'not known'}[has] }{limit}")
    print("network      bits          32 bits      other  times as long")
    for bits in options.bits:
        for name in options.networks:
            said = measured(__spec__.name, name, bits, options.kind, seconds=options.seconds)
            print(
                f"{name:12s} {bits:10s} {said['full_ms']:8.2f} ms {said['other_ms']:7.2f} ms"
                f" {said['other_ms'] / said['full_ms']:9.2f}",
                flush=True,
            )


def _measure(name: str, bits: str, kind: str, seconds: float) -> dict[str, float]:
    import torch

    torch.set_num_threads(1)
    half = getattr(torch, kind)
    full = _training(name, None)
    other = _training(name, {"16": half, "64": torch.float64}.get(bits))

    def steps(changed: bool, number: int) -> tuple[float, float]:
        """Return the seconds of a step, and nothing of a part of it."""
        model, batch, optimizer = other if changed else full
        began_s = time.perf_counter()
        for _ in range(number):
            optimizer.zero_grad()
            with torch.autocast("cpu", half, enabled=changed and bits == "autocast"):
                loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
        return (time.perf_counter() - began_s) / number, 0.0

    (full_s, _), (other_s, _) = in_turn(steps, seconds)
    return {"full_ms": 1e3 * full_s, "other_ms": 1e3 * other_s}


def _training(name: str, kind: Any) -> tuple[Any, Any, Any]:
    """Return a network, a batch for it and its optimizer."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if name == "mlp":
        model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
        batch = torch.randn(64, 256)
    elif name == "transformer":
        layers = [nn.TransformerEncoderLayer(128, 4, 256, batch_first=True) for _ in range(2)]
        model, batch = nn.Sequential(*layers), torch.randn(8, 32, 128)
    else:
        hidden = [part for _ in range(3) for part in (nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1))]
        pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        model, batch = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *hidden, *pool), torch.randn(8, 3, 32, 32)
    if kind is not None:
        model, batch = model.to(kind), batch.to(kind)
    return model, batch, torch.optim.SGD(model.parameters(), lr=1e-4)


if __name__ == "__main__":
    main()
