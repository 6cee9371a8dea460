"""For how many positions of a batch a model scores all classes, where most of them have no label.

In a few steps whose labels are left out in part a hook of torch's for all modules counts the multiplications of layers,
by the shapes of what they take and make. Nothing is read of these, and between such steps no hook is there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ..records import ScoredPositions
from ..timing.labels import Labels

LEAST_CLASSES = 1000
"""Fewer are scored in no time."""

MOST_CALLS = 20_000
"""Calls of layers that are counted: each takes some microseconds."""


class ScoredLook:
    """Counts from its making to `told`; for the training thread.

    Args:
        labels: Of the batch that the step begins with.
        guard: Calls what is given it, and keeps errors away.
        torch: The package.
        nn: The module of it that takes hooks for all modules, as of `stallmeter.timing.module_hooks.hooked`.
    """

    def __init__(self, labels: Labels, guard: Callable[..., Any], torch: Any, nn: Any) -> None:
        self._labels = labels
        self._guard = guard
        self._thread = threading.get_ident()
        self._calls = 0
        self._products = 0
        self._taken: set[int] = set()
        """Lengths of what layers with weights take."""
        self._layers: dict[int, tuple[int, int, int]] = {}
        """Positions, inputs and outputs of layers that could score classes."""
        self._tensor, self._learns = torch.Tensor, torch.is_grad_enabled
        self._kind, self._linear = torch.nn.Module, torch.nn.Linear
        self._embeddings = (torch.nn.Embedding, torch.nn.EmbeddingBag)
        self._remove: Callable[[], None] = nn.register_module_forward_hook(self._called).remove

    def close(self) -> None:
        """Take the hook back."""
        self._remove()

    def told(self, labels: Labels | None = None) -> ScoredPositions | None:
        """Take the hook back; return what was counted, None where no layer was.

        Args:
            labels: Of the step that is over, where that is known now only.
        """
        self._remove()
        labels = labels or self._labels
        if not self._products:
            return None
        found = [layer for layer in self._layers.values() if layer[2] not in self._taken]
        scored, inputs, classes = max(found, key=lambda layer: layer[0] * layer[1] * layer[2], default=(0, 0, 0))
        return ScoredPositions(
            time_s=time.time(),
            positions=labels.positions,
            labelled=labels.labelled,
            scored=scored,
            inputs=inputs,
            classes=classes,
            share=scored * inputs * classes / self._products,
        )

    def _called(self, module: Any, taken: Any, made: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        self._calls += 1
        if self._calls > MOST_CALLS or not self._guard("positions that are scored", self._count, module, taken, made):
            self._give_up()

    def _give_up(self) -> None:
        self._remove()  # torch goes through a copy of its hooks, and a second removal is none
        self._products = 0

    def _count(self, module: Any, taken: Any, made: Any) -> bool:
        """Count the multiplications of a layer: each position by each weight, of a convolution each number made."""
        given = taken[0] if taken else None
        if not self._learns() or not isinstance(given, self._tensor) or not given.dim():
            return True
        if isinstance(module, self._embeddings):
            return True
        weights = [p for _, p in self._kind.named_parameters(module, recurse=False) if p.dim() > 1]
        if not weights:
            return True
        made = made[0] if isinstance(made, tuple) and made else made
        length = int(given.shape[-1])
        self._taken.add(length)
        if weights[0].dim() > 2 and isinstance(made, self._tensor):
            self._products += int(made.numel()) * int(weights[0][0].numel())
            return True
        positions = int(given.numel()) // max(1, length)
        self._products += positions * sum(int(p.numel()) for p in weights)
        if isinstance(module, self._linear) and module.out_features >= LEAST_CLASSES:
            before = self._layers.get(id(module), (0, 0, 0))[0]
            self._layers[id(module)] = (before + positions, int(module.in_features), int(module.out_features))
        return True
