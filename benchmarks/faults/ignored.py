"""How much faster steps are that score the positions with a label alone, against all of them, beside what is promised.

Each case is a small transformer for masked words on this CPU, in a process of its own: 15 % of the positions have a
label. Steps of both kinds take turns. What is promised is the rule's, from a look at one step by what `stallmeter run`
looks with.

    python -m benchmarks.faults.ignored [--cases N ...] [--seconds S]
"""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

from .cases import asked, faster, in_turn, measured, timed


class Case(NamedTuple):
    """Sizes of a network and of its batch."""

    words: int
    width: int
    layers: int
    positions: int
    rows: int = 8


CASES = (
    Case(1000, 256, 4, 128),
    Case(4000, 256, 4, 128),
    Case(8000, 64, 2, 128, 16),
    Case(12_000, 192, 3, 128),
    Case(30_000, 128, 2, 64, 16),
)
LABELLED = 0.15
LEFT_OUT = -100


def main() -> None:
    """Measure every case, one after the other."""
    options = asked(__doc__, CASES, 6.0)
    if options.case:
        print(json.dumps(_measure(CASES[options.case[0]], options.seconds)))
        return
    print(" words  width  layers  the last, of the multiplications       all    labelled  times as fast  promised")
    for number in options.cases:
        said, case = measured(__spec__.name, str(number), seconds=options.seconds), CASES[number]
        print(
            f"{case.words:6d} {case.width:6d} {case.layers:7d} {100.0 * said['share']:31.0f} % {said['all_ms']:8.1f} ms"
            f" {said['labelled_ms']:8.1f} ms {said['all_ms'] / said['labelled_ms']:11.2f}"
            f"  {faster(said)}",
            flush=True,
        )


def _measure(case: Case, seconds: float) -> dict[str, float]:
    import torch

    from stallmeter.rules.ignored_labels import saved
    from stallmeter.sources.scored import ScoredLook
    from stallmeter.timing.labels import labels_of

    trainings = {picked: _training(case) for picked in (False, True)}
    ids = torch.randint(0, case.words, (case.rows, case.positions))
    labels = torch.where(torch.rand(ids.shape) < LABELLED, ids, LEFT_OUT)
    asked = labels != LEFT_OUT

    def step(picked: bool) -> None:
        body, head, optimizer = trainings[picked]
        found = body(ids)
        if picked:
            loss = torch.nn.functional.cross_entropy(head(found[asked]), labels[asked])
        else:
            loss = torch.nn.functional.cross_entropy(head(found).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    known = labels_of(labels)
    if known is None:
        raise SystemExit("no labels were seen")
    look = ScoredLook(known, lambda _, call, *given: call(*given), torch, sys.modules["torch.nn.modules.module"])
    step(False)
    found = look.told()
    if found is None:
        raise SystemExit("nothing was seen")
    (all_s, _), (labelled_s, _) = in_turn(timed(step), seconds)
    least, usual, most = saved(found, gpu=False)
    parts = {"share": found.share, "least": least, "usual": usual, "most": most}
    return {"all_ms": 1e3 * all_s, "labelled_ms": 1e3 * labelled_s, **parts}


def _training(case: Case) -> tuple[Any, Any, Any]:
    """Return a network without its last layer, that layer, and their optimizer."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(case.width, case.width // 32, 4 * case.width, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, case.layers, enable_nested_tensor=False)
    body, head = nn.Sequential(nn.Embedding(case.words, case.width), encoder), nn.Linear(case.width, case.words)
    return body, head, torch.optim.SGD([*body.parameters(), *head.parameters()], lr=1e-2)


if __name__ == "__main__":
    main()
