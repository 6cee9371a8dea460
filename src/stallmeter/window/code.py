"""Where in the program's code time was spent."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..records import CodeLook, Event, LedgerRecord, LockTrial
from ..records.code import (
    BEFORE_MODEL,
    BETWEEN_EPOCHS,
    COMPUTES,
    EPOCH_STARTS,
    HELPERS,
    LONG_STEPS,
    PROFILE,
    STANDING,
    STEPS,
)
from ..records.stats import Reservoir
from ..records.steps import END
from .beside import (
    AutogradFunctions,
    BeforeModel,
    BesideEpochs,
    BesideModel,
    Evaluation,
    Parts,
    WithinModel,
    autograd_functions,
    before_model,
    beside_model,
    evaluation,
    parts_of_steps,
    within_model,
)
from .ledger import LedgerSignals
from .memo import Memo
from .steps import StepSignals
from .torch_calls import TorchCallSignals


class CodeSignals:
    """The newest look at each place. Looks are few: one a place, once more after another number of workers.

    Args:
        steps: Of the same run.
        ledger: Of the same run.
        events: Of the same run; the last one may be its end.
        readings: Of the ledger, a sample of all.
        looked: Takes times, begin and end, in which batches were looked into; Unix.
    """

    def __init__(
        self,
        steps: StepSignals,
        ledger: LedgerSignals,
        events: Iterable[Event] = (),
        readings: Reservoir[LedgerRecord] | None = None,
        looked: dict[float, float] | None = None,
    ) -> None:
        self._looked = {} if looked is None else looked
        self._readings = Reservoir(1) if readings is None else readings
        self._steps = steps
        self._ledger = ledger
        self._events = events
        self.torch = TorchCallSignals(lambda: self._parts, ledger)
        self.memo = Memo()
        self._looks: dict[tuple[str, str, str, int], CodeLook] = {}
        self._lock_trial: LockTrial | None = None

    def append(self, look: CodeLook | LockTrial) -> None:
        """Take what a look saw; it replaces an earlier one at the same place. So does what was tried with the lock."""
        self.memo.changes += 1
        if isinstance(look, LockTrial):
            self._lock_trial = look
            return
        self._looks[look.place, look.bucket, look.part, look.loader] = look
        if look.since_s is not None:
            self._steps.memo.changes += 1
            self._looked[look.since_s] = look.time_s

    @property
    def looks(self) -> tuple[CodeLook, ...]:
        """All of them, in the order of their places."""
        return tuple(self._looks.values())

    @property
    def lock_trial(self) -> LockTrial | None:
        """Steps with a short switch interval of Python's and the usual one; None where no other threads compute."""
        return self._lock_trial

    @property
    def _parts(self) -> Parts:
        """Looks into the steps, each with the seconds of their own work that it stands for."""
        return parts_of_steps(self.at("loop", STEPS), self.at("loop", LONG_STEPS), self._steps, self._ledger)

    @property
    def beside_model(self) -> tuple[BesideModel, ...] | None:
        """Functions of the program beside the model, the most of the steps' own work first; torch on CPUs."""
        return beside_model(self._parts, self._ledger)

    @property
    def autograd_functions(self) -> AutogradFunctions | None:
        """Autograd functions of the program's own; None where none was seen. Torch on CPUs."""
        return autograd_functions(self._parts)

    @property
    def within_model(self) -> tuple[WithinModel, ...] | None:
        """Functions of the program that its modules call, the most of the steps' own work first; torch on CPUs."""
        return within_model(self._parts, self._ledger) or None

    @property
    def evaluation(self) -> Evaluation | None:
        """Evaluations of the model in the midst of the steps; None where none was seen."""
        return evaluation(self.at("loop", STEPS), self.at("loop", LONG_STEPS), self._steps, self._ledger)

    @property
    def before_model(self) -> BeforeModel | None:
        """What the steps do before they call their model, where the loop asks no loader; None where nobody looked."""
        usual, long = (self._looks.get(("loop", BEFORE_MODEL, part, 0)) for part in ("", LONG_STEPS))
        return before_model(parts_of_steps(usual, long, self._steps, self._ledger))

    @property
    def helpers_in_line(self) -> float | None:
        """Part (0 to 1) of the looks, while the loop waits for other threads, that found some of these in line."""
        look = self.at(HELPERS)
        return None if look is None else look.in_line

    @property
    def beside_epochs(self) -> tuple[BesideEpochs, ...] | None:
        """The function that takes the most where epochs begin, and the one between them, the larger one first.

        What comes after the last epoch is neither: no look is taken of it, and it is no loss of training.
        """
        record = self._ledger.record
        found = []
        for bucket in (EPOCH_STARTS, BETWEEN_EPOCHS):
            look = self._looks.get(("loop", bucket, "", 0))
            if look is not None and look.spots and look.wall_s > 0 and record is not None:
                share = look.spots[0].wall_s / look.wall_s
                of_s = record.buckets.get(bucket, 0.0) if bucket == EPOCH_STARTS else self._until_last_epoch_s(record)
                found.append(
                    BesideEpochs(
                        spot=look.spots[0],
                        bucket=bucket,
                        seconds=share * of_s,
                        share_pct=100.0 * share,
                        samples=round(share * look.seen),
                    )
                )
        return tuple(sorted(found, key=lambda one: -one.seconds)) or None

    def _until_last_epoch_s(self, record: LedgerRecord) -> float:
        """Return the seconds between epochs until the last one began, as far as readings tell; else all of them."""
        within = [one.buckets.get(BETWEEN_EPOCHS, 0.0) for one in self._readings.items if one.epochs == record.epochs]
        return min([record.buckets.get(BETWEEN_EPOCHS, 0.0), *within])

    @property
    def batch_operations(self) -> tuple[float, float] | None:
        """Shares (0 to 1) of a batch's time in which several threads may compute; None where nobody looked.

        In calls of libraries that have them, and in the program's own functions themselves, which may use an operator.
        """
        look = self.at("workers")
        known_s = 0.0 if look is None else math.fsum(stack.wall_s for stack in look.stacks)
        if look is None or look.method != PROFILE or known_s <= 0:
            return None
        called_s = math.fsum(stack.wall_s for stack in look.stacks if stack.frames[-1].startswith(COMPUTES))
        own_s = math.fsum(stack.wall_s for stack in look.stacks if len(stack.frames) - 1 in stack.own)
        return called_s / known_s, own_s / known_s

    @property
    def first_batch(self) -> CodeLook | None:
        """What the first batch of a worker was spent in; None where none took long."""
        return self.at("workers", EPOCH_STARTS)

    @property
    def standing(self) -> CodeLook | None:
        """Of a step that does not end, where the training thread was found; None where steps go on, or the run is done.

        A program that comes to its end has left the step, however long it took: an evaluation, say, and then a break.
        """
        look = self.at("loop", STANDING)
        ended = [event.detail for event in self._events if event.name == END]
        if look is None or look.wall_s <= 0 or any(not detail.startswith("exception") for detail in ended):
            return None
        return look

    def at(self, place: str, bucket: str = "", part: str = "") -> CodeLook | None:
        """Return the look at a place; None where nobody looked.

        Args:
            place: ``workers``, ``loop`` or ``startup``.
            bucket: Bucket of the ledger; empty for workers.
            part: Its named part; empty for the one look into the bucket that saw the most.
        """
        found = [
            look
            for look in self._looks.values()
            if look.place == place and look.bucket == bucket and part in ("", look.part)
        ]
        return max(found, key=lambda look: look.wall_s, default=None)
