"""What a rule over the ranks of a job is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from ...ranks.job import Job
from ...records.diagnosis import Diagnosis
from .losses import Loss


class JobRule(Protocol):
    """Job to diagnoses. A frozen dataclass whose fields are thresholds, as of a `Rule`."""

    id: ClassVar[str]
    title: ClassVar[str]

    def check(self, job: Job, found: Sequence[Loss]) -> Sequence[Diagnosis]:
        """Return what the job shows of the problem; nothing where it does not.

        Args:
            job: All ranks.
            found: What late ranks cost and no rule of one rank explains, the largest first.
        """
        ...

    def lacks(self, job: Job) -> tuple[str, ...]:
        """Return in words what was not recorded, so that the rule abstains; nothing where it can judge."""
        ...
