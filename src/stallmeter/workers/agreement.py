"""One number of workers for all ranks of a job: rank 0 orders it for an epoch that is still to come. Pure.

Nobody waits. Rank 0 names the epoch before which a number holds, late enough for all to hear of it in time. Who hears
later takes it before the next epoch, and rank 0 learns which that was: it measures from there on. Two processes cannot
agree for certain without waiting for each other; what is certain is that a rank which can be heard ends with rank 0's
number.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import Any

from ..records.diagnosis import WorkerAdvice
from .trial import Proposal

JOIN_S = 75.0
"""Rank 0 waits for so long for the first word of all ranks: longer than a rank looks for the run's folder."""

FOLLOW_S = 90.0
"""Another rank waits for rank 0's for so long, then decides for itself."""

TAKEN_S = 30.0
TAKEN_EPOCHS = 3
"""So many epochs, and seconds, after the one that was named each rank must have said that it has the number."""

FIRST_EPOCH = 8.0
"""Nobody knows when the first epoch ends: once it has lasted this many times as long as an order takes, the order will
as a rule be there in time."""

FORMING, TOGETHER, ALONE, STOPPED = "forming", "together", "alone", "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What all ranks do between the same two epochs."""

    number: int
    """Orders are counted from 1."""
    epoch: int
    """Epochs begun before that moment; a rank that hears later does it at its next boundary."""
    proposal: Proposal | None = None
    advice: WorkerAdvice | None = None
    """What the user's function is asked with, where that chooses the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What another rank tells rank 0."""

    workers: int | None
    """Its present number; None until its loader is known."""
    why_fixed: str = ""
    """Why its number cannot be changed."""
    taken: int = 0
    """The newest order that it has carried out."""
    epoch: int = 0
    """Epochs begun before it did so."""
    alone: bool = False
    """It decides for itself: it has not heard of rank 0 in time."""

    def text(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))


class Follower:
    """What a rank other than 0 knows. For the sampler thread; the training thread reads ``order`` and ``mode``."""

    def __init__(self) -> None:
        self._until_s = math.inf
        self.mode = FORMING
        self.why = ""
        """Why the ranks do not change their number together."""
        self.order: Order | None = None
        """To be carried out; replaced whole."""
        self.word = Word(workers=None)
        """To be told; replaced whole."""
        self._trials = 0

    def loader(self, workers: int | None, why_fixed: str, now_s: float) -> None:
        """Say what the loader has, and how late it is, on any clock."""
        self.word = replace(self.word, workers=workers, why_fixed=why_fixed)
        if workers is not None and self._until_s == math.inf:
            self._until_s = now_s + FOLLOW_S
        if self.mode == FORMING and now_s >= self._until_s:
            self.mode, self.why = ALONE, f"rank 0 was not heard of in {FOLLOW_S:.0f} s"
            self.word = replace(self.word, alone=True)

    def crossed(self, epoch: int, taken: int) -> None:
        """A boundary was passed, and the order of this number carried out at it; 0 for none."""
        if taken:
            self.word = replace(self.word, taken=taken, epoch=epoch)

    def hear(self, text: str) -> list[str]:
        """Take rank 0's newest message; returns its new trials, encoded.

        Raises:
            ValueError: It is no message.
        """
        try:
            said = json.loads(text)
            mode, order = str(said["mode"]), _order(said["order"])
            trials = [str(line) for number, line in said["trials"] if number > self._trials]
            newest = max((int(number) for number, _ in said["trials"]), default=0)
        except (KeyError, TypeError, AttributeError) as exc:
            raise ValueError(f"no message of rank 0: {exc}") from exc
        if self.mode == ALONE:
            return []
        self.mode, self.why, self.order = mode, str(said.get("why", "")), order
        self._trials = max(self._trials, newest)
        return trials


class Leader:
    """What rank 0 knows, and decides for all. For the sampler thread; the training thread reads ``order`` and ``mode``.

    Args:
        world_size: Ranks.
        lead_s: Seconds in which an order reaches all that can be reached.
    """

    def __init__(self, world_size: int, lead_s: float) -> None:
        self.mode = FORMING
        self.why = ""
        """Why the ranks do not change their number together."""
        self.order: Order | None = None
        """To be carried out: it was posted. Replaced whole."""
        self.world_size = world_size
        """Ranks."""
        self._lead_s = lead_s
        self._began_s: float | None = None
        """When the loader was known."""
        self._words: dict[int, Word] = {}
        self._workers: int | None = None
        self._draft: Order | None = None
        self._numbers = 0
        self._taken: tuple[int, int] = (0, 0)
        """Own: number of the order, and the epoch."""
        self._ended_s: deque[float] = deque(maxlen=4)
        """When the last epochs ended."""
        self._epoch = 0
        self._ended_late_s = 0.0
        self._late_epochs = 0
        self._broken = ""
        self._trials: deque[tuple[int, str]] = deque(maxlen=4)

    # -- what is heard -------------------------------------------------------------------------------------------------

    @property
    def awaited(self) -> list[int]:
        """Ranks whose word matters now."""
        others = range(1, self.world_size)
        if self.mode == FORMING:
            return [rank for rank in others if rank not in self._words or self._words[rank].workers is None]
        return [] if self.mode != TOGETHER else [rank for rank in others if not self._has_taken(rank)]

    def hear(self, rank: int, text: str) -> None:
        """Take a rank's newest word.

        Raises:
            ValueError: It is none.
        """
        try:
            self._words[rank] = Word(**json.loads(text))
        except TypeError as exc:
            raise ValueError(f"no word of a rank: {exc}") from exc

    def loader(self, workers: int | None, why_fixed: str, now_s: float) -> None:
        """Say what rank 0's own loader has, and how late it is, on the clock of the boundaries."""
        self._workers = workers
        if workers is not None and self._began_s is None:
            self._began_s = now_s
        if self.mode == FORMING:
            self._form(why_fixed, now_s)
        elif self.mode == TOGETHER and not self._broken:
            self._broken = self._why_broken(why_fixed, now_s)

    def _form(self, why_fixed: str, now_s: float) -> None:
        fixed = [f"rank {rank}: {word.why_fixed}" for rank, word in self._words.items() if word.why_fixed]
        alone = [rank for rank, word in self._words.items() if word.alone]
        missing = self.awaited
        if why_fixed or fixed:
            self.mode, self.why = STOPPED, f"rank 0: {why_fixed}" if why_fixed else fixed[0]
        elif alone:
            self.mode, self.why = ALONE, f"rank {alone[0]} was not reached in time"
        elif missing and self._began_s is not None and now_s >= self._began_s + JOIN_S:
            self.mode, self.why = ALONE, f"rank {missing[0]} was not heard of in {JOIN_S:.0f} s"
        elif not missing and self._workers is not None:
            other = [(rank, word.workers) for rank, word in self._words.items() if word.workers != self._workers]
            if other:
                said = "rank {} has {} workers, rank 0 {}".format(*other[0], self._workers)
                self.mode, self.why = STOPPED, f"the ranks began with different numbers: {said}"
            else:
                self.mode = TOGETHER

    def _why_broken(self, why_fixed: str, now_s: float) -> str:
        if why_fixed:
            return f"rank 0: {why_fixed}"
        for rank, word in self._words.items():
            if word.why_fixed or word.alone:
                return f"rank {rank}: {word.why_fixed or 'it was not reached in time'}"
        late = self.awaited
        if late and self._late_epochs >= TAKEN_EPOCHS and now_s >= self._ended_late_s + TAKEN_S:
            return f"rank {late[0]} has not said that it took the number"
        return ""

    def _has_taken(self, rank: int) -> bool:
        word = self._words[rank]
        return self.order is None or word.taken >= self.order.number or bool(word.why_fixed)

    # -- what is decided -----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether all ranks have the number that was ordered last, so that there may be another."""
        done = self.order is None or self._taken[0] >= self.order.number
        return self.mode == TOGETHER and not self._broken and done and not self.awaited

    def is_common(self, epoch: int) -> bool:
        """Whether all ranks had the same number in the epoch that ended at this boundary."""
        if self.order is None:
            return True
        begun = max([self._taken[1], *(word.epoch for word in self._words.values())])
        return self.ready and begun < epoch

    def crossed(self, epoch: int, taken: int, at_s: float) -> None:
        """A boundary was passed, and the order of this number carried out at it; 0 for none."""
        self._epoch = epoch
        self._ended_s.append(at_s)
        if taken:
            self._taken = (taken, epoch)
        if self.order is not None and epoch >= self.order.epoch:
            self._ended_late_s = self._ended_late_s if self._late_epochs else at_s
            self._late_epochs += 1

    def draft(self, proposal: Proposal | None, advice: WorkerAdvice | None, now_s: float) -> None:
        """Decide what the next order is; None for both: nothing. It holds once it was posted.

        Where a rank could not take the last one, all others take it back, whatever was proposed.
        """
        self._draft = None
        if self._broken and self.mode == TOGETHER:
            last = self.order
            if last is None or last.proposal is None or last.proposal.abandoned:
                self.mode, self.why = STOPPED, self._broken
                return
            was = last.proposal
            proposal = Proposal(before=was.workers, workers=was.before, revert=True, abandoned=True)
        elif not self.ready or (proposal is None and advice is None):
            return
        epoch = self._epoch_after(now_s)
        if epoch is not None:
            self._numbers += 1
            self._draft = Order(number=self._numbers, epoch=epoch, proposal=proposal, advice=advice)

    def _epoch_after(self, now_s: float) -> int | None:
        """Return before which epoch an order of now can be carried out by all; None while that cannot be said."""
        began_s = now_s if self._began_s is None else self._began_s
        if not self._ended_s:
            return self._epoch + 1 if now_s - began_s >= FIRST_EPOCH * self._lead_s else None
        times_s = [began_s, *self._ended_s] if len(self._ended_s) < 4 else list(self._ended_s)
        each_s = max(1e-3, min(after - before for before, after in pairwise(times_s)))
        left_s = max(0.0, self._ended_s[-1] + each_s - now_s)
        return self._epoch + 1 + math.ceil(max(0.0, self._lead_s - left_s) / each_s)

    def trial(self, line: str) -> None:
        """Tell the others how a number does: an encoded trial."""
        self._trials.append((self._trials[-1][0] + 1 if self._trials else 1, line))

    # -- what is told --------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """Return what the others should know."""
        said = {"mode": self.mode, "why": self.why, "trials": list(self._trials)}
        return json.dumps({**said, "order": _plain(self._draft or self.order)})

    def posted(self) -> None:
        """The last `text` can be read by all: what was drafted holds."""
        if self._draft is not None:
            self.order, self._draft = self._draft, None
            self._late_epochs = 0


def _plain(order: Order | None) -> dict[str, Any] | None:
    return None if order is None else asdict(order)


def _order(said: Mapping[str, Any] | None) -> Order | None:
    if said is None:
        return None
    proposal, advice = said.get("proposal"), said.get("advice")
    known = {item.name for item in fields(WorkerAdvice)}
    return Order(
        number=int(said["number"]),
        epoch=int(said["epoch"]),
        proposal=None if proposal is None else Proposal(**proposal),
        advice=None if advice is None else WorkerAdvice(**{k: v for k, v in advice.items() if k in known}),
    )
