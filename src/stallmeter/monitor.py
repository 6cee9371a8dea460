"""The one orchestrator: sources to window to rules to recording to trackers. Holds the single guard.

Two threads touch a monitor. The training thread moves the ledger and the step clock, and nothing else. The sampler
thread does the rest in `_tick`, once a second: steps out of the clock, samples out of the sources, both into the window
and the recording. Rules and sources are asked there alone, the last time too: one that hangs costs a thread, not the
training. Trackers are fed by the forwarder from the recording.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import sys
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from .checks import sound_samples
from .clock import StepClock
from .diagnosis import Verdict
from .errors import SettingError
from .forwarder import Forwarder, Undelivered
from .interfaces import Page, Rule, Source, Tracker
from .judge import judge
from .ledger import CALLBACKS, COMPUTE, LOGGING, LOOP, OTHER, START, Ledger, Span, WorkSpan
from .leftovers import leftovers
from .loop import Watched, batch_size
from .metrics import BASE_PERIOD_S, Period, period_s
from .recording import Header, Recorder, redact
from .records import BUCKETS, BatchContent, Event, LedgerRecord, LoaderInfo, UserMetrics
from .report.files import write_reports
from .report.model import read_history, summarize
from .report.page import build_page
from .report.wording import headline
from .retune import Boundary, Retuner
from .sampler import LeftBehind, Sampler
from .thrift import Thrift
from .version import VERSION
from .window import Window
from .workers import batch_shape

T = TypeVar("T")
_log = logging.getLogger("stallmeter")

OWN_NAME = "StallMonitor"
"""Name under which stallmeter's own hooks stand among the callbacks."""

DETAIL_STEPS_PER_S = 100
"""Up to this rate every step is recorded with its detail; above it a sample and every outlier."""

OUTLIER_FACTOR = 3.0
"""A step this many times slower than the median is recorded however fast steps come."""

VERDICT_EVERY_S = 5.0
CLOSE_BUDGET_S = 10.0
HANG_S = 5.0
"""A source or rule that takes longer than this at the end of a run is left behind."""

TRACKER_HANG_S = 60.0
"""A tracker whose one call takes longer than this is named. It goes on where it stopped when it answers again."""

GIVE_UP_S = 15.0
"""Most time for the last sample at the end of a run, those that hang in it included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a monitor behaves; the defaults are what you get when you say nothing."""

    directory: Path = Path("stallmeter")
    """Where recordings go; each run makes a folder of its own below it."""
    interval_s: float = 1.0
    """Time between two samples of the hardware."""
    period_s: float = BASE_PERIOD_S
    """Time between two points on a tracker; grows with the run."""
    close_budget_s: float = CLOSE_BUDGET_S
    """Most seconds that the end of a run may be delayed to deliver what is left."""
    framework: str = "loop"
    loop_bucket: Literal["loop", "compute"] = "compute"
    """Bucket of the time outside every span."""
    rank: int = 0
    world_size: int = 1
    run_id: str | None = None
    console: bool = True
    """Whether the verdict is written to stderr when the run ends."""
    sync_probe_steps: int = 2
    """Steps in which calls that wait for a CUDA device are looked for, once after the warm-up; 0 for none."""
    deep_steps: int = 0
    """Steps of torch.profiler when the cause lies inside the step, once; 0 for none."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Static facts for the report."""

    def __post_init__(self) -> None:
        for name in ("interval_s", "period_s"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0.01 <= value <= 86_400:
                raise SettingError(f"{name} is {value!r}; give a number of seconds between 0.01 and 86400")
        for name in ("sync_probe_steps", "deep_steps"):
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 <= value <= 1000:
                raise SettingError(f"{name} is {value!r}; give a number of steps from 0, for none, to 1000")
        if self.close_budget_s < 0:
            raise SettingError(f"close_budget_s is {self.close_budget_s!r}; give 0 or more seconds")


class Monitor:
    """Records one run on one rank.

    Args:
        settings: How to behave.
        sources: What is measured besides the loop.
        rules: What is looked for.
        trackers: Where the recording is forwarded; only rank 0 forwards.
        now: Monotonic nanoseconds; passed in by tests.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        sources: Sequence[Source] = (),
        rules: Sequence[Rule] = (),
        trackers: Sequence[Tracker] = (),
        now: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.settings = settings
        self.ledger = Ledger(START, now)
        in_lightning = settings.loop_bucket == "loop"
        self.clock = StepClock(
            self.ledger, loop=LOOP if in_lightning else COMPUTE, idle=LOOP if in_lightning else OTHER
        )
        self.window = Window()
        self.window.facts.update(settings.facts)
        self.verdict = Verdict(primary=None)
        self.folder: Path | None = None
        """Folder of the recording; None when it could not be written."""
        self.undelivered: tuple[Undelivered, ...] = ()
        self._pid = os.getpid()
        self._sources = {source.name: source for source in sources}
        self._rules = tuple(rules)
        self._trackers = tuple(trackers)
        self._casualties: dict[str, object] = {}
        self._hung: set[str] = set()
        self._recorder: Recorder | None = None
        self._forwarder: Forwarder | None = None
        self._sampler = Sampler(self._tick, settings.interval_s, leave=self._leave, last=self._last_tick)
        self._inbox: deque[UserMetrics | Event | BatchContent] = deque(maxlen=10_000)
        self._own_slot = self.ledger.slot(CALLBACKS, OWN_NAME)
        self._thrift = Thrift()
        self._ticks = 0
        self._taken_ns = self.ledger.origin
        self._samples: int | None = None
        self._lost_steps = self._recorded_steps = 0
        self._next_verdict_s = self._period_ends_s = 0.0
        self._period = Period(self.clock.unix_s(self.ledger.origin))
        self._closed = False
        self._probe: Any = None
        self._profiler: Any = None
        self._between_steps: deque[tuple[str, Callable[[StepClock], bool]]] = deque()
        self._retuner: Retuner | None = None
        self._looked = False
        self._reason = ""
        self._final_tick = self._ended = False
        self._hurry = False
        """Whether no source or rule is asked any more: there is no time left to find out whether it hangs."""
        self._disk_failed = False
        self._asked = ""
        """The source or rule that the sampler thread waits for."""
        self._looked_back = False

    # -- the single guard -------------------------------------------------------------------------------------------

    def guard(self, name: str, call: Callable[..., T], *args: Any) -> T | None:
        """Call something that may fail without hurting the training.

        What fails is named once in a warning and in the recording, and never called again.

        Returns:
            What ``call`` returned; None when it failed now or before.
        """
        return None if name in self._casualties else self._attempt(name, call, *args, outcome="switched off")

    def _attempt(self, name: str, call: Callable[..., T], *args: Any, outcome: str = "failed") -> T | None:
        """Call something even if it failed before: our own parts, and the last call to what has to be let go.

        Only what hung is not called again: it would hang here, too.
        """
        if name in self._hung:
            return None
        try:
            return call(*args)
        except Exception as exc:  # noqa: BLE001 - the one guard: training never fails because of us
            said = "".join(traceback.format_exception_only(type(exc), exc))  # str() of a foreign error may fail
            if self._name(name, outcome, redact(said[:2000]).strip()[:500]):
                _log.debug("stallmeter: %s", name, exc_info=True)
            return None

    def _name(self, name: str, outcome: str, detail: str, key: str = "") -> bool:
        """Say in a warning and in the recording that something failed; the first time only. Returns whether it was."""
        this_time = object()
        if self._casualties.setdefault(key or name, this_time) is not this_time:
            return False
        self._inbox.append(Event(time_s=time.time(), name=f"{name} {outcome}", detail=detail))
        verb = "failed and is switched off" if outcome == "switched off" else outcome
        _log.warning("stallmeter: %s %s; training goes on. %s", name, verb, detail)
        return True

    def _ask(self, name: str, call: Callable[[], T], *, again: bool = False) -> T | None:
        """Guard a call to a source or a rule, which may hang: the sampler thread is then left behind with it."""

        def ask() -> T:
            try:
                return call()
            except BaseException as exc:
                if isinstance(exc, (Exception, KeyboardInterrupt)):
                    raise
                # SystemExit and the like would end the thread without a word.
                raise RuntimeError(f"it raised {type(exc).__name__}") from exc

        if self._hurry:
            return None
        before, self._asked = self._asked, name
        found = self._attempt(name, ask) if again else self.guard(name, ask)
        if self._sampler.is_left():
            raise LeftBehind  # another thread goes on
        self._asked = before
        return found

    def _leave(self) -> bool:
        """Switch off the source or rule that hangs in the sampler thread; False when none does."""
        name = self._asked
        if not name:
            return False
        self._hung.add(name)
        self._name(name, "switched off", "it hangs: no answer came in time")
        self._asked = ""
        return True

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> Monitor:
        """Open the recording and start the threads."""
        self._recorder = self.guard("opening the recording", self._open_recorder)
        if self._recorder is not None:
            self.folder = self._recorder.folder
            if self._trackers:
                self._forwarder = self.guard("forwarding", self._open_forwarder, self.folder)
        self._period_ends_s = self._period.started_s + self.settings.period_s
        self.guard("starting to sample", self._sampler.start)
        return self

    def _open_recorder(self) -> Recorder:
        settings = self.settings
        run_id = settings.run_id or secrets.token_hex(3)
        started_s = self.clock.unix_s(self.ledger.origin)
        header = Header(
            run_id=run_id,
            rank=settings.rank,
            world_size=settings.world_size,
            started_s=started_s,
            host=socket.gethostname(),
            pid=self._pid,
            version=VERSION,
            framework=settings.framework,
            settings=self.window.facts,
        )
        recorder = Recorder(_run_folder(settings.directory, run_id, started_s, settings.world_size), header)
        recorder.flush()
        return recorder

    def _open_forwarder(self, folder: Path) -> Forwarder:
        rank = self.settings.rank
        return Forwarder(
            folder, rank, self._trackers, guard=self.guard, let_go=self._attempt, on_problem=self._on_problem
        )

    def close(self, reason: str = "end") -> None:
        """End the run: last samples, last verdict, reports, and whatever the trackers still lack. Idempotent."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._attempt("the last step", self.clock.pause)
        self._attempt("the last step", self.ledger.unwind)
        deadline = time.monotonic() + self.settings.close_budget_s
        self._reason = reason
        self._end_sampling()
        files = self._attempt("the reports", self._write_reports) or {}
        if self._forwarder is not None:
            self._attempt("forwarding", self._end_forwarding, self._forwarder, files, deadline)
        if self._recorder is not None:  # what failed since the last sample is still told
            self._attempt("the recording", self._keep_inbox)
            self._attempt("the recording", self._recorder.close)
        self._attempt("the last words", self._say_goodbye)

    def _end_sampling(self) -> None:
        """Have the sampler thread take the last sample. A source or rule that hangs in it is left behind."""
        give_up_s = time.monotonic() + GIVE_UP_S
        while not self._sampler.stop(HANG_S):
            if self._leave():
                self._hurry = time.monotonic() >= give_up_s - HANG_S
                self._sampler.restart()
            elif time.monotonic() >= give_up_s:
                _log.warning("stallmeter: the last sample takes too long and is left out")
                self._recorder = None
                return
        if not self._ended:  # no thread could be had for it
            self._hurry = bool(self._hung)
            self._attempt("the last sample", self._last_tick)

    def _last_tick(self) -> None:
        """What the sampler thread does before it ends; begun again where a source or rule hung in it."""
        if not self._final_tick:
            self._final_tick = True
            self._inbox.append(Event(time_s=time.time(), name="end", detail=self._reason))
        self._tick()
        while self._sources:
            name = next(iter(self._sources))
            self._ask(f"source {name}", self._sources.pop(name).close, again=True)
        self._attempt("the recording", self._keep_inbox)
        self._attempt("the recording", self._flush)
        self._ended = True

    def _end_forwarding(self, forwarder: Forwarder, files: Mapping[str, Path], deadline: float) -> None:
        page = self._attempt("the run's page", self._page, files)
        if page is not None:
            forwarder.show(page)
        for tracker in self._trackers:
            if self._reason.startswith("exception") and hasattr(tracker, "end_status"):
                tracker.end_status = "FAILED"
        self.undelivered = forwarder.close(max(0.0, deadline - time.monotonic()))
        self._name_hanging(forwarder, 0.0)

    def _name_hanging(self, forwarder: Forwarder, longer_than_s: float) -> None:
        for label in forwarder.hanging(longer_than_s):
            rest = "what it has not got stays in the recording"
            self._name(f"tracker {label}", "does not answer", rest, key=f"hanging tracker {label}")

    def _write_reports(self) -> dict[str, Path]:
        if self.folder is None:
            return {}
        folder, rank = self.folder, self.settings.rank
        history = read_history(folder, rank)
        files = write_reports(folder, rank, history, history.report(), self.guard)
        return files if self._profiler is None else {**files, **self._profiler.files}

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self.close("end" if kind is None else f"exception: {kind.__name__}")

    # -- the training thread ------------------------------------------------------------------------------------------

    def watch(self, loader: Iterable[T], *, stage: Literal["train", "validation"] = "train") -> Watched[T]:
        """Wrap a loader so that iterating over it is timed: each batch is one step.

        Args:
            loader: Any iterable. Wrap what the loop iterates over, after Fabric or Accelerate have prepared it.
            stage: ``validation`` books everything from the first batch to the last as validation.

        Raises:
            SettingError: ``stage`` is unknown or ``loader`` cannot be iterated.
        """
        if stage not in ("train", "validation"):
            raise SettingError(f"stage is {stage!r}; give 'train' or 'validation'")
        if not hasattr(loader, "__iter__"):
            raise SettingError(f"watch() needs something to iterate over, not {type(loader).__name__}")
        return Watched(
            loader,
            self.clock,
            stage=stage,
            prepare=self._prepare_loader,
            started=self._iterator_started,
            size=self.size,
        )

    def span(self, bucket: str, name: str | None = None) -> AbstractContextManager[str]:
        """Return a reusable ``with`` block whose time is booked under a bucket.

        Args:
            bucket: ``forward``, ``backward``, ``optimizer``, ``h2d``, ``validation``, ``checkpoint``, ``logging``,
                ``callbacks`` or ``compute``.
            name: For ``callbacks`` and ``logging``: who it is.

        Raises:
            SettingError: No such bucket.
        """
        allowed = [b for b in BUCKETS if b not in ("start", "worker_startup", "data_wait", "loop", "other")]
        if bucket not in allowed:
            raise SettingError(f"there is no bucket {bucket!r}; use one of {', '.join(allowed)}")
        works = bucket in ("h2d", "forward", "backward", "optimizer", "compute", "validation")
        return (WorkSpan if works else Span)(self.ledger, self.ledger.slot(BUCKETS.index(bucket), name), bucket)

    def log(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Forward metrics of your own beside ours, from any thread, without waiting for the tracker.

        Args:
            metrics: Numbers by name.
            step: x axis; the current step by default.

        Raises:
            SettingError: A value is no number.
        """
        clean = {}
        for key, value in metrics.items():
            if not isinstance(value, (int, float)) and not hasattr(value, "__float__"):
                raise SettingError(f"log() takes numbers; {key!r} is {value!r}")
            clean[str(key)] = float(value)
        at = self.clock.tracker_step if step is None else int(step)
        self._inbox.append(UserMetrics(time_s=time.time(), tracker_step=at, metrics=clean))

    def size(self, batch: object) -> int | None:
        """Return the number of items in a batch, None when it cannot be known; never raises."""
        if not self._looked:
            self.look(batch)
        return self.guard("batch size", batch_size, batch)

    def look(self, batch: object) -> None:
        """Note once what a batch of the training loader holds: what handing it over must cost."""
        self._looked = True
        shape = self.guard("batch content", batch_shape, batch)
        if shape is not None and shape.tensors:
            self._inbox.append(BatchContent(time_s=time.time(), tensors=shape.tensors, bytes=shape.bytes))

    def tell(self, event: Event) -> None:
        """Record an event; from any thread."""
        self._inbox.append(event)

    def use_retuner(self, retuner: Retuner | None) -> None:
        """Let the training loader's number of workers change between epochs; None leaves it."""
        self._retuner = retuner

    def meet_loader(self, loader: object, why_not: str | None = None) -> None:
        """Say which loader the training iterates, before its first iteration.

        Args:
            loader: The loader.
            why_not: Why its number of workers must stay as it is.
        """
        if self._retuner is not None:
            self.guard("num_workers", self._retuner.meet, loader, why_not)

    def between_epochs(self) -> bool:
        """The loop stands between two epochs, before `StepClock.new_epoch`. Returns whether the loader has changed."""
        if self._retuner is None or not self.clock.index:
            return False
        return bool(self.guard("num_workers", self._retuner.boundary, self.clock))

    def add_source(self, source: Source | None) -> None:
        """Take one more source before the monitor starts; None, a source that cannot be had here, is ignored."""
        if source is not None:
            self._sources[source.name] = source

    def add_facts(self, name: str, find: Callable[[], object]) -> None:
        """Add a static fact to the recording's header, before the monitor starts."""
        found = self.guard(f"finding the {name}", find)
        if found is not None:
            self.window.facts[name] = found

    def use_trackers(self, trackers: Sequence[Tracker]) -> None:
        """Say where to forward, before the monitor starts."""
        self._trackers = tuple(trackers)

    @property
    def trackers(self) -> tuple[Tracker, ...]:
        """Where the recording is forwarded."""
        return self._trackers

    @property
    def closed(self) -> bool:
        """Whether the run has ended."""
        return self._closed

    def use_profiler(self, profiler: Any) -> None:
        """Take the source that profiles a few steps when a verdict asks for it."""
        self._profiler = profiler
        self._sources[profiler.name] = profiler

    def between_steps(self, name: str, call: Callable[[StepClock], bool]) -> None:
        """Have something called by the training thread between two steps until it returns False or fails."""
        self._between_steps.append((name, call))
        self.clock.at_boundary = self._at_boundary

    def _at_boundary(self) -> None:
        self.ledger.enter(self._own_slot)
        calls = self._between_steps
        for _ in range(len(calls)):
            name, call = calls.popleft()
            if self.guard(name, call, self.clock):
                calls.append((name, call))
        if not calls:
            self.clock.at_boundary = None
            if calls:  # another thread has just added one
                self.clock.at_boundary = self._at_boundary
        self.ledger.exit(self._own_slot)

    def use_probe(self, probe: Any) -> None:
        """Take the loader probe, which is also a source, so that loaders can be attached to it."""
        self._probe = probe
        self._sources[probe.name] = probe

    def probe_loader(self, loader: object, default_init: Callable[[int], None] | None = None) -> LoaderInfo | None:
        """Attach the worker probe to a loader that is about to be iterated."""
        probe = self._probe
        if probe is None:
            return None
        info = self.guard("worker probe", lambda: probe.attach(loader, default_init=default_init))
        if info is None:
            return None
        clock = self.clock
        if info.num_workers is None:
            clock.before_fetch = clock.after_fetch = None
        elif info.num_workers == 0:
            clock.before_fetch, clock.after_fetch = _untold(probe.loop_before), _untold_after(probe.loop_after)
        else:
            clock.before_fetch, clock.after_fetch = probe.asked, probe.answered
        return info  # type: ignore[no-any-return]

    def _prepare_loader(self, loader: object) -> None:
        self.meet_loader(loader)
        self.between_epochs()
        self.probe_loader(loader)

    def iterator_from(self, iterator_of: Callable[[], object | None]) -> None:
        """A new epoch began: tell the probe where its iterator is."""
        if self._probe is not None:
            self._probe.iterator_of = iterator_of
            self._probe.new_epoch()

    def _iterator_started(self, iterator: object) -> None:
        try:
            known: Callable[[], object | None] = weakref.ref(iterator)
        except TypeError:  # built-in iterators; they have no workers that a reference would keep alive
            return
        self.guard("worker probe", self.iterator_from, known)

    # -- the sampler thread -------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Take what came in since the last tick. Each part fails alone, and is tried again in the next tick."""
        if not self._looked_back:
            self._looked_back = True
            self.guard("looking for leftovers", self._report_leftovers)
        self._attempt("taking the steps", self._take_steps)
        self._ask_sources(time.time())
        self._attempt("the recording", self._keep_inbox)
        self._attempt("the ledger", self._keep_ledger)
        self._attempt("the period", self._keep_period)
        self._attempt("the verdict", self._judge_when_due)
        self._attempt("the cost of sampling", self._spare)
        self._attempt("the recording", self._keep_inbox)
        self._attempt("the recording", self._flush)

    def _ask_sources(self, now_s: float) -> None:
        for name, source in list(self._sources.items()):
            for sample in self._ask(f"source {name}", lambda s=source: self._samples_of(s, now_s)) or ():  # type: ignore[misc]
                self._attempt("keeping a sample", self._keep, sample)

    def _samples_of(self, source: Source, now_s: float) -> Sequence[Any]:
        if not self._due(source):
            return ()
        found = source.sample(now_s)
        # Our own are typed and may return thousands a second.
        return found if type(source).__module__.startswith(f"{__package__}.") else sound_samples(found)

    def _keep_inbox(self) -> None:
        while self._inbox:
            self._keep(self._inbox.popleft())

    def _keep_ledger(self) -> None:
        self._keep(self._read_ledger(self.clock.index, self.clock.epochs, self.ledger.now(), self.ledger.peek()))

    def _keep_period(self) -> None:
        now_s = self.clock.unix_s(self.ledger.now())
        if now_s >= self._period_ends_s or self._final_tick:
            self._close_period(now_s)

    def _judge_when_due(self) -> None:
        now_s = self.clock.unix_s(self.ledger.now())
        retuner = self._retuner
        due = now_s >= self._next_verdict_s or self._final_tick or (retuner is not None and retuner.behind)
        if due and not self._hurry:
            self._judge(now_s)
        if retuner is not None:
            self.guard("num_workers", self._retune, retuner, due)
        if self._forwarder is not None:
            self._name_hanging(self._forwarder, TRACKER_HANG_S)

    def _due(self, source: Source) -> bool:
        """Whether to ask a source in this tick: not always when that costs too much, unless it would overflow."""
        return self._final_tick or self._ticks % self._thrift.level == 0 or bool(getattr(source, "overflows", False))

    def _spare(self) -> None:
        """Watch less closely when watching costs too much."""
        self._ticks += 1
        wall_s = (self.ledger.now() - self.ledger.origin) / 1e9
        if self._thrift.note(wall_s, self._sampler.cpu_s):
            detail = f"stallmeter's own thread took {self._thrift.share_pct or 0.0:.2f} % of the wall time"
            name = f"sampling every {self._thrift.level * self.settings.interval_s:g} s"
            self._keep(Event(time_s=time.time(), name=name, detail=detail))

    def _retune(self, retuner: Retuner, judged: bool) -> None:
        retuner.consider(self.verdict.num_workers, fresh=judged)
        if self._final_tick:
            for trial in retuner.finish(self.verdict.num_workers):
                self._keep(trial)

    def _report_leftovers(self) -> None:
        """Say which earlier recordings their tracker has not got: nobody else will."""
        if not self.settings.console or self.settings.rank != 0 or self.folder is None:
            return
        found = leftovers(self.settings.directory, but=self.folder)
        if found:
            _log.warning(
                "stallmeter: %d earlier recording%s did not reach the tracker in full; send with: stallmeter sync %s",
                len(found),
                "s" if len(found) > 1 else "",
                self.settings.directory if len(found) > 1 else found[0],
            )

    def _flush(self) -> None:
        """Write what came in since the last flush. A disk that is full may have room again: it is tried each time."""
        if self._recorder is None:
            return
        try:
            self._recorder.flush()
        except OSError as exc:
            if not self._disk_failed:
                _log.warning("stallmeter: the recording cannot be written and is kept in memory: %s", exc)
            self._disk_failed = True
        else:
            self._disk_failed = False

    def _take_steps(self) -> None:
        median = self.window.step_time_s.median if self.window.step_time_s else 0.0
        now_ns = self.ledger.now()
        room = DETAIL_STEPS_PER_S / self._thrift.level * max(1.0, (now_ns - self._taken_ns) / 1e9)
        self._taken_ns = now_ns
        every = max(1, math.ceil(self.clock.pending / room))
        if self._recorder is not None:
            every *= self._recorder.detail
        # Asked before the steps are: those before a boundary are then among them.
        boundaries = self._retuner.crossed() if self._retuner is not None else []
        drained = self.clock.drain(every, OUTLIER_FACTOR * median or math.inf)
        self._lost_steps += drained.lost
        self._recorded_steps += len(drained.steps)
        if drained.samples is not None:
            self._samples = (self._samples or 0) + drained.samples
        self._period.count(drained.count)
        for step in drained.steps:
            while boundaries and boundaries[0].step <= step.index:
                self._cross(boundaries.pop(0))
            self._keep(step)
            if self._retuner is not None:
                self._retuner.step(step)
        for boundary in boundaries:
            self._cross(boundary)

    def _cross(self, boundary: Boundary) -> None:
        assert self._retuner is not None
        records = self.guard("num_workers", self._retuner.passed, boundary)
        if boundary.taken is not None:
            self._keep(self._read_ledger(boundary.step, boundary.epochs, boundary.at_ns, boundary.acc))
        for record in records or ():
            self._keep(record)

    def _keep(self, record: Any) -> None:
        self.window.append(record)
        self._period.add(record)
        if self._recorder is not None:
            self._recorder.write(record)

    def _read_ledger(self, steps: int, epochs: int, at_ns: int, acc: list[int]) -> LedgerRecord:
        spent = [0] * len(BUCKETS)
        parts: dict[int, dict[str, float]] = {CALLBACKS: {}, LOGGING: {}}
        for ns, (bucket, name) in zip(acc, list(self.ledger.slots), strict=False):
            spent[bucket] += ns
            if name is not None and ns and bucket in parts:
                parts[bucket][name] = ns / 1e9
        buckets = {name: spent[i] / 1e9 for i, name in enumerate(BUCKETS)}
        startup = min(self.window.startup_excess_s, buckets["data_wait"])
        buckets["data_wait"] -= startup
        buckets["worker_startup"] += startup
        return LedgerRecord(
            time_s=self.clock.unix_s(at_ns),
            wall_s=sum(acc) / 1e9,
            steps=steps,
            epochs=epochs,
            buckets=buckets,
            callbacks=parts[CALLBACKS],
            logging=parts[LOGGING],
            own_s=acc[self._own_slot] / 1e9,
            thread_cpu_s=self._sampler.cpu_s,
            lost_steps=self._lost_steps,
            recorded_steps=self._recorded_steps,
            samples=self._samples,
        )

    def _close_period(self, now_s: float) -> None:
        record = self._period.close(now_s, self.clock.tracker_step)
        if record is not None:
            self._keep(record)
        self._period = Period(now_s)
        self._period_ends_s = now_s + period_s(now_s - self.clock.unix_s(self.ledger.origin), self.settings.period_s)

    def _judge(self, now_s: float) -> None:
        self._next_verdict_s = now_s + VERDICT_EVERY_S * self._thrift.level
        verdict = judge(self._rules, self.window, self._ask)
        changed = verdict.primary != self.verdict.primary
        self.verdict = verdict
        if self._profiler is not None and verdict.primary is not None:
            self._profiler.request(verdict.primary.rule, self.clock.index)
        if self._recorder is not None and (changed or self._final_tick):
            self._recorder.write(verdict)
        if self._forwarder is not None:
            page = self.guard("the run's page", self._page)
            if page is not None:
                self._forwarder.show(page)

    def _page(self, files: Mapping[str, Path] | None = None) -> Page:
        """Return the run's page; the final one is the one that has been given the reports."""
        return build_page(summarize(self.window, self.verdict), files or {}, final=files is not None)

    def _on_problem(self, tracker: str, message: str) -> None:
        self._inbox.append(Event(time_s=time.time(), name=f"{tracker} stopped", detail=redact(message)[:500]))
        _log.warning("stallmeter: forwarding to %s stopped: %s", tracker, redact(message))

    def _say_goodbye(self) -> None:
        if not self.settings.console or self.settings.rank != 0:
            return
        line = self.guard("the headline", lambda: headline(self.verdict, self.window.trials))
        if self.folder is not None and line:
            sys.stderr.write(f"stallmeter: {line}\nstallmeter: details: stallmeter report {self.folder}\n")
        for left in self.undelivered:
            _log.warning(
                "stallmeter: %d points did not reach %s; send them with: stallmeter sync %s",
                left.points,
                left.destination,
                self.folder,
            )


def _untold(before: Callable[[], None]) -> Callable[[], tuple[int | None, bool | None]]:
    def call() -> tuple[int | None, bool | None]:
        before()
        return None, None

    return call


def _untold_after(after: Callable[[], None]) -> Callable[[], bool | None]:
    def call() -> bool | None:
        after()
        return None

    return call


def _run_folder(directory: Path, run_id: str, started_s: float, world_size: int) -> Path:
    """Name the run's folder; ranks that start within minutes under one run id meet in one folder."""
    if world_size > 1 and directory.is_dir():
        recent = [f for f in directory.glob(f"*-{run_id}") if abs(f.stat().st_mtime - started_s) < 300]
        if recent:
            return max(recent, key=lambda f: f.stat().st_mtime)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(started_s))
    return directory / f"{stamp}-{run_id}"
