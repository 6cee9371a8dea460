"""The one place that puts a run together: facts, trackers, sources, and the engine around them, in this order."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from ..delivery.choice import choose_trackers
from ..errors import TrackerUnavailableError
from ..machine.budget import cpu_affinity, read_budget
from ..machine.cpu_features import computes_16_bits, wide_vectors
from ..machine.thread_settings import read_thread_settings
from ..ranks.launcher import rank_from_environment
from ..ranks.ray import ray_worker
from ..ranks.run_folder import Channels, RunFolder
from ..records import Event, Told
from ..records.interfaces import Source, Tracker
from ..rules.host_sync import HostSync
from ..timing.clock import StepClock
from ..timing.ledger import BACKWARD, COMPUTE, DATA_WAIT, FORWARD, LOOP, OPTIMIZER, OTHER, START, Ledger
from ..window import Window
from ..workers.apply import WorkerTuner
from .asked import Look, Profiler
from .between_steps import BetweenSteps
from .collector import Collector
from .context import RunContext
from .ending import Draw, Ending, Outlive
from .guard import Guard
from .job_watch import JobWatch
from .job_workers import JobWorkers, look_s, part_of
from .loader_watch import LoaderWatch
from .options import Options
from .output import Output
from .run import Run
from .step_looks import gradient_sources, mode_sources

if TYPE_CHECKING:
    from ..sources.loader import LoaderProbe

_log = logging.getLogger("stallmeter")

MOST_WAITING = 10_000
"""Records of other threads that are kept between two samples; the oldest go first."""


def plain_run(
    options: Options, framework: str = "loop", began_ns: int | None = None, *, may_be_discarded: bool = False
) -> Run:
    """Put together the run of a loop that tells nobody of itself; the caller starts it.

    Args:
        options: What the program chose.
        framework: Name and version of what drives the loop, where that is known.
        began_ns: When the training began (`time.perf_counter_ns`), where that was before now.
        may_be_discarded: Whether it may turn out that nothing is trained: then no tracker is asked before the start,
            and one that refuses costs a warning and not the run.

    Raises:
        SettingError: The folder for recordings is a file, or temporary storage of Ray Train's.
        MissingPackageError: A tracker was asked for and its client is not installed.
        TrackerError: A tracker's run was asked for and was refused.
    """
    recordings = options.check_recordings()
    rank, world_size = this_rank()
    # A run that was asked for is had before there is a recording: its errors are the caller's. One that is only looked
    # for may not be there: the training goes on.
    asked_for = None if may_be_discarded or options.trackers == "auto" else _own_trackers(options, rank)
    worker = ray_worker()
    context = RunContext(
        recordings=recordings,
        framework=framework,
        rank=rank,
        world_size=world_size,
        ranks_on_node=None if worker is None else worker.ranks_on_node,
        is_killed=worker is not None,
        began_ns=began_ns,
    )
    return assemble(
        options,
        context,
        find_trackers=lambda: _own_trackers(options, rank) if asked_for is None else asked_for,
    )


def _own_trackers(options: Options, rank: int) -> Sequence[Tracker]:
    """Find where to forward; one that was asked for and does not answer is told, and the training goes on."""
    try:
        return choose_trackers(options.trackers, (), rank)
    except TrackerUnavailableError as exc:
        if options.trackers == "auto":
            raise
        _log.warning(
            "stallmeter: %s does not answer; the run is recorded, and can be sent later: "
            "stallmeter sync RECORDING --to URI (%s)",
            options.trackers,
            exc,
        )
        return ()


def assemble(
    options: Options,
    context: RunContext,
    *,
    find_trackers: Callable[[], Sequence[Tracker]] = lambda: (),
    facts: Mapping[str, Callable[[], object]] | None = None,
    run_folder: RunFolder | None = None,
    draw: Draw | None = None,
    now: Callable[[], int] = time.perf_counter_ns,
) -> Run:
    """Put a run together for an adapter, which starts it. What cannot be had here is named and left out.

    Args:
        options: What the program chose.
        context: What the adapter found.
        find_trackers: Returns where the recording is forwarded; asked when the run starts.
        facts: Of the adapter: each finds what the recording's header keeps under its name, None for nothing.
        run_folder: Names the run's folder; by default all ranks agree through what their launcher provides.
        draw: Starts what makes the page and the pictures; by default a child process.
        now: Monotonic nanoseconds.
    """
    clock, window = _new_clock(context, now), Window()
    # Any thread appends and the sampler thread takes out; both are atomic, so that nobody waits for a lock.
    inbox: deque[Told] = deque(maxlen=MOST_WAITING)
    guard = Guard(inbox.append)
    own_slot = clock.ledger.own_slot
    between_steps = BetweenSteps(clock, guard, own_slot)

    _find_facts({**(facts or {}), **_usual_facts(options, context)}, window, guard)
    output = Output(context, run_folder or find_run_folder(context), find_trackers, guard, inbox.append)
    probe = guard("worker probe", _loader_probe, clock) if options.workers else None
    makers = _usual_sources(options, context, clock, window, output, between_steps, probe)
    sources = [*options.sources, *(source for name, make in makers.items() for source in guard(name, make) or ())]
    profiler = guard("the profiler", _profiler, options, context, output, window, between_steps)
    looks = [*filter(None, [profiler]), *_usual_looks(options, clock, window, own_slot, probe, guard)]
    sources += [*filter(None, [probe]), *looks]
    worker_tuner = guard("num_workers", _worker_tuner, options, context, window.facts, guard, inbox.append)
    collector = Collector(
        options,
        context,
        clock,
        window,
        guard,
        inbox,
        own_slot=own_slot,
        sources=sources,
        output=output,
        worker_tuner=worker_tuner,
        looks=looks,
        job_watch=_job_watch(context, window, inbox.append),
        before=lambda: ending.provide(),
        # The thread for the ending is made now: while the interpreter ends none can be started.
        after=lambda: run.do_ending(),
        cut_short=lambda: ending.cut_short(),
    )
    finish = partial(Ending, draw=draw or start_drawing(), outlive=_outlive(options, context), profiler=profiler)
    last_words = None if worker_tuner is None else worker_tuner.tell_last
    ending = finish(options, context, collector, output, window=window, guard=guard, last_words=last_words)
    run = Run(
        options,
        clock=clock,
        window=window,
        guard=guard,
        inbox=inbox,
        loaders=LoaderWatch(clock, guard, inbox.append, probe, worker_tuner),
        output=output,
        collector=collector,
        ending=ending,
        is_killed=context.is_killed,
    )
    return run


def _new_clock(context: RunContext, now: Callable[[], int]) -> StepClock:
    in_framework = context.loop_bucket == "loop"
    clock = StepClock(Ledger(START, now), loop=LOOP if in_framework else COMPUTE, idle=LOOP if in_framework else OTHER)
    if context.began_ns is not None:
        clock.begin_at(context.began_ns)
    return clock


def this_rank() -> tuple[int, int]:
    """Return rank and world size: Ray Train's, the launcher's, else those of torch's process group, else (0, 1)."""
    from ..ranks.channels import group_rank

    worker = ray_worker()
    if worker is not None:  # its cluster may have been started by srun, whose ranks are not these
        return worker.rank, worker.world_size
    launched = rank_from_environment()
    return launched if launched[1] > 1 else group_rank() or launched


def find_run_folder(context: RunContext) -> RunFolder:
    """Return what names a run's folder: its ranks agree through what their launcher provides."""
    return RunFolder(context.rank, context.world_size, _channels(context))


def _channels(context: RunContext) -> Channels:
    from ..ranks import channels

    worker = ray_worker()
    job = None if worker is None else worker.job
    return partial(channels.find_channels, directory=context.recordings, job=job)


def _job_watch(context: RunContext, window: Window, tell: Callable[[Event], None]) -> JobWatch | None:
    if context.world_size < 2:
        return None
    return JobWatch(
        context.rank,
        context.world_size,
        _channels(context),
        window,
        tell,
    )


def _outlive(options: Options, context: RunContext) -> Outlive | None:
    """Return what starts a child process that makes a job's reports; None where no launcher ends this process early."""
    if context.rank != 0 or context.world_size < 2 or context.is_killed:
        return None
    from ..report.survivor import Survivor, can_survive

    return partial(Survivor, speaks=options.console) if can_survive() else None


def start_drawing() -> Draw | None:
    """Return what makes a run's page and pictures in a child process; None where no process can be started."""
    from ..report.child import can_start
    from ..report.drawing import draw

    return draw if can_start() else None


def _find_facts(finders: Mapping[str, Callable[[], object]], window: Window, guard: Guard) -> None:
    for name, find in finders.items():
        found = guard(f"finding the {name}", find)
        if found is not None:
            window.facts[name] = found


def _usual_facts(options: Options, context: RunContext) -> dict[str, Callable[[], object]]:
    facts: dict[str, Callable[[], object]] = {
        "framework": lambda: context.framework,
        "world_size": lambda: context.world_size,
        "budget": lambda: asdict(read_budget(ranks_on_node=context.ranks_on_node)),
        "threads": lambda: asdict(read_thread_settings(cpu_affinity())),
    }
    if options.hardware:
        facts["numerics"] = _numeric_facts
        facts |= {"computes_16_bits": computes_16_bits, "wide_vectors": wide_vectors}
    return facts


def _usual_sources(
    options: Options,
    context: RunContext,
    clock: StepClock,
    window: Window,
    output: Output,
    between_steps: BetweenSteps,
    probe: LoaderProbe | None,
) -> dict[str, Callable[[], Sequence[Source]]]:
    """Return what makes the usual sources, by the name that is said when it fails."""
    makers: dict[str, Callable[[], Sequence[Source]]] = {}
    if options.hardware:
        if context.world_size > 1:
            makers["source ranks"] = lambda: [_rank_source(context, output, window)]
            makers["source flight recorder"] = lambda: [_collectives_source(clock)]
            makers["source DDP's own times"] = lambda: [_ddp_source(context, clock)]
        makers["source host"] = lambda: _host_sources(options, clock, window, probe)
        makers["source nvml"] = lambda: [_nvml_source()]
        makers["source compiler"] = lambda: [_compiler_source()]
        makers["source debugging modes"] = lambda: mode_sources(between_steps, context.world_size)
        makers["device timing"] = lambda: _device_sources(options, clock, window, between_steps)
        makers["source garbage collector"] = lambda: [_garbage_source(clock)]
    elif probe is not None:
        makers["source producers"] = lambda: [_producer_source(clock, probe, lambda: ())]
    if probe is not None:
        makers["source ray data"] = lambda: [_ray_data_source(probe)]
    if options.loop_looks:
        makers["source unused gradients"] = lambda: gradient_sources(between_steps, window)
        makers["source standing"] = lambda: [_standing_source(options, context, clock)]
    if options.workers:
        makers["source forks"] = lambda: [_fork_source()]
    return makers


# -- each imports its module when it is called: a missing package costs what needs it and nothing else -----------------


def _numeric_facts() -> object:
    from ..sources.torch_view import numeric_facts

    return numeric_facts()


def _rank_source(context: RunContext, output: Output, window: Window) -> Source:
    from ..sources.ranks import RankSource

    budget = window.facts.budget
    here = budget.ranks_on_node if budget is not None and budget.ranks_on_node > 1 else context.world_size
    return RankSource(lambda: output.folder, context.rank, min(here, context.world_size) - 1)


def _collectives_source(clock: StepClock) -> Source:
    from ..sources.backward import BackwardPasses
    from ..sources.flight_recorder import FlightRecorderSource

    return FlightRecorderSource(clock.unix_s(clock.ledger.origin), BackwardPasses())


def _ddp_source(context: RunContext, clock: StepClock) -> Source:
    from ..sources.ddp import DdpSource

    def is_outside() -> bool:
        return clock.ledger.slots[clock.ledger.stack[-1]][0] not in (FORWARD, BACKWARD, OPTIMIZER, COMPUTE)

    return DdpSource(lambda: clock.index, is_outside, context.ddp_module)


def _host_sources(options: Options, clock: StepClock, window: Window, probe: LoaderProbe | None) -> Sequence[Source]:
    from ..sources.host import HostSource
    from ..sources.memory import MemorySource

    host = HostSource(budget=window.facts.budget)
    sources: list[Source] = [
        host,
        MemorySource(lambda: host.pids, lambda: clock.index, interval_s=options.interval_s),
    ]
    return sources if probe is None else [*sources, _producer_source(clock, probe, lambda: host.pids)]


def _producer_source(clock: StepClock, probe: LoaderProbe, pids: Callable[[], Sequence[int]]) -> Source:
    from ..sources.producers import ProducerSource

    stack = clock.ledger.stack
    return ProducerSource(lambda: stack[-1] == DATA_WAIT, lambda: probe.is_blind, lambda: clock.index, pids)


def _ray_data_source(probe: LoaderProbe) -> Source:
    from ..sources.ray_data import RayDataSource

    return RayDataSource(lambda: probe.iterator_of())


def _standing_source(options: Options, context: RunContext, clock: StepClock) -> Source:
    from ..sources.stacks.standing import Standing

    who = f"rank {context.rank}" if context.world_size > 1 else "the training"

    def say(where: str) -> None:
        if options.console:
            _log.warning("stallmeter: %s has ended no step %s", who, where)

    return Standing(clock, say)


def _garbage_source(clock: StepClock) -> Source:
    from ..sources.garbage import GarbageSource

    return GarbageSource(clock.ledger)


def _nvml_source() -> Source:
    from ..sources.nvml import NvmlSource

    return NvmlSource()


def _compiler_source() -> Source:
    from ..sources.compiler import CompilerSource

    return CompilerSource()


def _device_sources(
    options: Options, clock: StepClock, window: Window, between_steps: BetweenSteps
) -> Sequence[Source]:
    """Time the device, its allocator and its synchronising calls. None of these imports torch or initialises CUDA."""
    from ..sources.cuda import CudaSource
    from ..sources.syncs import SyncProbe
    from ..sources.torch_view import AllocatorSource

    sources: list[Source] = [CudaSource(clock), AllocatorSource()]
    if steps := options.sync_probe_steps:
        rule = HostSync()
        sources.append(SyncProbe(between_steps.add, steps, lambda: rule.suspects(window.present())))
    return sources


def _fork_source() -> Source:
    from ..sources.forks import ForkSource

    return ForkSource()


def _loader_probe(clock: StepClock) -> LoaderProbe:
    from ..sources.loader import LoaderProbe

    return LoaderProbe(lambda: clock.index)


def _profiler(
    options: Options, context: RunContext, output: Output, window: Window, between_steps: BetweenSteps
) -> Profiler | None:
    """Return what profiles a few steps when the cause lies inside the step, where that was asked for."""
    if not options.deep_steps:
        return None
    from ..sources.deep import DeepProfiler

    def median_s() -> float | None:
        return None if window.steps.step_time_s is None else window.steps.step_time_s.median

    of_rank = f"-rank{context.rank}" if context.rank else ""
    return DeepProfiler(options.deep_steps, between_steps.add, lambda: output.folder, median_s, suffix=of_rank)


def _usual_looks(
    options: Options,
    clock: StepClock,
    window: Window,
    own_slot: int,
    probe: LoaderProbe | None,
    guard: Guard,
) -> list[Look]:
    """Return what looks where in the program's code the time is spent: in workers, and in the loop."""
    in_batches = guard("the look into batches", _batch_look, options, probe, window)
    in_loop = guard("the look into the loop", _loop_looks, options, clock, window, own_slot)
    return [look for look in (in_batches, in_loop) if look is not None]


def _loop_looks(options: Options, clock: StepClock, window: Window, own_slot: int) -> Look | None:
    """Return what looks at the training thread's stack, where that is wanted."""
    if not options.loop_looks:
        return None
    from ..sources.stacks.source import LoopLooks

    return LoopLooks(clock, window, own_slot)


def _batch_look(options: Options, probe: LoaderProbe | None, window: Window) -> Look | None:
    """Return what looks into a few batches when making them is the cause."""
    if not options.deep_batches or probe is None:
        return None
    from ..sources.loader.look import WorkerLook

    def workers() -> tuple[int, int] | None:
        loader = window.loader
        return None if loader.num_workers is None or loader.info is None else (loader.num_workers, loader.info.loader)

    return WorkerLook(options.deep_batches, probe, workers)


def _worker_tuner(
    options: Options, context: RunContext, facts: Mapping[str, object], guard: Guard, tell: Callable[[Event], None]
) -> WorkerTuner | None:
    """Return what changes the training loader's number of workers, where that was asked for."""
    if options.on_num_workers == "report":
        return None
    from ..sources.loader.resize import resize, why_fixed
    from ..sources.loader.settings import LoaderSettings

    make = partial(
        WorkerTuner,
        options.on_num_workers,
        resize=resize,
        why_fixed=why_fixed,
        settings=LoaderSettings(),
        guard=guard,
        tell=tell,
        epochs=lambda: facts.get("epochs_ahead"),
    )
    if context.world_size < 2:
        return make()
    part = part_of(context.rank, context.world_size, options.interval_s)
    every_s = look_s(options.interval_s, context.world_size)
    return make(job=part, exchange=JobWorkers(context.rank, part, _channels(context), every_s=every_s).exchange)
