"""How much faster a training is that adds its losses up, beside what is promised to one that calls backward for each.

Each case is a small network in a process of its own, with a trunk that all losses share and a head for each. Trainings
of both kinds take turns. What is promised is the rule's, from a recording of the same training. Losses that share
nothing must keep it silent.

    python -m benchmarks.faults.backward [--seconds S] [--cases N ...]
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any, NamedTuple

from .cases import asked, measured, monitored, promised, promised_pct

ROUNDS = 5


class Case(NamedTuple):
    """A model and its losses."""

    kind: str
    """Of the trunk."""
    losses: int
    size: int
    batch: int
    shared: bool = True
    """Whether all heads are of one trunk; else each has its own."""


CASES = (
    Case("linear", 2, 512, 128),
    Case("linear", 4, 512, 64),
    Case("convolutions", 2, 32, 16),
    Case("convolutions", 3, 24, 16),
    Case("attention", 2, 128, 16),
    Case("attention", 3, 96, 8),
    Case("recurrent", 2, 96, 32),
    Case("linear", 2, 64, 16),
    Case("linear", 2, 512, 128, shared=False),
    Case("convolutions", 2, 24, 16, shared=False),
)


def main() -> None:
    """Measure every case, one after the other."""
    options = asked(__doc__, CASES, 3.0)
    if options.case:
        print(json.dumps(_measure(CASES[options.case[0]], options.seconds)))
        return
    print("trunk         losses  size  batch  shared      each    their sum  times as fast  promised")
    for number in options.cases:
        case, said = CASES[number], measured(__spec__.name, number, seconds=options.seconds)
        ratio = said["each_s"] / said["sum_s"]
        seconds = f"{1e3 * said['each_s']:6.1f} ms  {1e3 * said['sum_s']:6.1f} ms"
        print(
            f"{case.kind:12s}  {case.losses:6d}  {case.size:4d}  {case.batch:5d}  {case.shared!s:6s}  {seconds}"
            f"  {ratio:13.2f}  {promised(said, ratio)}",
            flush=True,
        )


def _measure(case: Case, seconds: float) -> dict[str, float]:
    step_s = _train(case, steps=10, at_once=False)
    steps = max(20, round(seconds / ROUNDS / step_s))
    each, at_once = [], []
    for _ in range(ROUNDS):
        each.append(_train(case, steps=steps, at_once=False))
        at_once.append(_train(case, steps=steps, at_once=True))
    return {"each_s": statistics.median(each), "sum_s": statistics.median(at_once), **_promised(case, seconds, step_s)}


def _train(case: Case, *, steps: int, at_once: bool, watch: Any = lambda batches: batches) -> float:
    """Return the seconds of a step."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    trunks = [_trunk(case) for _ in range(1 if case.shared else case.losses)]
    heads = [torch.nn.LazyLinear(10) for _ in range(case.losses)]
    given, wanted = _items(case), torch.randint(0, 10, (case.batch * 8,))
    loader = DataLoader(TensorDataset(given, wanted), case.batch)
    for at, head in enumerate(heads):
        head(trunks[at % len(trunks)](given[:2]))
    parameters = [p for part in (*trunks, *heads) for p in part.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-3)
    done, began_s = 0, 0.0
    batches = watch(loader)
    while done < steps:
        for given, wanted in batches:
            if done == 2:
                began_s = time.perf_counter()
            made = [trunk(given) for trunk in trunks]
            losses = [
                torch.nn.functional.cross_entropy(head(made[at % len(made)]), wanted) for at, head in enumerate(heads)
            ]
            optimizer.zero_grad()
            if at_once:
                sum(losses).backward()  # type: ignore[attr-defined]
            else:
                for at, loss in enumerate(losses):
                    loss.backward(retain_graph=at < len(losses) - 1)
            optimizer.step()
            done += 1
    return (time.perf_counter() - began_s) / (done - 2)


def _trunk(case: Case) -> Any:
    from torch import nn

    n = case.size
    if case.kind == "convolutions":
        parts = [nn.Conv2d(3, n, 3, padding=1), nn.ReLU(), nn.Conv2d(n, n, 3, padding=1), nn.BatchNorm2d(n), nn.ReLU()]
        return nn.Sequential(
            *parts, nn.Conv2d(n, 2 * n, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        )
    if case.kind == "attention":
        layer = nn.TransformerEncoderLayer(n, 4, 4 * n, batch_first=True, dropout=0.0)
        return nn.Sequential(nn.TransformerEncoder(layer, 3), nn.Flatten())
    if case.kind == "recurrent":
        return _recurrent(n)
    return nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(n, n), nn.ReLU())))


def _recurrent(size: int) -> Any:
    from torch import nn

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(size, size, 2, batch_first=True)

        def forward(self, given: Any) -> Any:
            return self.lstm(given)[0][:, -1]

    return Recurrent()


def _items(case: Case) -> Any:
    import torch

    count = 8 * case.batch
    shapes = {"convolutions": (3, 32, 32), "linear": (case.size,)}
    return torch.rand(count, *shapes.get(case.kind, (48, case.size)))


def _promised(case: Case, seconds: float, step_s: float) -> dict[str, float]:
    """Return what the rule promises, percent, by a recording of the same training."""
    from stallmeter.rules.repeated_backward import RepeatedBackward

    with monitored() as monitor:
        _train(case, steps=max(40, round(seconds / step_s)), at_once=False, watch=monitor.watch)
    return promised_pct(RepeatedBackward().check(monitor.run.window))


if __name__ == "__main__":
    main()
