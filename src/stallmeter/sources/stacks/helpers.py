"""What the program's other threads do: while the training thread waits for one of them, and beside its steps.

Seen by the same looks as the training thread. A thread that waits for another one has nothing to do. Nor has one that
sleeps now and then, a monitor say: it gets a CPU for a small part of the steps, as the kernel counts.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ...machine.procfs import thread_schedule
from ...records import CodeLook
from ...records.code import HELPERS
from ..code.fold import Seen, fold, owner
from ..code.reading import Reading
from ..code.whose import Function
from .sampler import Look
from .tally import Tally

RUNS_PER_STEP = 0.5
"""How often threads in one function must get a CPU for a step; one that makes a batch gets one at least once."""


@dataclass(slots=True)
class _Runs:
    """How often a thread has got a CPU, and the steps, when it was first asked and the last time."""

    first: int
    first_step: int
    last: int
    last_step: int


class Helpers:
    """Adds up the looks at the other threads at one place.

    Args:
        bucket: Of the looks that it tells: empty where the training thread waits for one of them.
        steps: Returns how many steps have begun.
        schedule: Returns how often a thread, by its number of the system, has got a CPU; None where nobody counts.
    """

    def __init__(
        self, bucket: str, steps: Callable[[], int], schedule: Callable[[int], int | None] | None = None
    ) -> None:
        self.bucket = bucket
        self._steps = steps
        self._schedule = schedule or _times
        self._tallies: dict[int, Tally] = {}
        """By thread."""
        self._runs: dict[int, _Runs] = {}
        self._counts = True
        """Whether it is known how often threads run: else those that make batches are not told from others."""
        self.count = 0
        """Looks."""
        self.in_line = 0
        """Of them, those that found some of the threads in line for a lock."""
        self.wall_ns = 0
        """The time that they stand for."""

    def add(self, look: Look) -> None:
        """Take a look."""
        self.count += 1
        self.in_line += look.in_line
        self.wall_ns += look.weight_ns
        for thread, stack in look.helpers:
            self._tallies.setdefault(thread, Tally()).add(look._replace(stack=stack))

    def count_runs(self) -> None:
        """Ask how often the threads that were seen have got a CPU. Called now and then."""
        if not self._tallies:
            return
        step = self._steps()
        for thread in threading.enumerate():
            if thread.ident not in self._tallies or thread.native_id is None:
                continue
            times = self._schedule(thread.native_id)
            if times is None:
                self._counts = False
                return
            known = self._runs.get(thread.ident)
            if known is None or times < known.last:  # another thread with the identity of one that has ended
                self._runs[thread.ident] = _Runs(times, step, times, step)
            else:
                known.last, known.last_step = times, step

    def tell(self, reading: Reading, time_s: float) -> CodeLook | None:
        """Return what was seen, as far as it is the program's own code; None where nothing was.

        Args:
            reading: Turns stacks into what is shown of them.
            time_s: Unix time.
        """
        seen = self._at_work(reading) if self._counts else ()
        if not seen:
            return None
        whole_s = self.wall_ns / 1e9
        # Of several threads at work at the same time each is a part.
        worked_s = sum(one.wall_s for one in seen)
        scale = min(1.0, whole_s / worked_s)
        # Of a wait all counts. Beside the steps threads may be idle for most of the time: what they do is asked there.
        told_s = scale * worked_s if self.bucket else whole_s
        folded = fold(replace(one, wall_s=scale * one.wall_s) for one in seen)
        return CodeLook(
            time_s=time_s,
            place=HELPERS,
            rule="lock-contention" if self.bucket else "input-bound",
            bucket=self.bucket,
            method="samples",
            seen=round(self.count * told_s / whole_s),
            wall_s=told_s,
            in_line=self.in_line / self.count,
            spots=folded.spots,
            stacks=folded.stacks,
        )

    def _at_work(self, reading: Reading) -> list[Seen]:
        """Return the stacks with a function of the program's own, whose threads work for the steps."""
        by_function: dict[Function, list[tuple[int, Seen]]] = defaultdict(list)
        for thread, tally in self._tallies.items():
            for one in reading.seen(tally.items()):
                at = owner(one.stack)
                if at is not None:
                    by_function[one.stack[at].function].append((thread, one))
        kept: list[Seen] = []
        for found in by_function.values():
            if self._work_for_steps({thread for thread, _ in found}):
                kept += [one for _, one in found]
        return kept

    def _work_for_steps(self, threads: Iterable[int]) -> bool:
        """Whether threads get a CPU about as often as there are steps; those that ended at once made what was asked."""
        known = [self._runs[thread] for thread in threads if thread in self._runs]
        steps = max((runs.last_step - runs.first_step for runs in known), default=0)
        return not known or sum(runs.last - runs.first for runs in known) >= RUNS_PER_STEP * max(1, steps)


def _times(thread: int) -> int | None:
    schedule = thread_schedule(Path("/"), os.getpid(), thread)
    return None if schedule is None else schedule[2]
