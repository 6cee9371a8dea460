"""The training's loaders, as the training thread meets them: batch sizes, the worker probe, the number of workers."""

from __future__ import annotations

import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..records import BatchContent, EvaluationBatches, LoaderInfo, ScoredPositions
from ..timing.batches import BatchSizes, given_size
from ..timing.clock import StepClock
from ..timing.filling import filling_of
from ..timing.labels import labels_of, reads_all
from ..timing.module_hooks import hooked
from ..timing.padding import padding_of
from ..timing.subnormal import subnormal_share
from ..workers import batch_shape
from ..workers.apply import WorkerTuner
from .guard import Guard

if TYPE_CHECKING:
    from ..sources.loader import LoaderProbe
    from ..sources.scored import ScoredLook


T = TypeVar("T")

SCORED = "positions without a label"

CONTENT_NS = 500_000_000
"""Between two looks at what a batch holds, at the least."""

CONTENT_LOOKS = 64
"""The time between two looks grows to this part of the run so far."""

SCORED_LOOKS = 6
"""Steps in which it is looked at for how many positions classes are scored."""

EVALUATIONS_NS = 500_000_000
"""Between two records of evaluations, at the least: a loop may evaluate after each step."""


class LoaderWatch:
    """What an adapter tells of the training loader, all of it on the training thread.

    Args:
        clock: Asks the probe around each fetch.
        guard: Keeps errors away.
        tell: Takes the content of a batch, and what evaluations asked for, for the recording.
        probe: Looks into the loader's workers; None where that was not wanted.
        worker_tuner: Changes the loader's number of workers between epochs; None where that was not wanted.
    """

    def __init__(
        self,
        clock: StepClock,
        guard: Guard,
        tell: Callable[[BatchContent | EvaluationBatches | ScoredPositions], None],
        probe: LoaderProbe | None = None,
        worker_tuner: WorkerTuner | None = None,
    ) -> None:
        self._clock = clock
        self._guard = guard
        self._tell = tell
        self._probe = probe
        self._worker_tuner = worker_tuner
        self.sizes = BatchSizes()
        """Of the training's batches."""
        self.content_due_ns = 0
        """From this time of the ledger on it is to be noted anew what a batch holds."""
        self._scored: ScoredLook | None = None
        """Open during a step whose batch has labels that are left out."""
        self._scored_looks = SCORED_LOOKS
        self._scored_none = False
        """Whether it was told of a batch that no label is left out in it."""
        self._evaluated: Counter[tuple[int, bool]] = Counter()
        """Batches of evaluations that were not told yet, by the batch size, and whether they are of training's data."""
        self._evaluated_data: dict[str, Any] = {}
        """Which data these went through; empty where that is not known."""
        self._evaluations_due_ns = 0
        clock.evaluated = self.evaluated
        self._iterators: list[weakref.ref[Any]] = []
        """Those of a plain loop, the one that makes the steps first."""
        self._is_seen = False
        """Whether the loader that makes its steps is looked into."""
        self.fetches_per_step = 1
        """How often the loop asks for a batch in one step: more than once where gradients are accumulated."""

    def prepare(self, loader: object) -> None:
        """A plain loop is about to iterate its training loader."""
        self._guard("batch size", self.sizes.set_loader, loader)
        self.may_resize(loader)
        self.between_epochs()
        known = None if self._probe is None else self._guard("worker probe", self._probe.number_of, loader)
        self.probe_workers(loader, number=known or 0)

    def prepare_begun(self, loader: object) -> None:
        """An iteration that was begun unseen is one of the training loader's: its workers are what they are."""
        self._guard("batch size", self.sizes.set_loader, loader)
        self.may_resize(loader)
        if self._probe is not None:
            self._guard("worker probe", self._probe.replaced_by, loader)

    def iterator_made(self, iterator: object) -> None:
        """A plain loop has begun to iterate."""
        self._iterators, self._is_seen = [], True
        self._iterates(iterator)

    def led_unseen(self) -> None:
        """Batches come from an iterator whose loader was not prepared: what is known of others tells nothing of it."""
        self._iterators, self._is_seen = [], False
        self._clock.before_fetch = self._clock.after_fetch = None

    def beside(self, loader: object, make: Callable[[], T]) -> T:
        """Return the iterator of a loader that a plain loop asks beside its first one: in a zip, or inside the steps.

        Args:
            loader: The loader.
            make: Makes the iterator, or returns one that was made unseen.
        """
        if not self._is_seen:
            return make()
        self.probe_beside(loader)
        iterator = make()
        self._iterates(iterator)
        return iterator

    def _iterates(self, iterator: object) -> None:
        try:
            # References to iterators would keep their workers alive.
            self._iterators = [*(known for known in self._iterators if known() is not None), weakref.ref(iterator)]
        except TypeError:  # built-in iterators have no workers
            return
        self._guard("worker probe", self.find_iterator_by, self._iterated)

    def _iterated(self) -> object | None:
        """Return the iterator that the loop asks, or all of them where it asks several."""
        found = [iterator for iterator in (known() for known in self._iterators) if iterator is not None]
        return found[0] if len(found) == 1 else tuple(found) or None

    def size(self, batch: object) -> int | None:
        """Return the number of items in a batch, None when it cannot be known; never raises."""
        if self._clock.ledger.last >= self.content_due_ns:
            self.note_content(batch)
        size = self.sizes.known(batch)
        return self._guard("batch size", self.sizes.find, batch) if size is None else size

    def note_content(self, batch: object, *, is_used: bool = False) -> None:
        """Note what a batch of the training loader holds: what handing it over must cost, and whether batches grow.

        Every few seconds, ever more rarely: a look takes some 20 us.

        Args:
            batch: The batch.
            is_used: Whether its step is over; else it is about to begin.
        """
        ledger = self._clock.ledger
        self.content_due_ns = ledger.last + max(CONTENT_NS, (ledger.last - ledger.origin) // CONTENT_LOOKS)
        if self._scored is not None:
            self._guard.attempt(SCORED, self._tell_scored, batch if is_used else None)
            return
        shape = self._guard("batch content", batch_shape, batch)
        if shape is not None and (shape.tensors or shape.pickled_bytes):
            filling = self._guard("filled positions", filling_of, batch)
            # A mask of one row tells how much of it is used, and nothing of how full a batch is.
            known = filling or self._guard("padding", padding_of, batch)
            self._tell(
                BatchContent(
                    time_s=time.time(),
                    **asdict(shape),
                    positions=None if known is None else known.positions,
                    used_positions=None if known is None else known.used,
                    filled=None if filling is None else filling.share,
                    filled_by="" if filling is None else filling.by,
                    subnormal=self._guard("subnormal numbers", subnormal_share, batch),
                )
            )
        if self._scored_looks:
            self._guard(SCORED, self._begin_scored, batch)

    def _begin_scored(self, batch: object) -> None:
        """Look at the step that is about to begin, where the labels of a batch are left out in part."""
        labels = labels_of(batch)
        if labels is None:
            if not self._scored_none and reads_all(batch):
                self._scored_none = True
                self._tell(ScoredPositions(time_s=time.time(), positions=0, labelled=0))
            return
        from ..sources.scored import ScoredLook

        self._scored_looks -= 1
        found = hooked(sys.modules)
        if found is None:
            return
        self._scored = ScoredLook(labels, self._guard, *found)
        self.content_due_ns = 0  # with the next batch the step is over

    def _tell_scored(self, batch: object | None) -> None:
        look, self._scored = self._scored, None
        found = None if look is None else look.told(None if batch is None else labels_of(batch))
        if found is not None:
            self._tell(found)

    def close(self) -> None:
        """The run ends: take back what stands in a step that will see no next batch."""
        look, self._scored = self._scored, None
        if look is not None:
            look.close()

    def evaluated(self, loader: object, batches: int) -> None:
        """An evaluation is over, which took so many batches of a loader; never raises."""
        size = self._guard("batch size", given_size, loader)
        if size is None or not batches:
            return
        self._evaluated[size, self.sizes.reads_the_same(loader)] += batches
        if not self._evaluated_data:  # as a rule it stays what it is
            self._evaluated_data = self._guard("validation data", _data_of, loader) or {}
        last = self._clock.ledger.last
        if last < self._evaluations_due_ns:
            return
        self._evaluations_due_ns = last + EVALUATIONS_NS
        for (batch_size, of_training), number in self._evaluated.items():
            found = EvaluationBatches(
                time_s=time.time(), batches=number, batch_size=batch_size, of_training=of_training
            )
            self._tell(replace(found, **self._evaluated_data))
        self._evaluated.clear()
        self._evaluated_data = {}

    def may_resize(self, loader: object, why_not: str | None = None) -> None:
        """Say which loader the training iterates, before its first iteration: its number of workers may change.

        Args:
            loader: The loader.
            why_not: Why its number of workers must stay as it is.
        """
        if self._worker_tuner is not None:
            self._guard("num_workers", self._offer, self._worker_tuner, loader, why_not)

    def _offer(self, tuner: WorkerTuner, loader: object, why_not: str | None) -> None:
        from ..sources.loader.wrappers import loaders_in

        inside = loaders_in(loader)
        if len(inside) > 1 and why_not is None:
            why_not = f"{type(loader).__name__} iterates {len(inside)} loaders"
        # The number is read by the one that starts the workers, not by what it is wrapped in.
        tuner.attach(inside[0] if len(inside) == 1 else loader, why_not)

    def between_epochs(self) -> bool:
        """The loop stands between two epochs, before `StepClock.new_epoch`. Returns whether the loader has changed."""
        if self._worker_tuner is None or not self._clock.index:
            return False
        return bool(self._guard("num_workers", self._worker_tuner.boundary, self._clock))

    def probe_workers(
        self, loader: object, default_init: Callable[[int], None] | None = None, number: int = 0
    ) -> LoaderInfo | None:
        """Attach the worker probe to a loader that is about to be iterated.

        Args:
            loader: The loader.
            default_init: What its framework would have each worker call; see `LoaderProbe.attach`.
            number: Of the loader, where the training has several.
        """
        probe = self._probe
        if probe is None:
            return None
        probe.fetches_per_step = self.fetches_per_step
        info = self._guard("worker probe", lambda: probe.attach(loader, default_init=default_init, number=number))
        if info is not None:
            self._listen(probe)
        return info

    def probe_beside(self, loader: object, *, sure: bool = False) -> None:
        """Attach the worker probe to another loader, which the loop will iterate beside the first one.

        Args:
            loader: The loader.
            sure: Whether the loop was seen to take batches of it, from iterators that nobody looks at.
        """
        if self._probe is not None:
            self._guard("worker probe", partial(self._probe.attach_beside, loader, sure=sure))
            self._listen(self._probe)

    def probe_within(self, loader: object) -> None:
        """Attach the worker probe to a loader that is asked inside of steps that no loader makes."""
        self.probe_workers(loader)
        self.led_unseen()

    def release(self, loader: object) -> None:
        """Have nothing more to do with a loader that was attached: the training does not iterate it."""
        if self._probe is not None:
            self._guard("worker probe", self._probe.release, loader)
            self._listen(self._probe)

    def _listen(self, probe: LoaderProbe) -> None:
        clock = self._clock
        clock.before_beside = clock.after_beside = None
        if probe.in_loop:
            clock.before_fetch, clock.after_fetch = _untold(probe.loop_before), _untold_after(probe.loop_after)
            clock.before_beside, clock.after_beside = probe.loop_beside, probe.loop_had_beside
        elif probe.has_workers:
            clock.before_fetch, clock.after_fetch = probe.asked, probe.answered
        else:
            clock.before_fetch = clock.after_fetch = None

    def ask_none(self) -> None:
        """Say that the loop asks no loader for its batches."""
        self._clock.before_fetch = self._clock.after_fetch = None
        if self._probe is not None:
            self._guard("worker probe", self._probe.attach_none)

    def find_iterator_by(self, iterator_of: Callable[[], object | None]) -> None:
        """A new epoch began: tell the probe where its iterator is."""
        if self._probe is not None:
            self._probe.iterator_of = iterator_of
            self._probe.new_epoch()


def _untold(before: Callable[[], None]) -> Callable[[], tuple[int | None, bool | None]]:
    def call() -> tuple[int | None, bool | None]:
        before()
        return None, None

    return call


def _untold_after(after: Callable[[], None]) -> Callable[[], bool | None]:
    def call() -> bool | None:
        after()
        return None

    return call


def _data_of(loader: object) -> dict[str, Any]:
    """Return which data an evaluation goes through; nothing where it is no DataLoader's of a job of ranks."""
    from ..sources.loader.data import data_of
    from ..sources.loader.dataloader import is_dataloader

    found = data_of(loader) if is_dataloader(loader) else {}
    return {name: value for name, value in found.items() if name != "order_digest"}
