"""What connects the verdicts of a job's ranks while it runs: the others tell rank 0, and rank 0 judges the job.

All of it happens on the sampler thread, through clients of our own: no collective, no barrier, no call into a process
group. A turn has three parts, because the second may hang: `begin` takes what this rank knows, `exchange` talks to the
others, and `judge` says what is known by then.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from ..errors import RecordingError
from ..ranks.code import between_of, places_of
from ..ranks.data import read_in_evaluation, read_in_training
from ..ranks.job import Job, RankView, assemble, facts_of_a_rank, is_running, read_newest
from ..ranks.posts import MOST_DDP, MOST_READINGS, PERIOD_S, PostPace, decode_post, encode_post, joined, view_of_steps
from ..ranks.run_folder import Channel, Channels
from ..ranks.steps import lives_on
from ..recording import Header, ranks
from ..recording.tail import stands_in
from ..records import Arrivals, DdpTimes, EvaluationBatches, Event, LedgerRecord, StepRecord
from ..records.diagnosis import Verdict, WorkerAdvice
from ..records.steps import STANDS
from ..report.job.model import JobReport, job_report
from ..rules.job.evaluation import JobVerdict, alone, judge
from ..window import Window
from .sampler import Abandoned, is_abandoned

WAIT_S = 2.0
"""Most seconds that rank 0 waits at its end for the last words of the others."""

FAILED_WAIT_S = 1.0
"""The same after an exception: the others hang where they needed this rank, or fail with it."""

MERGED_STEPS = 8192
"""Steps of all ranks together that rank 0 keeps: to merge and judge them takes 60 ms."""

MOST_SHARE = 0.002
"""Part of one CPU that rank 0 may spend on the job: where a turn takes longer the next one comes later."""

MOST_NEW = 4096
"""Steps that wait for the next post."""

MOST_FOLDER_LOOKS = 16
"""Ranks whose recordings rank 0 looks into at its end, where they share its folder and have sent no last word."""

LISTED = 20
"""Ranks without a last word that are listed by number."""

_LOOK_S = 0.05
_FOLDER_LOOKS = 5
"""Into a folder is looked at each so-many-th look."""


class HasHeader(Protocol):
    """A recorder, as far as it is needed."""

    @property
    def header(self) -> Header | None:
        """First line of the recording; None until its folder is known."""

    @property
    def folder(self) -> Path | None:
        """Of the recording; None until it is known."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """What this rank knows at one moment."""

    header: Header
    ledger: LedgerRecord
    own: Verdict
    ended: str | None
    folder: Path | None

    @property
    def topic(self) -> str:
        return f"posts/{self.header.run_id}"


class JobWatch:
    """One rank's part in the job's verdict.

    Args:
        rank: Of this process.
        world_size: Ranks of the job.
        channels: What connects them.
        window: Of this rank.
        tell: Takes events for the recording.
        clock: Monotonic seconds.
        cpu: CPU seconds of the calling thread.
        sleep: Waits so many seconds.
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
        cpu: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rank = rank
        self._world_size = world_size
        self._channels = channels
        self._window = window
        self._tell = tell
        self._clock = clock
        self._cpu = cpu
        self._begun_cpu_s = 0.0
        self._sleep = sleep
        self._begun_s = clock()
        self._pace = PostPace(world_size, self._begun_s)
        self._new: deque[StepRecord] = deque(maxlen=MOST_NEW)
        self._sent: deque[StepRecord] = deque(maxlen=MOST_NEW)
        """Of the last post: the next one repeats them where rank 0 has not taken it."""
        self._left = False
        """Whether there was somewhere to leave the last post."""
        self._arrivals: deque[Arrivals] = deque(maxlen=MOST_READINGS)
        self._ddp: deque[DdpTimes] = deque(maxlen=MOST_DDP)
        self._stands: Event | None = None
        """Said of this rank, and no step has begun since."""
        self._turn: _Turn | None = None
        self._expecting: dict[str, Channel] = {}
        """Where others leave posts for rank 0."""
        self._views: dict[int, RankView] = {}
        self._sizes: dict[int, int] = {}
        """Of other ranks' recordings when they were last looked into."""
        self._heard_s: dict[int, float] = {}
        self._news = False
        self._gone: set[int] = set()
        """Ranks whose process was not there at the last look."""
        self._unreached = ""
        self._most_steps = max(64, MERGED_STEPS // world_size)
        self._report: JobReport | None = None
        self.job: Job | None = None
        """As rank 0 knows it; replaced whole."""
        self.judged: JobVerdict | None = None
        """What rank 0 says of it; replaced whole."""

    @property
    def report(self) -> JobReport | None:
        """What reports show of the job; None on other ranks than 0, and before rank 0 has looked for them."""
        return self._report

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
            if self._stands is not None and not stands_in(self._stands, record):
                self._stands = None
        elif isinstance(record, Event) and record.name == STANDS:
            self._stands = record
        elif isinstance(record, Arrivals):
            self._arrivals.append(record)
        elif isinstance(record, DdpTimes):
            self._ddp.append(record)

    def begin(self, recorder: HasHeader | None, own: Verdict, ended: str | None = None) -> bool:
        """Begin a turn, where it is time to, with what this rank knows; at the end in any case.

        Args:
            recorder: Of this rank.
            own: The verdict of this rank alone.
            ended: Why the run ends; None while it goes on.

        Returns:
            Whether it is time to.
        """
        now_s, self._begun_cpu_s = self._clock(), self._cpu()
        header = None if recorder is None else recorder.header
        ledger = self._window.ledger.record
        if recorder is None or header is None or not header.run_id or ledger is None:
            return False
        if now_s < self._pace.due_s and ended is None:
            return False
        self._pace.begin(now_s, last=ended is not None)
        self._turn = _Turn(header, ledger, own, ended, recorder.folder)
        if self._rank == 0:
            self._add(self._own_view(self._turn))
            self._new.clear()
        return True

    def exchange(self) -> None:
        """Post, or read what the others have posted; at its end rank 0 waits for their last words.

        Raises:
            OSError: Nobody can be reached.
        """
        turn = self._turn
        assert turn is not None
        if self._rank:
            self._post(turn)
        elif turn.ended is None:
            self._read(self._connect(turn.topic), range(1, self._world_size))
        else:
            self._await_others(turn)

    def judge(self) -> None:
        """Judge the job, on rank 0, with what is known."""
        if self._rank or 0 not in self._views:
            return
        views = [self._asked(view) for view in self._views.values()]
        if self.job is None or self._news or self.job.merged is None:
            self.job = assemble(views)
        else:  # the steps that all ranks have are the same as before
            self.job = replace(self.job, ranks=tuple(sorted(views, key=lambda view: view.rank)))
        self._news = False
        judged = judge(self.job)
        if len(views) < 2 and self._turn is not None:
            judged = replace(judged, verdict=alone(self._turn.own, self._world_size))
        self._report = job_report(self.job, judged)
        self.judged = judged
        self._pace.not_before(self._clock() + (self._cpu() - self._begun_cpu_s) / MOST_SHARE)

    def leave(self) -> None:
        """Rank 0 reads no more, though its time did not suffice for a last turn: leave no files behind."""
        self._end_posts([channel for channel in self._expecting.values() if channel.keeps_files])

    # -- other ranks than 0 --------------------------------------------------------------------------------------------

    def _post(self, turn: _Turn) -> None:
        try:
            channels = list(self._connect(turn.topic).values())
            if self._left and not any(channel.is_posted(self._rank) for channel in channels):
                self._sent.clear()
            self._left = False
            self._sent.extend(self._new)
            self._new.clear()
            text = self._text(turn)
            for channel in channels:
                self._left = channel.post(self._rank, text) or self._left
        except OSError:
            if turn.ended is None:
                raise
            # Rank 0 may have ended before this one, and the store with it.

    def _text(self, turn: _Turn) -> str:
        return encode_post(
            turn.header,
            turn.ledger,
            turn.own,
            list(self._sent),
            facts=self._facts(),
            places=places_of(self._window.code.looks),
            between=between_of(self._window.code.looks),
            arrivals=self._arrivals,
            ddp=list(self._ddp),
            trains_on=read_in_training(self._window.loader.info),
            evaluates=read_in_evaluation(self._evaluated()),
            live_on=lives_on(self._window.loader.info),
            ended=turn.ended,
            standing=self._where_it_stands(),
            most=self._pace.most,
        ).decode("ascii")

    def _evaluated(self) -> EvaluationBatches | None:
        evaluated = self._window.spent.evaluated
        return None if evaluated is None else evaluated.newest

    def _connect(self, topic: str) -> dict[str, Channel]:
        """Return new connections: one that has been broken meanwhile would be complained of on stderr, by torch."""
        return {address: connect() for address, connect in self._channels(topic).items()}

    def _facts(self) -> dict[str, float]:
        window = self._window
        gpus = [sample for samples in window.gpu.samples.values() for sample in samples.items[-32:]]
        hosts, batches = window.host.samples.items[-64:], window.workers.batches.items[-64:]
        return facts_of_a_rank(hosts, gpus, batches, window.loader.info, window.code.looks)

    # -- rank 0 --------------------------------------------------------------------------------------------------------

    def _own_view(self, turn: _Turn) -> RankView:
        return view_of_steps(
            turn.header,
            turn.ledger,
            turn.own,
            list(self._new),
            facts=self._facts(),
            places=places_of(self._window.code.looks),
            between=between_of(self._window.code.looks),
            arrivals=tuple(self._arrivals),
            ddp=tuple(self._ddp),
            loader=self._window.loader.info,
            evaluated=self._evaluated(),
            live_on=lives_on(self._window.loader.info),
            ended=turn.ended,
            standing=self._where_it_stands(),
        )

    def _where_it_stands(self) -> str | None:
        return None if self._stands is None else self._stands.detail

    def _add(self, view: RankView) -> None:
        self._views[view.rank] = joined(self._views.get(view.rank), view, self._most_steps)

    def _read(self, channels: dict[str, Channel], wanted: Iterable[int]) -> None:
        for address in channels.keys() - self._expecting.keys():
            channels[address].expect_posts()
            self._expecting[address] = channels[address]
        for rank in wanted:
            for channel in channels.values():
                text = channel.take_post(rank)
                if is_abandoned():  # it has hung, and another thread goes on with what was known
                    raise Abandoned
                if text is not None:
                    self._take(rank, text)

    def _take(self, rank: int, text: str) -> None:
        try:
            view = decode_post(text.encode())
        except ValueError:  # of another version
            return
        if view.rank == rank:
            self._add(view)
            self._heard_s[rank] = self._clock()
            self._news = True

    def _await_others(self, turn: _Turn) -> None:
        """Wait a moment for the last words of the others, and name who has sent none."""
        begun_s, looks = self._clock(), 0
        channels: dict[str, Channel] = {}
        self._try(lambda: channels.update(self._connect(turn.topic)), channels)
        self._try(lambda: self._read(channels, self._unfinished()), channels)
        self._look_into(turn.folder)
        until_s = begun_s + self._patience_s(turn, bool(channels))
        while not all(map(self._is_gone, self._unfinished())) and self._clock() < until_s:
            self._sleep(_LOOK_S)
            self._try(lambda: self._read(channels, self._unfinished()), channels)
            looks += 1
            if looks % _FOLDER_LOOKS == 0:
                self._look_into(turn.folder)
        # Once more: who is gone by now may have posted just before.
        self._try(lambda: self._read(channels, self._unfinished()), channels)
        self._look_into(turn.folder, last=True)
        self._name_silent()
        self._try(lambda: self._end_posts(channels.values()), channels)

    def _try(self, call: Callable[[], None], channels: dict[str, Channel]) -> None:
        """Do something with the channels; without them from then on where nobody answers."""
        try:
            call()
        except OSError as exc:
            channels.clear()
            self._unreached = f"; they could not be reached: {exc}"

    def _patience_s(self, turn: _Turn, reachable: bool) -> float:
        """Return how long to wait. Who has never been heard of in a long run records nothing, or is out of reach."""
        if len(self._views) < 2 and (not reachable or self._clock() - self._begun_s >= PERIOD_S):
            return 0.0
        assert turn.ended is not None
        return FAILED_WAIT_S if turn.ended.startswith("exception") else WAIT_S

    def _look_into(self, folder: Path | None, *, last: bool = False) -> None:
        """Read what the recordings of other ranks end with, where they are in the folder of this one.

        Args:
            folder: Of this rank's recording.
            last: Whether to take an end whose last verdict is not there yet.
        """
        unfinished = self._unfinished() if folder is not None else []
        try:
            there = set(ranks(folder)) if folder is not None and unfinished else set()
        except OSError:
            return
        for rank in [rank for rank in unfinished if rank in there][:MOST_FOLDER_LOOKS]:
            assert folder is not None
            try:
                size = sum(path.stat().st_size for path in folder.glob(f"rank{rank}.*.jsonl"))
                if size == self._sizes.get(rank) and not last:
                    continue
                view, settled = read_newest(folder, rank, live_on=lives_on(self._window.loader.info))
            except (RecordingError, OSError):  # it is just being made
                continue
            if is_abandoned():
                raise Abandoned
            self._sizes[rank] = size
            if view.ledger is not None:
                self._add(view if settled or last else replace(view, ended=None))
                self._news = True

    def _unfinished(self) -> list[int]:
        return [
            rank for rank in range(1, self._world_size) if (view := self._views.get(rank)) is None or view.ended is None
        ]

    def _is_gone(self, rank: int) -> bool:
        view = self._views.get(rank)
        return view is not None and is_running(view.header) is False

    def _name_silent(self) -> None:
        silent = self._unfinished()
        if silent:
            more = f" and {len(silent) - LISTED} more" if len(silent) > LISTED else ""
            detail = f"rank {', '.join(map(str, silent[:LISTED]))}{more}{self._unreached}"
            self._tell(Event(time_s=time.time(), name="ranks without a last word", detail=detail))

    def _end_posts(self, channels: Iterable[Channel]) -> None:
        for channel in channels:
            channel.end_posts(self._heard_s)

    def _asked(self, view: RankView) -> RankView:
        """Return a view with what became of its process."""
        if view.rank == 0:
            return replace(view, running=True)
        if view.ended is not None:
            return view
        heard_s = self._heard_s.get(view.rank)
        silent_s = None if heard_s is None else self._clock() - heard_s
        running = is_running(view.header)
        if running is False and self._turn is not None and self._turn.ended is None and view.rank not in self._gone:
            # It may have ended as it should since its posts were read: the next turn reads its last word.
            self._gone.add(view.rank)
            running = None
        return replace(view, running=running, silent_s=silent_s)
