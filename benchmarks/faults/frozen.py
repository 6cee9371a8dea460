"""How much faster a training is that keeps what a frozen part of its model makes of each item, beside what is promised.

Each case is a small network in a process of its own: a part that learns nothing, and one that is trained. Whole
trainings of both kinds take turns; the first call of the frozen part for each item counts. What is promised is the
rule's, from a recording of the same training. Items that are flipped at random must keep it silent.

    python -m benchmarks.faults.frozen [--cases N ...]
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from .cases import asked, measured, monitored, promised, promised_pct

ROUNDS = 3


class Case(NamedTuple):
    """Sizes of a training."""

    items: int
    epochs: int
    channels: int
    """Of the frozen part."""
    width: int
    """Of the trained part."""
    workers: int = 0
    flipped: float = 0.0
    """Part of the items that is flipped at random, each time that it is read."""


CASES = (
    Case(6400, 2, 16, 256),
    Case(3200, 3, 16, 512),
    Case(2560, 6, 16, 512),
    Case(2560, 12, 8, 256),
    Case(1280, 4, 24, 2048),
    Case(2560, 3, 16, 2048),
    Case(2560, 5, 16, 1024, workers=1),
    Case(2560, 4, 24, 512, workers=1),
    Case(2560, 4, 16, 256, flipped=0.5),
    Case(2560, 4, 16, 256, flipped=0.9, workers=1),
)


def main() -> None:
    """Measure every case, one after the other."""
    options = asked(__doc__, CASES, 0.0)
    if options.case:
        print(json.dumps(_measure(CASES[options.case[0]])))
        return
    print("items  epochs  channels  width  workers  flipped     anew     kept  times as fast  promised")
    for number in options.cases:
        case, said = CASES[number], measured(__spec__.name, number, seconds=options.seconds)
        ratio = said["anew_s"] / said["kept_s"]
        seconds = f"{said['anew_s']:5.2f} s  {said['kept_s']:5.2f} s"
        print(
            f"{case.items:5d}  {case.epochs:6d}  {case.channels:8d}  {case.width:5d}  {case.workers:7d}"
            f"  {case.flipped:7.1f}  {seconds}  {ratio:13.2f}  {promised(said, ratio)}",
            flush=True,
        )


def _measure(case: Case) -> dict[str, float]:
    anew, kept = [], []
    _train(case, keep=False, epochs=1)
    for _ in range(ROUNDS):
        anew.append(_train(case, keep=False))
        kept.append(_train(case, keep=True))
    return {"anew_s": statistics.median(anew), "kept_s": statistics.median(kept), **_promised(case)}


def _train(case: Case, *, keep: bool, epochs: int | None = None, watch: Any = lambda loader: loader) -> float:
    """Return the seconds of a training."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    c = case.channels
    frozen = nn.Sequential(
        nn.Conv2d(3, c, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(c, 2 * c, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(2 * c, 2 * c, 3, stride=2, padding=1),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
    ).requires_grad_(False)
    head = nn.Sequential(nn.Linear(32 * c, case.width), nn.ReLU(), nn.Linear(case.width, case.width), nn.ReLU())
    head.append(nn.Linear(case.width, 10))
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-3)
    pictures, labels = torch.rand(case.items, 3, 48, 48), torch.randint(0, 10, (case.items,))
    dataset: Any = _Pictures(pictures, labels, case.flipped)

    def batches(of: Any) -> Iterable[Any]:
        return DataLoader(of, batch_size=32, shuffle=True, num_workers=case.workers)

    began_s = time.perf_counter()
    if keep:
        with torch.no_grad():
            made = [frozen(pictures) for pictures, _ in DataLoader(dataset, 32, num_workers=case.workers)]
        dataset = TensorDataset(torch.cat(made), labels)
    loader = watch(batches(dataset))
    for _ in range(epochs or case.epochs):
        for given, wanted in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(head(given if keep else frozen(given)), wanted)
            loss.backward()
            optimizer.step()
    return time.perf_counter() - began_s


class _Pictures:
    """A dataset of pictures, some of which are flipped at random."""

    def __init__(self, pictures: Any, labels: Any, flipped: float) -> None:
        self.pictures, self.labels, self.flipped = pictures, labels, flipped

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Any:
        import torch

        picture = self.pictures[index]
        return (picture.flip(-1) if torch.rand(()) < self.flipped else picture), self.labels[index]


def _promised(case: Case) -> dict[str, float]:
    """Return what the rule promises, percent, by a recording of the same training."""
    from stallmeter.rules.fixed_features import FixedFeatures

    with monitored() as monitor:
        _train(case, keep=False, watch=monitor.watch)
    return promised_pct(FixedFeatures().check(monitor.run.window))


if __name__ == "__main__":
    main()
