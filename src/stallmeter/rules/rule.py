"""What a rule is."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Protocol

from ..records.diagnosis import Diagnosis
from ..window import Window


class Rule(Protocol):
    """Window to diagnosis, or None. A frozen dataclass whose fields are thresholds made by `threshold`."""

    id: ClassVar[str]
    """The problem's name, kebab-case; the rule's file has the same name."""
    title: ClassVar[str]
    """The problem as a statement."""
    needs: ClassVar[tuple[str, ...]]
    """Signals of the window without which the rule abstains."""

    def check(self, window: Window) -> Diagnosis | None:
        """Return a diagnosis when the window shows the problem, else None."""
        ...


def threshold(default: float, unit: str, source: str) -> Any:
    """A rule's dataclass field that carries its unit and where the number comes from.

    Args:
        default: The value used when the user says nothing.
        unit: Unit of the value, for example ``%`` or ``s``.
        source: A sentence that says who uses this value or what it was calibrated on.
    """
    return dataclasses.field(default=default, metadata={"unit": unit, "source": source})
