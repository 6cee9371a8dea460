"""A parameter at a look: how often it was written into, which gradient it has, and one of its values."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

_writes = attrgetter("_version")
"""What torch counts of a tensor: how often something was written into it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A parameter at a look."""

    parameter: weakref.ref[Any]
    writes: int
    gradient: weakref.ref[Any] | None
    gradient_writes: int
    value: float | complex | None

    @classmethod
    def of(cls, parameter: Any, *, with_value: bool) -> Seen:
        """Look at a parameter; one of its values is copied from its device."""
        value = _value(parameter) if with_value else None
        gradient = parameter.grad
        if gradient is None:
            return cls(weakref.ref(parameter), _writes(parameter), None, -1, value)
        return cls(weakref.ref(parameter), _writes(parameter), weakref.ref(gradient), _writes(gradient), value)

    def is_unchanged(self, parameter: Any) -> bool:
        """Whether nobody has written into it since."""
        if _writes(parameter) != self.writes or self.parameter() is not parameter:
            return False
        return self.value is None or _value(parameter) == self.value

    def got_another(self, parameter: Any) -> bool:
        """Whether it got a gradient since: a tensor that is new, or more of it in the one that was there."""
        gradient = parameter.grad
        if gradient is None:
            return False
        if _writes(gradient) != self.gradient_writes:
            return True
        return self.gradient is None or self.gradient() is not gradient


def _value(parameter: Any) -> float | complex:
    """Return one of a tensor's values, the first; 0 of one that has none."""
    found: float | complex = parameter.detach()[(0,) * parameter.dim()].item() if parameter.numel() else 0.0
    return found
