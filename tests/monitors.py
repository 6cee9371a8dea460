"""Monitors of nothing but what a test gives them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stallmeter.engine.context import RunContext
from stallmeter.engine.monitor import Monitor
from stallmeter.engine.options import Options
from stallmeter.engine.run import Run
from stallmeter.engine.wiring import assemble
from stallmeter.ranks.run_folder import RunFolder


def bare_monitor(directory: Path, **given: Any) -> Monitor:
    """Start the monitor of a `bare_run`."""
    return Monitor.of(bare_run(directory, **given).start())


def bare_run(
    directory: Path,
    *,
    trackers: Sequence[Any] = (),
    draw: Any = None,
    now: Callable[[], int] = time.perf_counter_ns,
    run_folder: RunFolder | None = None,
    rank: int = 0,
    world_size: int = 1,
    is_killed: bool = False,
    **options: Any,
) -> Run:
    """Put together what measures no hardware and no workers, looks at no stack and asks no rule, unless told to."""
    quiet = {"hardware": False, "workers": False, "loop_looks": False, "rules": (), "console": False}
    return assemble(
        Options(directory=directory, **{**quiet, **options}),
        RunContext(recordings=directory, rank=rank, world_size=world_size, is_killed=is_killed),
        find_trackers=lambda: trackers,
        run_folder=run_folder,
        draw=draw,
        now=now,
    )
