"""What the wall time was spent on: the ledger, with what device and GPU tell about it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..records import CpuAutocast, EvaluationBatches, OptimizerInfo, UnusedGradients
from .beside import work_s
from .device import DeviceSignals
from .gpu import GpuSignals
from .ledger import LedgerSignals
from .memo import Memo
from .steps import BODY
from .tensors import OfTensors, TensorSignals

LOSSES = ("data_wait", "callbacks", "logging", "checkpoint")
"""Buckets that hold the steps up all through a run."""

BESIDE_WORK = ("data_wait", "worker_startup", "callbacks", "logging", "checkpoint", "validation")
"""Buckets that explain why a GPU idles without the steps' own work being the reason."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What validation asked its loaders for, as far as these state the size of their batches."""

    batches: int
    items: int
    of_training: int = 0
    """Of the items, those of the dataset that is trained with."""
    newest: EvaluationBatches | None = None

    @property
    def training_share(self) -> float:
        """Part (0 to 1) of the items that is of the dataset that is trained with."""
        return self.of_training / self.items if self.items else 0.0

    @property
    def batch_size(self) -> float:
        """Items in a batch, in the mean."""
        return self.items / self.batches


class SpentSignals:
    """Seconds of wall time by bucket. Data wait that the device hid behind its queued work is compute.

    Args:
        ledger: Seconds by the host's clock.
        device: Tells how much of the wait the device idled for; where it does not, all of the wait counts.
        gpu: Tells how long the GPU was busy.
    """

    def __init__(self, ledger: LedgerSignals, device: DeviceSignals, gpu: GpuSignals) -> None:
        self._memo = Memo(ledger.memo, device.memo)
        self._ledger, self._device, self._gpu = ledger, device, gpu
        self._evaluated: Evaluated | None = None
        self._optimizer: OptimizerInfo | None = None
        self._unused: UnusedGradients | None = None
        self.tensors = TensorSignals()
        self._autocast: CpuAutocast | None = None

    def append(self, record: EvaluationBatches | OptimizerInfo | UnusedGradients | OfTensors | CpuAutocast) -> None:
        """Take what evaluations that are over asked for, or what updates the weights, what does not, and how."""
        match record:
            case CpuAutocast():
                self._autocast = record
            case OptimizerInfo():
                self._optimizer = record
            case UnusedGradients():
                self._unused = record
            case EvaluationBatches():
                so_far = self._evaluated or Evaluated(0, 0)
                items = record.batches * record.batch_size
                of_training = so_far.of_training + items * record.of_training
                self._evaluated = Evaluated(so_far.batches + record.batches, so_far.items + items, of_training, record)
            case _:
                self.tensors.append(record)

    def follow(self, other: SpentSignals) -> None:
        """Begin with what is told once of a run."""
        self._optimizer, self._unused, self._autocast = other._optimizer, other._unused, other._autocast
        self.tensors.follow(other.tensors)

    @property
    def _buckets(self) -> Mapping[str, float]:
        return self._memo("buckets", self._settle)

    def _settle(self) -> Mapping[str, float]:
        ledger, share = self._ledger.record, self._device.exposed_wait_share
        if ledger is None:
            return {}
        buckets = ledger.buckets
        if share is None:
            return buckets
        hidden = (1.0 - share) * buckets.get("data_wait", 0.0)
        moved = {"data_wait": buckets.get("data_wait", 0.0) - hidden, "compute": buckets.get("compute", 0.0) + hidden}
        return {**buckets, **moved}

    def bucket_s(self, *buckets: str) -> float | None:
        """Seconds of wall time in a bucket, or in several together; None where it is not known of any."""
        known = [self._buckets[name] for name in buckets if name in self._buckets]
        return math.fsum(known) if known else None

    @property
    def validation_parts_s(self) -> Mapping[str, float] | None:
        """Seconds that validation's own loader took: ``start`` (its iterator, its first batch) and ``wait``."""
        return None if self._ledger.record is None else self._ledger.record.validation_parts or None

    @property
    def evaluated(self) -> Evaluated | None:
        """What validation asked its loaders for; None where there was none, or its batches are of no stated size."""
        return self._evaluated

    @property
    def optimizer(self) -> OptimizerInfo | None:
        """What updates the weights, as it is set up; None where that was not seen."""
        return self._optimizer

    @property
    def unused_gradients(self) -> UnusedGradients | None:
        """Gradients of which no weight is changed, none of them as well; None where nobody could look."""
        return self._unused

    @property
    def cpu_autocast(self) -> CpuAutocast | None:
        """What ``torch.autocast("cpu")`` was set to where steps called modules; None where nobody could look."""
        return self._autocast

    @property
    def data_wait_share_pct(self) -> float | None:
        """Data wait as a share of the training time: the exposed one where it was measured, else the host's."""
        wait = self.bucket_s("data_wait")
        return None if wait is None else self._ledger.training_share_pct(wait)

    @property
    def step_work_s(self) -> float | None:
        """Seconds of the steps' own work and the optimizer's."""
        return self._sum(*BODY, "optimizer")

    @property
    def step_share_pct(self) -> float | None:
        """Work of the steps themselves, the framework's included, as a share of training without validation."""
        training, validation = self._ledger.training_s, self.bucket_s("validation")
        work = self._sum(*BODY, "optimizer", "loop")
        if work is None or training is None or validation is None or training <= validation:
            return None
        return 100.0 * work / (training - validation)

    @property
    def largest_loss_pct(self) -> float | None:
        """Largest of the buckets that hold the steps up, as a share of training time."""
        return self._ledger.training_share_pct(max(self._buckets.get(name, 0.0) for name in LOSSES))

    @property
    def idle_in_steps_s(self) -> float | None:
        """Seconds in which the GPU idled inside the steps' own work.

        All the time that the GPU used most was idle, without what other buckets explain: exposed data wait, worker
        start-up, callbacks, loggers, checkpoints, validation, and copies, which do not count as utilization.
        """
        busy, training, explained = self._gpu.utilization_pct, self._ledger.training_s, self._sum(*BESIDE_WORK)
        if busy is None or training is None or explained is None:
            return None
        copies = (self._device.h2d_share_pct or 0.0) / 100.0 * training
        return max(0.0, training * (1.0 - busy / 100.0) - explained - copies)

    def lost_in_steps_s(self, seconds: float) -> float | None:
        """Return how many seconds are lost of those that the host spends in something within the steps' own work.

        Without a device all of them. Beside a device only those in which it has nothing to do, about: two parts of one
        time have in common at least what both together are longer than it, and at most the shorter one. The middle of
        the two is returned; None where the least is under half of the most, or the idle time of the device is unknown.

        Args:
            seconds: Of the steps' own work.
        """
        if self._device.pace_s is None:
            return seconds
        idle_s, whole_s = self.idle_in_steps_s, work_s(self._ledger)
        if idle_s is None or whole_s <= 0:
            return None
        idle_s = min(idle_s, whole_s)
        least, most = max(0.0, seconds + idle_s - whole_s), min(seconds, idle_s)
        return (least + most) / 2.0 if most > 0 and least >= most / 2.0 else None

    def _sum(self, *buckets: str) -> float | None:
        if self._ledger.record is None:
            return None
        return sum(self._buckets.get(name, 0.0) for name in buckets)
