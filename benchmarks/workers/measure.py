"""Runs one drawn loader: once through stallmeter, then with every number of workers in a plain loop.

Each of these is a fork of a process that has imported everything, so that it takes seconds and leaves nothing behind.
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from stallmeter import Monitor

from .draws import Draw, stepper

LIMIT_S = 60.0
"""A measurement that takes longer is ended."""

EPOCHS = 3
"""Whole epochs that are measured at least, where workers start with each."""

QUIET_CPUS = 0.3
"""A sweep during which others kept more CPUs busy says little: its row is marked ``~``."""

TRIES = 3
"""So often at most a round is measured that others disturb; the one that they disturbed least counts."""

Make = Callable[[int], Iterable[Any]]


@dataclass(frozen=True, slots=True)
class Truth:
    """Measured step times with one number of workers, one for each round."""

    rounds_s: tuple[float, ...]
    others_cpus: float
    """CPUs that other jobs kept busy meanwhile, the most of any round."""

    @property
    def step_s(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.rounds_s)

    def __add__(self, later: Truth) -> Truth:
        """Rounds that were measured later follow."""
        return Truth(self.rounds_s + later.rounds_s, max(self.others_cpus, later.others_cpus))


def forked(work: Callable[[], Any]) -> tuple[Any, float]:
    """Do something in a fork; return what it returns, and the CPUs that other jobs kept busy meanwhile.

    Raises:
        RuntimeError: It failed or took too long.
    """
    receive, send = os.pipe()
    began, busy = time.monotonic(), _busy_s()
    pid = os.fork()
    if not pid:
        _child(work, receive, send)
    os.close(send)
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(pid, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        with os.fdopen(receive) as answers:
            said = answers.readline()
        _, status, used = os.wait4(pid, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if status or not said:
        raise RuntimeError(f"a measurement ended with status {status}")
    own_s = used.ru_utime + used.ru_stime
    return json.loads(said), max(0.0, _busy_s() - busy - own_s) / (time.monotonic() - began)


def _child(work: Callable[[], Any], receive: int, send: int) -> None:
    status = 1
    try:
        os.close(receive)
        os.setsid()
        said = json.dumps(work())
        with os.fdopen(send, "w") as answers:
            answers.write(said + "\n")
        status = 0
    except BaseException as error:  # whatever it is, the fork must not go on as if it were the benchmark
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(status)


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(getattr(times, kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq")))


def record(draw: Draw, make: Make, folder: Path, seconds: float) -> float:
    """Record a run with the draw's own number of workers through stallmeter; return its step time."""
    step = stepper(draw, os.cpu_count() or 1)
    took: list[float] = []
    with Monitor(directory=folder, trackers=None, console=False) as monitor:
        monitor.run.ending.skip_reports()
        loader = monitor.watch(make(draw.start))
        for _ in rounds(draw, loader, draw.start, seconds, took):
            step()
    return statistics.fmean(took)


def sweep(
    draw: Draw, make: Make, numbers: Sequence[int], *, rounds_: Sequence[int], seconds: float
) -> tuple[dict[int, Truth], list[str]]:
    """Measure every number of workers in shuffled rounds; return what was measured, and what could not be."""
    found: dict[int, list[tuple[float, float]]] = {w: [] for w in numbers}
    failed: list[str] = []
    for number in rounds_:
        for workers in random.Random(number).sample(list(numbers), len(numbers)):
            try:
                found[workers].append(_undisturbed(partial(measure, draw, make, workers, seconds)))
            except RuntimeError as error:  # noqa: PERF203 - a number that fails is left out, the others are not
                failed.append(f"{workers} workers: {error}")
    return {
        w: Truth(tuple(s for s, _ in each), max(o for _, o in each))
        for w, each in found.items()
        if each and len(each) == len(rounds_)
    }, failed


def _undisturbed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Do something in a fork, again where other jobs kept CPUs busy; return it with the CPUs that they did."""
    best: tuple[Any, float] | None = None
    for _ in range(TRIES):
        found = forked(work)
        if best is None or found[1] < best[1]:
            best = found
        if best[1] <= QUIET_CPUS:
            break
    assert best is not None
    return best


def measure(draw: Draw, make: Make, workers: int, seconds: float) -> float:
    """Return the mean step time in a plain loop, warm-up and filling of the queue left out."""
    step = stepper(draw, os.cpu_count() or 1)
    took: list[float] = []
    for _ in rounds(draw, make(workers), workers, seconds, took):
        step()
    gc.collect()
    return statistics.fmean(took)


def rounds(draw: Draw, loader: Iterable[Any], workers: int, seconds: float, took: list[float]) -> Iterable[Any]:
    """Batches until the time is up; ``took`` gets the step times that count.

    Args:
        draw: Says how long an epoch is.
        loader: Iterated once, or, where epochs are short, once an epoch.
        workers: Of the loader.
        seconds: To measure after the warm-up.
        took: Filled when the last batch was used.
    """
    if draw.epoch_batches:
        yield from _epochs(draw, loader, seconds, took)
        return
    warm_up = 3 + draw.prefetch_factor * workers
    least = warm_up + max(16, 3 * workers) * (3 if draw.slow_share else 1)
    ends: list[float] = []
    for number, batch in enumerate(loader):
        ends.append(time.perf_counter())
        if number >= least and ends[-1] - ends[warm_up] > seconds:
            break
        yield batch
    settled = ends[warm_up:]
    # Whole rounds of the workers, which deliver in bursts.
    every = max(1, workers)
    kept = settled[: (len(settled) - 1) // every * every + 1]
    took.extend(b - a for a, b in pairwise(kept))


def _epochs(draw: Draw, loader: Iterable[Any], seconds: float, took: list[float]) -> Iterable[Any]:
    """Whole epochs, the start of their workers included; the first is the warm-up."""
    began = 0.0
    for epoch in range(1000):
        start = time.perf_counter()
        if epoch == 1:
            began = start
        yield from loader
        now = time.perf_counter()
        if epoch:
            took.append((now - start) / draw.epoch_batches)
        if epoch >= EPOCHS and now - began > seconds:
            return
