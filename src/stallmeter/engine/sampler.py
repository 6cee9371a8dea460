"""One daemon thread that calls back at fixed deadlines, away from the training thread, and one that watches it.

The watching thread outlives the sampling: it does what is left to do when a run has ended. It is started with the run
because no thread can be started any more while the interpreter ends (Python 3.12 and later), and there runs end, too.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

from ..machine.forking import let_imports_end

PATIENCE_S = 30.0
"""A call that is still going on after so long may be abandoned, together with the thread that it hangs in."""

HUNG_CHECKS = 3
"""How often the watcher must find the same call going on: a process that was stopped for an hour has no hung call."""


class Abandoned(BaseException):
    """Raised in a thread that was abandoned with a call that has come back after all: it has to end."""


class Sampler:
    """Calls ``tick`` every ``interval_s`` seconds on a daemon thread until it is stopped.

    Args:
        tick: What to do; it must not raise anything but `Abandoned`.
        interval_s: Time between two deadlines. A deadline missed is skipped, not made up for.
        monotonic: Seconds that never go back.
        abandon: Asked when a tick has gone on for `PATIENCE_S`; returns whether to go on in a new thread without it.
        last: What the thread does before it ends; as ``tick``.
        after: What the watching thread does once sampling was asked to end; as ``tick``.
        cut_short: Makes ``after`` come back soon.
    """

    def __init__(
        self,
        tick: Callable[[], None],
        interval_s: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        abandon: Callable[[], bool] = lambda: False,
        last: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
        cut_short: Callable[[], None] = lambda: None,
    ) -> None:
        self._tick = tick
        self._interval_s = interval_s
        self._monotonic = monotonic
        self._abandon = abandon
        self._last = last
        self._after = after
        self._stopped = threading.Event()
        self._thread = self._new_thread()
        self._watcher = _WatchingThread(self._watch, cut_short)
        # Written by the sampling thread, read by the watching one: each is one reference, which the GIL replaces in one
        # piece. A pair that does not go together costs the watcher one look.
        self._ticking = False
        self._ticks = 0
        self.cpu_s = 0.0
        """CPU seconds that sampling has used."""

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()
        self._watcher.start()

    def request_stop(self) -> bool:
        """Ask the sampling to end; returns whether there is a thread that does what comes after it."""
        self._stopped.set()
        return self._watcher.ident is not None

    def stop(self, timeout_s: float) -> bool:
        """Ask the sampling to end; returns whether it did within ``timeout_s`` seconds."""
        self._stopped.set()
        thread = self._thread
        if thread.ident is not None:
            thread.join(timeout_s)
        return not thread.is_alive()

    def restart(self) -> None:
        """Go on in a new thread, when one can be had; the other one is abandoned."""
        self._thread.abandoned = True  # before there is another: at no time two may touch the window
        self._thread = self._new_thread()
        self._ticking = False
        with contextlib.suppress(RuntimeError):  # no more threads at the interpreter's end, or none for this user
            self._thread.start()

    def _new_thread(self) -> _SamplingThread:
        return _SamplingThread(target=self._run, name="stallmeter-sampler", daemon=True)

    def _run(self) -> None:
        with contextlib.suppress(Abandoned):
            self._sample()
            self._last()

    def _sample(self) -> None:
        before_s = self.cpu_s
        deadline = self._monotonic() + self._interval_s
        while not self._stopped.wait(max(0.0, deadline - self._monotonic())):
            self._ticks += 1  # before the flag: the watcher must never see this tick under the number of the last one
            self._ticking = True
            self._tick()
            if is_abandoned():
                raise Abandoned
            self._ticking = False
            self.cpu_s = before_s + time.thread_time()
            deadline += self._interval_s
            deadline = max(deadline, self._monotonic())

    def _watch(self) -> None:
        seen, times = -1, 0
        while not self._stopped.wait(PATIENCE_S / HUNG_CHECKS):
            times = times + 1 if self._ticking and self._ticks == seen else 0
            seen = self._ticks
            if times >= HUNG_CHECKS and self._abandon():
                self.restart()
                times = 0
        self._after()


def is_abandoned() -> bool:
    """Whether the calling thread was abandoned. It must touch nothing any more when its call comes back."""
    thread = threading.current_thread()
    return isinstance(thread, _SamplingThread) and thread.abandoned


class _SamplingThread(threading.Thread):
    """Knows whether another one has taken its place."""

    abandoned = False


class _WatchingThread(threading.Thread):
    """Outlives a run by what is drawn and sent after it.

    Test suites that let no thread survive a test, Lightning's for one, call ``stop`` of a daemon thread that has it.
    """

    def __init__(self, target: Callable[[], None], cut_short: Callable[[], None]) -> None:
        super().__init__(target=target, name="stallmeter-watcher", daemon=True)
        self._cut_short = cut_short

    def stop(self) -> None:
        """Have it end now, whatever is left to do."""
        self._cut_short()
        self.join(PATIENCE_S)


if hasattr(os, "register_at_fork"):
    # Handlers registered last are called first: this one early, so that little comes between it and the fork.
    os.register_at_fork(before=let_imports_end)
