"""What connects the verdicts of a job's ranks while it runs: the others tell rank 0, and rank 0 judges the job.

All of it happens on the sampler thread, through clients of our own: no collective, no barrier, no call into a process
group.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from ..ranks.job import Job, RankView, assemble, facts_of
from ..ranks.posts import MOST_DDP, PERIOD_S, PostPace, decode_post, encode_post, joined, view_of_steps
from ..ranks.run_folder import Channel, Channels
from ..recording import Header
from ..records import Arrivals, DdpTimes, Event, LedgerRecord, StepRecord
from ..records.diagnosis import Verdict, WorkerAdvice
from ..report.job.model import JobReport, job_report
from ..rules.job.evaluation import JobVerdict, judge
from ..window import Window

WAIT_S = 2.0
"""Most seconds that rank 0 waits at its end for the last posts of the others."""

MERGED_STEPS = 16_384
"""Steps of all ranks together that rank 0 keeps: to merge them takes a tenth of a second."""

MOST_NEW = 4096
"""Steps that wait for the next post."""

_LOOK_S = 0.05


class HasHeader(Protocol):
    """A recorder, as far as it is needed."""

    @property
    def header(self) -> Header | None:
        """First line of the recording; None until its folder is known."""


class JobWatch:
    """One rank's part in the job's verdict.

    Args:
        rank: Of this process.
        world_size: Ranks of the job.
        channels: What connects them.
        window: Of this rank.
        tell: Takes events for the recording.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        channels: Channels,
        window: Window,
        tell: Callable[[Event], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rank = rank
        self._world_size = world_size
        self._channels = channels
        self._window = window
        self._tell = tell
        self._clock = clock
        self._begun_s = clock()
        self._pace = PostPace(world_size, self._begun_s)
        self._new: deque[StepRecord] = deque(maxlen=MOST_NEW)
        self._arrivals: deque[Arrivals] = deque(maxlen=4)
        self._ddp: deque[DdpTimes] = deque(maxlen=MOST_DDP)
        self._open: dict[str, Channel] = {}
        self._views: dict[int, RankView] = {}
        self._texts: dict[int, str] = {}
        self._most_steps = max(64, MERGED_STEPS // world_size)
        self.job: Job | None = None
        """As rank 0 knows it; replaced whole."""
        self.judged: JobVerdict | None = None
        """What rank 0 says of it; replaced whole."""

    @property
    def report(self) -> JobReport | None:
        """What reports show of the job; None while only one rank is known."""
        return None if self.job is None or self.judged is None else job_report(self.job, self.judged)

    @property
    def num_workers(self) -> WorkerAdvice | None:
        """What is advised for all ranks; None while one of them is not known."""
        if self.job is None or self.judged is None or self.job.missing:
            return None
        return self.judged.verdict.num_workers

    def keep(self, record: object) -> None:
        """Take what this rank records, where it is part of a post."""
        if isinstance(record, StepRecord):
            self._new.append(record)
        elif isinstance(record, Arrivals):
            self._arrivals.append(record)
        elif isinstance(record, DdpTimes):
            self._ddp.append(record)

    def exchange(self, recorder: HasHeader | None, own: Verdict, ended: str | None = None) -> None:
        """Post, or read and judge, where it is time to; at the end in any case.

        Args:
            recorder: Of this rank.
            own: The verdict of this rank alone.
            ended: Why the run ends; None while it goes on.

        Raises:
            OSError: Nobody can be reached.
        """
        now_s = self._clock()
        header = None if recorder is None else recorder.header
        ledger = self._window.ledger.record
        if header is None or not header.run_id or ledger is None or (now_s < self._pace.due_s and ended is None):
            return
        self._pace.begin(now_s, last=ended is not None)
        channels = self._connect(f"posts/{header.run_id}")
        if self._rank:
            self._post(channels, header, ledger, own, ended)
            return
        self._views[0] = joined(self._views.get(0), self._own_view(header, ledger, own, ended), self._most_steps)
        self._forget_new()
        self._read(channels)
        if ended is not None:
            self._await_others(channels)
        self._judge()

    def _connect(self, topic: str) -> list[Channel]:
        there = self._channels(topic)
        for address in self._open.keys() - there.keys():
            del self._open[address]
        for address in there.keys() - self._open.keys():
            self._open[address] = there[address]()
        return list(self._open.values())

    def _post(
        self, channels: list[Channel], header: Header, ledger: LedgerRecord, own: Verdict, ended: str | None
    ) -> None:
        text = encode_post(
            header,
            ledger,
            own,
            list(self._new),
            facts=self._facts(),
            arrivals=self._arrivals,
            ddp=list(self._ddp),
            ended=ended,
            most=self._pace.most,
        ).decode("ascii")
        try:
            for channel in channels:
                channel.post(self._rank, text)
        except OSError:
            self._open.clear()
            raise
        self._forget_new()

    def _forget_new(self) -> None:
        self._new.clear()
        self._ddp.clear()

    def _facts(self) -> dict[str, float]:
        gpus = [sample for samples in self._window.gpu.samples.values() for sample in samples.items[-32:]]
        return facts_of(self._window.host.samples.items[-64:], gpus)

    def _own_view(self, header: Header, ledger: LedgerRecord, own: Verdict, ended: str | None) -> RankView:
        return view_of_steps(
            header,
            ledger,
            own,
            list(self._new),
            facts=self._facts(),
            arrivals=tuple(self._arrivals),
            ddp=tuple(self._ddp),
            ended=ended,
        )

    def _read(self, channels: list[Channel]) -> None:
        for rank in range(1, self._world_size):
            for channel in channels:
                try:
                    text = channel.posted(rank)
                except OSError:
                    self._open.clear()
                    raise
                if text is not None and text != self._texts.get(rank):
                    self._texts[rank] = text
                    self._take(rank, text)

    def _take(self, rank: int, text: str) -> None:
        try:
            view = decode_post(text.encode())
        except ValueError:  # of another version
            return
        if view.rank == rank:
            self._views[rank] = joined(self._views.get(rank), view, self._most_steps)

    def _await_others(self, channels: list[Channel]) -> None:
        """Wait a moment for the last posts; a job whose others have never posted is not waited for for long."""
        until_s = self._clock() + (WAIT_S if len(self._views) > 1 or self._clock() - self._begun_s < PERIOD_S else 0.0)
        while self._unfinished() and self._clock() < until_s:
            time.sleep(_LOOK_S)
            self._read(channels)
        late = self._unfinished()
        if late and len(self._views) > 1:
            said = ", ".join(map(str, late[:20]))
            self._tell(Event(time_s=time.time(), name="ranks without a last word", detail=f"rank {said}"))
        for channel in channels:
            clear: Any = getattr(channel, "clear", None)
            if clear is not None:
                clear()

    def _unfinished(self) -> list[int]:
        return [
            rank for rank in range(1, self._world_size) if (view := self._views.get(rank)) is None or view.ended is None
        ]

    def _judge(self) -> None:
        if len(self._views) < 2:
            return
        self.job = assemble(self._views.values())
        self.judged = judge(self.job)


def alone(verdict: Verdict, world_size: int) -> Verdict:
    """Return the verdict of a rank that knows of no other: what says that nothing is wrong may be a wait for them."""
    primary = verdict.primary
    if world_size < 2 or primary is None or primary.time_lost_s > 0:
        return verdict
    unsure = replace(
        primary,
        confidence=min(primary.confidence, 0.5),
        summary=f"{primary.summary} Nothing is known of the other ranks: waits for them are among this rank's steps.",
    )
    return replace(verdict, primary=unsure, diagnoses=(unsure, *verdict.diagnoses[1:]))
