"""What was seen within forward passes: of which types numbers are, what is made anew, what no label asks for."""

from __future__ import annotations

from dataclasses import dataclass

NEARLY_ALL = 0.9
"""Part of the labels' positions that are scored where all are: the last of each sequence has nothing to predict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredPositions:
    """For how many positions of one batch the classes are scored, and how many of these have a label."""

    time_s: float
    positions: int
    """Of the batch's labels; 0 where none is left out."""
    labelled: int
    """Those whose label is not the one that a loss leaves out."""
    scored: int = 0
    """Positions for which the layer was called that scores the classes; 0 where there was no such layer."""
    inputs: int = 0
    """Numbers of a position that this layer takes."""
    classes: int = 0
    """Numbers that it makes of them."""
    share: float = 0.0
    """Part (0 to 1) of the multiplications of all layers in this forward pass that are this layer's."""

    @property
    def in_vain(self) -> float:
        """Part (0 to 1) of the scored positions that have no label; 0 where they are others than those of the labels.

        As many as have a label are scored where a model has picked them out; a head that is called for pieces of a
        sequence, or for part of it, tells nothing.
        """
        if not self.scored or not NEARLY_ALL * self.positions <= self.scored <= self.positions:
            return 0.0
        return max(0.0, 1.0 - self.labelled / self.scored)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedFeatures:
    """Calls of modules that learn nothing and make the same of the same item in each epoch; the newest record holds."""

    time_s: float
    name: str = ""
    """Class name of the module that takes most of them, or the function that calls it; empty where there is none."""
    modules: int = 0
    """How many there are that are called one beside the other."""
    call_s: float = 0.0
    """Seconds of these calls in a step; 0 where no module makes the same."""
    expected: float = 0.0
    """Items that had to be met again if each epoch had the same ones."""
    again: int = 0
    """Those that were, by some of their numbers."""
    file: str = ""
    """Where the user's own code calls that module, relative to the program; empty where it does not."""
    line: int = 0
    function: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolutions:
    """How much of the forward passes of a step is convolutions; the newest record holds."""

    time_s: float
    share: float = 0.0
    """Part (0 to 1) of the time in modules."""
    forward_s: float = 0.0
    """Seconds in modules, in one step."""
    channels_last: float | None = None
    """Part (0 to 1) of the time of those of pictures that are given them with their channels last; None without any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedBackward:
    """Backward passes of a step that go through what another one has gone through; the newest record holds."""

    time_s: float
    steps: int
    """That were looked at."""
    passes: int = 0
    """Of a step, the most."""
    backward_s: float = 0.0
    """Seconds of a step in backward passes, the mean."""
    again_s: float = 0.0
    """Of them in what one pass could do for all: by the parts of the graph, the mean; 0 where passes share none."""
    file: str = ""
    """Where the user's own code asks for such a pass, relative to the program; empty where there is none."""
    line: int = 0
    function: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SameResults:
    """A function of the user's that steps call and that returns the same in all of them; the newest record holds."""

    time_s: float
    steps: int
    """That were looked at; 0 where no function of the user's holds enough of the time."""
    function: str = ""
    """Qualified; the one that takes the most. Empty where there is none."""
    file: str = ""
    """Relative to the program."""
    line: int = 0
    """First of the function."""
    call_s: float = 0.0
    """Seconds of its calls in a step."""
    calls: int = 0
    """Of a step."""
    numbers: int = 0
    """That one call returns."""
