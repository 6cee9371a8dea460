"""What makes steps of batches; here the user's own step function in a plain loop."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from ..engine.monitor import Monitor
from ..engine.options import OptionArguments
from ..errors import SettingError
from ..timing.batches import BatchSizes
from ..window import Window
from .loaders import endless
from .rate_meter import RateMeter
from .state_search import find_stateful

SAMPLE_EVERY_S = 0.25


def options_of(folder: Path, *, inside: bool) -> OptionArguments:
    """Return the options of a probe's monitor: nothing is judged, forwarded or printed.

    Args:
        folder: For its recording.
        inside: Whether to look inside the loader's workers and at the hardware.
    """
    return {
        "directory": folder,
        "trackers": None,
        "rules": (),
        "hardware": inside,
        "workers": inside,
        "interval_s": SAMPLE_EVERY_S,
        "console": False,
    }


class Training(Protocol):
    """Something that makes a step of each batch."""

    framework: str

    @property
    def device(self) -> str:
        """The kind of device that steps run on; known after the first run."""
        ...

    def roots(self) -> list[object]:
        """Return what its steps change."""
        ...

    def run(self, loader: Iterable[Any], meter: RateMeter, folder: Path, *, inside: bool) -> Window:
        """Train until the meter has seen enough.

        Args:
            loader: Gives the batches, epoch after epoch.
            meter: Told of each step.
            folder: For what a recording leaves behind.
            inside: Whether to look inside the loader's workers and at the hardware.
        """
        ...


class StepTraining:
    """A plain loop around a function of the user.

    Args:
        step: Takes a batch and trains on it.
        restore: What the function changes; found by itself by default.

    Raises:
        SettingError: ``step`` is no function of a batch, or reaches nothing that could be put back.
    """

    framework = "loop"

    def __init__(self, step: Any, restore: Iterable[object] | None) -> None:
        if not callable(step):
            raise SettingError(f"step is {step!r}; give a function that takes a batch and trains on it")
        self._step = step
        self._roots = list(find_stateful(step) if restore is None else restore)
        if not self._roots and restore is None:
            raise SettingError(
                "no model or optimizer was found behind the step function, so they could not be put back: "
                "pass restore=(model, optimizer), or restore=() if there is nothing to put back"
            )

    @property
    def device(self) -> str:
        """The kind of device that is in use."""
        return "cuda" if _cuda_in_use() else "cpu"

    def roots(self) -> list[object]:
        """Return what the function was found to change."""
        return self._roots

    def run(self, loader: Iterable[Any], meter: RateMeter, folder: Path, *, inside: bool) -> Window:
        """Train; see `Training.run`."""
        monitor = Monitor(**options_of(folder, inside=inside))
        monitor.run.ending.skip_reports()
        sizes = BatchSizes()
        sizes.set_loader(loader)
        try:
            for batch in endless(monitor.watch(loader)):
                self._step(batch)
                if meter.tick(sizes(batch)):
                    break
        finally:
            monitor.close()
        return monitor.window


def synchronize() -> None:
    """Wait until the device has done what it was given. Only a probe may do that, which is no training."""
    import torch

    if _cuda_in_use():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()


def _cuda_in_use() -> bool:
    import torch

    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())
