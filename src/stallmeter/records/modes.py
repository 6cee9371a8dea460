"""Modes of torch that are there to find mistakes, and slow each step down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DebugModes:
    """For how long such modes were on since the run began; read when something was, and once at the beginning."""

    time_s: float
    anomaly_s: float = 0.0
    """``torch.autograd.set_detect_anomaly``."""
    profiler_s: float = 0.0
    """A profiler of torch's, within its active steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuAutocast:
    """Whether modules were called with ``torch.autocast("cpu")`` in the steps that were looked at. The newest holds."""

    time_s: float
    kind: str
    """``bfloat16`` or ``float16``; empty where it was off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WideNumbers:
    """Numbers of 64 bits among those that the operations of a model make in a step; the newest record holds."""

    time_s: float
    wide: int
    """Floating-point numbers of 64 bits, by what the backward pass goes through."""
    numbers: int
    """All numbers."""
    trained_wide: bool = False
    """Whether modules have weights of 64 bits."""
    operation: str = ""
    """What makes most of them, as torch names the backward of it: ``SoftmaxBackward0``; empty where there is none."""
    buffer: str = ""
    """Largest buffer of 64 bits, with the class that holds it: ``Attention.bias``; empty where there is none."""
    buffer_numbers: int = 0

    @property
    def share(self) -> float:
        """Part (0 to 1) of the numbers that has 64 bits."""
        return self.wide / self.numbers if self.numbers else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeWeights:
    """Weights that are made of others whenever they are used (``torch.nn.utils.parametrize``), in one step."""

    time_s: float
    weights: int = 0
    """How many there are; 0 where there are none."""
    made: int = 0
    """How often one was made."""
    passes: int = 0
    """Calls of modules by what is no module: forward passes, as a rule."""
    kind: str = ""
    """Class name of what makes most of them."""
    share: float = 0.0
    """Part (0 to 1) of the time in modules in which they are made."""
