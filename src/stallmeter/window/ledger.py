"""Where the wall time went by the host's clock: the newest reading of the ledger."""

from __future__ import annotations

from collections.abc import Mapping

from ..records import LedgerRecord
from ..records.stats import Reservoir
from .memo import Memo


class LedgerSignals:
    """Signals of the ledger alone; see `spent` for those in which data wait counts as far as it cost anything.

    Args:
        readings: Takes a sample of all readings, for who wants more than the newest.
    """

    def __init__(self, readings: Reservoir[LedgerRecord] | None = None) -> None:
        self.memo = Memo()
        self._record: LedgerRecord | None = None
        self._readings = readings

    def append(self, record: LedgerRecord) -> None:
        """Take a newer reading of the whole run."""
        self.memo.changes += 1
        self._record = record
        if self._readings is not None:
            self._readings.add(record)

    @property
    def record(self) -> LedgerRecord | None:
        """The newest reading: steps, samples, and seconds by bucket."""
        return self._record

    @property
    def wall_s(self) -> float | None:
        """Wall time of the run."""
        return None if self._record is None else self._record.wall_s

    @property
    def start_s(self) -> float | None:
        """Seconds before the first step."""
        return None if self._record is None else self._record.buckets.get("start")

    @property
    def warmup_s(self) -> float | None:
        """Seconds that the first steps took beyond steady ones; None in recordings of versions that do not tell."""
        return None if self._record is None else self._record.buckets.get("warmup")

    @property
    def training_s(self) -> float | None:
        """Wall time without start and warm-up: what a share of training refers to."""
        if self._record is None:
            return None
        return max(0.0, self._record.wall_s - (self.start_s or 0.0) - (self.warmup_s or 0.0))

    @property
    def epochs(self) -> int | None:
        """Epochs begun."""
        return None if self._record is None else self._record.epochs

    @property
    def steps_per_s(self) -> float | None:
        """Steps per second of training time."""
        return self._per_s(None if self._record is None else self._record.steps)

    @property
    def samples_per_s(self) -> float | None:
        """Items per second of training time; None when batch sizes are unknown."""
        return self._per_s(None if self._record is None else self._record.samples)

    def _per_s(self, count: int | None) -> float | None:
        return None if count is None or not self.training_s else count / self.training_s

    @property
    def callbacks_by_name_s(self) -> Mapping[str, float] | None:
        """Seconds in each callback, by class name."""
        return None if self._record is None else self._record.callbacks

    @property
    def logging_by_name_s(self) -> Mapping[str, float] | None:
        """Seconds in each logger, by class name."""
        return None if self._record is None else self._record.logging

    @property
    def coverage_pct(self) -> float | None:
        """Share of the wall time in a named bucket."""
        other = None if self._record is None else self._record.buckets.get("other")
        share = None if other is None else self.share_pct(other)
        return None if share is None else 100.0 - share

    @property
    def host_wait_share_pct(self) -> float | None:
        """Data wait by the host's clock as a share of the training time, whether or not it cost anything."""
        wait = None if self._record is None else self._record.buckets.get("data_wait")
        return None if wait is None else self.training_share_pct(wait)

    def share_pct(self, seconds: float) -> float | None:
        """A number of seconds as a percentage of the wall time."""
        return None if not self.wall_s else 100.0 * seconds / self.wall_s

    def training_share_pct(self, seconds: float) -> float | None:
        """A number of seconds as a percentage of the training time."""
        return None if not self.training_s else 100.0 * seconds / self.training_s
