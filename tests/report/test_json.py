"""The report for machines: exactly the documented keys, valid JSON for any records."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stallmeter import records
from stallmeter.records import BUCKETS
from stallmeter.records.diagnosis import Abstention, Advice, Diagnosis, Evidence, Severity, Verdict, WorkerAdvice
from stallmeter.report.job.folder import report_of_job
from stallmeter.report.json import to_json
from stallmeter.report.markdown import NOTE_BYTES, headline, note, tags, to_markdown
from stallmeter.report.model import read_history, summarize
from stallmeter.report.text import to_text
from stallmeter.window import Window

from ..rules.job.jobs import late
from .job.folders import write_job
from .recordings import complete_run, ledger, write

DOC = Path(__file__).parents[2] / "docs" / "reference" / "report-json.md"
TOP = {
    "schema", "run", "wall_s", "steps", "coverage_pct", "ledger", "step_time_s", "throughput", "primary", "probable",
    "runner_up", "diagnoses", "num_workers", "worker_trials", "patch", "overhead", "hardware", "device", "abstained",
    "job", "ranks",
}  # fmt: skip
FREE = {
    "ledger", "run.settings", "run.callbacks_s", "run.logging_s", "device.syncs.calls", "ranks[].ledger",
    "ranks[].facts", "job.slowest_steps[].seconds",
}  # fmt: skip
"""Objects whose keys are names: of buckets, of settings, of the user's callbacks and loggers, of ranks."""


def paths(value: Any, prefix: str = "") -> set[str]:
    """Every key of a document as a dotted path, list items as ``[]``."""
    if isinstance(value, dict):
        found = set()
        for key, item in value.items():
            path = f"{prefix}.{key}" if prefix else key
            found |= {path} | (set() if path in FREE else paths(item, path))
        return found
    if isinstance(value, list):
        return set().union(*(paths(item, f"{prefix}[]") for item in value)) if value else set()
    return set()


def documented_as(path: str) -> str:
    """The path under which a key is documented: primary is a diagnosis, all levels have the same three keys."""
    path = re.sub(r"^(primary|runner_up)\.", "diagnoses[].", path)
    return re.sub(r"^(hardware\..*)\.(median|min|max)$", r"\1", path)


def test_document_of_a_complete_run(tmp_path):
    """Values of a complete run."""
    document = to_json(read_history(write(tmp_path, complete_run())).report())
    assert set(document) == TOP
    assert document["schema"] == 1
    assert document["wall_s"] == 100.0
    assert document["steps"] == 1000
    assert document["coverage_pct"] == 99.5
    assert set(document["ledger"]) == set(BUCKETS)
    assert document["ledger"]["data_wait"] == 60.0
    assert set(document["step_time_s"]) == {"median", "mean", "p95", "max"}
    assert document["throughput"] == {"samples_per_s": 32_000 / 97, "steps_per_s": 1000 / 97}
    assert document["primary"] == document["diagnoses"][0]
    assert document["primary"]["rule"] == "no-workers"
    assert document["primary"]["severity"] == "critical"
    assert document["primary"]["evidence"][0] == {
        "name": "data wait, share of training time",
        "value": 61.5,
        "unit": "%",
        "threshold": 10.0,
        "source": "our measurement, benchmarks/faults",
    }
    assert document["primary"]["advice"][0] == {
        "text": "Set num_workers=4.",
        "predicted_gain_pct": 138.0,
        "gain_interval_pct": None,
    }
    assert document["primary"]["location"] == {
        "file": "transforms.py",
        "line": 88,
        "function": "Rotate.__call__",
        "share_pct": 64.0,
        "call": "PIL.Image.Image.rotate",
        "line_share_pct": None,
    }
    assert document["probable"] is False
    assert document["runner_up"] is None
    assert document["num_workers"] == {
        "current": 0,
        "recommended": 4,
        "predicted_step_time_s": 0.042,
        "predicted_gain_pct": 138.0,
        "limited_by": "compute",
        "reason": "4 workers make a batch in the time of one step",
        "confidence": 0.8,
        "prefetch_factor": None,
        "prefetch_gain_pct": None,
        "saves_processes": None,
        "saves_bytes": None,
        "most": None,
        "torch_threads": None,
    }
    assert document["worker_trials"] == []
    assert set(document["overhead"]) == {"per_step_us", "share_pct"}
    assert document["hardware"]["host"]["job_cpus"] == {"median": 1.5, "min": 1.0, "max": 2.0}
    assert document["abstained"] == [{"rule": "low-utilization", "missing": ["gpu_utilization_pct"]}]
    assert document["run"]["callbacks_s"] == {"ImageLogger": 0.9, "StallMonitor": 0.004}
    assert document["run"]["events"][0]["name"] == "source nvml switched off"
    assert document["run"]["ended"] == "end"
    json.dumps(document, allow_nan=False)


def test_every_key_is_documented(tmp_path):
    """The page lists every key that a complete report has, of one rank and of a job, and no other."""
    trial = records.WorkerTrial(time_s=1.0, before=0, workers=2, outcome="kept")
    document = to_json(read_history(write(tmp_path / "one", [*complete_run(), trial])).report())
    job = report_of_job(read_history(write_job(tmp_path / "job", late(1, "forward", 0.02))))
    assert job is not None
    documented = re.findall(r"^\| `([^`]+)` \|", DOC.read_text(encoding="utf-8"), re.MULTILINE)
    keys = paths(document) | paths(to_json(job))
    assert sorted(documented) == sorted({documented_as(path) for path in keys})


def test_buckets_are_documented():
    """The page names every bucket of the ledger."""
    page = DOC.read_text(encoding="utf-8")
    assert [bucket for bucket in BUCKETS if f"`{bucket}`" not in page] == []


def test_not_finite_is_null(tmp_path):
    """NaN and infinities, which JSON lacks, become null."""
    primary = Diagnosis(
        rule="x",
        severity=Severity.INFO,
        title="",
        summary="",
        time_lost_s=float("nan"),
        share_pct=float("inf"),
        confidence=0.5,
        evidence=(Evidence("e", float("-inf"), "s"),),
    )
    run = write(tmp_path, [ledger(wall_s=float("nan")), Verdict(primary=primary, diagnoses=(primary,))])
    document = to_json(read_history(run).report())
    assert document["wall_s"] is None
    assert document["primary"]["time_lost_s"] is None
    assert document["primary"]["share_pct"] is None
    assert document["primary"]["evidence"][0]["value"] is None


def test_nothing_measured():
    """Absent is null, never 0."""
    document = to_json(summarize(Window(), None))
    assert set(document) == TOP
    for key in ("wall_s", "coverage_pct", "step_time_s", "primary", "num_workers"):
        assert document[key] is None
    assert document["throughput"] == {"samples_per_s": None, "steps_per_s": None}
    assert document["overhead"] == {"per_step_us": None, "share_pct": None}


def any_of(cls: type[Any], **fixed: Any) -> st.SearchStrategy[Any]:
    return st.builds(cls, **({f.name: ... for f in fields(cls)} | fixed))


RECORDS = st.one_of(
    *(
        any_of(cls)
        for cls in (
            records.StepRecord,
            records.LedgerRecord,
            records.WorkerBatch,
            records.LoaderInfo,
            records.Fork,
            records.WorkerMemory,
            records.HostSample,
            records.GpuSample,
            records.Event,
            records.WindowRecord,
            records.UserMetrics,
            records.BatchContent,
            records.WorkerChange,
            records.WorkerTrial,
        )
    )
)
DIAGNOSES = any_of(Diagnosis, evidence=st.tuples(any_of(Evidence)), advice=st.tuples(any_of(Advice)))
VERDICTS = st.none() | st.builds(
    Verdict,
    primary=st.none() | DIAGNOSES,
    diagnoses=st.lists(DIAGNOSES, max_size=2).map(tuple),
    abstained=st.tuples(any_of(Abstention)),
    num_workers=st.none() | any_of(WorkerAdvice),
    runner_up=st.none() | DIAGNOSES,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(mix=st.lists(RECORDS, max_size=12), verdict=VERDICTS)
def test_any_mix_of_records_can_be_shown(mix, verdict):
    """No form raises on any well-typed records, the JSON is strict, the note fits, the headline is one line."""
    window = Window()
    for record in mix:
        window.append(record)
    report = summarize(window, verdict)
    document = to_json(report)
    assert set(document) == TOP
    json.dumps(document, allow_nan=False)
    to_text(report).encode()
    assert "<" not in to_markdown(report).replace("<0.1 %", "")
    assert len(note(report).encode()) <= NOTE_BYTES
    assert len(headline(verdict).splitlines()) == 1
    assert all(isinstance(value, str) for value in tags(report).values())
