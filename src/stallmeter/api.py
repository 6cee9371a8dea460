"""What a program calls: `watch`, `Monitor`, `recommend_num_workers`."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from .engine import wiring
from .engine.context import RunContext
from .engine.monitor import Monitor, check_watched
from .engine.options import Options, takes_options
from .errors import SettingError
from .records.diagnosis import WorkerAdvice
from .rules.evaluation import diagnose
from .timing.loop import Watched
from .timing.turns import IN_WORKER

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .engine.options import OptionArguments

__all__ = ["Monitor", "recommend_num_workers", "watch"]

T = TypeVar("T")

_implicit: Monitor | None = None
_untimed: Monitor | None = None
"""For a process in which nothing is timed."""
_watching = threading.Lock()


@takes_options
def watch(
    loader: Iterable[T], *, stage: Literal["train", "validation"] = "train", **options: Unpack[OptionArguments]
) -> Watched[T]:
    """Time a plain training loop: ``for batch in stallmeter.watch(loader): …`` is the whole minimum.

    The first call starts a monitor, which ends with the program. Use `Monitor` for control over it. A process that was
    forked gets a monitor of its own, which records and forwards to no tracker; in a worker of a DataLoader nothing is
    timed.

    Args:
        loader: Any iterable.
        stage: ``validation`` books everything from the first batch to the last as validation.
        **options: As for `Monitor`; what the first call says holds.

    Raises:
        SettingError: ``stage`` or an option makes no sense, or ``loader`` cannot be iterated.
        TypeError: There is no such option.
    """
    check_watched(loader, stage)  # before a monitor starts, which would record a run of nothing
    Options.of(options)  # what a later call says does not hold, but is checked
    return _monitor_of_this_process(options).watch(loader, stage=stage)


def _monitor_of_this_process(options: OptionArguments) -> Monitor:
    global _implicit, _untimed
    if _in_loader_worker():
        _untimed = _untimed or _new_untimed()
        return _untimed
    with _watching:
        if _implicit is None or _implicit.closed:
            _implicit = Monitor(**options)
        elif _implicit.run.inherited:  # two processes must not write to one run
            silent: OptionArguments = {**options, "trackers": None}
            _implicit = Monitor(**silent)
        return _implicit


def _new_untimed() -> Monitor:
    """Return a monitor of a run that never starts."""
    nothing = Options(trackers=None, hardware=False, workers=False, loop_looks=False)
    return Monitor.of(wiring.assemble(nothing, RunContext(recordings=nothing.recordings)), why_not=IN_WORKER)


def _in_loader_worker() -> bool:
    worker_info = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", None)
    return worker_info is not None and worker_info() is not None


def _renew_lock() -> None:
    """In a process that was forked: another thread of its parent may have held the lock, and is not here to give it."""
    global _watching
    _watching = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def recommend_num_workers(of: object = None) -> WorkerAdvice | None:
    """Return the recommended number of workers of a run, with its predicted gain.

    Args:
        of: A `Monitor`, a `StallMonitor`, the path of a recording or of a folder (its newest recording); by default
            the monitor that `watch` started.

    Returns:
        The advice; None when too little was measured: 8 batches and 5 steps after the warm-up, with the loader's
        workers probed. While a run goes on it is the newest verdict's, at most some seconds old.

    Raises:
        SettingError: ``of`` is none of these, or nothing was watched yet.
        RecordingError: The path holds no recording, or a damaged one.
    """
    if isinstance(of, (str, os.PathLike)):
        from .recording import find_recording
        from .report.model import read_history

        return read_history(find_recording(Path(of))).guarded(diagnose).num_workers
    monitor = _implicit if of is None else getattr(of, "monitor", of)
    if monitor is None:
        raise SettingError("there is no run yet: iterate stallmeter.watch(loader), or fit with the StallMonitor, first")
    if not isinstance(monitor, Monitor):
        raise SettingError(
            f"recommend_num_workers() takes a Monitor, a StallMonitor or the path of a recording, not {of!r}: "
            "what a loader needs shows only while a loop uses it"
        )
    return monitor.verdict.num_workers
