"""A parameter at a look: how often it was written into, which gradient it has, and some of its values."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from ...timing.numbers import ODD, numbers_of

VALUES = 8
"""Of a parameter that are compared: one alone may be left as it is, where nothing is passed back to it."""

_writes = attrgetter("_version")
"""What torch counts of a tensor: how often something was written into it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A parameter at a look."""

    parameter: weakref.ref[Any]
    writes: int
    gradient: weakref.ref[Any] | None
    gradient_writes: int
    value: tuple[float | complex, ...] | None

    @classmethod
    def of(cls, parameter: Any, *, with_value: bool) -> Seen:
        """Look at a parameter; some of its values are copied, from another device one."""
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

    def is_written_past(self, parameter: Any) -> bool:
        """Whether its values are others though torch counted no write, as of fused optimizers."""
        return _writes(parameter) == self.writes and self.parameter() is parameter and not self.is_unchanged(parameter)

    def got_another(self, parameter: Any) -> bool:
        """Whether it got a gradient since: a tensor that is new, or more of it in the one that was there."""
        gradient = parameter.grad
        if gradient is None:
            return False
        if _writes(gradient) != self.gradient_writes:
            return True
        return self.gradient is None or self.gradient() is not gradient


def _value(parameter: Any) -> tuple[float | complex, ...]:
    """Return some of a tensor's values, spread over it; the first alone where NumPy cannot read it; 0 without any."""
    if not parameter.numel():
        return (0.0,)
    tensor = parameter.detach()
    try:
        numbers = numbers_of(tensor)
    except ODD:
        numbers = None
    if numbers is None:
        return (tensor[(0,) * tensor.dim()].item(),)
    return tuple(numbers.flat[:: max(1, numbers.size // VALUES)][:VALUES].tolist())
