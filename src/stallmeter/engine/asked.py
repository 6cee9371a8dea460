"""Sources that look closer where a verdict asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ..records.diagnosis import Verdict
from ..records.interfaces import Source


class Profiler(Source, Protocol):
    """A source that profiles a few steps when a verdict asks for it."""

    files: dict[str, Path]
    """What it wrote, by the name that it has on a tracker."""

    def request(self, rule: str, steps: int) -> None:
        """Ask for the profile, if this primary cause is one that it would explain."""
        ...


class Looks(Source, Protocol):
    """A source that looks where in the code time is spent, and into what verdicts name."""

    def request(self, verdict: Verdict) -> None:
        """Ask for what a verdict names."""
        ...

    def end(self) -> None:
        """The next sample is the last one."""
        ...
