"""What the callbacks of all frameworks have in common: options, at most one training in progress, and its end."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from ..delivery.choice import choose_trackers
from ..records.interfaces import Tracker
from ..timing.ledger import Span
from .context import RunContext
from .monitor import Monitor
from .options import Options, refuse_positional, takes_options, unasked
from .patch import Patches
from .run import Run, is_signalled
from .wiring import assemble

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .options import OptionArguments


_log = logging.getLogger("stallmeter")


class InProgress(Protocol):
    """One training, from its beginning to its end."""

    @property
    def monitor(self) -> Monitor:
        """Of its run."""

    def close(self, reason: str, exception: BaseException | None = None) -> None:
        """Undo what was put into the framework's objects, then end the run."""


class Adapter:
    """What a framework calls; the framework's own class of callbacks comes after this one among the bases.

    Args:
        **options: The fields of `stallmeter.engine.options.Options`, which says what each is for.

    Raises:
        SettingError: An option makes no sense.
        TypeError: There is no such option.
    """

    _now = staticmethod(time.perf_counter_ns)
    _ignored_told = False

    @takes_options
    def __init__(self, *nothing: NoReturn, **options: Unpack[OptionArguments]) -> None:
        refuse_positional(self, nothing)
        super().__init__()
        self._options = Options.of(options)
        self._options.check_recordings()
        self._training: Any = None
        """An `InProgress`; each adapter knows its own."""
        self._last: Monitor | None = None

    @property
    def monitor(self) -> Monitor | None:
        """The monitor of the training in progress, or of the last one in this process; None before the first."""
        return self._training.monitor if self._training is not None else self._last

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_training": None, "_last": None}

    def _is_second(self, callbacks: Iterable[object], kind: type[Adapter]) -> bool:
        """Whether another callback of ours comes before this one, and records; options that then do not hold are named.

        Args:
            callbacks: Those of the training, in their order.
            kind: Which of them are ours.
        """
        first = next((one for one in callbacks if isinstance(one, kind)), self)
        if first is not self:
            self._tell_ignored(first._options)
        return first is not self

    def _tell_ignored(self, holding: Options) -> None:
        # One that the program has not asked for itself steps aside for its own, as it should.
        if self._ignored_told or self._options == unasked():
            return
        self._ignored_told = True
        names = self._options.others(than=holding)
        if names:
            kind = type(self).__name__
            _log.warning(
                "stallmeter: the training has a %s already, which records; this one's %s does not hold",
                kind,
                ", ".join(names),
            )

    def _finish(self, reason: str, exception: BaseException | None = None) -> None:
        training, self._training = self._training, None  # first: closing may raise, and hooks that come later find none
        if training is not None:
            self._last = training.monitor
            training.close(reason, exception)

    def _assemble_run(
        self,
        framework: str,
        *,
        ranks: tuple[int, int],
        runs: Callable[[], Iterable[object]] = tuple,
        facts: Mapping[str, Callable[[], object]] = MappingProxyType({}),
    ) -> Run:
        """Put a run together.

        Args:
            framework: With its version.
            ranks: Which rank this is, and of how many.
            runs: Returns the runs of Neptune's that the framework itself reports to.
            facts: What finds each fact: one that cannot be found costs that one alone.
        """
        options, (rank, world_size) = self._options, ranks
        context = RunContext(
            recordings=options.recordings_here(), framework=framework, rank=rank, world_size=world_size
        )
        return assemble(
            options,
            context,
            find_trackers=lambda: own_trackers(options, rank, runs),
            facts={**facts, "torch": lambda: str(getattr(sys.modules.get("torch"), "__version__", ""))},
            now=self._now,
        )

    @contextmanager
    def _ended_by_exception(self) -> Iterator[None]:
        """A training goes on inside: an exception passes through, and ends the run."""
        try:
            yield
        except BaseException as exc:
            self._finish(f"exception: {type(exc).__name__}", exc)
            raise


class Training:
    """One training of a framework that has no profiler: methods of its objects become spans of the ledger.

    Args:
        run: Of this training.
    """

    def __init__(self, run: Run) -> None:
        self.monitor = Monitor.of(run)
        self._run = run
        self._clock = run.clock
        self._ledger = run.clock.ledger
        self._patches = Patches()

    def _put(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
        """Put what ``make`` makes of a method in its place; returns whether there is such a method."""
        original = getattr(owner, name, None)
        if original is not None:
            self._patches.set(owner, name, make(original))
        return original is not None

    def _listen_to_hooks(self, callback: Any, base: str, bucket: int) -> None:
        """Book each ``on_…`` of a callback under its class, unless it is that of the class named ``base``."""
        kinds = type(callback).__mro__
        span = Span(self._ledger, self._ledger.slot(bucket, kinds[0].__name__))
        for name in dir(kinds[0]):
            definer = next(kind for kind in kinds if name in vars(kind)) if name.startswith("on_") else None
            if definer is not None and definer.__name__ != base:
                self._patches.around(callback, name, span)

    def close(self, reason: str, exception: BaseException | None = None) -> None:
        """Undo every patch, then end the run."""
        self._run.guard("removing the patches", self._patches.undo)
        if exception is None:
            self._run.close(reason)
        else:
            self._run.abort(reason, signalled=is_signalled(exception))


def own_trackers(options: Options, rank: int, runs: Callable[[], Iterable[object]]) -> tuple[Tracker, ...]:
    """Return where a run is forwarded: what the options say, and with ``auto`` the framework's runs of Neptune, too.

    Args:
        options: What the program chose.
        rank: Only rank 0 forwards.
        runs: Returns the runs of Neptune's that the framework itself reports to.
    """
    found = choose_trackers(options.trackers, (), rank)
    if options.trackers != "auto":
        return found
    return sum((choose_trackers(run, (), rank) for run in runs() if run is not None), found)
