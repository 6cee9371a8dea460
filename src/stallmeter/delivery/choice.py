"""Which trackers a run is forwarded to: those that the user named, or has already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from ..errors import SettingError
from ..records.interfaces import Tracker

Trackers = Literal["auto", "mlflow", "neptune", "neptune-scale"] | Tracker | Sequence[Tracker | Any] | Any | None
"""``auto`` finds the run that the user already has; a name makes one when there is none; a run of Neptune's clients is
taken as it is; None forwards nothing."""

NAMES = ("auto", "mlflow", "neptune", "neptune-scale")


def choose_trackers(chosen: Trackers, loggers: Sequence[object], rank: int) -> tuple[Tracker, ...]:
    """Find where to forward: the argument, the trainer's loggers, the active run of MLflow, ``MLFLOW_RUN_ID``.

    Args:
        chosen: What the user asked for.
        loggers: Of the trainer.
        rank: Only rank 0 forwards.

    Raises:
        SettingError: ``chosen`` is no tracker.
        MissingPackageError: A run was asked for and its client is not installed.
        TrackerError: A run was asked for and cannot be had.
    """
    check_trackers(chosen)
    if chosen is None or rank != 0:
        return ()
    if isinstance(chosen, str):
        return _find_trackers(loggers, create=None if chosen == "auto" else chosen)
    given = list(chosen) if isinstance(chosen, Sequence) else [chosen]
    found = (one if isinstance(one, Tracker) else _neptune_tracker(one) for one in given)
    return tuple(tracker for tracker in found if tracker is not None)


def check_trackers(chosen: Trackers) -> None:
    """Refuse what cannot be a tracker.

    Raises:
        SettingError: It says what may be passed.
    """
    if chosen is None or (isinstance(chosen, str) and chosen in NAMES):
        return
    given = list(chosen) if isinstance(chosen, Sequence) and not isinstance(chosen, str) else [chosen]
    for one in given:
        if isinstance(one, str) and one in NAMES:
            raise SettingError(f"trackers holds {one!r}, and a name is given alone: trackers={one!r}")
        if not isinstance(one, Tracker) and _neptune_tracker(one) is None:
            names = ", ".join(map(repr, NAMES))
            raise SettingError(
                f"trackers is {one!r}; give {names}, None, a run of Neptune's or an object with "
                "name, destination, batch_size, send, show and close"
            )


def _neptune_tracker(run: object) -> Tracker | None:
    from .trackers.neptune import NeptuneScaleTracker, NeptuneTracker

    # Some successors have both interfaces; that of 1.x takes series in bulk.
    if NeptuneTracker.accepts(run):
        return NeptuneTracker(run)
    return NeptuneScaleTracker(run) if NeptuneScaleTracker.accepts(run) else None


def _find_trackers(loggers: Sequence[object], *, create: str | None) -> tuple[Tracker, ...]:
    from .trackers.lightning_logger import LightningLoggerTracker, MetricsLogger
    from .trackers.mlflow import MlflowTracker
    from .trackers.neptune import NeptuneScaleTracker, NeptuneTracker

    found: list[Tracker] = []
    others: list[Tracker] = []
    for logger in loggers:
        tracker = MlflowTracker.from_logger(logger) or NeptuneTracker.from_logger(logger)
        if tracker is not None:
            found.append(tracker)
        elif not _is_silent(logger):
            others.append(LightningLoggerTracker(cast(MetricsLogger, logger)))
    openers: dict[str | None, list[Callable[[], Tracker | None]]] = {
        None: [MlflowTracker.from_active_run, MlflowTracker.from_environment],
        "mlflow": [MlflowTracker.from_active_run, MlflowTracker.from_environment, MlflowTracker.create_run],
        "neptune": [NeptuneTracker.open_run],
        "neptune-scale": [NeptuneScaleTracker.open_run],
    }
    for opener in openers[create]:
        if any(create is None or tracker.name == create for tracker in found):
            break
        run = opener()
        if run is not None:
            found.append(run)
    return (*found, *others)


def _is_silent(logger: object) -> bool:
    """Lightning puts a logger that drops everything in place under ``fast_dev_run``; MLflow has none on rank > 0."""
    names = {cls.__name__ for cls in type(logger).__mro__}
    return bool(names & {"DummyLogger", "MLFlowLogger"})
