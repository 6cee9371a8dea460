"""One run on one rank, from its start to its end.

Two threads touch a run. The training thread moves the ledger and the step clock, and nothing else. The sampler thread
does the rest in the collector, once a second: steps out of the clock, samples out of the sources, both into the window
and the recording, then the rules. Trackers are fed by the forwarder from the recording. What may fail or hang is called
through the one guard.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..records import Told
from ..records.interfaces import Tracker
from ..sources.torch_view import optimizer_info
from ..timing.clock import StepClock
from ..window import Window
from .collector import Collector
from .ending import Ending
from .guard import Guard
from .loader_watch import LoaderWatch
from .options import Options
from .output import Output
from .program_end import await_at_exit, awaited, forget, why_it_ends
from .run_check import mark_measured

_claims: list[object] = []
_claimed = 0
"""How often the loops of this process have been claimed, by `claim_loops` or by the start of a run."""


class Run:
    """What `stallmeter.engine.wiring` has put together: adapters drive it, a `Monitor` shows it to the program.

    Args:
        options: What the program chose.
        clock: The training thread's.
        window: What was seen.
        guard: Calls what may fail.
        inbox: What other threads have for the recording.
        loaders: The training's.
        output: Where records go.
        collector: Does the work of the sampler thread.
        ending: What is done once the run has ended.
        is_killed: Whether the process is killed once its part of the program has returned.
    """

    def __init__(
        self,
        options: Options,
        *,
        clock: StepClock,
        window: Window,
        guard: Guard,
        inbox: deque[Told],
        loaders: LoaderWatch,
        output: Output,
        collector: Collector,
        ending: Ending,
        is_killed: bool = False,
    ) -> None:
        self.clock = clock
        self.window = window
        self.guard = guard
        self.loaders = loaders
        self.output = output
        self.collector = collector
        self.ending = ending
        self.close_budget_s = options.close_budget_s
        """Most seconds by which the program's end may be delayed."""
        self.closed = False
        """Whether the run has ended."""
        self._inbox = inbox
        self._is_killed = is_killed
        self._pid = os.getpid()

    @property
    def trackers(self) -> Sequence[Tracker]:
        """Where the recording is forwarded."""
        return self.output.trackers

    @property
    def inherited(self) -> bool:
        """Whether this process was forked from the one that is recorded: nobody reads what happens here."""
        return os.getpid() != self._pid

    def start(self) -> Run:
        """Open the recording and start the threads."""
        mark_measured()
        self.output.open(self.clock.unix_s(self.clock.ledger.origin), self.window.facts)
        await_at_exit(self)
        _count_claim()
        self.guard("starting to sample", self.collector.start)
        return self

    def discard(self) -> None:
        """Let go of what a run holds that was never started."""
        self.closed = True
        for source in self.collector.sources.values():
            self.guard.attempt(f"source {source.name}", source.close)

    def tell(self, record: Told) -> None:
        """Have something recorded; from any thread, without waiting."""
        if len(self._inbox) == self._inbox.maxlen:
            detail = f"it has kept up to {self._inbox.maxlen:,} metrics and events of the program; the oldest are lost"
            self.guard.name_once("the recording", "cannot keep up", detail)
        self._inbox.append(record)

    def tell_optimizer(self, optimizer: object) -> None:
        """Have recorded how the optimizer is set up that updates the weights."""
        info = self.guard("the optimizer", optimizer_info, optimizer)
        if info is not None:
            self.tell(info)

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self, reason: str = "end") -> None:
        """End the run: last sample, last verdict, short reports, and what the trackers still lack. Idempotent.

        Page and pictures are made by a child process beside the program; `finish` waits for them, and so does the
        program's end, no longer than ``close_budget_s``.
        """
        if self._end(reason):
            self.ending.wait_for_handover()

    def abort(self, reason: str, *, signalled: bool = False) -> None:
        """End the run after an exception: flush the recording and return, for others have something to save.

        Reports and trackers follow when `Ending.others_are_done`, after 10 s, or when the program ends.

        Args:
            reason: ``exception: `` and its name.
            signalled: Whether a signal is ending the process. Reports and trackers are then left to `stallmeter sync`.
        """
        if self._end(reason, signalled=signalled):
            self.ending.wait_for_flush()

    def see_out(self) -> None:
        """Wait for the rest, at most ``close_budget_s``, where the process is killed once the training has returned."""
        if self._is_killed and self.closed and not self.inherited:
            self.ending.wait(self.close_budget_s)

    def finish(self, timeout_s: float = 60.0) -> bool:
        """Wait after `close` for the page, the pictures and the trackers; returns whether all is done, and delivered.

        Args:
            timeout_s: Most seconds to wait.
        """
        return self.inherited or (self.closed and self.ending.wait(timeout_s) and not self.ending.undelivered)

    def exit(self) -> Callable[[float], None]:
        """Begin to end the run, where that has not happened yet: the program ends.

        Returns:
            What waits for the rest, no longer than until a deadline (monotonic seconds).
        """
        self._end(why_it_ends())
        self.ending.wait_for_sample()
        return self.ending.exit

    def _end(self, reason: str, *, signalled: bool = False) -> bool:
        if self.closed or self.inherited:
            return False
        self.closed = True
        self.guard.attempt("the last step", self.clock.pause)
        self.guard.attempt("the last step", self.clock.ledger.unwind)
        self.guard.attempt("the last step", self.loaders.close)
        self.clock.at_boundary = None  # what waits for a later step will see none
        self.output.expect_end()
        self.ending.begin(reason, signalled=signalled)
        return True

    def do_ending(self) -> None:
        """Do what is left once sampling was asked to end; for the thread that does it."""
        try:
            self.ending.run()
        finally:
            forget(self)


@contextmanager
def claim_loops() -> Iterator[None]:
    """Have no loop of this process measured unasked meanwhile: somebody measures it in another way."""
    token = object()
    _claims.append(token)
    _count_claim()
    try:
        yield
    finally:
        _claims.remove(token)


def _count_claim() -> None:
    global _claimed  # after the claim: who reads the number first, and then asks, misses none
    _claimed += 1


def count_claims() -> int:
    """Return a number that changes whenever `are_loops_claimed` may have become true: it costs less to ask."""
    return _claimed


def are_loops_claimed(but: Run | None) -> bool:
    """Whether a run of this process has started and not ended, or somebody has claimed its loops.

    Args:
        but: A run that does not count.
    """
    return bool(_claims) or any(isinstance(run, Run) and not run.closed and run is not but for run in awaited())


def is_signalled(exc: BaseException) -> bool:
    """Whether an exception says that a signal ends the process. Ctrl-C does not: its user waits for the verdict."""
    if type(exc).__name__ == "SIGTERMException":  # Lightning's
        return True
    code = exc.code if isinstance(exc, SystemExit) else None
    return isinstance(code, int) and code > 128 and code != 128 + signal.SIGINT
