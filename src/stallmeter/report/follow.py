"""The report of a run while it goes on, from its recording, in this process or on another machine.

What was read stays read: each look goes on where the last one stopped, and what is kept is bounded however long the run
is. So a look costs what was written since, and one evaluation of the rules.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from ..ranks.code import between_of, places_of
from ..ranks.job import RankView, assemble, facts_of_a_rank
from ..ranks.posts import MOST_DDP, joined, view_of_steps
from ..ranks.steps import lives_on
from ..recording import Header, Reader, ranks
from ..recording.pending import is_written, process_lives
from ..records import Arrivals, DdpTimes, Event, StepRecord
from ..records.diagnosis import Verdict
from ..records.steps import END
from ..rules.evaluation import diagnose
from ..rules.job.evaluation import judge
from ..window import Window
from . import wording
from .job.model import job_report
from .model import WRONG_VALUES, Report, damaged, summarize

LOOK_S = 2.0
"""Between two looks at a recording, to which each rank writes once a second."""

MERGED_STEPS = 16_384
"""Steps of all ranks together that are kept: to merge them takes a tenth of a second."""

MOST_JUDGED = 16
"""Ranks whose own records are judged at each look; of more ranks the verdicts that they recorded count."""

QUIET_LOOKS = 5
"""So many looks without anything new, and a recording of another machine is asked whether a program still writes it."""


class Display(Protocol):
    """Where a report is shown that changes."""

    def show(self, report: Report | None, status: str) -> None:
        """Show how things stand; without a report nothing was measured yet."""
        ...

    def end(self, report: Report | None, status: str) -> None:
        """Show how things stand at the end."""
        ...


class FollowedRank:
    """One rank's recording while it grows.

    Args:
        folder: The recording's folder.
        rank: Whose files.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self.window = Window()
        self.header: Header | None = None
        self.ended: str | None = None
        """Why the run ended; None while it goes on."""
        self.settled = False
        """Whether its last verdict was recorded, too, which comes a moment later."""
        self._folder = folder
        self._reader = Reader(folder, rank)
        self._recorded: Verdict | None = None
        self._arrivals: deque[Arrivals] = deque(maxlen=4)
        self._ddp: deque[DdpTimes] = deque(maxlen=MOST_DDP)
        self._new: deque[StepRecord] = deque(maxlen=MERGED_STEPS)
        self._view: RankView | None = None

    def look(self) -> bool:
        """Read what was written since the last look; returns whether there was anything.

        Raises:
            RecordingError: The recording is damaged.
            OSError: It cannot be read.
        """
        before = self._reader.position
        try:
            if self.header is None:
                self.header = self._reader.header()
                self.window.facts.update(self.header.settings)
            for record, _ in self._reader:
                if isinstance(record, Verdict):
                    self._recorded, self.settled = record, self.ended is not None
                    continue
                self.window.append(record)
                if isinstance(record, StepRecord):
                    self._new.append(record)
                elif isinstance(record, Arrivals):
                    self._arrivals.append(record)
                elif isinstance(record, DdpTimes):
                    self._ddp.append(record)
                elif isinstance(record, Event) and record.name == END:
                    self.ended = record.detail or END
        except WRONG_VALUES as exc:
            raise damaged(self._folder, exc) from exc
        return self._reader.position != before

    def verdict(self, *, judged: bool = True) -> Verdict | None:
        """Return this rank's own verdict: the recorded one where it is of the end, else today's rules'.

        Args:
            judged: Whether to ask the rules at all.

        Raises:
            RecordingError: The recording is damaged.
        """
        if self.window.ledger.record is None:
            return None
        if self.settled or not judged:
            return self._recorded
        try:
            return diagnose(self.window)
        except WRONG_VALUES as exc:
            raise damaged(self._folder, exc) from exc

    def view(self, verdict: Verdict | None, most: int) -> RankView | None:
        """Return what the job needs of this rank, with at most so many steps; None while it has measured nothing."""
        ledger = self.window.ledger.record
        if self.header is None or ledger is None:
            return None
        gpus = [sample for samples in self.window.gpu.samples.values() for sample in samples.items[-32:]]
        loader, looks = self.window.loader.info, self.window.code.looks
        evaluated = self.window.spent.evaluated
        hosts, batches = self.window.host.samples.items[-64:], self.window.workers.batches.items[-64:]
        new = view_of_steps(
            self.header,
            ledger,
            verdict,
            list(self._new)[-most:],
            facts=facts_of_a_rank(hosts, gpus, batches, loader, looks),
            places=places_of(looks),
            between=between_of(looks),
            arrivals=tuple(self._arrivals),
            ddp=tuple(self._ddp),
            loader=loader,
            evaluated=None if evaluated is None else evaluated.newest,
            live_on=lives_on(loader),
            ended=self.ended,
        )
        self._view = joined(self._view, new, most)
        self._new.clear()
        self._arrivals.clear()
        self._ddp.clear()
        return self._view

    @property
    def lives(self) -> bool | None:
        """Of a run that has not said that it ended: whether its process runs; None where that cannot be told."""
        return None if self.header is None or self.ended is not None else process_lives(self.header)

    def report(self, verdict: Verdict | None) -> Report | None:
        """Return the report with this verdict; None while nothing was measured."""
        if self.window.ledger.record is None:
            return None
        return summarize(
            self.window,
            verdict,
            header=self.header,
            path=self._folder,
            ranks=ranks(self._folder),
            settled=self.settled,
            skipped_lines=self._reader.skipped,
            running=self.lives,
        )


class Followed:
    """A recording while it grows: of one rank, or of a job.

    Args:
        folder: The recording's folder.
        rank: One rank alone; by default all that there are, also those that come later.
    """

    def __init__(self, folder: Path, rank: int | None = None) -> None:
        self.folder = folder
        self._alone = rank
        self._ranks: dict[int, FollowedRank] = {}

    def look(self) -> bool:
        """Read what was written since the last look; returns whether there was anything.

        Raises:
            RecordingError: There is no such rank, or the recording is damaged.
            OSError: It cannot be read.
        """
        known = ranks(self.folder) if self._alone is None else (self._alone,)
        for rank in known:
            if rank not in self._ranks:
                self._ranks[rank] = FollowedRank(self.folder, rank)
        looks = [one.look() for one in self._ranks.values()]  # at all of them, whatever the first has
        return any(looks)

    @property
    def ended(self) -> bool:
        """Whether all ranks have said that their run ended."""
        return bool(self._ranks) and all(one.ended is not None for one in self._ranks.values())

    @property
    def settled(self) -> bool:
        """Whether all ranks have recorded their last verdict, too."""
        return self.ended and all(one.settled for one in self._ranks.values())

    @property
    def is_gone(self) -> bool:
        """Whether the processes of all ranks that have not said that they ended are gone from this machine."""
        open_ended = [one for one in self._ranks.values() if one.ended is None]
        return bool(open_ended) and all(one.lives is False for one in open_ended)

    @property
    def is_written(self) -> bool:
        """Whether a program still writes it, as far as can be told from here."""
        return any(is_written(self.folder, rank) for rank in self._ranks)

    @property
    def _shown(self) -> FollowedRank | None:
        return self._ranks.get(min(self._ranks, default=0))

    @property
    def _is_job(self) -> bool:
        if self._alone is not None:
            return False
        return len(self._ranks) > 1 or any(
            one.header is not None and one.header.world_size > 1 for one in self._ranks.values()
        )

    def report(self) -> Report | None:
        """Return how things stand; None while nothing was measured.

        Raises:
            RecordingError: The recording is damaged.
        """
        shown = self._shown
        if shown is None:
            return None
        if not self._is_job:
            return shown.report(shown.verdict())
        most = max(64, MERGED_STEPS // len(self._ranks))
        judged = len(self._ranks) <= MOST_JUDGED
        views = [
            one.view(one.verdict(judged=judged or one is shown), most)
            for one in sorted(self._ranks.values(), key=lambda one: one.rank)
        ]
        job = assemble(view for view in views if view is not None)
        if not job.ranks:
            return None
        said = judge(job)
        report = shown.report(said.verdict)
        return None if report is None else replace(report, job=job_report(job, said))


def follow(
    followed: Followed,
    display: Display,
    *,
    look_s: float = LOOK_S,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show a run until it ends, or until Ctrl-C.

    Args:
        followed: The recording.
        display: Where to.
        look_s: Seconds between two looks.
        sleep: Waits.

    Raises:
        RecordingError: The recording is damaged.
        OSError: It cannot be read.
    """
    report: Report | None = None
    quiet, status = 0, "the run goes on"
    with suppress(KeyboardInterrupt):
        while True:
            news = followed.look()
            quiet = 0 if news else quiet + 1
            if news:
                report = followed.report()
            if followed.settled or (followed.ended and not news):
                status = "the run has ended"
                break
            if followed.is_gone if quiet < QUIET_LOOKS else not followed.is_written:
                # It may have written its end since it was looked at.
                again = followed.look()
                report = followed.report()
                if again:
                    continue
                status = "no program writes this recording any more: the run has ended and could not say how"
                break
            silent = f", nothing new for {wording.seconds(quiet * look_s)}" if quiet >= QUIET_LOOKS else ""
            status = "the run goes on" + silent
            display.show(report, status)
            sleep(look_s)
    display.end(report, status)


class Lines:
    """A display that is no terminal: a line whenever the verdict changes.

    Args:
        write: Takes a line.
        now: Returns Unix time.
    """

    def __init__(self, write: Callable[[str], object], now: Callable[[], float] = time.time) -> None:
        self._write = write
        self._now = now
        self._said: object = None

    def show(self, report: Report | None, status: str) -> None:  # noqa: ARG002 - a terminal shows it
        """Write a line if there is another verdict than before."""
        primary = None if report is None else report.verdict.primary
        said = (report is None, None if primary is None else (primary.rule, primary.severity, primary.culprit))
        if said == self._said:
            return
        self._said = said
        if report is None:
            self._line("nothing was measured yet")
        else:
            self._line(f"{report.steps:,} steps: {wording.headline(report.known_verdict, report.trials)}")

    def end(self, report: Report | None, status: str) -> None:
        """Write how it ended."""
        self.show(report, status)
        self._line(status)

    def _line(self, text: str) -> None:
        self._write(f"{time.strftime('%H:%M:%S', time.localtime(self._now()))}  {wording.one_line(text)}")
