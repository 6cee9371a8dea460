"""How the training loader is set up, what its batches hold, and which numbers of workers were tried."""

from __future__ import annotations

import math
import statistics
from copy import deepcopy
from dataclasses import asdict, dataclass, replace

from ..records import NO_LOADER, BatchContent, LibraryWait, LoaderInfo, ProducerLooks, WorkerTrial
from ..records.stats import Reservoir
from .filled import Filled
from .memo import Memo
from .pace import Pace
from .producers import ProducerSignals

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


SOME_WITHOUT = "another of the loop's loaders makes its batches in the loop: which one sets the pace is not known"
"""Why nothing is said of workers where only some of the loop's loaders have any."""


def _place(number: int) -> str:
    return ORDINALS[number] if number < len(ORDINALS) else f"{number + 1}th"


SIZES = 64
"""So many batches, spread over the run, tell whether they grow."""

MIN_PADDED = 5
"""A batch or two may be as long as the longest, or far from it."""

MIN_LOOKED_AT = 3
"""What a single batch holds may be an exception."""

MIN_SIZES = 2
"""Of fewer in a quarter of the run nothing is said."""


@dataclass(frozen=True, slots=True)
class Content(BatchContent):
    """What the first batch holds, and whether later ones hold more."""

    growth: float | None = None
    """By how much more the batches of the last quarter of the run hold than those of the first, as a part of these.

    None while too few were looked at.
    """
    padding: float | None = None
    """Share (0 to 1) of the positions of all batches in which no sequence of its batch has a token; None where they are
    not known of `MIN_PADDED` batches."""
    rounded_to: int | None = None
    """Of what the length of each batch is a multiple, the next one to its longest sequence; None where it is of
    nothing, or all batches are as long."""
    filled_share: float | None = None
    """Share (0 to 1) of the positions up to the longest sequence of each batch that hold something; None where that is
    not known of most batches."""
    subnormal_share: float | None = None
    """Share (0 to 1) of the floating-point numbers of all batches that were looked at that are subnormal."""
    spare_bytes: float | None = None
    """Bytes that workers hand over with a batch's tensors beyond what these hold: mean of the batches that were looked
    at."""


class LoaderSignals:
    """Signals of the training loader; where there are several, of the one that sets the pace.

    Args:
        pace: Knows the loaders.
    """

    def __init__(self, pace: Pace | None = None) -> None:
        self._pace = Pace() if pace is None else pace
        self.memo = Memo(self._pace.memo)
        self.producers = ProducerSignals()
        self.trials: list[WorkerTrial] = []
        """Numbers of workers that were tried, each as it stands now."""
        self._content: BatchContent | None = None
        self._sizes: Reservoir[int] = Reservoir(SIZES)
        self._subnormal: list[float] = []
        self._padded = (0, 0, 0)
        """Batches with sequences, their positions, and those that are used."""
        self._lengths = (0, 0, frozenset[int]())
        """What all of them are multiples of, most positions beyond the longest sequence, and two different ones."""
        self._filled = Filled()

    def append(self, record: LoaderInfo | BatchContent | WorkerTrial | ProducerLooks | LibraryWait) -> None:
        """Take what is newly known of the loader."""
        self.memo.changes += 1
        match record:
            case LoaderInfo():
                self._pace.add_info(record)
            case ProducerLooks() | LibraryWait():
                self.producers.append(record)
            case BatchContent():
                self._content = self._content or record
                if record.subnormal is not None and len(self._subnormal) < SIZES:
                    self._subnormal.append(record.subnormal)
                self._sizes.add(record.bytes + record.pickled_bytes)
                self._filled.add(record)
                if record.positions is not None and record.used_positions is not None:
                    number, positions, used = self._padded
                    self._padded = number + 1, positions + record.positions, used + record.used_positions
                    multiple, beyond, lengths = self._lengths
                    multiple = math.gcd(multiple, record.positions)
                    beyond = max(beyond, record.positions - record.used_positions)
                    self._lengths = multiple, beyond, lengths if len(lengths) > 1 else lengths | {record.positions}
            case WorkerTrial():
                last = self.trials[-1] if self.trials else None
                tried = ("measuring", record.setting, record.workers)
                if last is not None and (last.outcome, last.setting, last.workers) == tried:
                    self.trials.pop()
                self.trials.append(record)

    def follow(self, other: LoaderSignals) -> None:
        """Begin with all that is known of the same loader; what is tried later is known to both."""
        for info in other._pace.infos().values():
            self._pace.add_info(info)
        self._content, self.trials = other._content, other.trials
        self._sizes, self._padded, self._lengths = deepcopy(other._sizes), other._padded, other._lengths
        self._subnormal, self._filled = [*other._subnormal], deepcopy(other._filled)

    def set_workers(self, num_workers: int) -> None:
        """Know the number of workers before the loader's own record tells it, or after it told too early."""
        self.memo.changes += 1
        info = self.info
        if info is not None:
            self._pace.add_info(replace(info, num_workers=num_workers))

    @property
    def info(self) -> LoaderInfo | None:
        """The training loader's settings."""
        info = self._pace.leading.info
        if info is None or self._pace.certain:
            return info
        return replace(info, num_workers=None, probed=False, why_not=SOME_WITHOUT)

    @property
    def asks_none(self) -> bool | None:
        """Whether the loop asks no loader: what it does for its batches is part of its steps, and no wait is timed."""
        info = self.info
        return None if info is None else info.kind == NO_LOADER

    @property
    def content(self) -> Content | None:
        """What a batch holds."""
        first = self._content
        if first is None:
            return None
        number, positions, used = self._padded
        padding = 1.0 - used / positions if number >= MIN_PADDED else None
        multiple, beyond, lengths = self._lengths
        subnormal = statistics.fmean(self._subnormal) if len(self._subnormal) >= MIN_LOOKED_AT else None
        return Content(
            **asdict(first),
            growth=self._growth(),
            padding=padding,
            rounded_to=multiple if beyond < multiple > 1 < len(lengths) and padding is not None else None,
            filled_share=self._filled.share,
            subnormal_share=subnormal,
            spare_bytes=self.memo("spare", self._spare_bytes),
        )

    def _spare_bytes(self) -> float | None:
        known = [b.spare_bytes for b in self._pace.leading.batches.items if b.spare_bytes is not None]
        return statistics.fmean(known) if len(known) >= MIN_LOOKED_AT else None

    def _growth(self) -> float | None:
        sizes = self._sizes.items
        quarter = len(sizes) // 4
        if quarter < MIN_SIZES:
            return None
        early, late = statistics.median(sizes[:quarter]), statistics.median(sizes[-quarter:])
        return late / early - 1.0 if early > 0 else None

    @property
    def count(self) -> int | None:
        """Training loaders that the loop takes its batches from."""
        return self._pace.count

    @property
    def which(self) -> str | None:
        """Which of several training loaders sets the pace, or may as it has no workers, in words; else None."""
        count, number = self._pace.count or 0, self._pace.number
        if count < 2:
            return None
        if self.num_workers == 0:
            return f"each of {count} training loaders"
        places = [_place(number) for number in self._pace.without_workers or (number,)]
        return f"the {' and the '.join(places)} of {count} training loaders"

    @property
    def num_workers(self) -> int | None:
        """Workers of the training loader."""
        info = self.info
        return None if info is None else info.num_workers

    @property
    def indices_s(self) -> float | None:
        """Mean time in which the loop's thread chooses the items of a batch, seconds: the sampler runs there."""
        info = self.info
        return None if info is None else info.indices_s

    @property
    def batch_size(self) -> int | None:
        """Items in a batch of the training loader."""
        info = self.info
        return None if info is None else info.batch_size

    @property
    def pin_memory(self) -> bool | None:
        """Whether the training loader puts its batches into pinned memory."""
        info = self.info
        return None if info is None else info.pin_memory

    @property
    def shards(self) -> int | None:
        """Parts into which an iterable dataset is split at most: what it says, or the workers that had any."""
        info, one = self.info, self._pace.leading
        if info is None or not info.iterable or not info.num_workers:
            return None if info is None else info.shards
        idle = one.idle_workers or 0
        had = info.num_workers - idle if idle else None
        return had if info.shards is None else min(info.shards, had or info.shards)
