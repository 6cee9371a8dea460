"""What a model computes for positions that no label asks for."""

from __future__ import annotations

from dataclasses import dataclass

NEARLY_ALL = 0.9
"""Part of the labels' positions that are scored where all are: the last of each sequence has nothing to predict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredPositions:
    """For how many positions of one batch the classes are scored, and how many of these have a label."""

    time_s: float
    positions: int
    """Of the batch's labels."""
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
        if not NEARLY_ALL * self.positions <= self.scored <= self.positions:
            return 0.0
        return max(0.0, 1.0 - self.labelled / self.scored)
