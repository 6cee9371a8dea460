"""The monitor: what a program holds of a run, and the adapter for plain loops."""

from __future__ import annotations

import reprlib
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

from ..delivery.forwarder import Undelivered
from ..errors import SettingError
from ..records import BUCKETS, UserMetrics
from ..records.diagnosis import Verdict
from ..timing.ledger import Span, WorkSpan
from ..timing.loop import Watched
from ..timing.turns import Turns
from ..window import Window
from . import wiring
from .optimizer_watch import OptimizerWatch
from .options import Options, refuse_positional, takes_options
from .run import Run, is_signalled

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .options import OptionArguments

T = TypeVar("T")

NOT_FOR_SPANS = ("start", "warmup", "worker_startup", "data_wait", "loop", "other")
NO_NUMBER = (ArithmeticError, RuntimeError, TypeError, ValueError)
"""What ``float`` and ``int`` raise of a tensor of two values, of ``10**400`` or of NaN."""

MOST_STEP = 2**63 - 1
"""Trackers keep steps in so many bits."""

WORK = ("h2d", "forward", "backward", "optimizer", "compute", "validation")
"""Buckets whose spans give the device something to do."""


class Monitor:
    """Records a plain training loop; close it, or use it as a context manager.

    Args:
        **options: The fields of `stallmeter.engine.options.Options`, which says what each is for.

    Raises:
        SettingError: An option makes no sense.
        TypeError: There is no such option.
    """

    _optimizers: OptimizerWatch | None = None
    """None where an adapter hears of the optimizers itself."""

    @takes_options
    def __init__(self, *nothing: NoReturn, **options: Unpack[OptionArguments]) -> None:
        refuse_positional(self, nothing)
        self._show(wiring.plain_run(Options.of(options)))
        self._optimizers = OptimizerWatch(self.run, self._turns.has)
        self.run.start()

    @classmethod
    def of(cls, run: Run, why_not: str | None = None, turns: Turns | None = None) -> Monitor:
        """Return the monitor of a run that an adapter drives.

        Args:
            run: The run; whoever made it starts it.
            why_not: Why `watch` must not time anything; what it says once.
            turns: Of an adapter that times iterations itself.
        """
        monitor = cls.__new__(cls)
        monitor._show(run, why_not, turns)
        return monitor

    def _show(self, run: Run, why_not: str | None = None, turns: Turns | None = None) -> None:
        self.run = run
        """For adapters: what they drive."""
        self._turns = turns or turns_of(run, why_not)

    # -- the training thread -------------------------------------------------------------------------------------------

    def watch(self, loader: Iterable[T], *, stage: Literal["train", "validation"] = "train") -> Watched[T]:
        """Wrap a loader so that iterating over it is timed: each batch is one step.

        Args:
            loader: Any iterable. Wrap what the loop iterates over, after Fabric or Accelerate have prepared it.
            stage: ``validation`` books everything from the first batch to the last as validation.

        Raises:
            SettingError: ``stage`` is unknown or ``loader`` cannot be iterated.
        """
        check_watched(loader, stage)
        loaders = self.run.loaders
        return Watched(
            loader,
            self._turns,
            stage=stage,
            prepare=self._prepare,
            started=loaders.iterator_made,
            beside=loaders.beside,
            size=loaders.size,
        )

    def _prepare(self, loader: object) -> None:
        if self._optimizers is not None:
            self.run.guard("the optimizer", self._optimizers.listen)
        self.run.loaders.prepare(loader)

    def span(self, bucket: str, name: str | None = None) -> AbstractContextManager[str]:
        """Return a reusable ``with`` block whose time is booked under a bucket.

        Args:
            bucket: ``forward``, ``backward``, ``optimizer``, ``h2d``, ``validation``, ``checkpoint``, ``logging``,
                ``callbacks`` or ``compute``.
            name: For ``callbacks`` and ``logging``: who it is.

        Raises:
            SettingError: No such bucket.
        """
        allowed = [b for b in BUCKETS if b not in NOT_FOR_SPANS]
        if bucket not in allowed:
            raise SettingError(f"there is no bucket {bucket!r}; use one of {', '.join(allowed)}")
        if not self._turns.may_move():
            return nullcontext(bucket)
        ledger = self.run.clock.ledger
        return (WorkSpan if bucket in WORK else Span)(ledger, ledger.slot(BUCKETS.index(bucket), name), bucket)

    def log(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Forward metrics of your own beside ours, from any thread, without waiting for the tracker.

        Args:
            metrics: Numbers by name, recorded and forwarded as floats, exactly. What is not finite is only recorded.
            step: x axis, a whole number of at most 64 bits; the current step by default.

        Raises:
            SettingError: There are no names, a value is no number, or ``step`` is none.
        """
        if not isinstance(metrics, Mapping):
            raise SettingError(f"log() was given {metrics!r}; give numbers by name: log({{'loss': 0.1}})")
        clean = {str(key): _value(str(key), value) for key, value in metrics.items()}
        at = self.run.clock.tracker_step if step is None else _step(step)
        if self.run.closed:
            self.run.guard.name_once("Monitor.log", "is not recorded", "the run has ended; call log() before close()")
            return
        self.run.tell(UserMetrics(time_s=time.time(), tracker_step=at, metrics=clean))

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self, reason: str = "end") -> None:
        """End the run: last sample, last verdict, short reports, and what the trackers still lack. Idempotent.

        Page and pictures are made by a child process beside the program; `finish` waits for them, and so does the
        program's end, no longer than ``close_budget_s``. Under Ray Train, which kills its workers, this waits.
        """
        self._let_go()
        self.run.close(reason)
        self.run.see_out()

    def abort(self, reason: str, *, signalled: bool = False) -> None:
        """End the run after an exception: flush the recording and return; reports and trackers follow beside it.

        Args:
            reason: ``exception: `` and its name.
            signalled: Whether a signal is ending the process. Reports and trackers are then left to `stallmeter sync`.
        """
        self._let_go()
        self.run.abort(reason, signalled=signalled)

    def _let_go(self) -> None:
        if self._optimizers is not None:
            self.run.guard("the optimizer", self._optimizers.close)

    def finish(self, timeout_s: float = 60.0) -> bool:
        """Wait after `close` for the page, the pictures and the trackers.

        Args:
            timeout_s: Most seconds to wait.

        Returns:
            Whether all is done, and delivered. What is missing is made by ``stallmeter report`` and sent by
            ``stallmeter sync``.
        """
        return self.run.finish(timeout_s)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort(f"exception: {kind.__name__}", signalled=exc is not None and is_signalled(exc))

    # -- what is known -------------------------------------------------------------------------------------------------

    @property
    def verdict(self) -> Verdict:
        """The newest verdict, at most some seconds old."""
        return self.run.collector.verdict

    @property
    def window(self) -> Window:
        """The signals so far."""
        return self.run.window

    @property
    def folder(self) -> Path | None:
        """Folder of the recording; None when it could not be written, and on other ranks until rank 0 has named it."""
        return self.run.output.folder

    @property
    def undelivered(self) -> tuple[Undelivered, ...]:
        """What trackers had not got when they were let go of, which `finish` waits for."""
        return self.run.ending.undelivered

    @property
    def closed(self) -> bool:
        """Whether the run has ended."""
        return self.run.closed


def check_watched(loader: object, stage: object) -> None:
    """Refuse what cannot be watched.

    Raises:
        SettingError: ``stage`` is unknown or ``loader`` cannot be iterated.
    """
    if stage not in ("train", "validation"):
        raise SettingError(f"stage is {stage!r}; give 'train' or 'validation'")
    # Some are iterated by their items, as datasets of torch are. To call `iter` would start a loader's workers.
    if not hasattr(loader, "__iter__") and not hasattr(type(loader), "__getitem__"):
        raise SettingError(f"watch() needs something to iterate over, not {type(loader).__name__}")


def _value(key: str, value: Any) -> float:
    wrong = f"log() takes numbers; {key!r} is {reprlib.repr(value)}"
    if not isinstance(value, (int, float)) and not hasattr(value, "__float__"):
        raise SettingError(wrong)
    try:
        return float(value)
    except NO_NUMBER as exc:
        raise SettingError(wrong) from exc


def _step(step: Any) -> int:
    wrong = f"log() takes a whole number of at most 64 bits as step, not {reprlib.repr(step)}"
    try:
        found = int(step)
    except NO_NUMBER as exc:
        raise SettingError(wrong) from exc
    if not -MOST_STEP <= found <= MOST_STEP:
        raise SettingError(wrong)
    return found


def turns_of(run: Run, why_not: str | None = None) -> Turns:
    """Return whose turn it is to move a run's ledger: what is passed through untimed is named once."""

    def say(why: str) -> None:
        run.guard.name_once("watch()", "passes through untimed", why, key=f"untimed: {why}")

    return Turns(run.clock, say, closed=lambda: run.closed, why_not=why_not)
