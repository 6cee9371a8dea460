"""Who makes the batches where torch's workers do not: threads of this process, other processes, or the loop itself.

A thread of its own looks at the others while the loop waits for data: whoever is at work then is what the loop waits
for. While the loop computes it only looks whether the loop must wait for the interpreter's lock, because threads that
make batches hold it. It looks often at first and seldom later, and takes a bounded share of a CPU. Threads that have
nothing to do wait for other threads, at a pipe or at a semaphore; they are not counted. Nor are those that wait for a
connection or sleep, unless they have run about as often as there were batches: many a thread that serves something else
waits like this for ever.

To look at all, this thread takes the interpreter's lock from whoever holds it. So a thread that computes in Python may
be found waiting for that lock on our account; two or more of them wait on each other's.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..machine import blocked
from ..machine.blocked import NOWHERE, Wait, interpreter_memory, thread_waits_in, threads_of
from ..machine.own_threads import OWN
from ..machine.procfs import read_text, thread_schedule
from ..records import ProducerLooks

FAST_S = 0.03
"""Mean time between two looks at first."""

FAST_LOOKS = 1000

SLOW_S = 0.5
"""Later."""

MOST_CPU = 0.005
"""Share of a CPU that looking takes at most."""

MOST_THREADS = 256
"""That are known; of those that were never at work some are looked at, drawn anew each time."""

AT_ONCE = 16
"""Of those, and of the others, that are looked at in one look."""

LOOK_S = 0.05
"""A look that takes longer, because others hold the interpreter's lock, ends."""

MIN_LOOKS, MIN_BODY_LOOKS = 4, 16
"""Fewer are kept for the next record."""

RUNS_PER_BATCH = 0.5
"""How often threads that wait for a connection or in a sleep must have run for each batch, those of one kind together;
one that makes a batch runs at least once for it."""

MOST_READERS = 16
"""Threads that share the batches evenly: each runs for so small a part of them."""

BLOCKED = (blocked.SLEEP, blocked.SOCKET, blocked.FILE)
AT_WORK = (blocked.RUNNING, blocked.INTERPRETER, *BLOCKED)

SPINNING = ("libiomp5", "libomp.so")
"""Runtimes of OpenMP whose threads go on running for 0.2 s after they have done their work (KMP_BLOCKTIME)."""

Thread = tuple[int, int]
"""Number of the process, number of the thread."""


@dataclass(slots=True)
class _Schedule:
    """What the kernel counts of a thread, ns and times."""

    ran: int
    waited: int
    times: int


@dataclass(slots=True)
class _Seen:
    """Looks that are not yet in a record. Replaced whole."""

    looks: int = 0
    loop_running: int = 0
    loop_blocked: int = 0
    body_looks: int = 0
    body_interpreter: int = 0
    body_blocked: int = 0
    found: Counter[tuple[Thread, str]] = field(default_factory=Counter)
    """How often a thread was found at work, those not looked at added in proportion."""


class ProducerSource:
    """The source of `ProducerLooks`; returns nothing where the kernel does not show what threads do.

    Args:
        is_waiting: Whether the loop waits for data at this moment.
        is_blind: Whether its batches come from something that cannot be looked into otherwise.
        steps: Returns how many steps have begun.
        pids: Returns this rank's own processes; replaced whole, not changed.
        looks_at: Says what a thread waits in; None when that cannot be read.
        clock: Monotonic seconds.
    """

    name = "producers"
    overflows = False

    def __init__(
        self,
        is_waiting: Callable[[], bool],
        is_blind: Callable[[], bool],
        steps: Callable[[], int],
        pids: Callable[[], Sequence[int]] = lambda: (),
        *,
        looks_at: Callable[[int, int], Wait | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_waiting, self._is_blind, self._steps, self._pids = is_waiting, is_blind, steps, pids
        self._clock = clock
        self._random = random.Random()  # noqa: S311 - its own: the program's numbers stay what they are
        self._interpreter, self._spins = NOWHERE, False
        self._can = blocked.is_known_here() or looks_at is not None
        self._looks_at = looks_at or self._waits_in
        self._pid, self._loop = os.getpid(), threading.get_native_id()
        self._threads: tuple[Thread, ...] = ()
        """That may be producers. Replaced whole by the sampler's thread."""
        self._python: tuple[Thread, ...] = ()
        """Those of them that Python code has started in this process."""
        self._known: dict[Thread, _Schedule] = {}
        """Those that were at work once, as they were then or at the last record."""
        self._active: frozenset[Thread] = frozenset()
        """Those of them that have run for a part of the batches since then. Replaced whole."""
        self._seen = _Seen()
        self._looks = 0
        self._since_s = clock()
        self._since_step = 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def sample(self, time_s: float) -> Sequence[ProducerLooks]:
        """Return what the looks since the last record have found, if there were enough.

        Args:
            time_s: Unix time of this poll.
        """
        if not self._can or not self._is_blind():
            self._restart()
            return ()
        if self._thread is None:
            self._interpreter, self._spins = interpreter_memory(), _spins()
            self._restart()
            thread = threading.Thread(target=self._follow, name=f"{OWN}-producers", daemon=True)
            thread.start()
            self._thread = (
                thread  # the run may end meanwhile, in another thread, and only what was started can be joined
            )
        self._threads = self._find_threads()
        if self._seen.looks < MIN_LOOKS and self._seen.body_looks < MIN_BODY_LOOKS:
            return ()
        seen, self._seen = self._seen, _Seen()
        return [self._sum_up(time_s, seen)]

    def close(self) -> None:
        """End the thread that looks."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(LOOK_S)

    def look(self) -> None:
        """Look once at the loop and at those who may work for it."""
        if not self._is_waiting():
            self._look_at_body()
            return
        loop, deadline_s = self._looks_at(self._pid, self._loop), self._clock() + LOOK_S
        if loop is None or not self._is_waiting():
            return
        found: Counter[tuple[Thread, str]] = Counter()
        known = [thread for thread in self._threads if thread in self._known]
        others = [thread for thread in self._threads if thread not in self._known]
        for among in (known, others):
            drawn = self._random.sample(among, min(AT_ONCE, len(among)))
            kinds = []
            for thread in drawn:
                if not self._is_waiting() or self._clock() > deadline_s:
                    break
                kinds.append((thread, self._looks_at(*thread)))
            at_work = [(thread, wait.kind) for thread, wait in kinds if wait is not None and wait.kind in AT_WORK]
            for thread, kind in at_work:
                found[thread, kind] += len(among) / len(kinds)  # type: ignore[assignment]
                self._meet(thread)
        self._note(loop, found)

    def _look_at_body(self) -> None:
        """Look whether the loop computes or waits for the interpreter's lock, and another thread of Python with it."""
        loop, seen = self._looks_at(self._pid, self._loop), self._seen
        if loop is None or self._is_waiting():
            return
        seen.body_looks += 1
        seen.body_blocked += loop.kind not in (blocked.RUNNING, blocked.INTERPRETER)
        if loop.kind == blocked.INTERPRETER:
            others = self._random.sample(self._python, min(AT_ONCE, len(self._python)))
            waits = (self._looks_at(*thread) for thread in others)
            # Alone it would wait for us.
            seen.body_interpreter += any(
                w is not None and w.kind in (blocked.RUNNING, blocked.INTERPRETER) for w in waits
            )

    def _note(self, loop: Wait, found: Counter[tuple[Thread, str]]) -> None:
        seen = self._seen
        # Nobody sleeps, or asks a server, until a library's own thread has answered: that one serves something else.
        at_work = any(kind not in BLOCKED or self._may_make(thread) for thread, kind in found)
        computing = loop.kind == blocked.RUNNING or (loop.kind == blocked.INTERPRETER and not at_work)
        seen.loop_running += computing
        seen.loop_blocked += loop.kind == blocked.FILE or (loop.kind in BLOCKED and not at_work)
        seen.found.update(found)
        seen.looks += 1  # last: the other thread takes what has enough of them
        self._looks += 1

    def _may_make(self, thread: Thread) -> bool:
        return thread in self._active and (thread[0] != self._pid or thread in self._python)

    def _follow(self) -> None:
        cost_s = 0.0
        while not self._ended.wait(self._pause_s(cost_s)):
            if self._is_blind():
                began_s = time.thread_time()
                self.look()
                cost_s = 0.9 * cost_s + 0.1 * (time.thread_time() - began_s)

    def _pause_s(self, cost_s: float) -> float:
        """Return how long to wait for the next look; at random, or it would find the same moment of each step."""
        pause_s = max(FAST_S if self._looks < FAST_LOOKS else SLOW_S, cost_s / MOST_CPU)
        return pause_s * self._random.uniform(0.5, 1.5)

    def _restart(self) -> None:
        self._since_s, self._since_step = self._clock(), self._steps()

    def _waits_in(self, pid: int, tid: int) -> Wait | None:
        try:
            return thread_waits_in(pid, tid, interpreter=self._interpreter if pid == self._pid else NOWHERE)
        except PermissionError:  # of a child that is somebody else's
            return None

    def _find_threads(self) -> tuple[Thread, ...]:
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        own = {tid for tid, name in names.items() if name.startswith(OWN)} | {self._loop, threading.get_native_id()}
        self._python = tuple((self._pid, tid) for tid in names if tid is not None and tid not in own)
        here = [tid for tid in threads_of(self._pid) if tid not in own]
        if self._spins:
            here = [tid for tid in here if tid in names]
        elsewhere = [(pid, tid) for pid in self._pids() if pid != self._pid for tid in threads_of(pid)]
        return (*((self._pid, tid) for tid in here), *elsewhere)[:MOST_THREADS]

    def _meet(self, thread: Thread) -> None:
        if thread not in self._known:
            schedule = thread_schedule(Path("/"), *thread)
            if schedule is not None:
                self._known[thread] = _Schedule(*schedule)

    def _sum_up(self, time_s: float, seen: _Seen) -> ProducerLooks:
        now_s, steps = self._clock(), self._steps()
        spent = self._spent()
        few = RUNS_PER_BATCH / MOST_READERS * (steps - self._since_step)
        self._active = frozenset(thread for thread, used in spent.items() if used.times > few)
        total = dict.fromkeys(AT_WORK, 0.0)
        outside = 0.0
        found = dict(seen.found)  # in one instruction: the thread that looks may be adding its last look
        for kind in AT_WORK:
            theirs = {thread: count for (thread, of), count in found.items() if of == kind}
            times = sum(spent[thread].times for thread in theirs if thread in spent)
            if kind in BLOCKED and times < RUNS_PER_BATCH * (steps - self._since_step):
                continue
            total[kind] = sum(theirs.values()) / max(1, seen.looks)
            outside += sum(count for (pid, _), count in theirs.items() if pid != self._pid) / max(1, seen.looks)
        record = ProducerLooks(
            time_s=time_s,
            looks=seen.looks,
            loop_running=seen.loop_running,
            loop_blocked=seen.loop_blocked,
            body_looks=seen.body_looks,
            body_interpreter=seen.body_interpreter,
            body_blocked=seen.body_blocked,
            **total,
            outside=outside,
            processes=len({pid for pid, _ in self._active} - {self._pid}),
            steps=steps - self._since_step,
            period_s=now_s - self._since_s,
            cpu_s=sum(used.ran for used in spent.values()) / 1e9,
            run_queue_s=sum(used.waited for used in spent.values()) / 1e9,
        )
        self._since_s, self._since_step = now_s, steps
        return record

    def _spent(self) -> dict[Thread, _Schedule]:
        """Return what the threads that were at work once have used since the last call."""
        spent = {}
        for thread, before in list(self._known.items()):
            schedule = thread_schedule(Path("/"), *thread)
            if schedule is None:  # it has ended
                del self._known[thread]
                continue
            now = _Schedule(*schedule)
            spent[thread] = _Schedule(now.ran - before.ran, now.waited - before.waited, now.times - before.times)
            self._known[thread] = now
        return spent


def _spins() -> bool:
    """Whether threads of a mathematical library may run though they have nothing to do."""
    maps = read_text(Path(f"{blocked.PROC}/self/maps"))
    return any(name in maps for name in SPINNING)
