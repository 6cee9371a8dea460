"""What gradients cost that nobody uses: steps with a part of the model that the optimizer alone leaves as it is.

Each case is a small network with a part that is not trained: a backbone beneath the trained layers, a teacher beside
them, or a loss network above. Steps with that part as it is, and with ``requires_grad_(False)``, take turns in one
process. What the rule ``unused-gradients`` promises from the shares of the numbers, for a loop whose step is one piece
and for one whose backward pass is timed, stands last.

    python -m benchmarks.faults.gradients [--networks N ...] [--places P ...] [--seconds 2]
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from typing import Any

from stallmeter.rules.rule import BACKWARD, MOST_OF_A_STEP
from stallmeter.rules.unused_gradients import SAVES

from .cases import NOISE, in_turn, measured

NETWORKS = ("mlp", "conv", "strided", "transformer")
PLACES = ("beneath", "beside", "above")
LEAST = 0.10
"""Part of a step's time that must be at stake for the rule to tell of it."""


def main() -> None:
    """Measure every case, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--places", nargs="*", default=list(PLACES), choices=PLACES)
    parser.add_argument("--seconds", type=float, default=2.0, help="of all rounds of one setting")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(_measure(*options.case, options.seconds)))
        return
    print("network      place    numbers      step   frozen  backward  faster  promised: backward timed  in one piece")
    inside, told = [0, 0], [0, 0]
    for name in options.networks:
        for place in options.places:
            said = measured(__spec__.name, name, place, seconds=options.seconds)
            faster = said["step_ms"] / said["frozen_ms"]
            words = []
            for kind, backward in enumerate((said["backward"], BACKWARD)):
                parts = [min(MOST_OF_A_STEP, backward * part * said["share"]) for part in SAVES]
                low, usual, high = (1.0 / (1.0 - part) for part in parts)
                is_told = parts[1] >= LEAST
                told[kind] += is_told
                inside[kind] += is_told and (1.0 - NOISE) * low <= faster <= (1.0 + NOISE) * high
                words.append(f"{usual:.2f} ({low:.2f} to {high:.2f})" if is_told else "nothing")
            print(
                f"{name:12s} {place:8s} {100 * said['share']:6.0f} %"
                f" {said['step_ms']:6.2f} ms {said['frozen_ms']:5.2f} ms"
                f" {100 * said['backward']:6.0f} % {faster:7.2f}  {words[0]:>24s}  {words[1]}",
                flush=True,
            )
    print(
        f"inside the interval, {100 * NOISE:.0f} % of noise allowed for: {inside[0]} of {told[0]} where the backward "
        f"pass is timed, {inside[1]} of {told[1]} in one piece"
    )


def _measure(name: str, place: str, seconds: float) -> dict[str, float]:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    trained, kept, forward = _network(name, place)
    parameters = list(trained.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1e-4)
    numbers = [sum(p.numel() for p in one.parameters()) for one in (kept, trained)]

    def steps(frozen: bool, number: int) -> tuple[float, float]:
        """Return the seconds of a step, and those of its backward pass."""
        kept.requires_grad_(not frozen)
        kept.zero_grad()
        spent_s, began_s = 0.0, time.perf_counter()
        for _ in range(number):
            optimizer.zero_grad()
            loss = forward()
            at_s = time.perf_counter()
            loss.backward()
            spent_s += time.perf_counter() - at_s
            optimizer.step()
        return (time.perf_counter() - began_s) / number, spent_s / number

    (step_s, backward_s), (frozen_s, _) = in_turn(steps, seconds)
    return {
        "share": numbers[0] / sum(numbers),
        "step_ms": 1e3 * step_s,
        "frozen_ms": 1e3 * frozen_s,
        "backward": backward_s / step_s,
    }


def _network(name: str, place: str) -> tuple[Any, Any, Any]:
    """Return what is trained, what is not, and what computes the loss with both."""
    from torch import nn

    body, batch, width = _body(name)
    if place == "beneath":
        head = nn.Linear(width, 10)
        return head, body, lambda: head(body(batch)).square().mean()
    if place == "beside":
        student = copy.deepcopy(body)
        return student, body, lambda: nn.functional.mse_loss(student(batch), body(batch))
    make = copy.deepcopy(body[0])  # a first layer makes what the whole network judges
    shaped = nn.Sequential(make, nn.Tanh()) if name != "transformer" else make
    other = _other(name)
    model = nn.Sequential(shaped, other)
    return model, body, lambda: body(model(batch)).square().mean()


def _other(name: str) -> Any:
    """Return a layer that brings what the first one makes back to the form of the batch."""
    from torch import nn

    if name == "mlp":
        return nn.Linear(512, 128)
    if name == "transformer":
        return nn.Identity()
    return nn.ConvTranspose2d(32, 3, 4, stride=2, padding=1) if name == "strided" else nn.Conv2d(32, 3, 3, padding=1)


def _body(name: str) -> tuple[Any, Any, int]:
    """Return a network, a batch for it, and the width of its output."""
    import torch
    from torch import nn

    if name == "mlp":
        layers = [nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)]
        return nn.Sequential(*layers), torch.randn(64, 128), 512
    if name == "transformer":
        layers = [nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(4)]
        return nn.Sequential(*layers), torch.randn(16, 24, 64), 64
    if name == "conv":
        hidden = [part for _ in range(3) for part in (nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1))]
        pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *hidden, *pool), torch.randn(8, 3, 32, 32), 32
    strided = [
        nn.Conv2d(3, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
    ]
    deep = [nn.Conv2d(64, 128, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*strided, *deep, nn.Linear(128, 256)), torch.randn(8, 3, 64, 64), 256


if __name__ == "__main__":
    main()
