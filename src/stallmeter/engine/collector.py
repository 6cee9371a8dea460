"""What the sampler thread does once a second: steps and samples into window and recording, then the rules.

Rules and sources are asked here alone, the last time too: one that hangs costs a thread, not the training.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from ..delivery.periods import Period, period_s
from ..recording import as_typed
from ..recording.pending import pending_deliveries
from ..records import (
    BUCKETS,
    SAMPLING,
    AllocatorSample,
    DeviceStep,
    Event,
    GpuSample,
    HostSample,
    LedgerRecord,
    Told,
    WorkerBatch,
)
from ..records.checks import sound_samples
from ..records.diagnosis import Verdict
from ..records.interfaces import Page, Source, by_name
from ..records.redaction import redact
from ..records.rows import FIRST_STEPS
from ..report.job.model import JobReport
from ..report.model import summarize
from ..report.run_page import build_page
from ..report.steps_csv import HELD_ROWS
from ..rules.evaluation import evaluate
from ..rules.job.evaluation import alone
from ..timing.clock import StepClock
from ..timing.ledger import CALLBACKS, LOGGING, VALIDATION
from ..window import Window
from ..workers.apply import EpochBoundary, Seen, WorkerTuner
from .asked import Look, rules_of
from .context import RunContext
from .guard import Guard
from .job_watch import JobWatch
from .options import Options
from .output import AnyRecorder, Output
from .overhead_limiter import OverheadLimiter
from .sampler import Sampler

_log = logging.getLogger("stallmeter")

DETAIL_STEPS_PER_S = 100
"""Up to this rate every step is recorded with its detail; above it a sample and every outlier."""

OUTLIER_FACTOR = 3.0
"""A step this many times slower than the median is recorded however fast steps come."""

MEDIAN_TICKS = 8
"""The median is looked up so rarely because sorting thousands of steps costs as much as the rest of a tick."""

VERDICT_EVERY_S = 5.0
HANG_S = 7.0
"""A source or rule that takes longer than this at the end of a run is abandoned. Garbage of the program's may be
collected in it, and an iterator of torch's DataLoader waits for its workers for up to 5 s then."""

SPARSE_TICKS = 16
"""A recording that has grown long has a ledger and hardware samples of every so-many-th tick, at the least."""

TRACKER_HANG_S = 60.0
"""A tracker whose one call takes longer than this is named. It goes on where it stopped when it answers again."""

GIVE_UP_S = 15.0
"""Most time for the last sample at the end of a run, those that hang in it included."""


class Collector:
    """Takes what came in, keeps it and has it evaluated, on a sampler thread of its own.

    Args:
        options: What the program chose.
        context: Of the run.
        clock: Where the steps come from, and the ledger.
        window: Where everything goes.
        guard: Keeps errors away.
        inbox: What other threads have for the recording.
        own_slot: Of the ledger: stallmeter's own time.
        sources: What is measured besides the loop.
        output: Where the records go.
        worker_tuner: Decides about the number of workers; None where that was not wanted.
        looks: Those of the sources that are told each verdict, for they look closer where it calls for that.
        job_watch: Exchanges verdicts with the other ranks; None for a run of one.
        before: What the sampler thread does before its first look.
        after: What a thread beside the training does once the run was asked to end, with `end` for a beginning.
        cut_short: Makes ``after`` come back soon.
    """

    def __init__(
        self,
        options: Options,
        context: RunContext,
        clock: StepClock,
        window: Window,
        guard: Guard,
        inbox: deque[Told],
        *,
        own_slot: int,
        sources: Sequence[Source],
        output: Output,
        worker_tuner: WorkerTuner | None = None,
        looks: Sequence[Look] = (),
        job_watch: JobWatch | None = None,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
        cut_short: Callable[[], None] = lambda: None,
    ) -> None:
        self._options = options
        self._context = context
        self._clock = clock
        self._ledger = clock.ledger
        self._window = window
        self._guard = guard
        self._inbox = inbox
        self._own_slot = own_slot
        self._output = output
        self._worker_tuner = worker_tuner
        self._looks = looks
        self._job_watch = job_watch
        self.sources = by_name(sources)
        self.sampler = Sampler(
            self.tick, options.interval_s, abandon=guard.abandon, last=self._last_tick, after=after, cut_short=cut_short
        )
        self.verdict = Verdict(primary=None)
        """The newest; on rank 0 that of the job. Never changed, only replaced: other threads read it at any time."""
        self._own_verdict = self.verdict
        """Of this rank alone: what is recorded."""
        self.flushed = threading.Event()
        """Set when all that was known at the end is in the file; the last sample and the last verdict come later."""
        self._limiter = OverheadLimiter()
        self._ticks = 0
        self._taken_ns = self._ledger.origin
        self._median_step_s = 0.0
        self._samples: int | None = 0
        self._lost_steps = self._recorded_steps = 0
        self._every = 1
        """Of this tick one row of steps in so many is recorded, and one batch: a power of two."""
        self._batches: dict[int, int] = {}
        """Batches of each worker so far: of all together one kind of number might always be the same worker's."""
        self._awaited: dict[int, None] = {}
        """Recorded steps whose part on the device may still come, the newest last."""
        self._next_verdict_s = self._period_ends_s = 0.0
        self._period = Period(clock.unix_s(self._ledger.origin))
        self._reason = ""
        self._final_tick = self._ended = self._hurried = False
        self._disk_failed = False
        self._before = before
        self._begun = False

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the sampler thread."""
        self._period_ends_s = self._period.started_s + self._options.period_s
        self.sampler.start()

    def request_end(self, reason: str, *, hurried: bool = False) -> bool:
        """Ask the sampler thread for its last sample, without waiting for it.

        Args:
            reason: Why the run ends, for the recording.
            hurried: Whether there is no time for other ranks.

        Returns:
            Whether there is a thread that does what comes after it.
        """
        self._reason, self._hurried = reason, hurried
        return self.sampler.request_stop()

    def end(self) -> None:
        """Wait until the sampler thread has taken the last sample. A source or rule that hangs in it is abandoned."""
        give_up_s = time.monotonic() + GIVE_UP_S
        while not self.sampler.stop(HANG_S):
            if self._guard.abandon():
                self._guard.out_of_time = time.monotonic() >= give_up_s - HANG_S
                self.sampler.restart()
            elif time.monotonic() >= give_up_s:
                _log.warning("stallmeter: the last sample takes too long and is left out")
                self._output.give_up()
                return
        if not self._ended:  # no thread could be had for it
            self._guard.out_of_time = self._guard.has_hung
            self._guard.attempt("the last sample", self._last_tick)

    def _last_tick(self) -> None:
        """What the sampler thread does before it ends; begun again where a source or rule hung in it."""
        if not self._final_tick:
            self._final_tick = True
            self._inbox.append(Event(time_s=time.time(), name="end", detail=self._reason))
            # An emergency checkpoint may wait for this: first what is known, then what has to be asked for.
            self._guard.attempt("taking the steps", self._take_steps)
            self._guard.attempt("the recording", self.keep_inbox)
            self._guard.attempt("the ledger", self._keep_ledger)
            self._guard.attempt("the recording", self._flush)
        self.flushed.set()
        self.tick()
        while self.sources:
            # Taken out before it is asked: where it hangs, the next thread begins here again and must not ask it too.
            name = next(iter(self.sources))
            self._guard.ask(f"source {name}", self.sources.pop(name).close, again=True)
        self._guard.attempt("the recording", self.keep_inbox)
        self._guard.attempt("the recording", self._flush)
        self._ended = True

    # -- a tick --------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Take what came in since the last tick. Each part fails alone, and is tried again in the next tick."""
        if not self._begun:
            self._begun = True
            self._guard("the beginning", self._before)
            self._guard("looking for pending deliveries", self._report_pending_deliveries)
        self._guard.attempt("taking the steps", self._take_steps)
        self._ask_sources(time.time())
        self._guard.attempt("the recording", self.keep_inbox)
        self._guard.attempt("the ledger", self._keep_ledger)
        self._guard.attempt("the period", self._keep_period)
        self._guard.attempt("the verdict", self._evaluate_when_due)
        self._guard.attempt("the cost of sampling", self._limit_overhead)
        self._guard.attempt("the recording", self.keep_inbox)
        self._guard.attempt("the recording", self._flush)

    def _ask_sources(self, now_s: float) -> None:
        for name, source in list(self.sources.items()):  # a copy: should this thread be abandoned, another empties it
            if not self._due(name, source):
                continue
            for sample in self._guard.ask(f"source {name}", self._samples_of, source, now_s) or ():
                self._guard.attempt("keeping a sample", self._keep, sample)

    def _samples_of(self, source: Source, now_s: float) -> Sequence[Any]:
        found = source.sample(now_s)
        # Our own are typed and may return thousands a second.
        return found if type(source).__module__.startswith("stallmeter.") else sound_samples(found)

    def keep_inbox(self) -> None:
        """Keep what other threads left for the recording."""
        while self._inbox:
            self._keep(self._inbox.popleft())

    def _keep_ledger(self) -> None:
        # The training thread goes on meanwhile: the number of steps may be one behind the time, never ahead of it.
        record = self._read_ledger(self._clock.index, self._clock.epochs, self._ledger.now(), self._ledger.peek())
        if self._is_sparse():
            self._window.append(record)
        else:
            self._keep(record)

    def _keep_period(self) -> None:
        now_s = self._clock.unix_s(self._ledger.now())
        if now_s >= self._period_ends_s or self._final_tick:
            self._close_period(now_s)

    def _evaluate_when_due(self) -> None:
        now_s = self._clock.unix_s(self._ledger.now())
        worker_tuner = self._worker_tuner
        due = (
            now_s >= self._next_verdict_s
            or self._final_tick
            or (worker_tuner is not None and worker_tuner.needs_advice)
        )
        if due and not self._guard.out_of_time:
            self._evaluate(now_s)
        if worker_tuner is not None:
            self._guard("num_workers", self._tune_workers, worker_tuner, due, now_s)
        self.name_hanging_trackers(TRACKER_HANG_S)

    def _due(self, name: str, source: Source) -> bool:
        """Whether to ask a source in this tick: not always when that costs too much, unless it would overflow."""
        if self._final_tick or self._ticks % self._limiter.level == 0:
            return True
        return bool(self._guard.ask(f"source {name}'s overflows", lambda: bool(getattr(source, "overflows", False))))

    def _limit_overhead(self) -> None:
        """Watch less closely when watching costs too much."""
        self._ticks += 1
        if self._limiter.note((self._ledger.now() - self._ledger.origin) / 1e9, self.sampler.cpu_s):
            detail = f"to cost less: stallmeter's own thread took {self._limiter.share_pct or 0.0:.2f} % of the time"
            name = f"{SAMPLING} {self._limiter.level * self._options.interval_s:g} s"
            self._keep(Event(time_s=time.time(), name=name, detail=detail))

    def _tune_workers(self, worker_tuner: WorkerTuner, fresh: bool, now_s: float) -> None:
        advice = self._own_verdict.num_workers
        if worker_tuner.decides_for_all:
            advice = None if self._job_watch is None else self._job_watch.num_workers
        budget = self._window.facts.budget
        cpus = None if budget is None else budget.usable_cpus
        seen = Seen(verdict=self._own_verdict, loader=self._window.present().loader.info, cpus=cpus)
        worker_tuner.decide(advice, fresh=fresh, now_s=now_s, seen=seen)
        exchange = worker_tuner.exchange
        told = self._guard.ask("num_workers of all ranks", exchange, self._output.recorder, self._final_tick)
        trials = worker_tuner.heard(told or ())
        for trial in (*trials, *(worker_tuner.finish(advice) if self._final_tick else ())):
            self._keep(trial)

    def _report_pending_deliveries(self) -> None:
        """Say which earlier recordings their tracker has not got: nobody else will."""
        recorder = self._output.recorder
        if not self._options.console or self._context.rank != 0 or recorder is None:
            return
        found = pending_deliveries(self._context.recordings, but=recorder.folder)
        if found:
            _log.warning(
                "stallmeter: %d earlier recording%s did not reach the tracker in full; send with: stallmeter sync %s",
                len(found),
                "s" if len(found) > 1 else "",
                as_typed(self._context.recordings if len(found) > 1 else found[0]),
            )

    def _flush(self) -> None:
        """Write what came in since the last flush. A disk that is full may have room again: it is tried each time."""
        if self._output.recorder is None:
            return
        try:
            self._output.recorder.flush()
        except OSError as exc:
            if not self._disk_failed:
                _log.warning("stallmeter: the recording cannot be written and is kept in memory: %s", exc)
            self._disk_failed = True
        else:
            self._disk_failed = False
            self._tell_losses(self._output.recorder)

    def _tell_losses(self, recorder: AnyRecorder) -> None:
        """Say what the recording lacks, now that it can be written again."""
        for lost in recorder.take_losses():
            _log.warning("stallmeter: the recording is not complete: %s", lost)
            self._keep(Event(time_s=time.time(), name="the recording is not complete", detail=redact(lost)))
            recorder.flush()

    def _take_steps(self) -> None:
        if not self._median_step_s or self._ticks % MEDIAN_TICKS == 0:
            known = self._window.steps.step_time_s
            # Of the first steps, too, those must be kept that took long: they tell what warm-up cost.
            self._median_step_s = known.median if known else self._clock.typical_s()
        now_ns = self._ledger.now()
        room = DETAIL_STEPS_PER_S / self._limiter.level * max(1.0, (now_ns - self._taken_ns) / 1e9)
        self._taken_ns = now_ns
        every = 1 << (max(1, math.ceil(self._clock.pending / room)) - 1).bit_length()
        if self._output.recorder is not None:
            every *= self._output.recorder.detail
        self._every = every
        # Asked before the steps are: those before a boundary are then among them.
        boundaries = self._worker_tuner.take_boundaries() if self._worker_tuner is not None else []
        slower_than_s = OUTLIER_FACTOR * self._median_step_s or math.inf
        drained = self._clock.drain(every, slower_than_s, first=FIRST_STEPS)
        self._lost_steps += drained.lost
        self._recorded_steps += len(drained.steps)
        if drained.samples is None or self._samples is None:  # of a part of them no rate can be told
            self._samples = None
        else:
            self._samples += drained.samples
        self._period.count(drained.count)
        for step in drained.steps:
            self._awaited[step.index] = None
            while boundaries and boundaries[0].step <= step.index:
                self._cross(boundaries.pop(0))
            self._keep(step)
            if self._worker_tuner is not None:
                self._worker_tuner.step(step)
        for boundary in boundaries:
            self._cross(boundary)
        while len(self._awaited) > HELD_ROWS:
            del self._awaited[next(iter(self._awaited))]

    def _cross(self, boundary: EpochBoundary) -> None:
        assert self._worker_tuner is not None
        records = self._guard("num_workers", self._worker_tuner.on_boundary, boundary)
        if boundary.taken is not None:
            self._keep(self._read_ledger(boundary.step, boundary.epochs, boundary.at_ns, boundary.acc))
        for record in records or ():
            self._keep(record)

    def _keep(self, record: Any) -> None:
        self._window.append(record)
        self._period.add(record)
        if self._job_watch is not None:
            self._job_watch.keep(record)
        if self._output.recorder is not None and self._in_detail(record):
            self._output.recorder.write(record)

    def _in_detail(self, record: Any) -> bool:
        """Whether a record of a kind that comes all the time is to be recorded: as many batches as steps, say."""
        match record:
            case WorkerBatch():
                number = self._batches.get(record.worker, 0)
                self._batches[record.worker] = number + 1
                return number % self._every == 0
            case DeviceStep():
                return record.index in self._awaited
            case HostSample() | GpuSample() | AllocatorSample():
                return not self._is_sparse()
            case _:
                return True

    def _is_sparse(self) -> bool:
        """Whether the recording has grown so long that this tick's samples are left out of it; the window has them."""
        if self._output.recorder is None or self._final_tick:
            return False
        return self._ticks % min(SPARSE_TICKS, self._output.recorder.detail) != 0

    def _read_ledger(self, steps: int, epochs: int, at_ns: int, acc: list[int]) -> LedgerRecord:
        spent = [0] * len(BUCKETS)
        parts: dict[int, dict[str, float]] = {CALLBACKS: {}, LOGGING: {}, VALIDATION: {}}
        # The training thread adds slots at any time: to the list's end, so that what was copied before still fits.
        for ns, (bucket, name) in zip(acc, list(self._ledger.slots), strict=False):
            spent[bucket] += ns
            if name is not None and ns and bucket in parts:
                parts[bucket][name] = ns / 1e9
        buckets = {name: spent[i] / 1e9 for i, name in enumerate(BUCKETS)}
        first_waits = self._window.steps.first_waits
        startup = 0.0 if first_waits is None else min(first_waits.all_s, buckets["data_wait"])
        buckets["data_wait"] -= startup
        buckets["worker_startup"] += startup
        warm_up = self._window.steps.warm_up
        for name, seconds in warm_up.buckets.items() if warm_up is not None else ():
            moved = min(seconds, buckets[name])
            buckets[name] -= moved
            buckets["warmup"] += moved
        return LedgerRecord(
            time_s=self._clock.unix_s(at_ns),
            wall_s=sum(acc) / 1e9,
            steps=steps,
            epochs=epochs,
            buckets=buckets,
            callbacks=parts[CALLBACKS],
            logging=parts[LOGGING],
            validation_parts=parts[VALIDATION],
            own_s=acc[self._own_slot] / 1e9,
            thread_cpu_s=self.sampler.cpu_s,
            lost_steps=self._lost_steps,
            recorded_steps=self._recorded_steps,
            samples=self._samples or None,
        )

    def _close_period(self, now_s: float) -> None:
        record = self._period.close(now_s, self._clock.tracker_step)
        if record is not None:
            self._keep(record)
        self._period = Period(now_s)
        self._period_ends_s = now_s + period_s(now_s - self._clock.unix_s(self._ledger.origin), self._options.period_s)

    def _evaluate(self, now_s: float) -> None:
        self._next_verdict_s = now_s + VERDICT_EVERY_S * self._limiter.level
        verdict = evaluate(self._options.rules, self._window, self._guard.ask)
        changed = verdict.primary != self._own_verdict.primary
        self._own_verdict = verdict
        for look, rule in product(self._looks, rules_of(verdict)):
            self._guard.attempt(f"source {look.name}", look.request, rule, self._clock.index)
        if self._output.recorder is not None and (changed or self._final_tick):
            self._output.recorder.write(verdict)
        if self._final_tick:
            self._guard.attempt("the recording", self._flush)  # the other ranks may be waited for
        self.verdict = self._of_the_job(verdict)
        if self._output.forwarder is not None:
            page = self._guard("the run's page", self.page)
            if page is not None:
                self._output.forwarder.show(page)

    def _of_the_job(self, own: Verdict) -> Verdict:
        watch, guard, final = self._job_watch, self._guard, self._final_tick
        if watch is None:
            return own
        if self._hurried:
            if final:
                guard.attempt("the other ranks", watch.leave)
        elif guard.attempt("the job", watch.begin, self._output.recorder, own, self._reason if final else None):
            guard.ask("the other ranks", watch.exchange, again=final)
            guard.attempt("the job's verdict", watch.judge)
        return alone(own, self._context.world_size) if watch.judged is None else watch.judged.verdict

    @property
    def job(self) -> JobReport | None:
        """What reports show of the job's ranks; None on other ranks than 0, and while no other is known."""
        return None if self._job_watch is None else self._job_watch.report

    def page(self, files: Mapping[str, Path] | None = None, *, final: bool = False) -> Page:
        """Return the run's page as it is now, with the files that there are."""
        return build_page(summarize(self._window, self.verdict, job=self.job), files or {}, final=final)

    def name_hanging_trackers(self, longer_than_s: float) -> None:
        """Name the trackers whose one call has taken longer than this."""
        forwarder = self._output.forwarder
        for label in () if forwarder is None else forwarder.hanging(longer_than_s):
            rest = "what it has not got stays in the recording"
            self._guard.name_once(f"tracker {label}", "does not answer", rest, key=f"hanging tracker {label}")
