"""The recommended number of workers against an exhaustive sweep, loader by loader.

Each loader runs through stallmeter with 0 and with 2 workers; from each of the two recordings alone the model predicts
the step time for every number of workers and recommends one. Then the loader runs with every number, in a plain loop
without stallmeter, in shuffled order and several rounds. What counts is the throughput of the recommended number as a
share of the best one's, and the error of the predicted step times.

Before each measurement the benchmark waits for other jobs to pause; one that they disturbed all the same is repeated,
and marked when that did not help. The patience for both is limited, so that the benchmark ends on a busy machine too.

    python -m benchmarks.workers [--quick] [--only NAME ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import torch

from stallmeter import Monitor, __version__
from stallmeter.machine.budget import read_budget
from stallmeter.records.diagnosis import WorkerAdvice
from stallmeter.records.stats import percentile
from stallmeter.window import Window
from stallmeter.workers import (
    BatchShape,
    Limits,
    LoaderCosts,
    OperatingPoint,
    advise,
    batch_shape,
    best_workers,
    costs_from,
    limits_from,
    predict_step_time_s,
)

from .loaders import Case, cases

STARTS = (0, 2)
MOST_WORKERS = 6
BLOCKS = 8
"""A measurement is cut into so many blocks and the median of their means is taken: bursts are kept, hiccups are not."""

QUIET_CPUS = 0.15
DISTURBED_CPUS = 0.25
TRIES = 3

GOAL_PCT = 95.0
GOAL_ERROR_PCT = 10.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure."""

    rounds: int
    sweep_s: float
    start_s: float
    patience_s: float


FULL = Effort(rounds=5, sweep_s=1.0, start_s=3.0, patience_s=150.0)
QUICK = Effort(rounds=1, sweep_s=0.6, start_s=1.5, patience_s=20.0)


class TimeBudget:
    """Seconds that may still be spent on waiting for quiet and on repeating what was disturbed."""

    def __init__(self, seconds: float) -> None:
        self.left_s = seconds

    def undisturbed(self, measurement: Callable[[], Any]) -> tuple[Any, float]:
        """Measure while other jobs leave the CPUs alone; return the least disturbed try and how much it was."""
        tries = []
        for number in range(TRIES):
            began = time.monotonic()
            self.wait_for_quiet()
            started, busy, own = time.monotonic(), busy_s(), own_s()
            value = measurement()
            # Not in the middle of the next measurement.
            gc.collect()
            others = max(0.0, busy_s() - busy - (own_s() - own)) / (time.monotonic() - started)
            tries.append((others, number, value))
            if number:
                self.left_s -= time.monotonic() - began
            if others <= DISTURBED_CPUS or self.left_s <= 0:
                break
        others, _, value = min(tries)
        return value, others

    def wait_for_quiet(self) -> None:
        """Wait until other jobs pause."""
        while self.left_s > 0:
            busy, began = busy_s(), time.monotonic()
            time.sleep(0.3)
            seconds = time.monotonic() - began
            if (busy_s() - busy) / seconds < QUIET_CPUS:
                return
            self.left_s -= seconds


@dataclass(frozen=True, slots=True)
class Truth:
    """Measured step time with one number of workers."""

    step_s: float
    """Median of the rounds."""
    others_cpus: float
    """CPUs that other jobs kept busy meanwhile."""
    rounds_s: tuple[float, ...]
    """Step time in each round."""

    def of(self, other: Truth) -> float:
        """This throughput as a share of another's: median of the rounds, each of which measures both within seconds.

        A machine that is slower in one minute than in the next would otherwise count against whoever met that minute.
        """
        return statistics.median(theirs / own for own, theirs in zip(self.rounds_s, other.rounds_s, strict=True))


@dataclass(frozen=True, slots=True)
class Answer:
    """What stallmeter said after a run with ``start`` workers."""

    start: int
    advice: WorkerAdvice
    best: int
    """Best number by the model, also where the advice is to change nothing by itself."""
    second: WorkerAdvice | None
    """Advice after a run with the recommended number, which knows both operating points."""
    costs: LoaderCosts
    limits: Limits
    others_cpus: float


def main() -> None:
    """Measure, print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--only", nargs="*", default=[], help="names of loaders")
    parser.add_argument("--json", type=Path, help="file to write the results to")
    options = parser.parse_args()
    effort = QUICK if options.quick else FULL
    patience = TimeBudget(effort.patience_s)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    began = time.monotonic()
    results = []
    print(HEADER, flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for case in cases(folder / "photos", stack):
            if not options.only or case.name in options.only:
                results.append(result(case, effort, patience, folder))
                print(rows(results[-1]), flush=True)
    report = summary(results)
    print(f"\n{sentence(report)}\n{time.monotonic() - began:.0f} s on {os.cpu_count()} CPUs")
    if options.json:
        document = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), **machine(), **report}
        options.json.write_text(json.dumps({**document, "quick": options.quick, "loaders": results}, indent=1) + "\n")
    sys.exit(0 if report["goals_met"] else 1)


def result(case: Case, effort: Effort, patience: TimeBudget, folder: Path) -> dict[str, Any]:
    """Measure one loader: both starts, then the sweep."""
    answers = [answer(case, start, effort, patience, folder) for start in STARTS]
    most = MOST_WORKERS
    if case.spare_bytes is not None:
        most = min(most, int(case.spare_bytes / max(a.limits.worker_bytes or 1 for a in answers)))
    numbers = sorted({*range(most + 1), *(a.best for a in answers), *(a.advice.recommended for a in answers)})
    truth = sweep(case, numbers, effort, patience)
    best = min(range(most + 1), key=lambda w: truth[w].step_s)
    return {
        "name": case.name,
        "best": best,
        "expected": case.expected,
        "sweep": {w: asdict(t) for w, t in truth.items()},
        "answers": [assess(case, a, truth, best) for a in answers],
    }


def assess(case: Case, answer: Answer, truth: dict[int, Truth], best: int) -> dict[str, Any]:
    """Compare one answer with the sweep."""
    by_hand = answer.costs.iterable and answer.best != answer.start
    chosen = answer.best if by_hand else answer.advice.recommended
    predicted = {w: predict_step_time_s(answer.costs, answer.limits, w) for w in truth}
    errors = {w: 100 * (predicted[w] / truth[w].step_s - 1) for w in truth}
    return {
        "start": answer.start,
        "advice": asdict(answer.advice),
        "second": asdict(answer.second) if answer.second else None,
        "by_hand": by_hand,
        "chosen": chosen,
        "of_best_pct": 100 * truth[chosen].of(truth[best]),
        "error_pct": statistics.median(abs(e) for e in errors.values()),
        "errors_pct": errors,
        "predicted_s": predicted,
        "costs": {k: v for k, v in asdict(answer.costs).items() if k != "profile"},
        "limits": asdict(answer.limits),
        "disturbed": max(answer.others_cpus, *(t.others_cpus for t in truth.values())) > DISTURBED_CPUS,
    }


def answer(case: Case, start: int, effort: Effort, patience: TimeBudget, folder: Path) -> Answer:
    """Run with a number of workers through stallmeter and ask the model; then once more with what it recommends."""
    (costs, limits), others = patience.undisturbed(lambda: observe(case, start, effort, folder))
    advice = advise(costs, limits)
    second = None
    if advice.recommended != start:
        assert costs.step_time_s is not None
        first = OperatingPoint(
            workers=start, service_s=costs.service_s, cpu_s=costs.cpu_s, step_time_s=costs.step_time_s
        )
        (again, still), _ = patience.undisturbed(lambda: observe(case, advice.recommended, effort, folder))
        second = advise(again, still, previous=first)
    return Answer(start, advice, best_workers(costs, limits).workers, second, costs, limits, others)


def observe(case: Case, workers: int, effort: Effort, folder: Path) -> tuple[LoaderCosts, Limits]:
    """Record a run through stallmeter and condense it."""
    shape = BatchShape(0, 0)
    with Monitor(directory=folder / "runs", trackers=None, console=False, interval_s=0.25) as monitor:
        monitor.run.ending.skip_reports()
        for number, batch in enumerate(enough(monitor.watch(case.make(workers)), workers, effort.start_s)):
            if number == 0:
                shape = batch_shape(batch)
            case.device(case.device_s)
        window: Window = monitor.window
    host = window.host.samples.items[2:]
    costs = costs_from(
        window.workers.batches.items,
        window.steps.steady,
        current=workers,
        loader=window.loader.info,
        host=host,
        batch=shape,
    )
    assert costs is not None, f"{case.name}: too short to measure with {workers} workers"
    limits = limits_from(
        host,
        budget=read_budget(),
        memory=window.workers.memory.items,
        loader=window.loader.info,
        batch_bytes=shape.bytes,
    )
    if case.spare_bytes is not None:
        taken = workers * (limits.worker_bytes or 0)
        limits = replace(limits, free_bytes=max(0, case.spare_bytes - taken))
    return costs, limits


def sweep(case: Case, numbers: Sequence[int], effort: Effort, patience: TimeBudget) -> dict[int, Truth]:
    """Measure every number of workers in shuffled rounds; the median of the rounds counts."""
    found: dict[int, list[tuple[float, float]]] = {w: [] for w in numbers}
    for round_number in range(effort.rounds):
        order = random.Random(round_number).sample(list(numbers), len(numbers))
        for workers in order:
            step_s, others = patience.undisturbed(lambda w=workers: measure(case, w, effort.sweep_s))
            found[workers].append((step_s, others))
    return {
        w: Truth(statistics.median(s for s, _ in rounds), max(o for _, o in rounds), tuple(s for s, _ in rounds))
        for w, rounds in found.items()
    }


def measure(case: Case, workers: int, seconds: float) -> float:
    """Return the step time in a plain loop, warm-up and filling of the queue left out."""
    ends = []
    for _ in enough(case.make(workers), workers, seconds):
        ends.append(time.perf_counter())
        case.device(case.device_s)
    settled = ends[warm_up(workers) :]
    size = max(1, (len(settled) - 1) // BLOCKS)
    # A block spans whole rounds of the workers, which deliver in bursts.
    size += -size % max(1, workers)
    cuts = settled[::size]
    return statistics.median((b - a) / size for a, b in pairwise(cuts))


def enough(loader: Iterable[Any], workers: int, seconds: float) -> Iterable[Any]:
    """Batches until the time is up, at least three blocks of them after the warm-up."""
    least = warm_up(workers) + 3 * max(4, workers) + 1
    end = None
    for number, batch in enumerate(loader):
        if number == warm_up(workers):
            end = time.perf_counter() + seconds
        yield batch
        if number >= least and end is not None and time.perf_counter() > end:
            return


def warm_up(workers: int) -> int:
    """First batches: imports, opened files, and a queue that fills while nobody takes from it."""
    return 3 + 2 * workers


def busy_s() -> float:
    """CPU seconds of the whole machine so far."""
    times = psutil.cpu_times()
    return sum(getattr(times, kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq"))


def own_s() -> float:
    """CPU seconds of this process and of its workers that have ended."""
    return sum(os.times()[:4])


HEADER = (
    "| loader | start | recommended | sweep best | of best, % | median error, % | limited by | after a second run |\n"
    "|---|---|---|---|---|---|---|---|"
)


def rows(found: dict[str, Any]) -> str:
    """Format one loader's rows of the table."""
    lines = []
    for a in found["answers"]:
        second = a["second"]
        after = f"{second['recommended']}, {second['limited_by']}" if second else ""
        hand, mark = (" (by hand)" if a["by_hand"] else ""), (" ~" if a["disturbed"] else "")
        lines.append(
            f"| {found['name']} | {a['start']} | {a['chosen']}{hand} | {found['best']} | {a['of_best_pct']:.0f}{mark} "
            f"| {a['error_pct']:.1f} | {a['advice']['limited_by']} | {after} |"
        )
    return "\n".join(lines)


def summary(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Compare everything with the goals."""
    answers = [(r, a) for r in results for a in r["answers"]]
    misses = [f"{r['name']} from {a['start']}" for r, a in answers if a["of_best_pct"] < GOAL_PCT]
    errors = [abs(e) for _, a in answers for e in a["errors_pct"].values()]
    error = statistics.median(errors)
    return {
        "loaders_measured": len(results),
        "answers": len(answers),
        "misses": misses,
        "median_error_pct": error,
        "p90_error_pct": percentile(sorted(errors), 0.9),
        "disturbed": sum(a["disturbed"] for _, a in answers),
        "goals_met": not misses and error <= GOAL_ERROR_PCT,
    }


def sentence(report: dict[str, Any]) -> str:
    """Say how it went."""
    missed = f"; misses: {', '.join(report['misses'])}" if report["misses"] else ""
    return (
        f"{report['answers'] - len(report['misses'])} of {report['answers']} recommendations reach {GOAL_PCT:.0f} % of "
        f"the best throughput{missed}. Predicted step time: median error {report['median_error_pct']:.1f} %, "
        f"90 % within {report['p90_error_pct']:.0f} %. {report['disturbed']} rows disturbed by other jobs (~)."
    )


def machine() -> dict[str, Any]:
    """Where and with what this was measured."""
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "stallmeter": __version__,
    }


if __name__ == "__main__":
    main()
