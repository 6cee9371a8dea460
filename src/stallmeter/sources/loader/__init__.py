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
from typing import TYPE_CHECKING, Any

from ...records import LoaderInfo, WorkerBatch, WorkerMemory
from .dataloader import CANNOT_SET, is_dataloader, is_iterable, keeps_state, start_method
from .in_flight import Company, InFlight
from .loop import LoopTimer
from .prefetch import PrefetchQueue
from .ring import UNKNOWN, Fetch, Making, Ring, Worker, words
from .waits import WaitLooks
from .worker import WorkerInit

if TYPE_CHECKING:
    from ...records import Sample

RSS_EVERY_S = 5.0
USS_EVERY_S = 60.0
"""The kernel walks every page of every worker for it."""

SILENT_BATCHES = 8
"""When the loop has had so many batches and none came from the workers, they are another loader's."""

INNER = ("base_dataloader", "dataloader", "data_loader", "loader")
"""Where wrappers keep the loader that they iterate; Accelerate has it in the first."""


class LoaderProbe:
    """The source of `LoaderInfo`, `WorkerBatch`, `WorkerWaits` and `WorkerMemory`.

    `attach` and `detach` are for the thread that makes the iterators; `asked`, `answered`, `loop_before`, `loop_after`
    and `new_epoch` for the training thread; `sample` for the sampler thread.

    Args:
        handed_out: Returns how many batches the loop has had: some must be from the workers of the loader.
    """

    name = "loader"
    overflows = True

    def __init__(self, handed_out: Callable[[], int] = lambda: 0) -> None:
        self.in_loop = False
        """Whether batches are made in the loop thread: only then are `loop_before` and `loop_after` of use."""
        self._prefetch = PrefetchQueue()
        self._loop = LoopTimer()
        # Between the thread that makes iterators and the sampler thread. The training thread takes it between epochs
        # only; what it reads for each batch, `in_loop`, is a flag that is replaced whole.
        self._lock = threading.Lock()
        self._rings: list[tuple[weakref.ref[WorkerInit], Ring]] = []
        self._touched: list[tuple[weakref.ref[Any], weakref.ref[WorkerInit]]] = []
        self._pending: list[Sample] = []
        self._last_info: LoaderInfo | None = None
        self._handed_out = handed_out
        self._expected: Callable[[], Any] = _nothing
        self._heard: Callable[[], Any] = _nothing
        """The loader whose workers should be heard of, and the one whose workers were."""
        self._since: int | None = None
        """Batches that the loop had had when workers were expected; None when there is nothing to wait for."""
        self._silent: LoaderInfo | None = None
        """Of a loader whose workers were not heard of: what it would be."""
        self._lost = 0
        self._rss_due_s = self._uss_due_s = 0.0
        self._in_flight: weakref.WeakKeyDictionary[Ring, InFlight] = weakref.WeakKeyDictionary()
        self._looks = WaitLooks(self._making)
        # Anchored once, so that a stepped wall clock changes nothing.
        self._unix_ns = time.time_ns() - time.monotonic_ns()

    @property
    def lost(self) -> int:
        """Batches that were made faster than they could be recorded."""
        return self._lost + self._loop.lost + sum(ring.lost for _, ring in self._rings)

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

    def attach(self, loader: object, *, default_init: Callable[[int], Any] | None = None) -> LoaderInfo:
        """Have the loader's workers timed, those started from now on. Again for a loader that has them changes nothing.

        Args:
            loader: What the loop iterates. What cannot be probed is left as it is, and the answer says why.
            default_init: Called in each worker when the loader has no ``worker_init_fn`` of its own: a framework that
                sets one only where there is none would otherwise not.

        Returns:
            The loader's settings. Without workers ``probed`` is True: the loop thread is timed in their place.
        """
        with self._lock:
            kind = type(loader).__name__
            loaders = _loaders_in(loader)
            if not loaders:
                self.in_loop = False
                why_not: str | None = "it is no torch.utils.data.DataLoader"
                return self._tell(LoaderInfo(time_s=time.time(), kind=kind, why_not=why_not))
            reasons = [self._probe(one, default_init) for one in loaders]
            why_not = None if None in reasons else reasons[0]
            with_workers = [one for one in loaders if _workers(one)]
            self.in_loop = not with_workers and not any(_workers(other) for other in self._live())
            found = (with_workers or loaders)[0]
            info = replace(_describe(found), kind=kind, probed=why_not is None, why_not=why_not)
            return self._tell(self._unless_silent(found, info) if info.probed and with_workers else info)

    def detach(self) -> None:
        """Give every loader its own ``worker_init_fn`` back, where it still has ours. What was measured is kept."""
        with self._lock:
            for loader in self._live():
                _restore(loader)
            for init, _ in self._rings:
                _retire(init())
            self._pending += self._drain()
            self._lost += sum(ring.lost for _, ring in self._rings)
            self._rings.clear()
            self._touched.clear()
            self._last_info = self._silent = self._since = None
            self._expected = self._heard = _nothing
            self.in_loop = False

    def sample(self, time_s: float) -> Sequence[Sample]:
        """Return the batches made since the last call, and at times how the loader is set up and its workers' memory.

        Args:
            time_s: Unix time of this poll.
        """
        with self._lock:
            made = self._drain()
            self._listen(bool(made))
            records, self._pending = [*self._pending, *made], []
            workers = [worker for _, ring in self._rings for worker in ring.seen()]
        # Outside the lock: reading processes takes milliseconds, for which an epoch need not wait.
        records += (self._batch(-1, fetch) for fetch in self._loop.drain())
        info = self._last_info
        waits = self._looks.sample(time_s, same_addresses=info is not None and info.start_method == "fork")
        memory = self._memory(time_s, workers)
        return [*records, *(found for found in (waits, memory) if found is not None)]

    def close(self) -> None:
        """Let go of every loader, and of the descriptor for the loop thread."""
        self.detach()
        self._loop.close()

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
            self._loop.before()

    def loop_after(self) -> None:
        """Called by the training thread when ``next()`` returned a batch."""
        if self.in_loop:
            self._loop.after()

    def _probe(self, loader: Any, default_init: Callable[[int], Any] | None) -> str | None:
        own: Any = loader.worker_init_fn
        if not _workers(loader):
            _restore(loader)
            return None
        if isinstance(own, WorkerInit):
            if self._serves(own, loader):
                own.default = default_init or own.default
                self._touch(loader, own)
                return None
            own, default_init = own.own, default_init or own.default
        if loader.persistent_workers and getattr(loader, "_iterator", None) is not None:
            return "its persistent workers run already"
        try:
            init = WorkerInit(own, default_init, _new_ring(_workers(loader)))
        except (OSError, RuntimeError) as exc:
            return f"there is no shared memory for it: {exc}"
        try:
            loader.worker_init_fn = init
        except CANNOT_SET as exc:
            return f"its worker_init_fn cannot be set: {exc}"
        assert init.ring is not None
        self._rings.append((weakref.ref(init), init.ring))
        self._touch(loader, init)
        return None

    def _serves(self, init: WorkerInit, loader: Any) -> bool:
        ours = any(init is known() for known, _ in self._rings) and init.main_pid == os.getpid()
        return ours and init.ring is not None and init.ring.workers == _workers(loader)

    def _touch(self, loader: Any, init: WorkerInit) -> None:
        pairs = [(known(), known, by) for known, by in self._touched]
        kept = [(known, by) for other, known, by in pairs if other is not None and other is not loader]
        self._touched = [*kept, (weakref.ref(loader), weakref.ref(init))]

    def _unless_silent(self, loader: object, info: LoaderInfo) -> LoaderInfo:
        """Expect to hear of a loader's workers, unless it is known that nothing is to be heard."""
        if self._silent is not None and self._expected() is loader:
            self._silent = info
            return _silenced(info)
        if self._heard() is not loader:
            self._silent = None
            self._expected = weakref.ref(loader)
            self._since = self._handed_out() if self._since is None else self._since
        return info

    def _listen(self, heard: bool) -> None:
        """Workers were heard of, or were not: then it may be another loader's that make the batches."""
        if heard:
            known, self._silent, self._since = self._silent, None, None
            self._heard = self._expected
            if known is not None:
                self._tell(replace(known, time_s=time.time()))
        elif self._since is not None and self._handed_out() - self._since >= SILENT_BATCHES:
            self._since = None
            if self._last_info is not None and self._last_info.probed:
                self._silent = self._last_info
                self._tell(_silenced(replace(self._silent, time_s=time.time())))

    def _live(self) -> list[Any]:
        """Loaders that still have our function."""
        pairs: list[tuple[Any, WorkerInit | None]] = [(loader(), init()) for loader, init in self._touched]
        return [loader for loader, init in pairs if loader is not None and loader.worker_init_fn is init]

    def _tell(self, info: LoaderInfo) -> LoaderInfo:
        if self._last_info is None or replace(info, time_s=self._last_info.time_s) != self._last_info:
            self._pending.append(info)
        self._last_info = info
        return info

    def _drain(self) -> list[WorkerBatch]:
        # Whoever can still start or be a worker of it holds the function: without it, this is the last drain. Looked at
        # before the rings are drained: a ring whose last holder goes meanwhile is drained once more.
        gone = [init() is None for init, _ in self._rings]
        batches = [batch for _, ring in self._rings for batch in self._made(ring)]
        self._lost += sum(ring.lost for (_, ring), dead in zip(self._rings, gone, strict=True) if dead)
        self._rings = [known for known, dead in zip(self._rings, gone, strict=True) if not dead]
        return batches

    def _made(self, ring: Ring) -> list[WorkerBatch]:
        making = ring.making()  # before the others are read: a batch finished in between is known by its begin
        made = ring.drain()
        known = self._in_flight.setdefault(ring, InFlight())
        beside = known.beside([fetch for _, fetch in made], making)
        return [self._batch(worker, fetch, found) for (worker, fetch), found in zip(made, beside, strict=True)]

    def _making(self) -> list[Making]:
        """What is being made at this moment. For the sampler thread: rings come and go under the lock alone."""
        with self._lock:
            return [making for _, ring in self._rings for making in ring.making()]

    def _batch(self, worker: int, fetch: Fetch, beside: Company | None = None) -> WorkerBatch:
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
            ahead=None if beside is None else beside.ahead,
            in_flight=None if beside is None else beside.in_flight,
        )

    def _memory(self, time_s: float, workers: Sequence[Worker]) -> WorkerMemory | None:
        if time_s < self._rss_due_s:
            return None
        if not workers:
            return None
        from ...machine.processes import (
            find_readable,
            rss_bytes,
            unique_bytes,
        )  # not in workers: psutil takes 26 ms to import

        found = [find_readable(worker.pid, worker.since_s) for worker in workers]
        sizes = [(process, rss_bytes(process)) for process in found if process is not None]
        alive = {process: size for process, size in sizes if size is not None}
        if not alive:
            return None
        self._rss_due_s = time_s + RSS_EVERY_S
        unique = None
        if time_s >= self._uss_due_s:
            self._uss_due_s = time_s + USS_EVERY_S
            parts = [unique_bytes(process) for process in alive]
            unique = None if None in parts else sum(part or 0 for part in parts)
        return WorkerMemory(time_s=time_s, workers=len(alive), rss_bytes=sum(alive.values()), uss_bytes=unique)


def _nothing() -> None:
    return None


def _silenced(info: LoaderInfo) -> LoaderInfo:
    """What is known of a loader whose workers make no batches of the loop: not how many make them."""
    why_not = f"none of the loop's batches came from its workers: {info.kind} hands out those of another loader"
    return replace(info, num_workers=None, probed=False, why_not=why_not)


def _loaders_in(loader: object) -> list[Any]:
    """Return the DataLoader that the loop iterates, and those that it may iterate in turn.

    What merely passes its attributes on to an inner one is none itself, and one without workers that something else
    iterates tells nothing: batches may be made in any thread.
    """
    found: list[Any] = []
    current: object | None = loader
    for _ in range(4):
        if is_dataloader(current) and "worker_init_fn" in vars(current):
            found.append(current)
        held = getattr(current, "__dict__", {})
        current = next((held[name] for name in INNER if is_dataloader(held.get(name))), None)
        if current is None or any(current is known for known in found):
            break
    return found if is_dataloader(loader) or any(map(_workers, found)) else []


def _new_ring(workers: int) -> Ring:
    import torch

    # A torch tensor and no multiprocessing.RawArray: the loader must stay picklable. The device is named because the
    # default one may be a GPU.
    memory = torch.zeros(words(workers), dtype=torch.int64, device="cpu").share_memory_()
    return Ring(memory, workers)


def _describe(loader: Any) -> LoaderInfo:
    workers = _workers(loader)
    batch_size = loader.batch_size
    if batch_size is None:
        batch_size = getattr(loader.batch_sampler, "batch_size", None)
    return LoaderInfo(
        time_s=time.time(),
        kind=type(loader).__name__,
        num_workers=workers,
        batch_size=batch_size if isinstance(batch_size, int) else None,
        prefetch_factor=loader.prefetch_factor,
        pin_memory=bool(loader.pin_memory),
        persistent_workers=bool(loader.persistent_workers),
        start_method=start_method(loader) if workers else None,
        iterable=is_iterable(loader),
        stateful=keeps_state(loader),
        in_order=getattr(loader, "in_order", None),
    )


def _workers(loader: Any) -> int:
    return int(loader.num_workers)


def _restore(loader: Any) -> None:
    init = loader.worker_init_fn
    if isinstance(init, WorkerInit):
        try:
            loader.worker_init_fn = init.own
        except CANNOT_SET:
            _retire(init)


def _retire(init: WorkerInit | None) -> None:
    if init is not None:
        init.ring = None


def _seconds(ns: int) -> float | None:
    return None if ns == UNKNOWN else ns / 1e9
