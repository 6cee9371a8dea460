"""The published rivals on the same runs: traceml-ai and gpuprof, from PyPI, in an environment of their own.

    python -m venv /tmp/rivals && /tmp/rivals/bin/pip install traceml-ai==0.5.0 gpuprof==0.7.1 lightning
    python -m benchmarks.faults --rivals --rivals-python /tmp/rivals/bin/python

What they say is read generously. `symptom`: the verdict points at the right place, so that "input bound" counts for
every fault of the input family. `cause`: the verdict or its advice names what was planted, or the change that cures it.
gpuprof gives a list and no primary: the best of its list counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .case import HEALTHY, INPUT_FAMILY, MORE_WORKERS, Case, Judgement, advises

NAMES = ("traceml", "gpuprof")

_INPUT = INPUT_FAMILY | {"noisy-neighbour"}
_OUTSIDE = frozenset({"slow-callback", "slow-logging", "checkpoint-stall", "validation-heavy"})


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a rival's sentence may stand for."""

    tool: str
    pattern: str
    """Begins the kind (traceml) or stands in the title (gpuprof)."""
    symptom: frozenset[str]
    cause: frozenset[str] = frozenset()


MEANINGS = (
    Meaning("traceml", "INPUT_BOUND", frozenset(_INPUT), frozenset({"no-workers", "too-few-workers", "fetch-stall"})),
    Meaning("traceml", "RESIDUAL_HEAVY", _OUTSIDE | {"step-outliers"}),
    Meaning("traceml", "COMPUTE_BOUND", frozenset({HEALTHY, "step-outliers"}), frozenset({HEALTHY})),
    Meaning("traceml", "NO_CLEAR", frozenset({HEALTHY}), frozenset({HEALTHY})),
    Meaning("traceml", "CREEP", frozenset({"host-memory-growth"}), frozenset({"host-memory-growth"})),
    Meaning("traceml", "HIGH_PROCESS_RSS", frozenset({"host-memory-growth"})),
    Meaning("gpuprof", "waiting on the loader", frozenset(_INPUT), frozenset({"no-workers", "too-few-workers"})),
    Meaning(
        "gpuprof", "workers are CPU-bound", frozenset({"prep-stall", "noisy-neighbour"}), frozenset({"prep-stall"})
    ),
    Meaning("gpuprof", "I/O-bound", frozenset({"fetch-stall"}), frozenset({"fetch-stall"})),
    Meaning("gpuprof", "Prefetch queue starved", frozenset(_INPUT), frozenset({"too-few-workers"})),
    Meaning("gpuprof", "worker imbalance", frozenset({"slow-batches"}), frozenset({"slow-batches"})),
    Meaning(
        "gpuprof",
        "high tail latency",
        frozenset({"step-outliers", "slow-batches", "checkpoint-stall"}),
        frozenset({"step-outliers", "checkpoint-stall"}),
    ),
    Meaning("gpuprof", "Host memory pressure", frozenset({"host-memory-growth"}), frozenset({"host-memory-growth"})),
)


class TraceMl:
    """traceml-ai: one primary diagnosis, and one in each of its other sections."""

    def __init__(self) -> None:
        from traceml_ai.integrations.lightning import TraceMLCallback, init

        init()
        self.callbacks = [TraceMLCallback()]

    def result(self) -> dict[str, Any]:
        import traceml_ai

        return {**_NOTHING, "said": list(_traceml_said(traceml_ai.final_summary(timeout_sec=60.0) or {}))}


class GpuProf:
    """gpuprof: a list of insights."""

    def __init__(self, folder: Path) -> None:
        from gpuprof.integrations import LightningCallback

        folder.mkdir(parents=True, exist_ok=True)
        self.database = folder / "gpuprof.db"
        self.callbacks = [LightningCallback(run_name="case", db_path=str(self.database))]

    def result(self) -> dict[str, Any]:
        from gpuprof import insights

        found = insights.analyze(str(self.database), 1)["insights"]
        return {
            **_NOTHING,
            "said": [
                {
                    "name": one["title"],
                    "severity": one["severity"],
                    "text": one["title"],
                    "advice": [{"text": one["recommendation"]}],
                    "primary": True,
                }
                for one in found
            ],
        }


_NOTHING: Mapping[str, Any] = {"primary": None, "diagnoses": []}


def open_rival(name: str, folder: Path) -> TraceMl | GpuProf:
    """Return a rival that is about to watch a fit.

    Raises:
        SystemExit: There is no tool of this name.
    """
    if name not in NAMES:
        raise SystemExit(f"no such tool: {name}; there are stallmeter, {', '.join(NAMES)}")
    return TraceMl() if name == "traceml" else GpuProf(folder)


def _traceml_said(summary: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    primary = summary.get("primary_diagnosis") or {}
    yield _traceml_one(primary, primary=True)
    for section in ("step_time", "step_memory", "process", "system"):
        diagnosis = (summary.get(section) or {}).get("diagnosis")
        if diagnosis:
            yield _traceml_one(diagnosis, primary=False)


def _traceml_one(diagnosis: Mapping[str, Any], *, primary: bool) -> dict[str, Any]:
    text = " ".join(str(diagnosis.get(key) or "") for key in ("summary", "reason", "note"))
    advice = diagnosis.get("action") or diagnosis.get("next_step") or ""
    return {
        "name": str(diagnosis.get("kind") or "NONE"),
        "severity": str(diagnosis.get("severity") or "info"),
        "text": text.strip(),
        "advice": [{"text": str(advice)}] if advice else [],
        "primary": primary,
    }


def command(python: str, tool: str, folder: Path) -> list[str]:
    """Return how a case is started under a tool; the case's own arguments follow."""
    script = str(Path(__file__).with_name("rival_main.py"))
    if tool != "traceml":
        return [python, script]
    # Its launcher starts an aggregator and torchrun, and wants the script's arguments behind --args.
    launcher = str(Path(python).with_name("traceml"))
    return [launcher, "run", "--logs-dir", str(folder / "traceml"), "--run-name", "case", script, "--args"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One run of a rival, read generously."""

    symptom: bool
    cause: bool
    alarm: bool
    """It warns on a healthy shape."""
    contradicts: bool
    """It advises more workers and against them at once, or more workers where they would do harm."""
    said: str


_HARMED = frozenset({"prep-stall", "worker-startup", "too-many-workers", "batch-handoff", "noisy-neighbour"})


def read(tool: str, result: Mapping[str, Any]) -> Reading:
    """Hold what a rival said about a run against what was planted there."""
    truth, said = result["truth"], list(result.get("said") or ())
    verdicts = [one for one in said if one["primary"]]
    loud = [one for one in verdicts if one["severity"] not in ("info", "low")]
    symptom = cause = False
    for one in said if truth == "host-memory-growth" else verdicts:
        for meaning in MEANINGS:
            if meaning.tool == tool and meaning.pattern in one["name"]:
                symptom |= truth in meaning.symptom
                cause |= truth in meaning.cause
    if truth == HEALTHY and verdicts and not loud:
        symptom = cause = True
    wrong_way = truth in _HARMED and any(advises(one, MORE_WORKERS) for one in verdicts)
    against = any("more workers won't help" in a["text"] for one in verdicts for a in one["advice"])
    both = against and any(advises(one, MORE_WORKERS) for one in verdicts)
    return Reading(
        symptom=symptom,
        cause=cause,
        alarm=truth == HEALTHY and not (symptom or cause),
        contradicts=wrong_way or both,
        said="; ".join(one["name"] for one in verdicts) or str(result.get("error", "nothing"))[-120:],
    )


def compare(
    cases: Sequence[Case], ours: Sequence[tuple[Mapping[str, Any], Judgement]], arguments: argparse.Namespace
) -> tuple[str, dict[str, list[dict[str, Any]]]]:
    """Run the rivals on the runs that we had, and return the table as Markdown with the results behind it."""
    from .__main__ import makers, plan
    from .runner import gather

    python = arguments.rivals_python or sys.executable
    runs = plan(cases, arguments.seeds, arguments.levels, arguments.first_seed)
    results: dict[str, list[dict[str, Any]]] = {}
    for tool in NAMES:

        def say(result: dict[str, Any], tool: str = tool) -> None:
            reading = read(tool, result)
            mark = "cause" if reading.cause else "symptom" if reading.symptom else "WRONG"
            run = f"{result['case']}, intensity {result['level']}, seed {result['seed']}"
            print(f"{tool} {mark:7s} {run}: {reading.said}", file=sys.stderr, flush=True)

        made = makers(arguments, python=python, tool=tool)
        results[tool] = gather(runs, made, retries=arguments.retries, on_result=say)
    return markdown(ours, results), results


def markdown(
    ours: Sequence[tuple[Mapping[str, Any], Judgement]], results: Mapping[str, Sequence[Mapping[str, Any]]]
) -> str:
    """Return the table that compares."""
    readings = {tool: [(r["truth"], read(tool, r)) for r in found] for tool, found in results.items()}
    head = ["truth", "stallmeter", *(f"{tool}: symptom / cause" for tool in readings)]
    rows = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
    truths = sorted({r["truth"] for r, _ in ours}, key=lambda t: (t == HEALTHY, t))
    for truth in [*truths, None]:
        mine = [j.right for r, j in ours if truth in (None, r["truth"])]
        cells = [truth or "all", f"{sum(mine)}/{len(mine)}"]
        for found in readings.values():
            part = [reading for planted, reading in found if truth in (None, planted)]
            cells.append(f"{sum(r.symptom for r in part)} / {sum(r.cause for r in part)} of {len(part)}")
        rows.append(f"| {' | '.join(cells)} |")
    contradictions = [str(sum(bool(j.contradictions) for _, j in ours))]
    alarms = [str(sum(bool(j.false_alarms) for _, j in ours))]
    for found in readings.values():
        contradictions.append(str(sum(r.contradicts for _, r in found)))
        alarms.append(str(sum(r.alarm for _, r in found)))
    rows += [f"| contradictory or harmful advice | {' | '.join(contradictions)} |"]
    rows += [f"| false alarms on healthy shapes | {' | '.join(alarms)} |"]
    return "\n".join(
        [
            "## The same runs under published rivals",
            "",
            (
                "`symptom`: the verdict points at the right place (“input bound” for anything of the input family). "
                "`cause`: it, or its advice, names what was planted. gpuprof has no primary, so the best of its list "
                "counts."
            ),
            "",
            *rows,
            "",
        ]
    )
