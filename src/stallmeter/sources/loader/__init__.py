"""How long each batch takes where it is made, and what is ready when the loop asks for it.

The workers' own numbers come from inside their processes: `worker` times every fetch there and `ring` brings the
records back. Nothing of the user's dataset, sampler or collate function is replaced in the main process.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from ...records import NO_LOADER, LoaderInfo, WorkerBatch
from .dataloader import CANNOT_SET, describe, describe_other, is_dataloader
from .heard import Ear, Row, silenced
from .identity import SPLITS, remember, splits_itself
from .in_flight import Company
from .loop import LoopTimer
from .loop_look import LoopLook, answers_file, read_answers
from .memory import MemoryLooks
from .prefetch import IN_THE_LOOP, PrefetchQueue
from .ring import UNKNOWN, Fetch, Making, Order, Ring, new_ring
from .starts import StartOrders
from .waits import WaitLooks
from .worker import WorkerInit, init_of, restore, retire
from .wrappers import iterates_here, loaders_in

if TYPE_CHECKING:
    from ...records import Sample

RATIO_FETCHES = 32
"""So many batches of a wrapper tell how many of its loader's each is made of."""

FIRST_FETCHES = 4
"""As many for the first time where the loop itself makes the batches of several loaders: they come in turn."""

SAME_RATIO = 0.1
"""A ratio that differs by less from what was told, relatively, is the same."""


class LoaderProbe:
    """The source of `LoaderInfo`, `WorkerBatch`, `WorkerWaits` and `WorkerMemory`.

    `attach`, `attach_beside`, `release` and `detach` are for the thread that makes the iterators; `asked`, `answered`,
    `new_epoch` and those that begin with ``loop`` for the training thread; `sample` for the sampler thread.

    Args:
        handed_out: Returns how many batches the loop has had: some must be from the workers of the loader.
    """

    name = "loader"
    overflows = True

    def __init__(self, handed_out: Callable[[], int] = lambda: 0) -> None:
        self.in_loop = False
        """Whether batches are made in the loop thread: only then are `loop_before` and `loop_after` of use."""
        self.fetches_per_step = 1
        """How often the loop asks for a batch in one step. Set by the adapter before `attach`."""
        self._prefetch = PrefetchQueue()
        self._loop = LoopTimer()
        # Between the thread that makes iterators and the sampler thread. The training thread takes it between epochs
        # only; what it reads for each batch, `in_loop`, is a flag that is replaced whole.
        self._lock = threading.Lock()
        self._rows: list[Row] = []
        self._touched: list[tuple[weakref.ref[Any], weakref.ref[WorkerInit]]] = []
        self._pending: list[Sample] = []
        self._infos: dict[int, LoaderInfo] = {}
        """What was told last of each loader."""
        self._ears: dict[int, Ear] = {}
        self._attached: dict[int, weakref.ref[Any]] = {}
        """The loaders by their numbers."""
        self._counted: dict[int, tuple[int, int]] = {}
        """Batches of a wrapper, and those taken from a loader for them, when their ratio was last looked at."""
        self._handed_out = handed_out
        self._lost = 0
        self._memory = MemoryLooks()
        self._looks = WaitLooks(self._making)
        self._look = LoopLook(self._loop, lambda: self._prefetch.iterator_of())
        self._answers = answers_file()
        self.starts = StartOrders(self._answers, self._lock, lambda: [row.ring for row in self._rows])
        self._ordered: tuple[Ring, int] | None = None
        """Whom a look was ordered from."""
        # Anchored once, so that a stepped wall clock changes nothing.
        self._unix_ns = time.time_ns() - time.monotonic_ns()

    @property
    def lost(self) -> int:
        """Batches that were made faster than they could be recorded."""
        return self._lost + self._loop.lost + sum(row.ring.lost for row in self._rows)

    @property
    def has_workers(self) -> bool:
        """Whether a loader of the training has workers whose queue can be looked at."""
        return any(info.num_workers for info in self._infos.values())

    @property
    def is_blind(self) -> bool:
        """Whether the training iterates something, and nothing of it can be looked into."""
        infos = list(self._infos.values())
        return bool(infos) and not any(info.probed for info in infos)

    @property
    def out_of_order(self) -> int:
        """Batches that arrived before the one that was due, counted by `answered`."""
        return self._prefetch.out_of_order

    @property
    def iterator_of(self) -> Callable[[], object | None]:
        """Returns the iterator the loop asks for batches, None while there is none. Set by the adapter."""
        return self._prefetch.iterator_of

    @iterator_of.setter
    def iterator_of(self, value: Callable[[], object | None]) -> None:
        self._prefetch.iterator_of = value
        self._prefetch.new_epoch()

    def attach(
        self, loader: object, *, default_init: Callable[[int], Any] | None = None, number: int = 0
    ) -> LoaderInfo:
        """Have the loader's workers timed, those started from now on. Again for a loader that has them changes nothing.

        Args:
            loader: What the loop iterates, or one of several things. What cannot be probed is left as it is, and the
                answer says why.
            default_init: Called in each worker when the loader has no ``worker_init_fn`` of its own: a framework that
                sets one only where there is none would otherwise not.
            number: Of the loader among the training's, or of the first one in it.

        Returns:
            The loader's settings. Without workers ``probed`` is True: the loop thread is timed in their place.
        """
        with self._lock:
            kind = type(loader).__name__
            loaders = loaders_in(loader)
            with_workers = [one for one in loaders if _workers(one)]
            # Without workers something else that iterates it tells nothing: it may do so in any thread.
            if not with_workers and not (loaders and (is_dataloader(loader) or iterates_here(loader))):
                self.in_loop = False
                return self._tell(describe_other(kind, "it is no torch.utils.data.DataLoader", number))
            # A loader around another one hands out what that makes; other wrappers may ask several, each in its way.
            asked = with_workers if with_workers and is_dataloader(loader) else loaders
            reasons = [self._probe(one, default_init, number + i) for i, one in enumerate(asked)]
            reasons += [self._probe(one, default_init, number) for one in loaders if one not in asked]
            infos = []
            for i, one in enumerate(asked):
                why_not = reasons[i] if None not in reasons or len(asked) > 1 else None
                info = replace(describe(one), kind=kind, probed=why_not is None, why_not=why_not, loader=number + i)
                known = self._attached.get(number + i)
                info = replace(info, remade=known is not None and known() is not one, **init_of(one))
                infos.append(self._tell(self._unless_silent(one, info) if info.probed and _workers(one) else info))
                self._attached[number + i] = weakref.ref(one)
            self._find_who_makes_them()
            return next((info for info in infos if info.num_workers), infos[0])

    def attach_beside(self, loader: object, *, sure: bool = False) -> None:
        """Have a loader timed that the loop asks beside the one that was attached, with a number of its own.

        Nothing is done where none is attached, and where that cannot be told apart: it is no loader, or iterates one
        that is attached.

        Args:
            loader: The loader.
            sure: Whether the loop was seen to take batches of it, from iterators that nobody looks at.
        """
        inside = loaders_in(loader)
        mine = self._number_among(inside)
        taken = {number for number, known in self._attached.items() if known() is not None}
        if not taken or not inside or mine == min(taken):
            return
        free = next(number for number in count(min(taken)) if number not in taken)
        number = free if mine is None else mine
        self.attach(loader, number=number)
        with self._lock:
            if sure and number in self._ears:
                self._ears[number].sure = True

    def replaced_by(self, loader: object) -> None:
        """Take note of a loader in the place of the first one, whose workers are not probed: they have started anew."""
        info = self._infos.get(0)
        if info is not None and info.num_workers and self.number_of(loader) is None:
            with self._lock:
                self._tell(replace(info, remade=True, time_s=time.time()))

    def number_of(self, loader: object) -> int | None:
        """Return the number that a loader was attached with, or the first of those in it; None where none was."""
        return self._number_among(loaders_in(loader))

    def _number_among(self, inside: list[Any]) -> int | None:
        known = [(number, one()) for number, one in self._attached.items()]
        return min((number for number, one in known if any(one is other for other in inside)), default=None)

    def release(self, loader: object) -> None:
        """Know nothing of a loader that was attached, and of which it turns out that the loop does not train on it."""
        inside = loaders_in(loader)
        with self._lock:
            for number, known in list(self._attached.items()):
                one = known()
                if any(one is other for other in inside):
                    restore(one)
                    for kept in (self._attached, self._infos, self._ears, self._counted):
                        kept.pop(number, None)
                    self._pending = [r for r in self._pending if not (isinstance(r, LoaderInfo) and r.loader == number)]
            self._find_who_makes_them()

    def attach_none(self) -> None:
        """Say that the loop asks no loader: what others may ask one for is no wait of its own."""
        with self._lock:
            self.in_loop = False
            why_not = "the loop makes its batches itself, or takes them from a queue"
            self._tell(describe_other(NO_LOADER, why_not))

    def detach(self) -> None:
        """Give every loader its own ``worker_init_fn`` back, where it still has ours. What was measured is kept."""
        with self._lock:
            for loader in self._live():
                restore(loader)
            for row in self._rows:
                retire(row.init())
            self._pending += self._drain()
            self._lost += sum(row.ring.lost for row in self._rows)
            for kept in (self._rows, self._touched, self._attached, self._infos, self._ears, self._counted):
                kept.clear()
            self.in_loop = False

    def sample(self, time_s: float) -> Sequence[Sample]:
        """Return the batches made since the last call, and at times how the loader is set up and its workers' memory.

        Args:
            time_s: Unix time of this poll.
        """
        with self._lock:
            handed_out = self._handed_out()  # before they are drained: the loop may take many meanwhile
            made = self._drain()
            self._listen({batch.loader for batch in made}, handed_out)
            self._learn()
            silent = {number for number, ear in self._ears.items() if ear.silent is not None}
            made = [batch for batch in made if batch.loader not in silent]
            records, self._pending = [*self._pending, *made], []
            workers = [worker for row in self._rows for worker in row.ring.seen()]
        # Outside the lock: reading processes takes milliseconds, for which an epoch need not wait.
        records += (self._batch(-1, fetch, 0) for fetch in self._loop.drain())
        forked = all(info.start_method == "fork" for info in self._infos.values() if info.num_workers)
        waits = self._looks.sample(time_s, same_addresses=forked)
        memory = self._memory.sample(time_s, workers)
        return [*records, *(found for found in (waits, memory) if found is not None)]

    def close(self) -> None:
        """Let go of every loader, and of the descriptor for the loop thread."""
        # First: what a worker would still look into, nobody would take.
        self.look_no_more()
        self.starts.look_no_more()
        self.detach()
        self.iterator_of = lambda: None  # one that lives as long as we do ends its workers in seconds each
        self._loop.close()
        read_answers(self._answers)
        self.starts.close()

    def look(self, order: Order, loader: int) -> bool:
        """Have a few batches looked into where they are made; for the sampler thread.

        Returns:
            Whether there is somebody who makes them. What is seen comes with `looked`.
        """
        if self.in_loop:
            self._look.order = order
            return True
        with self._lock:
            row = next((row for row in self._rows if row.number == loader and row.last is not None), None)
            if row is None or row.last is None:
                return False
            row.ring.order(row.last, order.word)
            self._ordered = row.ring, row.last
            return True

    def looked(self) -> list[dict[str, Any]]:
        """Return what was seen by now, the newest last; see `BatchLook`."""
        return [*self._look.take(), *read_answers(self._answers)]

    def look_no_more(self) -> None:
        """Take back what was ordered."""
        self._look.order = None
        with self._lock:
            if self._ordered is not None:
                self._ordered[0].order(self._ordered[1], 0)
            self._ordered = None

    def new_epoch(self) -> None:
        """The loader makes a new iterator: `iterator_of` is called again when the next batch is asked for."""
        self._prefetch.new_epoch()

    def asked(self) -> tuple[int | None, bool | None]:
        """Say what is ready. Called by the training thread just before ``next()``; never raises.

        Returns:
            How many batches the workers have finished and the loop has not had, and whether the one that comes next
            is among them. The second is True when it was parked, when every batch asked for is ready, or when something
            is ready and nothing can stand in its place (one worker, ``in_order=False``); False when the queue is empty
            and it is not parked; None when there are batches in the queue that may or may not include it: `answered`
            tells afterwards. Both are None when the iterator cannot be asked: no workers, a generator around it, macOS.
        """
        return self._prefetch.asked()

    def answered(self) -> bool | None:
        """Say whether the batch that ``next()`` just returned had been ready when it was `asked` for; never raises.

        True: the wait was the hand-over alone. False with batches ready: it was late and held up others that were
        not. False with nothing ready: the workers were too slow. None: unknown, as in `asked`.
        """
        return self._prefetch.answered()

    def loop_before(self) -> None:
        """Called by the training thread just before ``next()``. Does nothing unless `in_loop`."""
        if self.in_loop:
            if self._look.order is not None:
                self._look.prepare()
            self._prefetch.watch_loop()
            self._loop.before()

    def loop_after(self) -> None:
        """Called by the training thread when ``next()`` returned a batch."""
        if self.in_loop:
            self._loop.after()

    def loop_beside(self) -> None:
        """Called by the training thread just before it asks a loader beside the first one."""
        if self.in_loop:
            self._loop.before()

    def loop_had_beside(self) -> None:
        """Called by the training thread when that returned a batch."""
        if self.in_loop:
            self._loop.after(beside=True)

    def _probe(self, loader: Any, default_init: Callable[[int], Any] | None, number: int) -> str | None:
        own: Any = loader.worker_init_fn
        if not _workers(loader):
            restore(loader)
            return None
        if isinstance(own, WorkerInit):
            row = self._row_of(own)
            if row is not None and row.ring.workers == _workers(loader):
                own.default = default_init or own.default
                own.number = row.number = number
                self._touch(loader, own, row)
                return None
            own, default_init = own.own, default_init or own.default
        if loader.persistent_workers and getattr(loader, "_iterator", None) is not None:
            return "its persistent workers run already"
        try:
            ring = new_ring(_workers(loader))
            init = WorkerInit(own, default_init, ring, number=number, answers=self._answers)
        except (OSError, RuntimeError) as exc:
            return f"there is no shared memory for it: {exc}"
        try:
            loader.worker_init_fn = init
        except CANNOT_SET as exc:
            return f"its worker_init_fn cannot be set: {exc}"
        assert init.ring is not None
        self.starts.order(ring)
        self._rows.append(Row(init, init.ring, number))
        self._touch(loader, init, self._rows[-1])
        return None

    def _find_who_makes_them(self) -> None:
        self.in_loop = bool(self._infos) and not self.has_workers and not any(map(_workers, self._live()))

    def _row_of(self, init: WorkerInit) -> Row | None:
        rows = [row for row in self._rows if row.init() is init]
        return rows[0] if rows and init.ring is not None and init.main_pid == os.getpid() else None

    def _touch(self, loader: Any, init: WorkerInit, row: Row) -> None:
        row.loader = weakref.ref(loader)
        pairs = [(known(), known, by) for known, by in self._touched]
        kept = [(known, by) for other, known, by in pairs if other is not None and other is not loader]
        self._touched = [*kept, (weakref.ref(loader), weakref.ref(init))]

    def _unless_silent(self, loader: object, info: LoaderInfo) -> LoaderInfo:
        """Expect to hear of a loader's workers, unless it is known that nothing is to be heard."""
        ear = self._ears.get(info.loader)
        if ear is None or ear.loader() is not loader:
            since = None if ear is None else ear.since
            self._ears[info.loader] = Ear(loader, self._handed_out() if since is None else since)
        elif ear.silent is not None:
            ear.silent = info
            return silenced(info)
        return info

    def _listen(self, numbers: set[int], handed_out: int) -> None:
        for number, ear in self._ears.items():
            info = ear.listen(self._infos.get(number), number, numbers, self._prefetch.feeding, handed_out)
            if info is not None:
                self._tell(replace(info, time_s=time.time()))

    def _learn(self) -> None:
        """Tell what the workers, and the loop's iterator, have shown of the loaders meanwhile."""
        for row in self._rows:
            info, loader, init = self._infos.get(row.number), row.loader(), row.init()
            asked = row.ring.asked()
            if info is None or loader is None or init is None or not info.iterable or not asked:
                continue
            if any(bits & SPLITS == SPLITS for bits in asked):
                remember(loader, splits=True)
            elif not any(asked) and init.own is None:
                # With a function of the user's, which gets its worker's number, it could be done without asking.
                remember(loader, splits=False)
            self._tell(replace(info, shards_itself=splits_itself(loader), time_s=time.time()))
        self._learn_indices()
        alone = self._infos.get(min(self._infos, default=0)) if self.in_loop and self._loop.device.used else None
        if alone is not None:
            self._tell(replace(alone, makes_on_device=True, time_s=time.time()))
        counted = {number: (taken, self._prefetch.fetches) for number, taken in list(self._prefetch.taken.items())}
        if self.in_loop and len(self._infos) > 1:
            counted = {min(self._infos): (self._loop.made, self._loop.made - self._loop.beside)}
        for number, (taken, fetches) in counted.items():
            had, before = self._counted.get(number, (0, 0))
            info = self._infos.get(number)
            if info is None or fetches - before < (RATIO_FETCHES if before or not self.in_loop else FIRST_FETCHES):
                continue
            self._counted[number] = taken, fetches
            ratio = (taken - had) / (fetches - before) * self.fetches_per_step
            if abs(ratio - (info.batches_per_step or 1.0)) > SAME_RATIO * (info.batches_per_step or 1.0):
                self._tell(replace(info, batches_per_step=ratio, time_s=time.time()))

    def _learn_indices(self) -> None:
        """Tell how long choosing the items of a batch takes in the loop's own thread."""
        for number in list(self._prefetch.indices.taken):
            info = self._infos.get(min(self._infos, default=0) if number == IN_THE_LOOP else number)
            told = None if info is None else self._prefetch.indices.to_tell(number, info.indices_s)
            if info is not None and told is not None:
                self._tell(replace(info, indices_s=told, time_s=time.time()))

    def _live(self) -> list[Any]:
        """Loaders that still have our function."""
        pairs: list[tuple[Any, WorkerInit | None]] = [(loader(), init()) for loader, init in self._touched]
        return [one for one, init in pairs if one is not None and init is not None and one.worker_init_fn is init]

    def _tell(self, info: LoaderInfo) -> LoaderInfo:
        last = self._infos.get(info.loader)
        info = info if last is None else info.after(last)
        if info.batches_per_step is None and self.fetches_per_step > 1:
            info = replace(info, batches_per_step=float(self.fetches_per_step))
        if last is None or replace(info, time_s=last.time_s) != last:
            self._pending.append(info)
        self._infos[info.loader] = info
        return info

    def _drain(self) -> list[WorkerBatch]:
        # Whoever can still start or be a worker of it holds the function: without it, this is the last drain. Looked at
        # before the rings are drained: a ring whose last holder goes meanwhile is drained once more.
        gone = [row for row in self._rows if row.init() is None]
        batches = [batch for row in self._rows for batch in self._made(row)]
        self._lost += sum(row.ring.lost for row in gone)
        self._rows = [row for row in self._rows if row not in gone]
        return batches

    def _made(self, row: Row) -> list[WorkerBatch]:
        making = row.ring.making()  # before the others are read: a batch finished in between is known by its begin
        made = row.ring.drain()
        row.last = made[-1][0] if made else row.last
        beside = row.in_flight.beside([fetch for _, fetch in made], making)
        return [
            self._batch(worker, fetch, row.number, found) for (worker, fetch), found in zip(made, beside, strict=True)
        ]

    def _making(self) -> list[Making]:
        """What is being made at this moment. For the sampler thread: rings come and go under the lock alone."""
        with self._lock:
            return [making for row in self._rows for making in row.ring.making()]

    def _batch(self, worker: int, fetch: Fetch, loader: int, beside: Company | None = None) -> WorkerBatch:
        return WorkerBatch(
            worker=worker,
            time_s=(fetch.end_ns + self._unix_ns) / 1e9,
            wall_s=fetch.wall_ns / 1e9,
            cpu_s=fetch.cpu_ns / 1e9,
            process_cpu_s=_seconds(fetch.process_cpu_ns),
            run_queue_s=_seconds(fetch.run_queue_ns),
            collate_s=_seconds(fetch.collate_ns),
            read_bytes=None if fetch.read_bytes == UNKNOWN else fetch.read_bytes,
            items=None if fetch.items == UNKNOWN else fetch.items,
            idle_s=_seconds(fetch.idle_ns),
            init_s=_seconds(fetch.init_ns),
            spare_bytes=None if fetch.spare_bytes == UNKNOWN else fetch.spare_bytes,
            loader=loader,
            ahead=None if beside is None else beside.ahead,
            in_flight=None if beside is None else beside.in_flight,
        )


def _workers(loader: Any) -> int:
    return int(loader.num_workers)


def _seconds(ns: int) -> float | None:
    return None if ns == UNKNOWN else ns / 1e9
