"""What runs inside a DataLoader's worker process. Nothing here imports torch: such a process has it already."""

from __future__ import annotations

import copy
import os
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import context
from time import monotonic_ns, process_time_ns, thread_time_ns
from typing import TYPE_CHECKING, Any

from ...machine.procfs import COUNTS_READS, open_run_queue, process_read_bytes, read_run_queue, run_queue_ns
from ...timing.tracebacks import let_out
from .dataloader import CANNOT_SET
from .identity import watch_identity
from .places import defined
from .ring import UNKNOWN, Order, Ring, RingWriter, Usual
from .spare import spare_bytes

_CANNOT_TIME = (AttributeError, KeyError, IndexError, OSError, RuntimeError, TypeError, ValueError)
"""What torch's internals, procfs and shared memory can raise where they are not as expected."""

if TYPE_CHECKING:
    from .batch_look import BatchLook
    from .start_look import StartLook

Init = Callable[[int], Any]

RECENT = 16
"""Batches that tell what one takes when nobody looks into it."""

LOOK_EVERY = 32
"""Of so many batches of a worker one is looked at: how much is sent with it."""

FIRST_LOOKS = (2, 4, 8, 16)
"""And these: there may be no more. The first batch is none of them, whose time is the start's."""


class WorkerInit:
    """Stands in for a loader's ``worker_init_fn``: calls the user's own, then times the fetches of that process.

    A copy or a plain pickle of it is the user's own function again: the copy of a loader is as if it had never been
    touched, and can be read where this package is not installed. Only a process that is being started gets the real
    one.

    Args:
        own: The user's function, None when there is none.
        default: Called in place of a missing one.
        ring: Where the worker writes; set to None, it leaves workers started from then on untouched.
        number: Which of the training's loaders it belongs to.
        answers: File for what a look into batches saw; None where nobody looks.
    """

    def __init__(
        self,
        own: Init | None,
        default: Init | None,
        ring: Ring | None,
        main_pid: int | None = None,
        number: int = 0,
        answers: str | None = None,
    ) -> None:
        self.number = number
        self.answers = answers
        self.own = own
        self.default = default
        self.ring = ring
        self.main_pid = os.getpid() if main_pid is None else main_pid

    def __call__(self, worker_id: int) -> Any:
        """Called by torch in the worker process; what the user's own function raises is raised."""
        # In the main process the patch would stay, and would time what is no worker.
        timed = self.ring is not None and os.getpid() != self.main_pid
        if timed:
            with suppress(*_CANNOT_TIME):
                watch_identity()  # first: many a dataset is split in the user's own function
        init = self.default if self.own is None else self.own
        began = monotonic_ns()
        try:
            result = None if init is None else init(worker_id)
        except BaseException as exc:
            let_out(exc)
            raise
        if self.ring is not None and timed:
            # A worker must live on without being timed rather than die of it.
            with suppress(*_CANNOT_TIME):
                _time_fetches(self.ring, worker_id, self.answers, self.number, monotonic_ns() - began)
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.own, memo)

    def __reduce__(self) -> tuple[Any, ...]:
        if context.get_spawning_popen() is None:
            return copy.copy, (self.own,)
        return WorkerInit, (self.own, self.default, self.ring, self.main_pid, self.number, self.answers)


def init_of(loader: Any) -> dict[str, Any]:
    """Return where a loader's own ``worker_init_fn`` is defined, as `LoaderInfo` says it; nothing without one."""
    found = loader.worker_init_fn
    found = found.own if isinstance(found, WorkerInit) else found
    function = defined(found)
    if function is None:
        return {}
    return {"init_file": function.file, "init_line": function.first_line, "init_function": function.name}


def restore(loader: Any) -> None:
    """Give a loader its own function back, where it still has ours; where that fails, ours does nothing more."""
    init = loader.worker_init_fn
    if isinstance(init, WorkerInit):
        try:
            loader.worker_init_fn = init.own
        except CANNOT_SET:
            retire(init)


def retire(init: WorkerInit | None) -> None:
    """Have workers that are started with it timed no more."""
    if init is not None:
        init.ring = None


class FetchTimer:
    """Times one fetch after the other in the thread that made it."""

    __slots__ = (
        "_answers",
        "_cpu",
        "_ended",
        "_fd",
        "_init",
        "_lane",
        "_loader",
        "_made",
        "_order",
        "_process_cpu",
        "_queued",
        "_read",
        "_start_look",
        "_wall",
        "collate_ns",
        "dataset",
        "items",
        "look",
        "recent",
    )

    def __init__(
        self, dataset: object, lane: RingWriter, answers: str | None = None, loader: int = 0, init_ns: int = UNKNOWN
    ) -> None:
        self.dataset = dataset
        self.look: BatchLook | None = None
        """What looks into the next batch."""
        self.recent: deque[Usual] = deque(maxlen=RECENT)
        """The newest batches that nobody looked into."""
        self._answers = answers
        self._loader = loader
        self._start_look: StartLook | None = None
        self._order = 0
        self._init = init_ns
        self.collate_ns = self.items = UNKNOWN
        self._lane = lane
        self._fd = open_run_queue()
        self._queued = b""
        self._read = self._process_cpu = self._cpu = self._wall = self._ended = self._made = 0

    def start(self) -> None:
        """A fetch begins."""
        self.collate_ns = self.items = UNKNOWN
        # The first batch is not profiled: it may hold what the dataset puts off until then, which would take several
        # times as long.
        if self._lane.order() != self._order:
            if self._ended:
                self._take_order()
            else:
                self._look_at_start()
        if COUNTS_READS:
            self._read = process_read_bytes()
        # The wall clock is read outside the others, so that no part is ever longer than the whole.
        self._wall = monotonic_ns()
        self._lane.begin(self._wall)
        if self._fd is not None:
            self._queued = read_run_queue(self._fd)
        self._process_cpu = process_time_ns()
        self._cpu = thread_time_ns()

    def give_up(self) -> None:
        """The fetch raised: it leaves no record."""
        self._end_start_look()
        self._lane.begin(0)

    def pass_over(self) -> None:
        """The fetch was looked into, which takes time: it leaves no record."""
        self._lane.begin(0)
        self._ended = monotonic_ns()
        if self.look is not None and self.look.done:
            self.look = None

    def _take_order(self) -> None:
        word, self.look = self._lane.order(), None
        order = Order.read(word)
        if word > 0 and self._answers is not None and not order.first:
            self._lane.claim()
            with suppress(*_CANNOT_TIME, ImportError):
                from .batch_look import BatchLook, write_to

                self.look = BatchLook(order, self.recent, write_to(self._answers))
        self._order = self._lane.order()

    def _look_at_start(self) -> None:
        word = self._lane.order()
        if word > 0 and self._answers is not None and Order.read(word).first:
            self._order = word
            with suppress(*_CANNOT_TIME, ImportError):
                from .start_look import StartLook

                self._start_look = StartLook(start_answers(self._answers), self._loader)

    def _end_start_look(self) -> None:
        look, self._start_look = self._start_look, None
        if look is not None:
            with suppress(*_CANNOT_TIME, ImportError):
                look.end()

    def stop(self, batch: object) -> None:
        """The fetch returned a batch."""
        cpu = thread_time_ns() - self._cpu
        process_cpu = process_time_ns() - self._process_cpu
        after = b"" if self._fd is None else read_run_queue(self._fd)
        end = monotonic_ns()
        queued = run_queue_ns(self._queued, after)
        self._made += 1
        looks = self._made % LOOK_EVERY == 0 or self._made in FIRST_LOOKS
        self._lane.write(
            end,
            end - self._wall,
            cpu,
            process_cpu,
            UNKNOWN if queued is None else queued,
            self.collate_ns,
            process_read_bytes() - self._read if COUNTS_READS else UNKNOWN,
            self.items,
            self._wall - self._ended if self._ended else UNKNOWN,
            self._init,
            _spare_bytes(batch) if looks else UNKNOWN,
        )
        self._ended, self._init = end, UNKNOWN
        self.recent.append(Usual(end - self._wall, cpu, queued))
        if looks or self._start_look is not None:
            self._end_start_look()
            self._ended = monotonic_ns()  # looking, and handing over what was seen, is no pause of the worker's


class TimedCollate:
    """Stands in for the collate function of one fetcher."""

    __slots__ = ("_collate", "_counts", "_timer")

    def __init__(self, collate: Callable[[Any], Any], timer: FetchTimer, *, counts: bool) -> None:
        self._collate = collate
        self._timer = timer
        self._counts = counts

    def __call__(self, data: Any) -> Any:
        """Collate as the user's function does, and take the time."""
        if self._counts:
            with suppress(TypeError):
                self._timer.items = len(data)
        start = monotonic_ns()
        try:
            batch = self._collate(data)
        except BaseException as exc:
            let_out(exc)
            raise
        self._timer.collate_ns = monotonic_ns() - start
        return batch


def _spare_bytes(batch: object) -> int:
    try:
        found = spare_bytes(batch)
    except _CANNOT_TIME:  # a tensor of a kind of its own
        return UNKNOWN
    return UNKNOWN if found is None else found


def start_answers(answers: str) -> str:
    """Return the file for what a look at the start of a worker saw, by that for looks into its batches."""
    return f"{answers}.start"


def _time_fetches(ring: Ring, worker_id: int, answers: str | None, loader: int, init_ns: int) -> None:
    fetch = sys.modules["torch.utils.data._utils.fetch"]
    info = sys.modules["torch.utils.data"].get_worker_info()
    fetchers = (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)
    # An attached loader's function may have been wrapped by the user and attached again: once is enough.
    if any(hasattr(fetcher.fetch, "timer") for fetcher in fetchers):
        return
    lane = ring.writer(worker_id)
    identity = watch_identity()
    if identity is not None:
        identity.tell = lane.note_asked
        lane.note_asked(identity.bits)
    timer = FetchTimer(info.dataset, lane, answers, loader, init_ns)
    # torch's classes are patched in the worker's process only, which nobody shares and which ends with its iterator.
    for fetcher in fetchers:
        fetcher.fetch = _timed(fetcher.fetch, timer)


def _timed(fetch: Callable[[Any, Any], Any], timer: FetchTimer) -> Callable[[Any, Any], Any]:
    def timed_fetch(fetcher: Any, index: Any) -> Any:
        # A dataset may itself iterate a loader in this process: that is part of its fetch, not one more.
        if fetcher.dataset is not timer.dataset:
            try:
                return fetch(fetcher, index)
            except BaseException as exc:
                let_out(exc)
                raise
        # Kept on the fetcher and nowhere else: holding on to it would put off closing the user's generator.
        if type(fetcher.collate_fn) is not TimedCollate:
            fetcher.collate_fn = TimedCollate(fetcher.collate_fn, timer, counts=fetcher.auto_collation)
        timer.start()
        try:
            batch = fetch(fetcher, index) if timer.look is None else timer.look.fetch(fetch, fetcher, index)
        except BaseException as exc:
            timer.give_up()
            let_out(exc)
            raise
        if timer.look is None:
            timer.stop(batch)
        else:
            timer.pass_over()
        return batch

    timed_fetch.timer = timer  # type: ignore[attr-defined]
    return timed_fetch
