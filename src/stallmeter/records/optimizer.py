"""What updates the weights."""

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
