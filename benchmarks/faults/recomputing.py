"""What activation checkpoints cost that nobody needs: steps with and without, and what looks at the thread see of it.

Each case is a small network whose parts are called through ``torch.utils.checkpoint``, reentrant or not, on one thread
of a CPU. Steps with checkpoints and without take turns in one process. Before that a run with them is watched: the
share that its looks see, and what the rule ``recomputed-activations`` promises from it whatever memory there is, stand
last.

    python -m benchmarks.faults.recomputing [--networks N ...] [--kinds K ...] [--seconds 3]
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from stallmeter.workers.gains import REMAINS

from .cases import NOISE, in_turn, measured, promised_pct, timed, watched

if TYPE_CHECKING:
    from stallmeter.window import Window

NETWORKS = ("transformer", "wide", "conv", "mlp")
KINDS = ("reentrant", "other")
WATCHED = 3
"""Times as long a run is watched: its first steps are none that looks are taken of."""


def main() -> None:
    """Measure every case, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="of each setting; a third of the run that is watched"
    )
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(_measure(*options.case, options.seconds)))
        return
    print("network      checkpoints  without      with   seen  looks  saved / seen  faster  promised")
    inside = told = 0
    for name in options.networks:
        for kind in options.kinds:
            said = measured(__spec__.name, name, kind, seconds=options.seconds)
            faster = said["with_ms"] / said["without_ms"]
            usual, low, high = (1.0 + said[f"{of}_pct"] / 100.0 for of in ("gain", "low", "high"))
            told += 1
            inside += (1.0 - NOISE) * low <= faster <= (1.0 + NOISE) * high
            seen = max(said["seen"], REMAINS)
            print(
                f"{name:12s} {kind:9s} {said['without_ms']:8.2f} ms {said['with_ms']:6.2f} ms {100 * said['seen']:4.0f}"
                f" % {said['looks']:6.0f} {(1 - 1 / faster) / seen:13.2f} {faster:7.2f}  {usual:.2f} ({low:.2f} to"
                f" {high:.2f})",
                flush=True,
            )
    print(f"inside the interval, {100 * NOISE:.0f} % of noise allowed for: {inside} of {told}")


def _measure(name: str, kind: str, seconds: float) -> dict[str, float]:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, batch = _network(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step(kept: bool) -> None:
        optimizer.zero_grad()
        _forward(model, batch, kind, kept).square().mean().backward()
        optimizer.step()

    steps = timed(step)
    steps(False, 5)
    said = watched(step, int(max(30, WATCHED * seconds / steps(False, 10)[0])), _judged)
    (with_s, _), (without_s, _) = in_turn(steps, seconds)
    return {"with_ms": 1e3 * with_s, "without_ms": 1e3 * without_s, **said}


def _judged(window: Window) -> dict[str, float]:
    """Return what looks at steps with checkpoints see, and what is promised from that."""
    from stallmeter.rules.recomputed_activations import RecomputedActivations

    seen, training_s = window.code.torch.recomputed, window.ledger.training_s
    return {
        "seen": seen.seconds / training_s if seen and training_s else 0.0,
        "looks": seen.samples if seen else 0,
        **promised_pct(RecomputedActivations(warn_pct=0.0, memory_pct=1e9).check(window)),
    }


def _forward(model: Any, batch: Any, kind: str, kept: bool) -> Any:
    from torch.utils.checkpoint import checkpoint

    made = batch
    for part in model:
        made = part(made) if kept else checkpoint(part, made, use_reentrant=kind == "reentrant")
    return made


def _network(name: str) -> tuple[Any, Any]:
    """Return parts that are called one after the other, and a batch for the first one."""
    import torch
    from torch import nn

    if name == "transformer":
        parts = [nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(4)]
        batch = torch.randn(16, 24, 64)
    elif name == "wide":
        parts = [nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True) for _ in range(3)]
        batch = torch.randn(4, 64, 256)
    elif name == "mlp":
        parts = [nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()) for _ in range(3)]
        batch = torch.randn(64, 512)
    else:
        parts = [
            nn.Sequential(
                nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)
            )
            for _ in range(3)
        ]
        batch = torch.randn(8, 16, 32, 32)
    return nn.ModuleList(parts), batch.requires_grad_()  # or a reentrant checkpoint has no gradients


if __name__ == "__main__":
    main()
