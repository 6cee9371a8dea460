"""What was seen in the tensors of models and optimizers, between two steps."""

from __future__ import annotations

from ..records import DenseEmbeddings, DroppedGradients, SubnormalTensors

OfTensors = DenseEmbeddings | DroppedGradients | SubnormalTensors


class TensorSignals:
    """Signals of gradients and of what optimizers keep."""

    def __init__(self) -> None:
        self._dense: DenseEmbeddings | None = None
        self._dropped: DroppedGradients | None = None
        self._subnormal: SubnormalTensors | None = None

    def append(self, record: OfTensors) -> None:
        """Take a newer look."""
        match record:
            case DenseEmbeddings():
                self._dense = record
            case DroppedGradients():
                self._dropped = record
            case SubnormalTensors():
                self._subnormal = record

    def follow(self, other: TensorSignals) -> None:
        """Begin with what is told a few times of a run."""
        self._dense, self._dropped, self._subnormal = other._dense, other._dropped, other._subnormal

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
