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
    half: str = ""
    """Type of 16 bits of most of its numbers on a CPU that have one: ``bfloat16`` or ``float16``."""
    half_share: float | None = None
    """Part (0 to 1) of its numbers that have that type, on a CPU; None in recordings from before that was read."""
    double_share: float | None = None
    """Part (0 to 1) of its numbers that have 64 bits, on any device; None in recordings from before that was read."""


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
    also: tuple[str, ...] = ()
    """Other such parts of the same model, by their size."""

    @property
    def share(self) -> float:
        """Part (0 to 1) of the numbers with gradients that is in vain."""
        both = self.numbers + self.updated_numbers
        return self.numbers / both if both else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedGradients:
    """Gradients that one optimizer's step leaves behind for another one's parameters, and that are cleared unused.

    By a few steps of the loop, whose means these are. The newest record holds.
    """

    time_s: float
    beneath: str = ""
    """Largest part of a model that gets some of which nothing that is used depends, as the program names it."""
    beneath_during: str = ""
    """The part that is trained then: its optimizer makes the next step."""
    beneath_s: float = 0.0
    """Seconds of a step that go into such gradients, of all parts."""
    above: str = ""
    """Largest part that gets some on the way to gradients that are used."""
    above_during: str = ""
    """The part that is trained then."""
    above_trained: bool = True
    """Whether an optimizer has it."""
    above_s: float = 0.0
    """Seconds of a step that go into such gradients, and into what is passed on with them; of all parts."""
    backward_s: float = 0.0
    """Seconds of a step from the first gradient of each backward pass to its last."""
    tensors: int = 0
    """Parameters that get gradients in vain; 0 where none was seen."""
    steps: int = 0
    """Steps that were looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnormalTensors:
    """Shares (0 to 1) of the numbers of a model's largest tensors on a CPU that are subnormal, by a sample."""

    time_s: float
    gradients: float | None = None
    """Of the gradients; None where there were none to be read."""
    states: float | None = None
    """Of what optimizers keep of earlier steps, such as running means; None where none was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseEmbeddings:
    """Embedding tables that get gradients as large as they are, of which few rows are used. The newest record holds."""

    time_s: float
    part: str = ""
    """The largest of them, as the program names it; empty where there is none."""
    kind: str = ""
    """Class name of that table."""
    also: tuple[str, ...] = ()
    """The others, the largest first."""
    tables: int = 0
    """How many they are; 0 where there are none."""
    rows: int = 0
    """Rows of all of them."""
    numbers: int = 0
    """Numbers of all of them."""
    used_share: float = 0.0
    """Share (0 to 1) of their numbers in rows that a step uses, by a sample of the rows."""
    trained_numbers: int = 0
    """Numbers of all parameters with gradients."""

    @property
    def share(self) -> float:
        """Part (0 to 1) of the numbers with gradients that these tables hold."""
        return min(1.0, self.numbers / self.trained_numbers) if self.trained_numbers else 0.0
