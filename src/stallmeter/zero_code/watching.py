"""What times a loader of a loop that has not asked for it, as `Monitor.watch` would."""

from __future__ import annotations

from typing import Any

from ..engine.run import Run
from ..timing.loop import Watched
from ..timing.turns import Turns
from .updates import NoLoader, Past


def watch(run: Run, turns: Turns, loader: Any, stage: str, *, begun: bool = False) -> Watched[Any]:
    """Return what times a loader.

    Args:
        run: Of the loop.
        turns: Of the run.
        loader: What is iterated.
        stage: ``train`` or ``validation``.
        begun: Whether it has its iterator already.
    """
    loaders = run.loaders

    def size(batch: object) -> int | None:
        return batch.samples if type(batch) is Past else loaders.size(batch)

    return Watched(
        loader,
        turns,
        stage=stage,
        prepare=loaders.prepare_begun if begun else loaders.prepare,
        started=(lambda _: None) if begun else loaders.iterator_made,
        beside=(lambda _, make: make()) if begun else loaders.beside,
        size=None if type(loader) is NoLoader else size,
    )
