"""A look into a few batches, in the thread that makes them: which function holds the time, and which of its lines.

Nothing of the user's is replaced or asked, and no random number is drawn: calls are timed as they come. Batches that
are looked into take longer and are left out of the statistics. What was seen is handed over after each of them, for a
worker may end with its epoch.
"""

from __future__ import annotations

import json
import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, replace
from time import perf_counter_ns, thread_time_ns
from typing import Any

from ...timing.tracebacks import let_out
from ..code.fold import Folded, Seen, fold, owner
from ..code.lines import LineTimer
from ..code.repeated import repeated
from ..code.tracer import CallTracer, why_not
from ..code.unvarying import unvarying
from ..code.whose import Function, Whose
from .ring import Order, Usual

EVENTS = 150_000
"""Most calls and returns in one batch: 0.1 s on a fast machine, 0.6 s on a slow one (our measurements)."""

ENOUGH_ADDED_NS = 300_000_000
"""Once looking has added so much to the batches that are told of, no further one is looked into: one that holds many
calls tells as much as three that hold few. Our choice."""

MOST_IN_VAIN_NS = 1_000_000_000
"""By so much all those may take longer that are looked into for want of a slow one. Our choice."""

EVENTS_OF_COLLATE = 50_000
"""As many again for what puts the items together, where the items used up all of them."""

PATIENCE = 64
"""A slow batch is waited for while so many are looked into."""

SLOW = 3.0
"""A batch that takes so many times the median is a slow one. `workers.whatif.SLOW_BATCH` is above it: a look takes
time, too."""

SLOW_ITEM = 4.0
"""An item that takes so many times the median is a slow one."""

PART_OF_BATCH = 0.2
"""Of the time of a slow batch, from which on an item made it slow."""

BESIDE_SLOWEST = 0.1
"""And this part of what the slowest takes, of items and of batches: quick ones are late now and then, when their CPU is
taken away."""

ITEMS = 10
"""Most slow items that are named."""

TOLD = 0.1
"""Part of the time that waits must take, for what they usually take to be laid on them; our choice."""

MOST_OFF = 3.0
"""What was seen of waits may be off by so much; our choice. Beyond, something else went on."""

WAITING = 0.25
"""Part of its time that a batch waits, from which on a look that meets none of it tells nothing; our choice."""

PATIENT = 2
"""So many times the batches that were asked for are looked into for that."""

PLAIN = 2
"""Batches of which it is only timed how long putting their items together takes, before calls are."""

LONG_NS = 300_000_000
"""Of batches that take so long a single one: where a worker makes a few in an epoch, none may be left to look into."""

FEW = 4
"""So many batches must have been made before to tell what one takes."""


FAILS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What names and files of a program that is not as expected can lead to."""


Deliver = Callable[[dict[str, Any]], None]


class BatchLook:
    """Looks into batches until it is `done`. For one thread.

    Args:
        order: What to look into.
        recent: The newest batches that nobody looked into.
        deliver: Takes what was seen, after each batch; must not raise.
    """

    def __init__(self, order: Order, recent: Sequence[Usual], deliver: Deliver) -> None:
        self.done = False
        self._order = order
        self._deliver = deliver
        walls, cpus = [batch.wall_ns for batch in recent], [batch.cpu_ns for batch in recent]
        self._typical_ns = statistics.median(walls) if len(walls) >= FEW else None
        self._slow_ns = max(SLOW * (self._typical_ns or 0), BESIDE_SLOWEST * max(walls, default=0))
        self._usual_ns = max((wall_ns for wall_ns in walls if wall_ns < self._slow_ns), default=0)
        """What a batch takes at the most that is no slow one: others are longer for the look into them."""
        self._cpu_s = statistics.median(cpus) / 1e9 if len(cpus) >= FEW and not order.slow else None
        self._waits_s = _waits_s(recent, self._slow_ns) if len(walls) >= FEW and not order.slow else None
        self._whose = Whose.of_program()
        self._tracer = CallTracer(self._whose, _Collating.__call__.__code__)
        self._collate_s: list[float] = []
        """CPU time of putting the items of a batch together, without a profiler."""
        self._timer: LineTimer | None = None
        self._seen: list[Seen] = []
        self._lines: dict[Function, dict[int, float]] = {}
        self._looked = self._kept = self._profiled = 0
        self._added_ns = self._in_vain_ns = 0
        self._items: list[tuple[int, int, int | None]] = []
        self._item_ns: list[int] = []

    def fetch(self, fetch: Callable[[Any, Any], Any], fetcher: Any, index: Any) -> Any:
        """Make a batch as ``fetch`` does, and look on."""
        refused = why_not()
        if refused is not None:
            self._give_up(refused)
            return fetch(fetcher, index)
        if self._cpu_s is not None and len(self._collate_s) < (1 if (self._typical_ns or 0) >= LONG_NS else PLAIN):
            return self._fetch_plain(fetch, fetcher, index)
        times = ItemTimes.of(fetcher, index) if self._order.slow else None
        tracer, collate = self._tracer, fetcher.collate_fn
        if self._timer is None:
            tracer.weigh()
        fetcher.collate_fn = _Collating(collate, self, times)
        began = perf_counter_ns()
        try:
            if self._timer is None:
                tracer.begin(EVENTS)
            else:
                self._timer.begin()
            batch = fetch(fetcher, index if times is None else times)
        finally:
            whole = tracer.end() if self._timer is None else self._timer.end()
            fetcher.collate_fn = collate
        took_ns = perf_counter_ns() - began
        self._looked += 1
        try:
            if self._timer is None:
                tracer.weigh()
            self._note(whole, took_ns, times)
        except FAILS as exc:  # the batch is made: it must not be lost for want of a look at it
            self._give_up(f"what was seen could not be told ({type(exc).__name__}: {exc})")
        return batch

    def _fetch_plain(self, fetch: Callable[[Any, Any], Any], fetcher: Any, index: Any) -> Any:
        collate = fetcher.collate_fn
        took_s = 0.0

        def timed(data: Any) -> Any:
            nonlocal took_s
            began = thread_time_ns()
            try:
                return collate(data)
            except BaseException as exc:
                let_out(exc)
                raise
            finally:
                took_s += (thread_time_ns() - began) / 1e9

        fetcher.collate_fn = timed
        try:
            return fetch(fetcher, index)
        finally:
            fetcher.collate_fn = collate
            self._collate_s.append(took_s)

    def collating(self) -> None:
        """The items are there. Where they were too many calls, what is done with them is still looked into."""
        if self._timer is None and self._tracer.is_cut:
            self._tracer.resume(EVENTS_OF_COLLATE)

    def _give_up(self, why: str) -> None:
        self.done = True
        self._deliver({"order": self._order.number, "why_not": why})

    def _note(self, whole: bool, took_ns: int, times: ItemTimes | None) -> None:
        slow = not self._order.slow or self._typical_ns is None or took_ns >= self._slow_ns
        if times is not None:
            self._item_ns += times.each_ns
            if slow:
                self._items += [item for item in times.found() if item[1] >= PART_OF_BATCH * took_ns]
        tells = whole and slow
        if not tells:
            self._in_vain_ns += max(0, took_ns - (self._usual_ns or took_ns))
        if self._looked >= PATIENCE or self._in_vain_ns >= MOST_IN_VAIN_NS:
            self.done = True
        if not tells:
            self._tracer.forget()
            return
        self._kept += 1
        if self._timer is None:
            self._profiled += 1
            seen = self._tracer.seen(self._unprofiled_s())
            self._seen += seen
            self._added_ns += max(0, took_ns - int(1e9 * sum(one.wall_s for one in seen)))
        else:
            self._added_ns += max(0, took_ns - int(self._typical_ns or took_ns))
            found = self._by_function()
            missed = self._without_their_waits(found)
            self._lines = {function: lines for function, lines in found.items() if function not in missed}
            self.done = not missed or self._kept >= PATIENT * self._profiled
            if not self.done:
                self._timer = self._timer.again()
        self._hand_over()
        self._tracer.forget()

    def _unprofiled_s(self) -> tuple[float, float] | None:
        """Return what a batch takes of the CPU: all but putting its items together, and that."""
        if self._cpu_s is None:
            return None
        collate_s = min(self._cpu_s, statistics.median(self._collate_s))
        return self._cpu_s - collate_s, collate_s

    def _hand_over(self) -> None:
        if self._misses_waits():
            if self._kept >= PATIENT * self._order.batches:
                self._give_up("batches wait for something that those that were looked into did not meet")
            return
        seen = self._with_usual_waits()
        folded = fold(seen, self._lines)
        if self._timer is None and (self._kept >= self._order.batches or self._added_ns >= ENOUGH_ADDED_NS):
            wanted = {f for f, unplaced in zip(folded.functions[:2], folded.unplaced, strict=False) if unplaced}
            codes = self._tracer.codes(wanted)
            self._timer = LineTimer(codes, EVENTS) if codes else None
            self.done = self._timer is None
        self._deliver(self._document(folded, fold(repeated(seen), self._lines), fold(unvarying(seen))))

    def _misses_waits(self) -> bool:
        """Whether batches that nobody looks into wait, and those that were looked into do not: they tell nothing then.

        Looked into they compute for longer, and what others would hold up is there when they ask for it.
        """
        if self._waits_s is None or self._typical_ns is None or self._waits_s < WAITING * self._typical_ns / 1e9:
            return False
        return MOST_OFF * sum(map(_wait_s, self._seen)) < self._profiled * self._waits_s

    def _with_usual_waits(self) -> list[Seen]:
        """Return what was seen with waits that take as long as in batches that nobody looks into.

        Of a wait for a store or a lock a few batches know little, and those that are looked into come at another time
        to it: they compute for longer.
        """
        waits_s = sum(_wait_s(one) for one in self._seen)
        if self._waits_s is None or waits_s < TOLD * sum(one.wall_s for one in self._seen):
            return self._seen
        by = min(MOST_OFF, max(1.0 / MOST_OFF, self._profiled * self._waits_s / waits_s))
        return [replace(one, wall_s=one.wall_s + (by - 1.0) * _wait_s(one)) for one in self._seen]

    def _without_their_waits(self, found: Mapping[Function, Mapping[int, float]]) -> set[Function]:
        """Return the functions that wait themselves, and did not while their lines were timed."""
        missed = set()
        for function, lines in found.items():
            own = [one for one in self._seen if one.stack[-1].function == function]
            wall_s, waits_s = sum(one.wall_s for one in own), sum(map(_wait_s, own))
            if waits_s >= WAITING * wall_s and wall_s > MOST_OFF * self._profiled * sum(lines.values()):
                missed.add(function)
        return missed

    def _by_function(self) -> dict[Function, dict[int, float]]:
        """Return the lines that were timed, without what was called from them."""
        assert self._timer is not None
        found: dict[Function, dict[int, float]] = {}
        looked_at = {self._whose.code(code) for code, _ in self._timer.lines_s}
        for code, lines_s in self._timer.lines_s:
            function = self._whose.code(code)
            part = found.setdefault(function, defaultdict(float))
            for line, seconds in lines_s.items():
                part[line] += seconds
        for function, part in found.items():
            for line, seconds in _beneath(self._seen, function, looked_at).items():
                if line in part:
                    part[line] -= seconds / max(1, self._profiled)
        return {function: {line: s for line, s in part.items() if s > 0} for function, part in found.items()}

    def _document(self, folded: Folded, for_others: Folded, each_time: Folded) -> dict[str, Any]:
        typical_ns = statistics.median(self._item_ns) if self._item_ns else None
        slow = sorted(self._items, key=lambda item: -item[1])
        return {
            "order": self._order.number,
            "seen": self._profiled,
            "done": self.done,
            "wall_s": folded.wall_s,
            "cpu_s": folded.cpu_s,
            "added_s": self._added_ns / 1e9,
            "spots": [asdict(spot) for spot in folded.spots],
            "stacks": [asdict(stack) for stack in folded.stacks],
            "repeated": [asdict(spot) for spot in for_others.spots],
            "unvarying": [asdict(spot) for spot in each_time.spots],
            "item_s": None if typical_ns is None else typical_ns / 1e9,
            "items": [
                {"index": index, "wall_s": ns / 1e9, "size_bytes": size}
                for index, ns, size in slow[:ITEMS]
                if typical_ns is not None and ns >= max(SLOW_ITEM * typical_ns, BESIDE_SLOWEST * slow[0][1])
            ],
        }


def _wait_s(one: Seen) -> float:
    return 0.0 if one.cpu_s is None else max(0.0, one.wall_s - one.cpu_s)


def _waits_s(recent: Sequence[Usual], slow_ns: float) -> float | None:
    """Return what a batch waits for that is no CPU, on the mean without slow ones; None where that is not known."""
    found = [
        max(0, wall_ns - cpu_ns - queued_ns)
        for wall_ns, cpu_ns, queued_ns in recent
        if queued_ns is not None and wall_ns < slow_ns
    ]
    return statistics.fmean(found) / 1e9 if len(found) >= FEW else None


def _beneath(seen: Sequence[Seen], function: Function, looked_at: Set[Function]) -> Mapping[int, float]:
    """Return what took that a function called, by its lines, but for others whose lines were timed: it is theirs."""
    found: dict[int, float] = defaultdict(float)
    for one in seen:
        at = owner(one.stack)
        if at is None or one.stack[at].function in looked_at - {function} or one.stack[-1].function == function:
            continue
        line = next((frame.line for frame in reversed(one.stack) if frame.function == function), 0)
        found[line] += one.wall_s
    return found


class ItemTimes(list[Any]):
    """The indices of a batch, which note when each is asked for."""

    def __init__(self, indices: Sequence[Any]) -> None:
        super().__init__(indices)
        self.each_ns: list[int] = []
        self.sizes: list[int | None] = []

    @classmethod
    def of(cls, fetcher: Any, index: Any) -> ItemTimes | None:
        """Return the indices of a dataset that is asked for one item after the other; None where it is not."""
        dataset = fetcher.dataset
        one_by_one = (
            type(index) is list and type(fetcher).__name__.endswith("MapDatasetFetcher") and fetcher.auto_collation
        )
        return None if not one_by_one or getattr(dataset, "__getitems__", None) else cls(index)

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            began = perf_counter_ns()
            yield item
            self.each_ns.append(perf_counter_ns() - began)

    def found(self) -> list[tuple[int, int, int | None]]:
        """Return index, time (ns) and size (bytes) of the items; only numbers are indices that may be told."""
        sizes = self.sizes or [None] * len(self.each_ns)
        return [(i, ns, size) for i, ns, size in zip(self, self.each_ns, sizes, strict=False) if type(i) is int]


class _Collating:
    """Stands in for a collate function while one batch is made."""

    __slots__ = ("_collate", "_look", "_times")

    def __init__(self, collate: Callable[[Any], Any], look: BatchLook, times: ItemTimes | None) -> None:
        self._collate = collate
        self._look = look
        self._times = times

    def __call__(self, data: Any) -> Any:
        if self._times is not None and type(data) is list:
            # In the midst of the user's batch: what an item of theirs raises costs the sizes, not the batch.
            with suppress(*FAILS):
                self._times.sizes = [_size_bytes(item) for item in data]
        self._look.collating()
        try:
            return self._collate(data)
        except BaseException as exc:
            let_out(exc)
            raise


def _size_bytes(item: Any, depth: int = 3) -> int | None:
    """Return the bytes of an item's tensors, arrays and bytes, None where it has none."""
    if isinstance(item, (bytes, bytearray)):
        return len(item)
    if type(item) in (list, tuple, dict) and depth:
        parts = list(item.values() if type(item) is dict else item)[:ITEMS]
        sizes = [size for part in parts if (size := _size_bytes(part, depth - 1)) is not None]
        return sum(sizes) if sizes else None
    if type(item).__module__.partition(".")[0] not in ("torch", "numpy"):
        return None
    try:
        size = getattr(item, "nbytes", None)
    except RuntimeError:  # a sparse tensor's
        return None
    return size if isinstance(size, int) else None


def write_to(path: str) -> Deliver:
    """Return what writes to a file, whole or not at all. A disk that refuses it costs the look and nothing else."""

    def deliver(document: dict[str, Any]) -> None:
        part = f"{path}.{os.getpid()}"
        with suppress(OSError):
            # The name is nobody else's guess, and what is there under it is not written to.
            at = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(at, "w", encoding="utf-8") as file:
                json.dump(document, file)
            os.replace(part, path)  # noqa: PTH105 - pathlib takes 20 ms to import where nobody has

    return deliver
