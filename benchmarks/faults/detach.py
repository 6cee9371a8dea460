"""What gradients cost that one network's step computes for another one, whose own step clears them.

Each case is two small networks that are trained in turn: a generator and a discriminator, an actor and a critic, an
encoder and what predicts from it. Steps that compute such gradients and steps that do not take turns in one process.
The source of `DroppedGradients` looks at the first of them, as in a run; what the rule ``dropped-gradients`` promises
from that stands last.

    python -m benchmarks.faults.detach [--cases C ...] [--seconds 2]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from stallmeter.rules.dropped_gradients import ABOVE, BENEATH, LEAST_PCT
from stallmeter.sources.gradients import DroppedGradientSource
from stallmeter.sources.optimizers import hear_steps, is_compiling
from stallmeter.timing.clock import StepClock
from stallmeter.timing.ledger import Ledger

from .cases import NOISE, in_turn, measured

CASES = {
    "gan mlp": "beneath",
    "gan conv": "beneath",
    "gan 3 to 1": "beneath",
    "gan, used anew": "beneath",
    "advantage": "beneath",
    "bootstrap": "beneath",
    "probe": "beneath",
    "cycle": "beneath",
    "adversary mlp": "above",
    "adversary conv": "above",
    "actor by critic": "above",
    "two critics": "above",
    "wide critic": "above",
}
"""Where the gradients lie that are dropped."""

STEPS = 120
"""That the source looks at."""


def main() -> None:
    """Measure every case, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seconds", type=float, default=2.0, help="of all rounds of one setting")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(_measure(options.case[0], int(options.case[1]), options.seconds)))
        return
    print("case             place       step  without   in such gradients  faster  saved/seen  promised")
    inside = told = 0
    for name in options.cases:
        said = measured(__spec__.name, name, options.threads, seconds=options.seconds)
        place, faster = CASES[name], said["step_ms"] / said["without_ms"]
        seen_ms = said[f"{place}_ms"]
        least, usual, most = (part * seen_ms / said["step_ms"] for part in (BENEATH if place == "beneath" else ABOVE))
        is_told = 100.0 * usual >= LEAST_PCT
        told += is_told
        low, middle, high = (1.0 / (1.0 - min(0.9, part)) for part in (least, usual, most))
        inside += is_told and (1.0 - NOISE) * low <= faster <= (1.0 + NOISE) * high
        print(
            f"{name:16s} {place:8s} {said['step_ms']:6.2f} ms {said['without_ms']:5.2f} ms"
            f" {said['beneath_ms']:6.2f} + {said['above_ms']:5.2f} ms  {faster:6.2f}"
            f"  {(said['step_ms'] - said['without_ms']) / seen_ms if seen_ms else 0.0:10.2f}"
            f"  {f'{middle:.2f} ({low:.2f} to {high:.2f})' if is_told else 'nothing'}",
            flush=True,
        )
    print(f"inside the interval, {100 * NOISE:.0f} % of noise allowed for: {inside} of {told}")


def _measure(name: str, threads: int, seconds: float) -> dict[str, float]:
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    step = _steps(name)
    seen = _look(step)

    def steps(detached: bool, number: int) -> tuple[float, float]:
        began_s = time.perf_counter()
        for _ in range(number):
            step(detached)
        return (time.perf_counter() - began_s) / number, 0.0

    (step_s, _), (without_s, _) = in_turn(steps, seconds)
    return {"step_ms": 1e3 * step_s, "without_ms": 1e3 * without_s, **seen}


def _look(step: Callable[[bool], None]) -> dict[str, float]:
    """Let the source look at some steps; return its milliseconds."""
    calls: list[Callable[[StepClock], bool]] = []
    source = DroppedGradientSource(lambda _, call: calls.append(call), hear_steps, is_compiling)
    clock = StepClock(Ledger())
    clock.open = True
    for _ in range(STEPS):
        step(False)
        clock.index += 1
        calls[:] = [call for call in calls if call(clock)]
    (found,) = source.sample(0.0)
    return {"beneath_ms": 1e3 * found.beneath_s, "above_ms": 1e3 * found.above_s}


def _steps(name: str) -> Callable[[bool], None]:
    """Return what makes one step, with the gradients that are dropped or without."""
    import torch

    if name.startswith(("gan", "adversary")):
        return _gan("conv" in name, critics=3 if "3" in name else 1, anew="anew" in name, above=name[0] == "a")
    if name in ("actor by critic", "two critics", "wide critic"):
        return _actor_by_critic(critics=2 if name == "two critics" else 1, wide=name == "wide critic")
    one, other = _mlp(64, 256, 128, 4), _mlp(64 if name == "advantage" else 128, 256, 1, 3)
    makers = [torch.optim.Adam(net.parameters(), lr=1e-5) for net in (one, other)]
    x, y = torch.randn(128, 64), torch.randn(128, 1)

    def advantage(detached: bool) -> None:
        value = other(x)
        score = one(x).mean(1, keepdim=True)
        gain = y - (value.detach() if detached else value)
        makers[0].zero_grad()
        (score * gain).mean().backward()
        makers[0].step()
        makers[1].zero_grad()
        (other(x) - y).square().mean().backward()
        makers[1].step()

    def probe(detached: bool) -> None:
        made = one(x)
        makers[1].zero_grad()
        (other(made.detach() if detached else made) - y).square().mean().backward(retain_graph=not detached)
        makers[1].step()
        makers[0].zero_grad()
        made.square().mean().backward()
        makers[0].step()

    def bootstrap(detached: bool) -> None:
        with torch.set_grad_enabled(not detached):
            wanted = y + 0.9 * other(one(x))
        makers[1].zero_grad()
        (other(torch.cat([x, x], 1)) - wanted).square().mean().backward()
        makers[1].step()
        makers[0].zero_grad()
        one(x).square().mean().backward()
        makers[0].step()

    def cycle(detached: bool) -> None:
        made = one(x)
        makers[1].zero_grad()
        scored = other(made.detach() if detached else made)
        torch.nn.functional.softplus(scored).mean().backward()
        makers[1].step()
        makers[0].zero_grad()
        again = one(x)
        (again - x.repeat(1, 2)).abs().mean().backward()
        makers[0].step()

    return {"advantage": advantage, "probe": probe, "bootstrap": bootstrap, "cycle": cycle}[name]


def _gan(conv: bool, *, critics: int, anew: bool, above: bool) -> Callable[[bool], None]:
    """Return a step of a generator and a discriminator.

    Args:
        conv: Of convolutions.
        critics: Steps of the discriminator.
        anew: Whether the generator's own step makes new samples.
        above: What is left out are the discriminator's gradients in the generator's step, not the other way round.
    """
    import torch
    from torch.nn.functional import softplus

    generator, critic, noise, real = _networks(conv)
    by = [torch.optim.Adam(net.parameters(), lr=1e-5) for net in (generator, critic)]

    def step(detached: bool) -> None:
        for _ in range(critics):
            fake = generator(noise)
            by[1].zero_grad()
            shown = fake.detach() if detached or above else fake
            loss = softplus(-critic(real)).mean() + softplus(critic(shown)).mean()
            loss.backward(retain_graph=not (detached or above))
            by[1].step()
        if anew:
            fake = generator(noise)
        critic.requires_grad_(not (detached and above))
        by[0].zero_grad()
        softplus(-critic(fake)).mean().backward()
        by[0].step()
        critic.requires_grad_(True)

    return step


def _actor_by_critic(*, critics: int, wide: bool) -> Callable[[bool], None]:
    """Return a step of an actor that is trained through its critics."""
    import torch

    actor = _mlp(64, 256, 16, 3)
    judges = torch.nn.ModuleList([_mlp(80, 512 if wide else 256, 1, 3) for _ in range(critics)])
    by = [torch.optim.Adam(net.parameters(), lr=1e-5) for net in (actor, judges)]
    x, done, wanted = torch.randn(128, 64), torch.randn(128, 16), torch.randn(128, 1)

    def step(frozen: bool) -> None:
        by[1].zero_grad()
        sum((judge(torch.cat([x, done], 1)) - wanted).square().mean() for judge in judges).backward()
        by[1].step()
        judges.requires_grad_(not frozen)
        acted = torch.cat([x, actor(x)], 1)
        by[0].zero_grad()
        (-torch.stack([judge(acted) for judge in judges]).amin(0)).mean().backward()
        by[0].step()
        judges.requires_grad_(True)

    return step


def _mlp(inputs: int, width: int, outputs: int, layers: int) -> Any:
    from torch import nn

    sizes = [inputs, *[width] * (layers - 1), outputs]
    parts = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*parts[:-1])


def _networks(conv: bool) -> tuple[Any, Any, Any, Any]:
    """Return a generator, a discriminator, noise for the one and real samples for the other."""
    import torch
    from torch import nn

    if not conv:
        return _mlp(64, 256, 128, 4), _mlp(128, 256, 1, 3), torch.randn(64, 64), torch.randn(64, 128)
    up = nn.Sequential(
        nn.ConvTranspose2d(64, 64, 4), nn.BatchNorm2d(64), nn.ReLU(),
        nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1), nn.ReLU(),
        nn.ConvTranspose2d(16, 3, 4, stride=2, padding=1), nn.Tanh(),
    )  # fmt: skip
    down = nn.Sequential(
        nn.Conv2d(3, 16, 4, stride=2, padding=1), nn.LeakyReLU(0.2),
        nn.Conv2d(16, 32, 4, stride=2, padding=1), nn.LeakyReLU(0.2),
        nn.Conv2d(32, 64, 4, stride=2, padding=1), nn.LeakyReLU(0.2),
        nn.Conv2d(64, 1, 4), nn.Flatten(),
    )  # fmt: skip
    return up, down, torch.randn(32, 64, 1, 1), torch.randn(32, 3, 32, 32)


if __name__ == "__main__":
    main()
