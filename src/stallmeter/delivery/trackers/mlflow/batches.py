"""Logging points in batches, and finding the one that MLflow cannot take: it refuses the whole batch for it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from .store import BAD_VALUE, CollisionError, FailedError, Metric, RefusedError, TrackingStore, living_run

SAFE_REPLAY = 100
"""Points that every MLflow takes a second time; 2.10 drops the copies of more than that only if their keys are few."""

MOST_FAILING = 20
"""Points of a batch at which MLflow may fail; where it fails at more, it is not the points that are to blame."""

LARGEST = 2**63 - 1
"""Steps and times in ms are 64-bit numbers in every MLflow."""

_log = logging.getLogger("stallmeter")


class Batches:
    """Logs points of one run. What MLflow cannot take is left out with a warning, one for each key.

    Args:
        store: Where the run is.
        run_id: The run.
    """

    def __init__(self, store: TrackingStore, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._taken: Metric | None = None
        """The last point that MLflow took."""
        self.left_out: set[str] = set()
        """Keys of points that were left out."""

    def log(self, metrics: Sequence[Metric]) -> None:
        """Log points, all that MLflow takes. Raises as `Tracker.send` does, when some may not have arrived."""
        fitting = [metric for metric in metrics if self._fits(metric)]
        if not fitting:
            return
        try:
            self._log_or_split(fitting, first=True)
        except FailedError:
            living_run(self._store, self._run_id)  # an MLflow that does not answer this is down
            self._log_what_it_can(fitting)

    def _fits(self, metric: Metric) -> bool:
        outside = [name for name in ("step", "timestamp") if abs(metric[name]) > LARGEST]
        if outside:
            self._leave_out(metric, f"its {outside[0]} is {metric[outside[0]]}")
        return not outside

    def _log_or_split(self, metrics: Sequence[Metric], *, first: bool = False) -> None:
        try:
            self._store.log(self._run_id, metrics, {})
            self._taken = metrics[-1]
        except CollisionError:
            if len(metrics) <= SAFE_REPLAY:
                raise
            for start in range(0, len(metrics), SAFE_REPLAY):
                self._log_or_split(metrics[start : start + SAFE_REPLAY], first=first)
        except RefusedError as exc:
            if exc.code != BAD_VALUE:
                raise
            if first:  # a deleted run rejects with the same code, and no point is to blame for that
                living_run(self._store, self._run_id)
            self._split(metrics, exc)

    def _split(self, metrics: Sequence[Metric], refusal: RefusedError) -> None:
        if len(metrics) == 1:
            self._leave_out(metrics[0], refusal)
            return
        for half in _halves(metrics):
            self._log_or_split(half)

    def _log_what_it_can(self, metrics: Sequence[Metric]) -> None:
        failing: list[tuple[Metric, FailedError]] = []
        self._sift(metrics, failing)
        if not failing:
            return
        if self._taken is None:  # nothing shows that it takes any
            raise failing[0][1]
        self._store.log(self._run_id, [self._taken], {})  # it takes others still: it did not break down meanwhile
        for metric, failure in failing:
            self._leave_out(metric, failure)

    def _sift(self, metrics: Sequence[Metric], failing: list[tuple[Metric, FailedError]]) -> None:
        try:
            self._log_or_split(metrics)
        except FailedError as exc:
            if len(metrics) > 1:
                for half in _halves(metrics):
                    self._sift(half, failing)
            elif len(failing) < MOST_FAILING:
                failing.append((metrics[0], exc))
            else:
                raise

    def _leave_out(self, metric: Metric, why: object) -> None:
        key = metric["key"]
        if key not in self.left_out:
            self.left_out.add(key)
            _log.warning("MLflow cannot take a point of %r, which is left out there: %s", key, why)


def _halves(metrics: Sequence[Metric]) -> tuple[Sequence[Metric], Sequence[Metric]]:
    middle = len(metrics) // 2
    return metrics[:middle], metrics[middle:]
