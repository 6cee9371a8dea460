"""Whose workers are probed before it is known what a program trains on: they are from their start, or not at all."""

from __future__ import annotations

from typing import Any

from ..engine.run import Run
from ..timing.batches import attribute
from .iteration import Iteration


class Probed:
    """The loaders that were prepared, until the run starts."""

    def __init__(self) -> None:
        self._loaders: list[object] = []

    def prepare(self, run: Run, loader: object) -> None:
        """Probe a loader that is about to be iterated: alone, with others as those of a zip are, or inside their steps.

        Args:
            run: That is put together, and has not started.
            loader: The loader.
        """
        if not self._loaders:
            run.loaders.probe_workers(loader)
            self._loaders.append(loader)
        elif not self._has(loader):
            run.loaders.probe_beside(loader)
            self._loaders.append(loader)

    def looks_into(self, loader: object) -> bool:
        """Whether a loader has workers that are probed."""
        return self._has(loader) and has_workers(loader)

    def settle(self, run: Run, found: list[Iteration], leader: Any) -> None:
        """Tell the probe which loaders are trained on.

        Args:
            run: Of the program.
            found: Their iterations, which were begun unseen.
            leader: What times the one that makes the steps.
        """
        for loader in self._loaders:
            if all(loader is not iteration.loader for iteration in found):
                run.loaders.release(loader)
        for iteration in found:
            if iteration.timed is leader:
                self._lead(run, iteration)
            else:
                run.loaders.beside(iteration.loader, lambda made=iteration.iterator: made)  # type: ignore[misc]

    def forget(self) -> None:
        """What is begun from now on is known by then."""
        self._loaders = []

    def _lead(self, run: Run, leading: Iteration) -> None:
        if self._has(leading.loader):
            run.loaders.iterator_made(leading.iterator)
            return
        run.loaders.led_unseen()
        if not has_workers(leading.loader):
            run.loaders.probe_workers(leading.loader)
            run.loaders.iterator_made(leading.iterator)

    def _has(self, loader: object) -> bool:
        return any(loader is other for other in self._loaders)


def has_workers(loader: object) -> bool:
    """Whether a loader starts processes to make its batches."""
    return bool(attribute(loader, "num_workers", 0))
