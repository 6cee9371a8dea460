"""The composition root: what you get when you say nothing."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from ..delivery.choice import Trackers, choose_trackers
from ..delivery.points import BASE_PERIOD_S
from ..errors import SettingError
from ..machine.budget import Budget, read_budget
from ..ranks.identity import Identity
from ..ranks.launcher import rank_from_environment
from ..records.diagnosis import WorkerAdvice
from ..records.interfaces import Source
from ..rules import ALL_RULES
from ..rules.evaluation import diagnose
from ..rules.host_sync import HostSync
from ..rules.rule import Rule, check_rules
from ..timing.clock import StepClock
from ..timing.loop import IN_WORKER, Watched
from ..workers.apply import OnNumWorkers, Retuner, check_mode
from . import monitor as core
from .ending import Draw
from .settings import CLOSE_BUDGET_S, Settings

T = TypeVar("T")


class Monitor(core.Monitor):
    """Records a plain training loop; close it, or use it as a context manager.

    Args:
        directory: Where recordings go; ``STALLMETER_DIR`` or ``./stallmeter`` by default.
        trackers: Where the recording is forwarded.
        rules: What is looked for: ``(*ALL_RULES, MyRule())`` adds one.
        sources: Measured besides the usual hardware.
        hardware: Whether to sample the host and the GPUs.
        workers: Whether to measure inside the loader's workers.
        interval_s: Seconds between two samples.
        period_s: Seconds between two points on a tracker.
        close_budget_s: Most seconds by which closing may be delayed to deliver what is left.
        console: Whether to log the verdict at the end.
        on_num_workers: ``report`` says what number of workers is advised; ``apply`` sets it on the watched training
            loader between two iterations, measures, and keeps what is faster; a function is called between iterations
            with the `WorkerAdvice` and may return a number.
        sync_probe_steps: Steps in which calls that wait for a CUDA device are looked for, once, where the device idles
            inside the steps; 0 for none.
        deep_steps: Steps of torch.profiler when the cause lies inside the step, once; 0 for none.

    Raises:
        SettingError: An argument makes no sense.
    """

    def __init__(
        self,
        *,
        directory: str | os.PathLike[str] | None = None,
        trackers: Trackers = "auto",
        rules: Sequence[Rule] = ALL_RULES,
        sources: Sequence[Source] = (),
        hardware: bool = True,
        workers: bool = True,
        interval_s: float = 1.0,
        period_s: float = BASE_PERIOD_S,
        close_budget_s: float = CLOSE_BUDGET_S,
        console: bool = True,
        on_num_workers: OnNumWorkers = "report",
        sync_probe_steps: int = 2,
        deep_steps: int = 0,
    ) -> None:
        check_retuning(on_num_workers, workers=workers)
        check_rules(rules)
        rank, world_size = this_rank()
        settings = Settings(
            directory=recordings_directory(directory),
            interval_s=interval_s,
            period_s=period_s,
            close_budget_s=close_budget_s,
            sync_probe_steps=sync_probe_steps,
            deep_steps=deep_steps,
            console=console,
            rank=rank,
            world_size=world_size,
        )
        super().__init__(
            settings,
            sources=sources,
            rules=rules,
            trackers=choose_trackers(trackers, (), rank),
            draw=start_drawing(),
            identity=identity(settings),
        )
        self.add_facts("budget", budget_facts)
        add_default_sources(self, hardware=hardware, workers=workers)
        self.guard("num_workers", add_retuner, self, on_num_workers)
        self.guard("the profiler", add_profiler, self)
        self.start()


_implicit: Monitor | None = None
_unused: core.Monitor | None = None
"""For a process in which nothing is timed."""
_watching = threading.Lock()


def watch(
    loader: Iterable[T],
    *,
    stage: Literal["train", "validation"] = "train",
    on_num_workers: OnNumWorkers = "report",
) -> Watched[T]:
    """Time a plain training loop: ``for batch in stallmeter.watch(loader): …`` is the whole minimum.

    The first call starts a monitor with the defaults, which ends with the program. Use `Monitor` for control over it.
    A process that was forked gets a monitor of its own, which records and forwards to no tracker; in a worker of a
    DataLoader nothing is timed.

    Args:
        loader: Any iterable.
        stage: ``validation`` books everything from the first batch to the last as validation.
        on_num_workers: As for `Monitor`; what the first call says holds.

    Raises:
        SettingError: ``stage`` or ``on_num_workers`` is unknown or ``loader`` cannot be iterated.
    """
    check_mode(on_num_workers)
    return _monitor_of_this_process(on_num_workers).watch(loader, stage=stage)


def _monitor_of_this_process(on_num_workers: OnNumWorkers) -> core.Monitor:
    global _implicit, _unused
    if _in_loader_worker():
        _unused = _unused or core.Monitor(Settings(), why_not=IN_WORKER)
        return _unused
    with _watching:
        if _implicit is None or _implicit.closed:
            _implicit = Monitor(on_num_workers=on_num_workers)
        elif _implicit.inherited:  # two processes must not write to one run
            _implicit = Monitor(on_num_workers=on_num_workers, trackers=None)
        return _implicit


def _in_loader_worker() -> bool:
    worker_info = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", None)
    return worker_info is not None and worker_info() is not None


def _renew_lock() -> None:
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
        RecordingError: The path holds no recording.
    """
    if isinstance(of, (str, os.PathLike)):
        from ..recording import find_recording
        from ..report.model import read_history

        return diagnose(read_history(find_recording(Path(of))).window).num_workers
    monitor = _implicit if of is None else getattr(of, "monitor", of)
    if monitor is None:
        raise SettingError("there is no run yet: iterate stallmeter.watch(loader), or fit with the StallMonitor, first")
    if not isinstance(monitor, core.Monitor):
        raise SettingError(
            f"recommend_num_workers() takes a Monitor, a StallMonitor or the path of a recording, not {of!r}: "
            "what a loader needs shows only while a loop uses it"
        )
    return monitor.verdict.num_workers


def budget_facts(ranks_on_node: int | None = None) -> dict[str, Any]:
    """Return what the job may use, as the recording's header keeps it."""
    return asdict(read_budget(ranks_on_node=ranks_on_node))


def add_default_sources(monitor: core.Monitor, *, hardware: bool, workers: bool) -> None:
    """Give a monitor the usual sources; one that cannot be opened is named and left out."""
    if hardware:
        if monitor.settings.world_size > 1:
            monitor.guard("source ranks", lambda: monitor.add_source(_rank_source(monitor)))
        monitor.guard("source host", lambda: monitor.add_source(_host_source(monitor.window.facts.budget)))
        monitor.guard("source nvml", lambda: monitor.add_source(_nvml_source()))
        monitor.guard("device timing", lambda: _add_device_sources(monitor))
    if workers:
        monitor.guard("source forks", lambda: monitor.add_source(_fork_source()))
        monitor.guard("worker probe", lambda: monitor.use_probe(_loader_probe(monitor.clock)))


def _add_device_sources(monitor: core.Monitor) -> None:
    """Time the device, its allocator and its synchronising calls. None of these imports torch or initialises CUDA."""
    from ..sources.cuda import CudaSource
    from ..sources.syncs import SyncProbe
    from ..sources.torch_view import AllocatorSource, numeric_facts

    settings = monitor.settings
    monitor.add_facts("numerics", numeric_facts)
    monitor.add_source(CudaSource(monitor.clock))
    monitor.add_source(AllocatorSource())
    if settings.sync_probe_steps:
        rule = HostSync()
        monitor.add_source(
            SyncProbe(monitor.between_steps, settings.sync_probe_steps, lambda: rule.suspects(monitor.window.present()))
        )


def model_facts(module: object) -> dict[str, Any]:
    """Return what a model computes with; see `stallmeter.sources.torch_view.model_facts`."""
    from ..sources import torch_view

    return torch_view.model_facts(module)


def add_profiler(monitor: core.Monitor) -> None:
    """Let a monitor profile a few steps when the cause lies inside the step, where that was asked for."""
    settings = monitor.settings
    if not settings.deep_steps:
        return
    from ..sources.deep import DeepProfiler

    def median_s() -> float | None:
        known = monitor.window.steps.step_time_s
        return None if known is None else known.median

    suffix = f"-rank{settings.rank}" if settings.rank else ""
    monitor.use_profiler(
        DeepProfiler(settings.deep_steps, monitor.between_steps, lambda: monitor.folder, median_s, suffix=suffix)
    )


def check_retuning(mode: OnNumWorkers, *, workers: bool) -> None:
    """Refuse what cannot be ``on_num_workers``.

    Args:
        mode: What the user gave.
        workers: Whether the loader's workers are measured, without which there is no advice.

    Raises:
        SettingError: It says what may be passed.
    """
    check_mode(mode)
    if mode != "report" and not workers:
        raise SettingError(f"on_num_workers is {mode!r}, which needs what workers=False switches off; leave that out")


def add_retuner(monitor: core.Monitor, mode: OnNumWorkers) -> None:
    """Let a monitor change its training loader's number of workers, where that was asked for."""
    if mode == "report":
        return
    from ..sources.loader.resize import resize, why_fixed

    monitor.use_retuner(Retuner(mode, resize=resize, why_fixed=why_fixed, guard=monitor.guard, tell=monitor.tell))


def start_drawing() -> Draw | None:
    """Return what makes a run's page and pictures in a child process; None where no process can be started."""
    from ..report.drawing import can_draw, draw

    return draw if can_draw() else None


def _host_source(budget: Budget | None) -> Source:
    from ..sources.host import HostSource

    return HostSource(budget=budget)


def _rank_source(monitor: core.Monitor) -> Source:
    from ..sources.ranks import RankSource

    settings, budget = monitor.settings, monitor.window.facts.budget
    here = budget.ranks_on_node if budget is not None and budget.ranks_on_node > 1 else settings.world_size
    return RankSource(lambda: monitor.folder, settings.rank, min(here, settings.world_size) - 1)


def _nvml_source() -> Source:
    from ..sources.nvml import NvmlSource

    return NvmlSource()


def _fork_source() -> Source:
    from ..sources.forks import ForkSource

    return ForkSource()


def _loader_probe(clock: StepClock) -> Any:
    from ..sources.loader import LoaderProbe

    return LoaderProbe(lambda: clock.index)


def recordings_directory(directory: str | os.PathLike[str] | None) -> Path:
    """Return where recordings go: the argument, else ``STALLMETER_DIR``, else ``./stallmeter``.

    Raises:
        SettingError: It is no path, or a file stands there.
    """
    if directory is not None and not isinstance(directory, (str, os.PathLike)):
        raise SettingError(f"directory is {directory!r}; give a path")
    path = recordings_path(directory)
    if path.is_file():
        raise SettingError(f"directory {str(path)!r} is a file; give a folder (it is made when missing)")
    return path


def recordings_path(directory: str | os.PathLike[str] | None) -> Path:
    """Return the same without a look at what stands there."""
    return Path(directory if directory is not None else os.environ.get("STALLMETER_DIR") or "stallmeter")


def this_rank() -> tuple[int, int]:
    """Return rank and world size: the launcher's, else those of torch's process group, else (0, 1)."""
    from ..ranks.rendezvous import group_rank

    launched = rank_from_environment()
    return launched if launched[1] > 1 else group_rank() or launched


def identity(settings: Settings) -> Identity:
    """Return what names a run's folder: its ranks agree through what their launcher provides."""
    from ..ranks import rendezvous

    return Identity(settings.rank, settings.world_size, partial(rendezvous.lines, directory=settings.directory))
