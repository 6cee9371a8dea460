"""How much faster items are trained on in larger batches, beside what is promised by a run's own smaller ones.

Each case is a small network in a process of its own, whose items are no multiple of a batch. Epochs with the batches
that it has and with the ones that are advised take turns; where none are, with four times as large ones. What is
promised is the rule's, from a recording of the same training. Of models whose steps take as long as they have items
little may be promised.

    python -m benchmarks.faults.sizes [--seconds S] [--cases N ...]
"""

from __future__ import annotations

import json
import re
import statistics
import time
from typing import Any, NamedTuple

from .cases import asked, measured, monitored, promised, promised_pct

ROUNDS = 5
STEPS = 200
"""Of an epoch, and a part of one."""


class Case(NamedTuple):
    """A model, the size of its batches and what part of one is left for the last of an epoch."""

    kind: str
    batch: int
    left: float = 0.4


CASES = (
    Case("linear", 16),
    Case("linear", 64),
    Case("linear", 512),
    Case("wide", 32),
    Case("convolutions", 4),
    Case("convolutions", 32),
    Case("cells", 8, 0.3),
    Case("cells", 64, 0.3),
    Case("recurrent", 16),
    Case("attention", 4),
    Case("attention", 32),
    Case("linear", 16, 0.7),
)


def main() -> None:
    """Measure every case, one after the other."""
    options = asked(__doc__, CASES, 10.0)
    if options.case:
        print(json.dumps(_measure(CASES[options.case[0]], options.seconds)))
        return
    print("model         batch  left     items/s  times as many  items/s  times as fast  promised")
    for number in options.cases:
        case, said = CASES[number], measured(__spec__.name, number, seconds=options.seconds)
        ratio = said["larger"] / said["usual"]
        print(
            f"{case.kind:12s}  {case.batch:5d}  {case.left:4.1f}  {said['usual']:10.0f}  {said['times']:13.0f}"
            f"  {said['larger']:7.0f}  {ratio:13.2f}  {promised(said, ratio)}",
            flush=True,
        )


def _measure(case: Case, seconds: float) -> dict[str, float]:
    said, times = _promised(case, seconds)
    usual, larger = [], []
    for _ in range(ROUNDS):
        usual.append(_train(case, seconds / ROUNDS))
        larger.append(_train(case, seconds / ROUNDS, times=times))
    return {"usual": statistics.median(usual), "larger": statistics.median(larger), "times": times, **said}


def _train(case: Case, seconds: float, *, times: int = 1, watch: Any = lambda batches: batches) -> float:
    """Return items that are trained on in a second."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    network, shape = _network(case)
    count = STEPS * case.batch + max(1, round(case.left * case.batch))
    items = TensorDataset(torch.rand(count, *shape), torch.randint(0, 5, (count,)))
    batches = watch(DataLoader(items, times * case.batch, shuffle=True))
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    done, began_s, until_s = 0, 0.0, time.perf_counter() + seconds
    steps = 0
    while time.perf_counter() < until_s:
        for given, wanted in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(given), wanted).backward()
            optimizer.step()
            steps += 1
            if steps == 3:
                began_s = time.perf_counter()
            elif steps > 3:
                done += len(wanted)
            if time.perf_counter() > until_s and steps > 10:
                break
    return done / (time.perf_counter() - began_s)


def _network(case: Case) -> tuple[Any, tuple[int, ...]]:
    """Return a network, and the shape of an item."""
    from torch import nn

    if case.kind == "linear":
        return nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)), (30,)
    if case.kind == "wide":
        parts = (nn.Linear(100, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 5))
        return nn.Sequential(*parts), (100,)
    if case.kind == "convolutions":
        parts = (nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        more = (nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5))
        return nn.Sequential(*parts, *more), (3, 32, 32)
    return _of_series(case.kind), (30, 32)


def _of_series(kind: str) -> Any:
    import torch
    from torch import nn

    class Series(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(32, 64)
            self.layers = nn.LSTM(32, 64, batch_first=True)
            self.attention = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
            self.out = nn.Linear(32 if kind == "attention" else 64, 5)

        def forward(self, given: Any) -> Any:
            if kind == "attention":
                return self.out(self.attention(given).mean(1))
            if kind == "recurrent":
                return self.out(self.layers(given)[0][:, -1])
            hidden = kept = torch.zeros(len(given), 64)
            for at in range(given.shape[1]):
                hidden, kept = self.cell(given[:, at], (hidden, kept))
            return self.out(hidden)

    return Series()


def _promised(case: Case, seconds: float) -> tuple[dict[str, float], int]:
    """Return what the rule promises, percent, by a recording of the same training, and for how much larger batches."""
    from stallmeter.rules.small_batches import SmallBatches

    with monitored() as monitor:
        _train(case, seconds, watch=monitor.watch)
    found = SmallBatches().check(monitor.run.window)
    said = re.search(r"batches of (\d+)", found.advice[0].text) if found is not None else None
    return promised_pct(found), int(said[1]) // case.batch if said else 4


if __name__ == "__main__":
    main()
