"""What a rule over the ranks of a job is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from ...ranks.job import Job
from ...records.diagnosis import Diagnosis
from .losses import Loss


class JobRule(Protocol):
    """Job to diagnosis, or None. A frozen dataclass whose fields are thresholds, as of a `Rule`."""

    id: ClassVar[str]
    title: ClassVar[str]

    def check(self, job: Job, found: Sequence[Loss]) -> Diagnosis | None:
        """Return a diagnosis when the job shows the problem.

        Args:
            job: All ranks.
            found: What late ranks cost, the largest first.
        """
        ...
