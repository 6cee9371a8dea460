"""The demo: a small network trained on real JPEG files by one process that cannot decode them fast enough."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import MissingPackageError
from ..recording import Reader
from ..records import StepRecord
from .outcome import DemoRun

_PACKAGES = {
    "torch": "torch",
    "lightning": "lightning",
    "mlflow": "mlflow",
    "rich": "rich",
    "pillow": "PIL",
    "scikit-learn": "sklearn",
}
"""What the extra ``demo`` installs, and the name under which each is imported."""


def run_demo(
    folder: Path, *, epochs: int = 6, num_workers: int = 0, apply: bool = False, say: Callable[[str], None]
) -> DemoRun:
    """Write the images once, train, and record it in MLflow and in a recording.

    Args:
        folder: Where everything goes; made when missing.
        epochs: How often all images are seen; one takes about 5 s on two CPUs.
        num_workers: Of the training loader; 0 is the fault to find.
        apply: Whether stallmeter sets the recommended number itself, between two epochs.
        say: Takes each line that tells what is going on.

    Raises:
        MissingPackageError: The extra ``demo`` is not installed in full.
        OSError: The folder cannot be written.
    """
    missing = [package for package, name in _PACKAGES.items() if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPackageError(", ".join(missing), "demo", "stallmeter demo")
    from .crops import write_crops
    from .training import train

    folder.mkdir(parents=True, exist_ok=True)
    say(f"Writing JPEG crops of two photographs to {folder / 'crops'} (once)")
    files = write_crops(folder / "crops")
    say(f"Training on {len(files)} of them for {epochs} epochs with num_workers={num_workers}")
    outcome = train(folder, files, epochs=epochs, num_workers=num_workers, apply=apply)
    if apply:
        for rate in epoch_rates(outcome.recording):
            say(f"epoch {rate.epoch}: {rate.samples_per_s:.0f} images/s")
    return outcome


@dataclass(frozen=True, slots=True)
class EpochRate:
    """Throughput of one epoch, from its first batch asked for to its last one used, validation left out."""

    epoch: int
    samples_per_s: float


def epoch_rates(recording: Path) -> list[EpochRate]:
    """Return the throughput of each epoch of a recording whose steps were all recorded in detail.

    Raises:
        RecordingError: There is no recording.
    """
    spent: dict[int, tuple[int, float]] = {}
    for record, _ in Reader(recording):
        if isinstance(record, StepRecord):
            samples, seconds = spent.get(record.epoch, (0, 0.0))
            spent[record.epoch] = (samples + (record.samples or 0), seconds + record.step_time_s)
    return [EpochRate(epoch, samples / seconds) for epoch, (samples, seconds) in sorted(spent.items()) if seconds]
