"""The report for machines. Every key is described in ``docs/reference/report-json.md``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..records.diagnosis import Diagnosis
from ..records.stats import Stats
from .job.forms import job_to_json, ranks_to_json
from .model import Level, Report

SCHEMA = 1
"""Raised when a key changes its meaning or goes away; new keys do not raise it."""

_LOADER_KEYS = (
    "kind",
    "num_workers",
    "batch_size",
    "prefetch_factor",
    "pin_memory",
    "persistent_workers",
    "start_method",
    "iterable",
    "stateful",
    "in_order",
    "probed",
    "why_not",
)


def to_json(report: Report) -> dict[str, Any]:
    """Return the report as plain objects for ``json.dumps``. What was not measured or is not finite is None."""
    verdict = report.verdict
    document = {
        "schema": SCHEMA,
        "run": _run(report),
        "wall_s": report.wall_s,
        "steps": report.steps,
        "coverage_pct": report.coverage_pct,
        "ledger": {share.name: share.seconds for share in report.ledger},
        "step_time_s": _stats(report.step_time_s),
        "throughput": {"samples_per_s": report.samples_per_s, "steps_per_s": report.steps_per_s},
        "primary": None if verdict.primary is None else _diagnosis(verdict.primary),
        "probable": verdict.is_probable,
        "runner_up": None if verdict.runner_up is None else _diagnosis(verdict.runner_up),
        "diagnoses": [_diagnosis(d) for d in verdict.diagnoses],
        "num_workers": _fields(verdict.num_workers),
        "worker_trials": [_fields(trial) for trial in report.trials],
        "patch": report.patch,
        "overhead": {
            "per_step_us": None if report.overhead is None else report.overhead.per_step_us,
            "share_pct": None if report.overhead is None else report.overhead.share_pct,
        },
        "hardware": _hardware(report),
        "device": _fields(report.device),
        "job": None if report.job is None else job_to_json(report.job),
        "ranks": [] if report.job is None else ranks_to_json(report.job),
        "abstained": [{"rule": a.rule, "missing": a.missing} for a in verdict.abstained],
    }
    return _plain(document)  # type: ignore[no-any-return]


def job_document(report: Report) -> dict[str, Any]:
    """Return what is known of a job's ranks alone, as plain objects for ``json.dumps``."""
    primary = report.verdict.primary
    assert report.job is not None
    document = {
        "schema": SCHEMA,
        "primary": None if primary is None else _diagnosis(primary),
        "job": job_to_json(report.job),
        "ranks": ranks_to_json(report.job),
    }
    return _plain(document)  # type: ignore[no-any-return]


def _run(report: Report) -> dict[str, Any]:
    header, overhead = report.header, report.overhead
    parts = {share.name: share.parts for share in report.ledger}
    loader = report.loader
    return {
        "id": None if header is None else header.run_id,
        "path": None if report.path is None else str(report.path),
        "rank": None if header is None else header.rank,
        "world_size": None if header is None else header.world_size,
        "ranks": report.ranks,
        "host": None if header is None else header.host,
        "pid": None if header is None else header.pid,
        "framework": None if header is None else header.framework,
        "version": None if header is None else header.version,
        "started_s": None if header is None else header.started_s,
        "before_s": None if header is None else header.before_s,
        "settings": {} if header is None else header.settings,
        "ended": report.ended,
        "running": report.running,
        "settled": report.settled,
        "skipped_lines": report.skipped_lines,
        "epochs": report.epochs,
        "samples": report.samples,
        "recorded_steps": report.recorded_steps,
        "lost_steps": report.lost_steps,
        "data_wait_s": _stats(report.data_wait_s),
        "data_wait_share_pct": report.data_wait_share_pct,
        "callbacks_s": {share.name: share.seconds for share in parts.get("callbacks", ())},
        "logging_s": {share.name: share.seconds for share in parts.get("logging", ())},
        "own_s": None if overhead is None else overhead.own_s,
        "thread_cpu_s": None if overhead is None else overhead.thread_cpu_s,
        "loader": None if loader is None else {key: getattr(loader, key) for key in _LOADER_KEYS},
        "batch_cost": _fields(report.batch_cost),
        "events": [{"time_s": e.time_s, "name": e.name, "detail": e.detail} for e in report.events],
    }


def _diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "rule": diagnosis.rule,
        "severity": diagnosis.severity.value,
        "title": diagnosis.title,
        "summary": diagnosis.summary,
        "time_lost_s": diagnosis.time_lost_s,
        "share_pct": diagnosis.share_pct,
        "confidence": diagnosis.confidence,
        "culprit": diagnosis.culprit,
        "location": _fields(diagnosis.location),
        **({"ranks": list(diagnosis.ranks)} if diagnosis.ranks else {}),
        "evidence": [_fields(e) for e in diagnosis.evidence],
        "advice": [_fields(a) for a in diagnosis.advice],
    }


def _hardware(report: Report) -> dict[str, Any]:
    hardware = report.hardware
    return {
        "host": _levels(hardware.host),
        "network": [_fields(interface) for interface in hardware.network],
        "gpus": [
            {
                "index": gpu.index,
                "name": gpu.name,
                "uuid": gpu.uuid,
                **_levels(gpu.levels),
                "throttled_pct": gpu.throttled,
            }
            for gpu in hardware.gpus
        ],
        "workers": {
            "rss_bytes": _fields(hardware.workers_rss_bytes),
            "uss_bytes": _fields(hardware.workers_uss_bytes),
        },
    }


def _levels(levels: Mapping[str, Level | None]) -> dict[str, Any]:
    return {name: _fields(level) for name, level in levels.items()}


def _stats(stats: Stats | None) -> dict[str, float] | None:
    if stats is None:
        return None
    return {"median": stats.median, "mean": stats.mean, "p95": stats.p95, "max": stats.max}


def _fields(record: Any) -> dict[str, Any] | None:
    return None if record is None else dataclasses.asdict(record)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Iterable):
        return [_plain(item) for item in value]
    return str(value)
