"""Numbers in shared memory: every worker process writes rows of its own, the main process reads them all.

Worker ``w`` of a loader owns a few lanes, because two iterators of one loader may be alive at once and each has a
worker ``w``. A worker that starts takes the next lane in turn and puts its pid on it; a lane therefore has one writer,
and a writer that finds another pid on its lane moves on. Within a lane the count of records is written after the
record, and the reader drops what may have been overwritten while it read.

There is no lock and no memory barrier, because a worker must never wait for us and may be killed at any instant. This
rests on three things. A count is one aligned 64-bit word, which CPUs store in one piece. Others see a CPU's stores in
the order in which it made them: x86 promises that, ARM does not; but there the interpreter runs hundreds of
instructions between record and count, and the reader, who comes once a second, would have to meet the nanoseconds in
which a count is visible and its record is not. And should it happen, it reads what the place held before: one batch in
the statistics is wrong and nothing else, for no address, length or index is taken from a record.
"""

from __future__ import annotations

import os
from ctypes import c_int64
from dataclasses import dataclass
from struct import Struct
from time import time_ns
from typing import Any, NamedTuple

CAPACITY = 256
"""Records a lane keeps until they are read: at one reading a second, 256 batches a second from one worker."""
LANES = 3
"""Iterators of one loader that may be alive at once: Lightning makes two when a second fit begins."""
UNKNOWN = -1
"""Stands for None in a record: nothing measured is negative."""


class Fetch(NamedTuple):
    """One batch, as a worker wrote it down."""

    end_ns: int
    """CLOCK_MONOTONIC, which all processes of a host share."""
    wall_ns: int
    cpu_ns: int
    process_cpu_ns: int
    run_queue_ns: int
    collate_ns: int
    read_bytes: int
    items: int
    idle_ns: int = UNKNOWN
    """Between the worker's batch before and this one: waiting for something to do."""
    init_ns: int = UNKNOWN
    """Of a worker's first batch: what the user's ``worker_init_fn`` took before it."""
    spare_bytes: int = UNKNOWN
    """That are sent with the batch and not held by it; of some batches."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker process that has been seen; it may be gone by now."""

    pid: int
    since_s: float
    """Unix time at which it ran already: the system gives numbers again."""


class Order(NamedTuple):
    """What is to be looked into, as it fits into one word of shared memory."""

    number: int
    """Counted from 1: the same order is not carried out twice by one process."""
    batches: int
    slow: bool
    """Whether to wait for a slow batch."""
    first: bool = False
    """Whether it is the first batch of each process; see `StartLook`."""

    @property
    def word(self) -> int:
        """As an integer that is not 0."""
        return self.number << 32 | self.first << 17 | self.slow << 16 | self.batches

    @classmethod
    def read(cls, word: int) -> Order:
        """Return what `word` gave."""
        return cls(word >> 32, word & 0xFFFF, bool(word >> 16 & 1), bool(word >> 17 & 1))


class Usual(NamedTuple):
    """A batch that nobody looked into."""

    wall_ns: int
    cpu_ns: int
    """Of its thread."""
    queued_ns: int | None
    """That the thread waited for a CPU; None where the kernel does not say."""


class Making(NamedTuple):
    """A batch that is being made."""

    pid: int
    """Of the worker."""
    began_ns: int
    """CLOCK_MONOTONIC."""


_RECORD = Struct(f"={len(Fetch._fields)}q")
_WORD = 8
_COUNT, _PID, _SINCE, _ASKED, _BEGAN, _RECORDS = range(6)
_LANE = _RECORDS + CAPACITY * len(Fetch._fields)
_STARTS, _ORDER, _HEAD = range(3)
_ROW = _HEAD + LANES * _LANE


def words(workers: int) -> int:
    """Return how many 64-bit words a ring for ``workers`` takes."""
    return workers * _ROW


class Ring:
    """A view of the shared memory. Pickled to a worker process it is the same memory.

    Args:
        memory: A shared 64-bit integer tensor of `words` elements, all 0.
        workers: Worker processes it has rows for.
    """

    def __init__(self, memory: Any, workers: int) -> None:
        self._memory = memory
        self.workers = workers
        # Through the address and not through tensor.numpy(): torch works without numpy, and so must this.
        array = (c_int64 * words(workers)).from_address(memory.data_ptr())
        self._words = memoryview(array).cast("B").cast("q")
        self._read = [0] * (workers * LANES)
        self.lost = 0
        """Records overwritten before they were read."""

    def __reduce__(self) -> tuple[type[Ring], tuple[Any, int]]:
        return Ring, (self._memory, self.workers)

    def writer(self, worker: int) -> RingWriter:
        """Return a lane for the calling process, which is worker number ``worker``.

        Raises:
            IndexError: The ring was made for fewer workers.
        """
        if not 0 <= worker < self.workers:
            raise IndexError(worker)
        return RingWriter(self, self._words, worker * _ROW)

    def order(self, worker: int, order: int) -> None:
        """Have a worker look into some of its batches; see `Order`. 0 takes it back."""
        self._words[worker * _ROW + _ORDER] = order

    def take_back(self, worker: int, order: int) -> None:
        """Take an order back that the worker still has."""
        if self._words[worker * _ROW + _ORDER] == order:
            self.order(worker, 0)

    def drain(self) -> list[tuple[int, Fetch]]:
        """Return worker and record of each batch since the last call. For one reader."""
        return [(i // LANES, fetch) for i in range(len(self._read)) for fetch in self._drain(i)]

    def seen(self) -> list[Worker]:
        """Return the last process of each lane."""
        lanes = [self._at(i) for i in range(len(self._read))]
        words = self._words
        return [Worker(words[at + _PID], words[at + _SINCE] / 1e9) for at in lanes if words[at + _PID]]

    def asked(self) -> list[int]:
        """Return what the workers that made batches have read of their identity: the bits of each lane."""
        lanes = [self._at(i) for i in range(len(self._read))]
        return [self._words[at + _ASKED] for at in lanes if self._words[at + _COUNT]]

    def making(self) -> list[Making]:
        """Return the workers that are making a batch. One that was killed over it stays among them."""
        lanes = [self._at(i) for i in range(len(self._read))]
        found = [Making(self._words[at + _PID], self._words[at + _BEGAN]) for at in lanes]
        return [making for making in found if making.began_ns]

    def _at(self, i: int) -> int:
        return i // LANES * _ROW + _HEAD + i % LANES * _LANE

    def _drain(self, i: int) -> list[Fetch]:
        at, first = self._at(i), self._read[i]
        # No lock and no barrier: a worker must never wait for us. x86 shows stores in order, so that a record is there
        # before its count is. On ARM a count may be seen early; such a record reads as the one that was there before
        # it, or as zeros: one batch among many, never an error.
        count = self._words[at + _COUNT]
        if count == first:
            return []
        oldest = max(first, count - CAPACITY)
        copies = [Fetch._make(_RECORD.unpack_from(self._words, _offset(at, number))) for number in range(oldest, count)]
        # The writer went on meanwhile: what it has overwritten, or may be overwriting, is no record any more. The count
        # is therefore read again, after the records; one place counts as being overwritten, for a record is written
        # before it is counted.
        whole = min(count, max(oldest, self._words[at + _COUNT] - CAPACITY + 1))
        self.lost += whole - first
        self._read[i] = count
        return copies[whole - oldest :]


def new_ring(workers: int) -> Ring:
    """Return one in memory that a loader's workers share with this process."""
    import torch

    # A torch tensor and no multiprocessing.RawArray: the loader must stay picklable. The device is named because the
    # default one may be a GPU.
    memory = torch.zeros(words(workers), dtype=torch.int64, device="cpu").share_memory_()
    return Ring(memory, workers)


class RingWriter:
    """Where one worker process writes. Made in that process."""

    __slots__ = ("_asked", "_at", "_claims", "_pid", "_ring", "_row", "_since_ns", "_words")

    def __init__(self, ring: Ring, words: memoryview, row: int) -> None:
        # The view does not own the memory it shows, the ring does.
        self._ring = ring
        self._words = words
        self._row = row
        self._pid = os.getpid()
        self._since_ns = time_ns()
        self._claims = LANES
        self._asked = 0
        self._at = 0
        self._claim()

    def begin(self, began_ns: int) -> None:
        """Say that a batch is being made from now on; 0 says that none is."""
        if self._words[self._at + _PID] == self._pid:
            self._words[self._at + _BEGAN] = began_ns

    def order(self) -> int:
        """Return what `Ring.order` left for this worker; 0 where there is nothing, negative once it is claimed."""
        return self._words[self._row + _ORDER]

    def claim(self) -> None:
        """Keep an order from the processes that will take this one's place: one of them carries it out."""
        self._words[self._row + _ORDER] = -abs(self.order())

    def write(self, *record: int) -> None:
        """Append a record: the fields of `Fetch`. It is dropped when more iterators are alive than there are lanes."""
        words, at = self._words, self._at
        if words[at + _PID] != self._pid:
            if not self._claims:
                return
            at = self._claim()
        count = words[at + _COUNT]
        _RECORD.pack_into(words, _offset(at, count), *record)
        words[at + _BEGAN] = 0
        words[at + _COUNT] = count + 1  # after the record: a worker that dies between the two leaves no half record

    def note_asked(self, bits: int) -> None:
        """Keep what was read of the worker's identity: all of it, for a lane is handed on from worker to worker."""
        self._asked = bits
        self._words[self._at + _ASKED] |= bits

    def _claim(self) -> int:
        words, row = self._words, self._row
        self._claims -= 1
        # Not atomic: two workers that start at one moment may read the same number and take the same lane. The pid that
        # was written last owns it; the other one sees that at its next record and moves on.
        starts = words[row + _STARTS]
        words[row + _STARTS] = starts + 1
        self._at = at = row + _HEAD + starts % LANES * _LANE
        words[at + _BEGAN] = 0
        words[at + _SINCE] = self._since_ns  # before the pid, which says that there is somebody
        words[at + _PID] = self._pid
        words[at + _ASKED] |= self._asked
        return at


def _offset(at: int, number: int) -> int:
    return (at + _RECORDS) * _WORD + number % CAPACITY * _RECORD.size
