"""What penalties on the weights cost with their gradients: steps with and without, and what looks at the thread see.

Each case is a small network and a term of its weights that is added to the loss. Steps with the term and without take
turns in one process. Before that a run with it is watched: the shares that its looks see in the term's own
function, in the model and in the backward pass, and what the rule ``weight-penalty`` promises from it stand last.

    python -m benchmarks.faults.penalty [--networks N ...] [--kinds K ...] [--threads N] [--seconds 2]
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from .cases import NOISE, in_turn, measured, promised_pct, timed, watched

if TYPE_CHECKING:
    from stallmeter.window import Window

NETWORKS = ("mlp", "wide-mlp", "transformer", "conv")
KINDS = ("squares", "norms", "absolute", "earlier", "flat", "orthogonal")
WATCHED = 4
"""Times as long a run is watched: a penalty is met by few looks."""


def main() -> None:
    """Measure every case, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each setting; a part of the run that is watched")
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        name, kind, threads = options.case
        print(json.dumps(_measure(name, kind, int(threads), options.seconds)))
        return
    print("network      penalty      without      with   seen  looks  model  gradients  faster  promised")
    inside = told = 0
    for name in options.networks:
        for kind in options.kinds:
            said = measured(__spec__.name, name, kind, options.threads, seconds=options.seconds)
            faster = said["with_ms"] / said["without_ms"]
            usual, low, high = (1.0 + said[f"{of}_pct"] / 100.0 for of in ("gain", "low", "high"))
            is_told = usual > 1.0
            told += is_told
            inside += is_told and (1.0 - NOISE) * low <= faster <= (1.0 + NOISE) * high
            promised = f"{usual:.2f} ({low:.2f} to {high:.2f})" if is_told else "nothing"
            print(
                f"{name:12s} {kind:10s} {said['without_ms']:7.2f} ms {said['with_ms']:6.2f} ms"
                f" {100 * said['seen']:4.0f} % {said['looks']:6.0f} {100 * said['model']:4.0f} %"
                f" {100 * said['gradients']:8.0f} % {faster:7.2f}  {promised}",
                flush=True,
            )
    print(f"inside the interval, {100 * NOISE:.0f} % of noise allowed for: {inside} of {told}")


def _measure(name: str, kind: str, threads: int, seconds: float) -> dict[str, float]:
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, batch = _network(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    penalty = _penalties(model)[kind]

    def step(without: bool) -> None:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        if not without:
            loss = loss + 1e-4 * penalty()
        loss.backward()
        optimizer.step()

    steps = timed(step)
    steps(False, 5)
    said = watched(step, int(max(30, WATCHED * seconds / steps(False, 10)[0])), _judged)
    (with_s, _), (without_s, _) = in_turn(steps, seconds)
    return {"with_ms": 1e3 * with_s, "without_ms": 1e3 * without_s, **said}


def _judged(window: Window) -> dict[str, float]:
    """Return what looks at steps with the penalty see, and what is promised from that."""
    from stallmeter.rules.weight_penalty import WeightPenalty

    seen, training_s = window.code.torch.weight_penalties, window.ledger.training_s
    return {
        "seen": seen.seconds / training_s if seen and training_s else 0.0,
        "looks": seen.samples if seen else 0,
        "model": seen.model_s / training_s if seen and training_s else 0.0,
        "gradients": seen.gradients_s / training_s if seen and training_s else 0.0,
        **promised_pct(WeightPenalty().check(window)),
    }


def _penalties(model: Any) -> dict[str, Any]:
    """Return what each kind of penalty computes."""
    import torch

    kept = [weight.detach().clone() for weight in model.parameters()]
    importance = [torch.rand_like(weight) for weight in kept]

    def squares() -> Any:
        return sum(weight.square().sum() for weight in model.parameters())

    def norms() -> Any:
        return sum(weight.norm() for weight in model.parameters())

    def absolute() -> Any:
        return sum(weight.abs().sum() for weight in model.parameters())

    def earlier() -> Any:
        """As in elastic weight consolidation."""
        before = zip(importance, model.parameters(), kept, strict=True)
        return sum((much * (weight - old) ** 2).sum() for much, weight, old in before)

    def flat() -> Any:
        return torch.cat([weight.view(-1) for weight in model.parameters()]).square().sum()

    def orthogonal() -> Any:
        rows = [weight.flatten(1) for weight in model.parameters() if weight.ndim > 1]
        return sum((row @ row.t() - torch.eye(len(row))).square().sum() for row in rows)

    return {one.__name__: one for one in (squares, norms, absolute, earlier, flat, orthogonal)}


def _network(name: str) -> tuple[Any, Any]:
    """Return a network and a batch for it."""
    import torch
    from torch import nn

    if name == "mlp":
        return nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)]), torch.randn(64, 256)
    if name == "wide-mlp":
        layers = (nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
        return nn.Sequential(*layers), torch.randn(32, 1024)
    if name == "transformer":
        layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
        return nn.TransformerEncoder(layer, 4), torch.randn(16, 32, 128)
    return nn.Sequential(*[nn.Conv2d(32, 32, 3, padding=1) for _ in range(5)]), torch.randn(8, 32, 24, 24)


if __name__ == "__main__":
    main()
