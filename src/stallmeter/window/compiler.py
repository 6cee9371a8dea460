"""What torch.compile took, in the first steps and later."""

from __future__ import annotations

from collections import deque

from ..records import CompilerSample

SAMPLES = 512
"""Readings kept; they come only when something was compiled, so these are the latest 512 seconds with compilation."""

LATE_S = 1.5
"""A reading comes so late after what it counts."""


class CompilerSignals:
    """Signals of torch.compile."""

    def __init__(self) -> None:
        self._samples: deque[CompilerSample] = deque(maxlen=SAMPLES)

    def append(self, sample: CompilerSample) -> None:
        """Take a newer reading."""
        self._samples.append(sample)

    @property
    def recompilations(self) -> int | None:
        """Times that code was compiled again for other shapes or values; None without torch.compile."""
        return self._samples[-1].recompilations if self._samples else None

    @property
    def recompile_s(self) -> float | None:
        """Seconds that compiling again took, at the least; None where that was not measured."""
        return self._samples[-1].recompile_s if self._samples else None

    @property
    def seconds(self) -> float | None:
        """Seconds that compiling took, the first time included; None where that was not measured."""
        return self._samples[-1].seconds if self._samples else None

    def until_s(self, time_s: float) -> float | None:
        """Return the seconds that compiling took up to a Unix time; None where that was not measured.

        Of a training that was known as one only later the first reading counts, which holds all until then.
        """
        known = [sample.seconds for sample in self._samples if sample.time_s <= time_s + LATE_S]
        return known[-1] if known else next((sample.seconds for sample in self._samples), None)
