"""Sources that look closer where a verdict asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ..records.interfaces import Source


class Look(Source, Protocol):
    """A source that looks closer for a short time when a verdict asks for it."""

    def request(self, rule: str, steps: int) -> None:
        """Ask for the look, if this primary cause is one that it would explain."""
        ...


class Profiler(Look, Protocol):
    """One that writes files: by the name that each has on a tracker."""

    files: dict[str, Path]
