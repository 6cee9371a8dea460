"""What updates the weights, and what does not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerInfo:
    """How the optimizer is set up, the first one where there are several."""

    time_s: float
    kind: str
    """Its class name."""
    tensors: int
    """Parameters that it updates, each a tensor."""
    fused: bool = False
    """Whether one call updates many of them."""
    may_fuse: bool = False
    """Whether it could be told ``fused=True``: one of torch's own, on a CPU, by a torch that can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedGradients:
    """Gradients that are computed and of which no weight is changed. The newest record holds."""

    time_s: float
    part: str
    """Largest part of a model whose gradients are all in vain, as the program names it; empty where there is none."""
    kind: str
    """Class name of that part."""
    tensors: int
    """Parameters that get gradients in vain; 0 where there are none, or what was said before did not last."""
    numbers: int
    """Numbers in these."""
    updated_numbers: int
    """Numbers in the parameters that are updated."""

    @property
    def share(self) -> float:
        """Part (0 to 1) of the numbers with gradients that is in vain."""
        both = self.numbers + self.updated_numbers
        return self.numbers / both if both else 0.0
