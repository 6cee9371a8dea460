"""How much faster steps are whose attention adds a bias of 32 bits, against one of 64, beside what is promised.

Each case is a small transformer on this CPU, in a process of its own; steps of both kinds take turns. The bias is a
buffer that NumPy made, one number for each pair of positions and each head, so that scores and their softmax have 64
bits as well. What is promised is the rule's, from a look at one step by what `stallmeter run` looks with.

    python -m benchmarks.faults.wide [--cases N ...] [--seconds S]
"""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

from .cases import asked, faster, in_turn, measured, timed


class Case(NamedTuple):
    """Sizes of a network and of its batch."""

    positions: int
    width: int
    heads: int
    rows: int
    layers: int


CASES = (Case(64, 256, 4, 16, 3), Case(128, 256, 4, 8, 3), Case(128, 128, 8, 16, 2), Case(256, 128, 8, 8, 2))
WORDS = 500


def main() -> None:
    """Measure every case, one after the other."""
    options = asked(__doc__, CASES, 6.0)
    if options.case:
        print(json.dumps(_measure(CASES[options.case[0]], options.seconds)))
        return
    print("positions  width  heads  rows  64 bits, of the numbers    64 bits    32 bits  times as fast  promised")
    for number in options.cases:
        said, case = measured(__spec__.name, str(number), seconds=options.seconds), CASES[number]
        print(
            f"{case.positions:9d} {case.width:6d} {case.heads:6d} {case.rows:5d} {100.0 * said['share']:20.0f} % "
            f"{said['wide_ms']:10.1f} ms {said['full_ms']:7.1f} ms {said['wide_ms'] / said['full_ms']:11.2f}"
            f"  {faster(said)}",
            flush=True,
        )


def _measure(case: Case, seconds: float) -> dict[str, float]:
    import torch

    from stallmeter.rules.float64_operations import saves
    from stallmeter.sources.forward_passes import ForwardLook

    networks = {wide: _training(case, wide=wide) for wide in (True, False)}
    ids = torch.randint(0, WORDS, (case.rows, case.positions))

    def step(narrow: bool) -> None:
        model, optimizer = networks[not narrow]
        loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    look = ForwardLook(torch, sys.modules["torch.nn.modules.module"], lambda _, call, *given: call(*given))
    step(False)
    look.remove()
    found = look.told()
    if found is None:
        raise SystemExit("nothing was seen: this version of torch does not tell of its graph")
    (wide_s, _), (full_s, _) = in_turn(timed(step), seconds)
    least, usual, most = saves(found)
    known = {"share": found.share, "least": least, "usual": usual, "most": most}
    return {"wide_ms": 1e3 * wide_s, "full_ms": 1e3 * full_s, **known}


def _training(case: Case, *, wide: bool) -> tuple[Any, Any]:
    """Return a network and its optimizer."""
    import numpy as np
    import torch
    from torch import nn

    places = np.arange(case.positions)
    slopes = 2.0 ** -np.arange(1, case.heads + 1)
    distances = torch.from_numpy(-np.abs(places[:, None] - places) * slopes[:, None, None])

    class Attention(nn.Module):
        """Scores with a bias for how far two positions lie apart."""

        def __init__(self) -> None:
            super().__init__()
            self.taken = nn.Linear(case.width, 3 * case.width)
            self.given = nn.Linear(case.width, case.width)
            self.register_buffer("bias", distances if wide else distances.float())

        def forward(self, x: Any) -> Any:
            shape = (case.rows, case.positions, case.heads, case.width // case.heads)
            q, k, v = (part.view(shape).transpose(1, 2) for part in self.taken(x).split(case.width, -1))
            scores = (q @ k.transpose(-1, -2) * shape[-1] ** -0.5 + self.bias).softmax(-1)
            mixed = scores.type_as(v) @ v
            return x + self.given(mixed.transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    within = [part for _ in range(case.layers) for part in (Attention(), _mlp(case.width))]
    model = nn.Sequential(nn.Embedding(WORDS, case.width), *within, nn.Linear(case.width, WORDS))
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def _mlp(width: int) -> Any:
    from torch import nn

    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


if __name__ == "__main__":
    main()
