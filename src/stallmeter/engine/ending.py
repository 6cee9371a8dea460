"""How a run ends: last sample, reports, trackers, pictures, on a thread beside the program's own.

The program's thread waits only for what it must: after a fit until the trackers have got the points, after an exception
until the recording is flushed. All else goes on beside the program and is waited for at its end, for a bounded time.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from ..delivery.forwarder import Forwarder, Undelivered
from ..recording import as_typed, ranks
from ..recording.pending import is_sendable
from ..report.files import write_summaries
from ..report.model import judged, summarize
from ..report.wording import console_lines
from ..window import Window
from .asked import Profiler
from .collector import GIVE_UP_S, HANG_S, Collector
from .context import RunContext
from .guard import Guard
from .options import Options
from .output import Output
from .run_check import forget_recording

_log = logging.getLogger("stallmeter")

FLUSH_S = 2.0
"""Most seconds that an exception is held up until the recording is flushed, and once others have saved what they must
until the last sample is taken; both take some milliseconds."""

OTHERS_S = 10.0
"""After an exception reports and trackers wait so long for the word that everybody else has saved what they must."""

SETTLE_S = 5.0
"""Most seconds to wait until the training thread has served the trackers that only it may call."""

LOOK_S = 0.05
"""Time between two looks at whether the pictures are drawn or the program ends."""


class Drawing(Protocol):
    """A child process that makes a run's page, pictures and table of steps beside its recording."""

    @property
    def files(self) -> Mapping[str, Path]:
        """What it makes, by the name that it has on a tracker."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; returns whether it has ended.

        Raises:
            DrawingError: It has failed.
        """
        ...

    def stop(self) -> None:
        """End it. What it has not made, `stallmeter sync` and `stallmeter report --format html` make."""
        ...


class Outliving(Protocol):
    """A child process that makes the reports of a job whose rank 0 is killed."""

    def spoken(self) -> None:
        """The verdict was told, and the short reports are written."""
        ...

    def stop(self) -> None:
        """End it: the reports are made."""
        ...


Outlive = Callable[[Path], Outliving]
"""Starts one for a recording's folder."""

Draw = Callable[[Path, int, bool], Drawing | None]
"""Has a recording's folder drawn for a rank, with or without the picture for a tracker; None where nothing is drawn."""


class Ending:
    """What is done once a run has ended, by the one thread that calls `run`.

    Args:
        options: What the program chose.
        context: Of the run.
        collector: Takes the last sample.
        output: The recording, and what is forwarded from it.
        window: What the short reports are made of: nothing is read back.
        guard: Keeps errors away.
        draw: Starts the child process that makes what takes long; without it a run has its short reports only.
        profiler: Whose files belong to the reports.
        outlive: Starts what makes the reports where this process is killed; without it nobody does.
        last_words: Tells the program what it asked to hear at the end; the recording is flushed by then.
    """

    def __init__(
        self,
        options: Options,
        context: RunContext,
        collector: Collector,
        output: Output,
        *,
        window: Window,
        guard: Guard,
        draw: Draw | None,
        profiler: Profiler | None = None,
        outlive: Outlive | None = None,
        last_words: Callable[[], None] | None = None,
    ) -> None:
        self._close_budget_s = options.close_budget_s
        self._speaks = options.console and context.rank == 0
        self._rank = context.rank
        self._collector = collector
        self._output = output
        self._profiler = profiler
        self._window = window
        self._guard = guard
        self._draw = draw
        self._drawing: Drawing | None = None
        self._outlive = outlive
        self._survivor: Outliving | None = None
        self._last_words = last_words
        self._given_up = False
        """Whether the drawing took too long for a program that ends."""
        self._sampled, self._handed_over, self._done = threading.Event(), threading.Event(), threading.Event()
        self._others_are_done, self._settled = threading.Event(), threading.Event()
        self._exit_s: float | None = None
        """When the program, which is ending, waits no longer; monotonic. Set there, read in a loop beside it."""
        self._reason = ""
        self._signalled = False
        self._with_reports = True
        self.undelivered: tuple[Undelivered, ...] = ()

    # -- the program's thread ------------------------------------------------------------------------------------------

    def begin(self, reason: str, *, signalled: bool = False) -> None:
        """Ask for the last sample and all that follows, without waiting for it.

        Args:
            reason: Why the run ends.
            signalled: Whether a signal is ending the process: then there is time for the recording alone.
        """
        # Before the request: it sets an event, behind which the thread that does the ending sees both.
        self._reason, self._signalled = reason, signalled
        if not self._collector.request_end(reason, hurried=signalled):  # no thread could be had
            self._others_are_done.set()
            self.run()

    def skip_reports(self) -> None:
        """Write no reports: nobody would read them."""
        self._with_reports = False

    def wait_for_flush(self) -> bool:
        """Wait until what is known is in the recording; returns whether it is. The rest waits for `others_are_done`."""
        return self._collector.flushed.wait(FLUSH_S)

    def wait_for_sample(self) -> bool:
        """Wait until the last sample is taken, or has been given up; returns whether it is."""
        return self._sampled.wait(GIVE_UP_S + 2 * HANG_S)

    def wait_for_handover(self) -> bool:
        """Wait until the trackers have got the points and the short reports are written; returns whether they are."""
        self._others_are_done.set()
        return self._handed_over.wait(GIVE_UP_S + 2 * HANG_S + self._close_budget_s)

    def others_are_done(self, wait_s: float) -> None:
        """Say that nobody is left who has to save something after an exception; wait so long for the trackers.

        The last sample is waited for, too, which takes a moment: no thread of ours samples a program that goes on.
        """
        self._others_are_done.set()
        self._sampled.wait(FLUSH_S)
        if not self._signalled:
            self._handed_over.wait(wait_s)

    def settle(self) -> None:
        """Say that trackers which the training thread serves were given all that it had for them."""
        self._settled.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until all is done, the pictures included; returns whether it is."""
        self._others_are_done.set()
        return self._done.wait(timeout_s)

    def exit(self, deadline_s: float) -> None:
        """The program ends: wait for what is left, no longer than until ``deadline_s`` (monotonic)."""
        if self._done.is_set() or self._signalled:
            return
        self._exit_s = deadline_s
        if not self.wait(max(0.0, deadline_s - time.monotonic())):
            if self._drawing is not None:
                self._give_up(self._drawing)
            _log.warning(
                "stallmeter: the program ends before all is written and sent; to have the rest: stallmeter sync %s",
                as_typed(self._output.folder),
            )

    def cut_short(self) -> None:
        """Leave the rest to `stallmeter sync`."""
        self._exit_s = time.monotonic()
        self._others_are_done.set()
        self._settled.set()
        if self._drawing is not None:
            self._give_up(self._drawing)

    # -- the sampler thread --------------------------------------------------------------------------------------------

    def provide(self) -> None:
        """Have the reports made by somebody else should this process be killed."""
        if self._outlive is not None and self._output.folder is not None:
            self._survivor = self._outlive(self._output.folder)
            forget_recording(self._output.folder)

    # -- the thread beside it ------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Do it all."""
        try:
            self._guard.attempt("the last sample", self._collector.end)
            self._sampled.set()
            if self._output.given_up:  # what hangs there would hang here
                _log.warning("stallmeter: %s does not answer; reports and trackers are left out", self._output.folder)
            elif self._signalled:
                self._guard.attempt("the recording", self._close_recorder)
            else:
                if self._reason.startswith("exception"):
                    self._others_are_done.wait(OTHERS_S)
                self._report()
        finally:
            for event in (self._sampled, self._handed_over, self._done):
                event.set()

    def _report(self) -> None:
        guard, folder, forwarder = self._guard, self._output.folder, self._output.forwarder
        if not self._with_reports:
            folder = None
        files = {} if folder is None else guard.attempt("the reports", self._write_summaries) or {}
        if folder is not None and self._draw is not None:
            self._drawing = guard.attempt(
                "the page and the pictures", self._draw, folder, self._rank, forwarder is not None
            )
        if forwarder is not None:
            end = self._end_forwarding if self._drawing is None else self._hand_over
            guard.attempt("forwarding", end, forwarder, files)
        guard.attempt("the recording", self._keep_rest)
        guard.attempt("the last words", self._say_verdict)
        if self._last_words is not None:
            guard.attempt("the last words", self._last_words)
        if self._output.folder is not None and self._rank == 0:
            forget_recording(self._output.folder)
        if self._survivor is not None:
            guard.attempt("who outlives this process", self._survivor.spoken)
        # A client that belongs to the program may be closed by it as soon as the run is over.
        if not any(getattr(tracker, "borrowed", False) for tracker in self._output.trackers):
            self._handed_over.set()
        if self._drawing is not None:
            guard.attempt("the page and the pictures", self._wait_for_drawing, self._drawing)
            complete = not self._given_up
            if forwarder is not None:
                files |= self._drawing.files
                guard.attempt("forwarding", self._end_forwarding, forwarder, files, complete)
        self._handed_over.set()
        if forwarder is not None and any(hasattr(tracker, "held_points") for tracker in self._output.trackers):
            self._settled.wait(SETTLE_S)
            guard.attempt("forwarding", self._count_held, forwarder)
        guard.attempt("the recording", self._close_recorder)
        guard.attempt("the last words", self._say_undelivered)
        if self._survivor is not None and not self._given_up:
            guard.attempt("who outlives this process", self._survivor.stop)

    def _write_summaries(self) -> dict[str, Path]:
        recorder = self._output.recorder
        if recorder is None or recorder.folder is None:
            return {}
        report = summarize(
            self._window,
            self._collector.verdict,
            header=recorder.header,
            path=recorder.folder,
            ranks=ranks(recorder.folder),
            settled=True,
            job=self._collector.job,
        )
        files = write_summaries(recorder.folder, self._rank, report)
        return files if self._profiler is None else {**files, **self._profiler.files}

    def _hand_over(self, forwarder: Forwarder, files: Mapping[str, Path]) -> None:
        page = self._guard.attempt("the run's page", lambda: self._collector.page(files))
        if page is not None:
            forwarder.show(page)
        forwarder.catch_up(self._time_left_s() / 2)  # the other half is for the page

    def _wait_for_drawing(self, drawing: Drawing) -> None:
        """Wait for its end. One that takes most of the time that the ending program has is given up."""
        while not drawing.wait(LOOK_S):  # also once it was given up: its turn goes to the next one when it has ended
            if self._exit_s is not None and self._time_left_s() <= self._close_budget_s / 2:
                self._give_up(drawing)

    def _give_up(self, drawing: Drawing) -> None:
        self._given_up = True
        drawing.stop()

    def _end_forwarding(self, forwarder: Forwarder, files: Mapping[str, Path], complete: bool = True) -> None:
        for tracker in self._output.trackers:
            if self._reason.startswith("exception") and hasattr(tracker, "end_status"):
                tracker.end_status = "FAILED"
        page = self._guard.attempt("the run's page", lambda: self._collector.page(files, final=complete))
        if page is not None:
            forwarder.show(page)
        self.undelivered = forwarder.close(self._time_left_s())
        self._collector.name_hanging_trackers(0.0)

    def _count_held(self, forwarder: Forwarder) -> None:
        """Note what the training thread has handed over since, and what it could not."""
        held = {left.tracker: left for left in forwarder.settle()}
        self.undelivered = (*(left for left in self.undelivered if left.tracker not in held), *held.values())

    def _time_left_s(self) -> float:
        budget_s = self._close_budget_s
        return budget_s if self._exit_s is None else max(0.0, min(budget_s, self._exit_s - time.monotonic()))

    def _keep_rest(self) -> None:
        """Tell what failed since the last sample, too."""
        self._collector.keep_inbox()
        if self._output.recorder is not None:
            self._output.recorder.flush()

    def _close_recorder(self) -> None:
        self._collector.keep_inbox()
        if self._output.recorder is not None:
            self._output.recorder.close()

    def _say_verdict(self) -> None:
        if not self._speaks:
            return
        failed = self._failed_by()
        lines = [] if failed else self._guard("the headline", self._said_of_verdict)
        job = self._collector.job
        if job is not None and lines is not None:
            lines[:0] = job.silent
        if self._output.folder is not None and (lines or failed):
            what = f"what was measured until the {failed}" if failed else "details"
            lines = [*(lines or ()), f"{what}: stallmeter report {as_typed(self._output.folder)}"]
            sys.stderr.write("".join(f"stallmeter: {line}\n" for line in lines))

    def _failed_by(self) -> str:
        """Return the exception that has ended the run; its traceback is what the user looks for, and advice hides it.

        Empty without one, and where the user has interrupted the training: then the verdict is looked for.
        """
        begins, _, name = self._reason.partition(": ")
        return name if begins == "exception" and name != KeyboardInterrupt.__name__ else ""

    def _said_of_verdict(self) -> list[str]:
        verdict = judged(self._collector.verdict, self._window.steps.step_time_s)
        return console_lines(verdict, self._window.loader.trials)

    def _say_undelivered(self) -> None:
        for left in self.undelivered:
            # What only its own program can reach is out of reach of `sync`.
            where = "send them with: stallmeter sync" if is_sendable(left.tracker, left.destination) else "they are in"
            points, destination = left.points, left.destination
            _log.warning(
                "stallmeter: %d points did not reach %s; %s %s",
                points,
                destination,
                where,
                as_typed(self._output.folder),
            )
