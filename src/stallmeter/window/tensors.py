"""What was seen in the tensors of models and optimizers, between two steps."""

from __future__ import annotations

import statistics

from ..records import (
    Convolutions,
    DenseEmbeddings,
    DroppedGradients,
    FixedFeatures,
    MadeWeights,
    RepeatedBackward,
    SameResults,
    ScoredPositions,
    SubnormalTensors,
    WideNumbers,
)

OfTensors = (
    Convolutions
    | DenseEmbeddings
    | DroppedGradients
    | FixedFeatures
    | MadeWeights
    | RepeatedBackward
    | SameResults
    | ScoredPositions
    | SubnormalTensors
    | WideNumbers
)

MOST_SCORED = 64
"""Looks at scored positions that are kept, the first ones."""


class TensorSignals:
    """Signals of gradients and of what optimizers keep."""

    def __init__(self) -> None:
        self._dense: DenseEmbeddings | None = None
        self._dropped: DroppedGradients | None = None
        self._subnormal: SubnormalTensors | None = None
        self._scored: list[ScoredPositions] = []
        self._wide: WideNumbers | None = None
        self._made: MadeWeights | None = None
        self._fixed: FixedFeatures | None = None
        self._convolutions: Convolutions | None = None
        self._repeated: RepeatedBackward | None = None
        self._same: SameResults | None = None

    def append(self, record: OfTensors) -> None:
        """Take a newer look."""
        match record:
            case DenseEmbeddings():
                self._dense = record
            case DroppedGradients():
                self._dropped = record
            case SubnormalTensors():
                self._subnormal = record
            case WideNumbers():
                self._wide = record
            case MadeWeights():
                self._made = record
            case FixedFeatures():
                self._fixed = record
            case RepeatedBackward():
                self._repeated = record
            case SameResults():
                self._same = record
            case Convolutions():
                self._convolutions = record
            case ScoredPositions():
                kept = [one for one in self._scored if one.positions]
                if len(kept) < MOST_SCORED:
                    self._scored = [*kept, record] if record.positions or not kept else kept

    def follow(self, other: TensorSignals) -> None:
        """Begin with what is told a few times of a run."""
        self._dense, self._dropped, self._subnormal = other._dense, other._dropped, other._subnormal
        self._scored, self._wide, self._made = [*other._scored], other._wide, other._made
        self._fixed, self._convolutions, self._repeated = other._fixed, other._convolutions, other._repeated
        self._same = other._same

    @property
    def dense_embeddings(self) -> DenseEmbeddings | None:
        """Embedding tables with dense gradients of few rows, none of them as well; None where nobody could look."""
        return self._dense

    @property
    def dropped_gradients(self) -> DroppedGradients | None:
        """Gradients computed for another optimizer's step, and cleared; none of them as well; None: not known."""
        return self._dropped

    @property
    def subnormal(self) -> SubnormalTensors | None:
        """Shares of gradients and of optimizers' states that are subnormal, on a CPU; None where nobody could look."""
        return self._subnormal

    @property
    def scored(self) -> ScoredPositions | None:
        """Positions whose classes are scored, with labels or without: the look in the middle; None without any look."""
        if not self._scored:
            return None
        middle = statistics.median_low(look.in_vain for look in self._scored)
        return next(look for look in self._scored if look.in_vain == middle)

    @property
    def wide(self) -> WideNumbers | None:
        """Numbers of 64 bits that modules take, make and hold, none as well; None where nobody could look."""
        return self._wide

    @property
    def made_weights(self) -> MadeWeights | None:
        """Weights that are made whenever they are used, none as well; None where nobody could look."""
        return self._made

    @property
    def fixed_features(self) -> FixedFeatures | None:
        """What modules make anew that is the same in each epoch, nothing as well; None where that is not known."""
        return self._fixed

    @property
    def convolutions(self) -> Convolutions | None:
        """How much of the forward passes is convolutions, none of it as well; None where nobody could look."""
        return self._convolutions

    @property
    def repeated_backward(self) -> RepeatedBackward | None:
        """Backward passes of a step through one graph, none of them as well; None where nobody could look."""
        return self._repeated

    @property
    def same_results(self) -> SameResults | None:
        """A function that returns the same in all steps, none as well; None where none was looked at."""
        return self._same
