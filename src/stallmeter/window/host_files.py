"""How many files processes have open, and how many they may have."""

from __future__ import annotations

from operator import attrgetter

from ..records import HostSample
from ..records.stats import Reservoir
from .memo import Memo
from .steps import StepSignals
from .trends import Trend, trend_of


class OpenFileSignals:
    """Signals of open file descriptors.

    Args:
        samples: Of the host.
        steps: Tell when training began.
        memo: Of the samples.
    """

    def __init__(self, samples: Reservoir[HostSample], steps: StepSignals, memo: Memo) -> None:
        self.memo = Memo(memo)
        self._samples, self._steps = samples, steps

    @property
    def limit(self) -> int | None:
        """Most files that the training process may have open; None where there is no limit."""
        return self._newest("open_files_limit")

    @property
    def main(self) -> int | None:
        """Files that the training process has open, as last counted."""
        return self._newest("open_files")

    @property
    def workers(self) -> int | None:
        """The most files that one child process has open, as last counted."""
        return self._newest("workers_open_files")

    @property
    def main_trend(self) -> Trend | None:
        """Trend of the files that the training process has open, since the first steps."""
        return self.memo("main", lambda: self._trend("open_files"))

    @property
    def workers_trend(self) -> Trend | None:
        """Trend of the most files that one child process has open, since the first steps."""
        return self.memo("workers", lambda: self._trend("workers_open_files"))

    def _newest(self, name: str) -> int | None:
        return next((v for s in reversed(self._samples.items) if (v := getattr(s, name)) is not None), None)

    def _trend(self, name: str) -> Trend | None:
        return trend_of(self._samples.items, attrgetter(name), since_s=self._steps.begun_s)
