"""The one orchestrator: sources to window to rules to recording to trackers.

Two threads touch a monitor. The training thread moves the ledger and the step clock, and nothing else. The sampler
thread does the rest in the pipeline, once a second: steps out of the clock, samples out of the sources, both into the
window and the recording, then the rules. Trackers are fed by the forwarder from the recording. What may fail or hang is
called through the one guard.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from .batches import BatchSizes
from .clock import StepClock
from .diagnosis import Verdict
from .ending import Draw, Ending
from .errors import SettingError
from .forwarder import Forwarder, Undelivered
from .guard import Guard
from .identity import Identity, new_name
from .interfaces import Rule, Source, Tracker
from .late import LateRecorder
from .ledger import CALLBACKS, COMPUTE, LOOP, OTHER, START, Ledger, Span, WorkSpan
from .loop import Turns, Watched
from .pipeline import Pipeline
from .program_end import INTERPRETER_EXIT, await_at_exit, forget
from .recording import Header, Recorder, has_recording, redact
from .records import BUCKETS, BatchContent, Event, LoaderInfo, UserMetrics
from .retune import Retuner
from .settings import Settings
from .version import VERSION
from .window import Window
from .witness import mark
from .workers import batch_shape

T = TypeVar("T")
_log = logging.getLogger("stallmeter")

OWN_NAME = "StallMonitor"
"""Name under which stallmeter's own hooks stand among the callbacks."""


class Monitor:
    """Records one run on one rank.

    Args:
        settings: How to behave.
        sources: What is measured besides the loop.
        rules: What is looked for.
        trackers: Where the recording is forwarded; only rank 0 forwards.
        draw: Starts what makes the page and the pictures once the run has ended; without it there are none.
        now: Monotonic nanoseconds; passed in by tests.
        identity: Names the run's folder, the same on all ranks.
        why_not: Why `watch` must not time anything; what it says once.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        sources: Sequence[Source] = (),
        rules: Sequence[Rule] = (),
        trackers: Sequence[Tracker] = (),
        draw: Draw | None = None,
        now: Callable[[], int] = time.perf_counter_ns,
        identity: Identity | None = None,
        why_not: str | None = None,
    ) -> None:
        self.settings = settings
        self.ledger = Ledger(START, now)
        in_lightning = settings.loop_bucket == "loop"
        self.clock = StepClock(
            self.ledger, loop=LOOP if in_lightning else COMPUTE, idle=LOOP if in_lightning else OTHER
        )
        self.window = Window()
        self.window.facts.update(settings.facts)
        self.guard = Guard(self.tell, lambda: self._pipeline.sampler.is_left())
        """Calls what may fail: ``guard(name, call, *args)`` returns what ``call`` returned, None when it failed."""
        self._pid = os.getpid()
        self._identity = identity or Identity(settings.rank, settings.world_size)
        self._trackers = tuple(trackers)
        # Any thread appends, the sampler's takes from the other end: no lock, since a deque does either in one piece.
        self._inbox: deque[UserMetrics | Event | BatchContent] = deque(maxlen=10_000)
        self._own_slot = self.ledger.slot(CALLBACKS, OWN_NAME)
        self._pipeline = Pipeline(
            settings,
            self.clock,
            self.window,
            self.guard,
            self._inbox,
            own_slot=self._own_slot,
            sources=sources,
            rules=rules,
            after=self._run_ending,
            cut_short=lambda: self._ending.cut_short(),
        )
        self._ending = Ending(settings, self._pipeline, self.window, self.guard, draw)
        self._closed = False
        self._probe: Any = None
        self._between_steps: deque[tuple[str, Callable[[StepClock], bool]]] = deque()
        self._looked = False
        self.sizes = BatchSizes()
        self._turns = Turns(self.clock, self._untimed, closed=lambda: self._closed, why_not=why_not)

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> Monitor:
        """Open the recording and start the threads."""
        mark()
        pipeline = self._pipeline
        pipeline.recorder = self.guard("opening the recording", self._open_recorder)
        if self._trackers and self.folder is not None:
            pipeline.forwarder = self.guard("forwarding", self._open_forwarder, self.folder)
        await_at_exit(self)
        self.guard("starting to sample", pipeline.start)
        return self

    def _open_recorder(self) -> Recorder | LateRecorder:
        settings, identity = self.settings, self._identity
        started_s = self.clock.unix_s(self.ledger.origin)
        identity.begin(
            settings.framework,
            lambda: new_name(settings.directory, started_s),
            attempt=self.guard.attempt,
            is_over=lambda: self._closed,
        )
        header = Header(
            run_id="",
            rank=settings.rank,
            world_size=settings.world_size,
            started_s=started_s,
            host=socket.gethostname(),
            pid=self._pid,
            version=VERSION,
            framework=settings.framework,
            settings=self.window.facts,
        )
        name = identity.name()
        return LateRecorder(identity, partial(self._open_at, header)) if name is None else self._open_at(header, name)

    def _open_at(self, header: Header, name: str) -> Recorder:
        """Open the recording in a folder of this name, on any thread."""
        identity, folder = self._identity, self.settings.directory / name
        if has_recording(folder, header.rank):
            name = identity.leave(f"{name} has a recording of rank {header.rank}: two processes have the same rank")
            folder = folder.with_name(name)
        recorder = Recorder(folder, replace(header, run_id=name.rpartition("-")[2]))
        self._pipeline.folder = folder
        if identity.why_alone:
            self.tell(Event(time_s=time.time(), name="a folder of its own", detail=identity.why_alone))
            _log.warning(
                "stallmeter: rank %d records into %s, apart from rank 0: %s", header.rank, folder, identity.why_alone
            )
        return recorder

    def _open_forwarder(self, folder: Path) -> Forwarder:
        rank = self.settings.rank
        return Forwarder(
            folder, rank, self._trackers, guard=self.guard, let_go=self.guard.attempt, on_problem=self._on_problem
        )

    def _on_problem(self, tracker: str, message: str) -> None:
        self._inbox.append(Event(time_s=time.time(), name=f"{tracker} stopped", detail=redact(message)[:500]))
        _log.warning("stallmeter: forwarding to %s stopped: %s", tracker, redact(message))

    def close(self, reason: str = "end") -> None:
        """End the run: last sample, last verdict, short reports, and what the trackers still lack. Idempotent.

        Page and pictures are made by a child process beside the program; `finish` waits for them, and so does the
        program's end, no longer than ``close_budget_s``.
        """
        if self._end(reason):
            self._ending.wait_for_handover()

    def abort(self, reason: str, *, signalled: bool = False) -> None:
        """End the run after an exception: flush the recording and return, for others have something to save.

        Reports and trackers follow when `others_are_done`, after 10 s, or when the program ends.

        Args:
            reason: ``exception: `` and its name.
            signalled: Whether a signal is ending the process. Reports and trackers are then left to `stallmeter sync`.
        """
        if self._end(reason, signalled=signalled):
            self._ending.wait_for_flush()

    def others_are_done(self, wait_s: float = 0.0) -> None:
        """Say after `abort` that nobody else has anything left to save.

        Args:
            wait_s: Most seconds to wait until the trackers have got the points.
        """
        self._ending.others_are_done(wait_s)

    def skip_reports(self) -> None:
        """Write no reports at the end: nobody would read them."""
        self._ending.with_reports = False

    def finish(self, timeout_s: float = 60.0) -> bool:
        """Wait after `close` for the page, the pictures and the trackers.

        Args:
            timeout_s: Most seconds to wait.

        Returns:
            Whether all is done. What is missing is made by ``stallmeter report`` and sent by ``stallmeter sync``.
        """
        return os.getpid() != self._pid or (self._closed and self._ending.wait(timeout_s))

    def exit(self) -> Callable[[float], None]:
        """Begin to end the run, where that has not happened yet: the program ends.

        Returns:
            What waits for the rest, no longer than until a deadline (monotonic seconds).
        """
        self._end(INTERPRETER_EXIT)
        self._ending.wait_for_sample()
        return self._ending.exit

    def _end(self, reason: str, *, signalled: bool = False) -> bool:
        if self._closed or os.getpid() != self._pid:
            return False
        self._closed = True
        self.guard.attempt("the last step", self.clock.pause)
        self.guard.attempt("the last step", self.ledger.unwind)
        self._identity.hurry()
        self._ending.trackers = self._trackers
        self._ending.begin(reason, signalled=signalled)
        return True

    def _run_ending(self) -> None:
        try:
            self._ending.run()
        finally:
            forget(self)

    @property
    def folder(self) -> Path | None:
        """Folder of the recording; None when it could not be written, and on other ranks until rank 0 has named it."""
        return self._pipeline.folder

    @property
    def undelivered(self) -> tuple[Undelivered, ...]:
        """What trackers had not got when they were let go of, which `finish` waits for."""
        return self._ending.undelivered

    @property
    def close_budget_s(self) -> float:
        """Most seconds by which the program's end may be delayed."""
        return self.settings.close_budget_s

    def settle(self) -> None:
        """Say after `close` that trackers which the training thread serves were given all that it had for them."""
        self._ending.settle()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort(f"exception: {kind.__name__}", signalled=exc is not None and is_signalled(exc))

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
            self._turns,
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
        if not self._turns.may_move():
            return nullcontext(bucket)
        works = bucket in ("h2d", "forward", "backward", "optimizer", "compute", "validation")
        return (WorkSpan if works else Span)(self.ledger, self.ledger.slot(BUCKETS.index(bucket), name), bucket)

    def log(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Forward metrics of your own beside ours, from any thread, without waiting for the tracker.

        Args:
            metrics: Numbers by name, recorded and forwarded as floats, exactly. What is not finite is only recorded.
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

    def _untimed(self, why: str) -> None:
        self.guard.name_once("watch()", "passes through untimed", why, key=f"untimed: {why}")

    def size(self, batch: object) -> int | None:
        """Return the number of items in a batch, None when it cannot be known; never raises."""
        if not self._looked:
            self.look(batch)
        size = self.sizes.known(batch)
        return self.guard("batch size", self.sizes.find, batch) if size is None else size

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
        self._pipeline.retuner = retuner

    def meet_loader(self, loader: object, why_not: str | None = None) -> None:
        """Say which loader the training iterates, before its first iteration.

        Args:
            loader: The loader.
            why_not: Why its number of workers must stay as it is.
        """
        if self._pipeline.retuner is not None:
            self.guard("num_workers", self._pipeline.retuner.meet, loader, why_not)

    def between_epochs(self) -> bool:
        """The loop stands between two epochs, before `StepClock.new_epoch`. Returns whether the loader has changed."""
        if self._pipeline.retuner is None or not self.clock.index:
            return False
        return bool(self.guard("num_workers", self._pipeline.retuner.boundary, self.clock))

    def add_source(self, source: Source | None) -> None:
        """Take one more source before the monitor starts; None, a source that cannot be had here, is ignored."""
        if source is not None:
            self._pipeline.sources[source.name] = source

    def add_facts(self, name: str, find: Callable[[], object]) -> None:
        """Add a static fact to the recording's header, before the monitor starts."""
        found = self.guard(f"finding the {name}", find)
        if found is not None:
            self.window.facts[name] = found

    def use_trackers(self, trackers: Sequence[Tracker]) -> None:
        """Say where to forward, before the monitor starts."""
        self._trackers = tuple(trackers)

    @property
    def verdict(self) -> Verdict:
        """The newest verdict, at most some seconds old."""
        return self._pipeline.verdict

    @property
    def trackers(self) -> tuple[Tracker, ...]:
        """Where the recording is forwarded."""
        return self._trackers

    @property
    def inherited(self) -> bool:
        """Whether this process was forked from the one that is recorded: nobody reads what happens here."""
        return os.getpid() != self._pid

    @property
    def closed(self) -> bool:
        """Whether the run has ended."""
        return self._closed

    def use_profiler(self, profiler: Any) -> None:
        """Take the source that profiles a few steps when a verdict asks for it."""
        self._pipeline.profiler = profiler
        self._pipeline.sources[profiler.name] = profiler

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
        self._pipeline.sources[probe.name] = probe

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
        self.guard("batch size", self.sizes.meet, loader)
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


def is_signalled(exc: BaseException) -> bool:
    """Whether an exception says that a signal ends the process. Ctrl-C does not: its user waits for the verdict."""
    if type(exc).__name__ == "SIGTERMException":  # Lightning's
        return True
    code = exc.code if isinstance(exc, SystemExit) else None
    return isinstance(code, int) and code > 128 and code != 128 + signal.SIGINT


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
