"""Raw signals of a window, as numbers to calibrate thresholds on. None is: not measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stallmeter.records import HostSample, StepRecord, WorkerBatch
from stallmeter.records.stats import Stats, percentile
from stallmeter.window import Window

HOST = (
    "job_cpus",
    "main_cpus",
    "others_cpus",
    "host_busy_cpus",
    "usable_cpus",
    "cpu_iowait_pct",
    "cpu_steal_pct",
    "cpu_throttled_pct",
    "pressure_cpu_pct",
    "pressure_io_pct",
    "disk_busy_pct",
)


def read(window: Window) -> dict[str, Any]:
    """Return every signal by name; seconds and percent."""
    ledger = window.ledger.record
    steps = window.steps.steady
    return {
        "steps": 0 if ledger is None else ledger.steps,
        "epochs": 0 if ledger is None else ledger.epochs,
        "wall_s": window.ledger.wall_s,
        "training_s": window.ledger.training_s,
        "coverage_pct": window.ledger.coverage_pct,
        "data_wait_share_pct": window.spent.data_wait_share_pct,
        "worker_startup_s": window.spent.bucket_s("worker_startup"),
        "startup_excess_s": window.steps.startup_excess_s,
        "step_time_s": _stats(window.steps.step_time_s),
        "data_wait_s": _stats(window.steps.data_wait_s),
        "work_s": _stats(window.steps.work_s),
        "queue": _queue(steps),
        "batch": _batches(window.workers.batches.items),
        "host": {name: _median(getattr(s, name) for s in window.host.samples.items) for name in HOST},
        "others_cpus_max": max(
            (s.others_cpus for s in window.host.samples.items if s.others_cpus is not None), default=None
        ),
        "main_rss": _trend(window.host.samples.items, lambda s: s.main_rss_bytes),
        "children_rss": _trend(window.host.samples.items, lambda s: s.children_rss_bytes),
        "job_rss": _trend(window.host.samples.items, lambda s: s.job_rss_bytes),
        "loader": None
        if window.loader.info is None
        else {n: getattr(window.loader.info, n) for n in window.loader.info.__slots__},
        "events": [f"{event.name}: {event.detail}" for event in window.events],
    }


def _queue(steps: Sequence[StepRecord]) -> dict[str, float | None]:
    """Say what was ready when batches were asked for, and what each state cost."""
    known = [s for s in steps if s.ready is not None]
    empty = [s for s in known if s.ready == 0]
    head = [s for s in known if s.head_ready]
    late = [s for s in known if s.ready and s.head_ready is False]
    unclear = [s for s in known if s.ready and s.head_ready is None]

    def share(part: Sequence[StepRecord]) -> float | None:
        return 100.0 * len(part) / len(known) if known else None

    def wait(part: Sequence[StepRecord]) -> float | None:
        return statistics.median(s.data_wait_s for s in part) if part else None

    total = sum(s.data_wait_s for s in known)

    def of_wait(part: Sequence[StepRecord]) -> float | None:
        return 100.0 * sum(s.data_wait_s for s in part) / total if total else None

    return {
        "known_pct": 100.0 * len(known) / len(steps) if steps else None,
        "ready_median": statistics.median(s.ready or 0 for s in known) if known else None,
        "empty_pct": share(empty),
        "head_ready_pct": share(head),
        "head_late_pct": share(late),
        "head_unclear_pct": share(unclear),
        "wait_empty_s": wait(empty),
        "wait_head_ready_s": wait(head),
        "wait_head_late_s": wait(late),
        "wait_head_unclear_s": wait(unclear),
        "wait_of_empty_pct": of_wait(empty),
        "wait_of_head_ready_pct": of_wait(head),
        "wait_of_head_late_pct": of_wait(late),
        "wait_of_head_unclear_pct": of_wait(unclear),
        "wait_of_slowest_tenth_pct": _tenth(known or steps),
    }


def _tenth(steps: Sequence[StepRecord]) -> float | None:
    waits = sorted((s.data_wait_s for s in steps), reverse=True)
    total = sum(waits)
    return 100.0 * sum(waits[: max(1, len(waits) // 10)]) / total if total else None


def _batches(batches: Sequence[WorkerBatch]) -> dict[str, Any] | None:
    if not batches:
        return None
    wall = sum(b.wall_s for b in batches)

    def share(of: Callable[[WorkerBatch], float | None]) -> float | None:
        values = [v for b in batches if (v := of(b)) is not None]
        return 100.0 * sum(values) / wall if values and wall else None

    return {
        "service_s": _stats_of(b.service_s for b in batches),
        "wall_s": _stats_of(b.wall_s for b in batches),
        "cpu_s": _stats_of(b.cpu_s for b in batches),
        "process_cpu_s": _stats_of(b.process_cpu_s for b in batches),
        "run_queue_s": _stats_of(b.run_queue_s for b in batches),
        "blocked_s": _stats_of(b.blocked_s for b in batches),
        "collate_s": _stats_of(b.collate_s for b in batches),
        "read_bytes": _median(b.read_bytes for b in batches),
        "cpu_pct": share(lambda b: b.cpu_s),
        "run_queue_pct": share(lambda b: b.run_queue_s),
        "blocked_pct": share(lambda b: b.blocked_s),
        "slowest_tenth_pct": 100.0
        * sum(sorted((b.service_s for b in batches), reverse=True)[: max(1, len(batches) // 10)])
        / max(1e-9, sum(b.service_s for b in batches)),
    }


def _trend(items: Sequence[HostSample], of: Callable[[HostSample], int | None]) -> dict[str, float] | None:
    """First, last and median slope between halves, bytes and bytes a second."""
    points = [(s.time_s, float(v)) for s in items if (v := of(s)) is not None]
    if len(points) < 4:
        return None
    half = len(points) // 2
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(points[:half], points[-half:], strict=True) if b[0] > a[0]]
    return {
        "samples": len(points),
        "first": points[0][1],
        "last": points[-1][1],
        "bytes_per_s": statistics.median(slopes) if slopes else 0.0,
    }


def _median(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


def _stats_of(values: Iterable[float | None]) -> dict[str, float] | None:
    known = sorted(v for v in values if v is not None)
    if not known:
        return None
    n = len(known)
    return {
        "count": n,
        "sum": sum(known),
        "mean": sum(known) / n,
        "median": statistics.median(known),
        "p95": percentile(known, 0.95),
        "max": known[-1],
    }


def _stats(found: Stats | None) -> dict[str, float] | None:
    return None if found is None else {n: getattr(found, n) for n in ("count", "mean", "median", "p95", "max")}
