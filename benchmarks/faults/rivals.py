"""The published rivals on the same runs: traceml-ai and gpuprof, from PyPI, in an environment of their own.

    python -m venv /tmp/rivals && /tmp/rivals/bin/pip install traceml-ai==0.5.0 gpuprof==0.7.1 lightning
    python -m benchmarks.faults --report --even --rivals-python /tmp/rivals/bin/python

What they say is read generously. `symptom`: the verdict points at the right place, so that "input bound" counts for
every fault of the input family. `cause`: the verdict or its advice names what was planted, or the change that cures it.
gpuprof gives a list and no primary: the best of its list counts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import host, outside
from .cause import HEALTHY
from .collect import ROOT, TIMEOUT_S, Collector, environment
from .judge import INPUT_FAMILY, MORE_WORKERS, advises
from .kept import Kept
from .program import program_of
from .truth import Truth

NAMES = ("traceml", "gpuprof")

_INPUT = INPUT_FAMILY | {"noisy-neighbour", "cpu-throttled", "cold-cache"}
_OUTSIDE = frozenset({"slow-callback", "slow-logging", "checkpoint-stall", "validation-heavy"})
_IN_STEPS = frozenset({"step-outliers", "step-time-drift", "gc-pauses", "recompiles"})


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
    Meaning("traceml", "RESIDUAL_HEAVY", _OUTSIDE | _IN_STEPS),
    Meaning("traceml", "COMPUTE_BOUND", _IN_STEPS | {HEALTHY}, frozenset({HEALTHY})),
    Meaning("traceml", "NO_CLEAR", frozenset({HEALTHY}), frozenset({HEALTHY})),
    Meaning("traceml", "CREEP", frozenset({"host-memory-growth"}), frozenset({"host-memory-growth"})),
    Meaning("traceml", "HIGH_PROCESS_RSS", frozenset({"host-memory-growth"})),
    Meaning("gpuprof", "waiting on the loader", frozenset(_INPUT), frozenset({"no-workers", "too-few-workers"})),
    Meaning(
        "gpuprof", "workers are CPU-bound", frozenset({"prep-stall", "noisy-neighbour"}), frozenset({"prep-stall"})
    ),
    Meaning("gpuprof", "I/O-bound", frozenset({"fetch-stall"}), frozenset({"fetch-stall"})),
    Meaning("gpuprof", "Prefetch queue starved", frozenset(_INPUT), frozenset({"too-few-workers"})),
    Meaning("gpuprof", "worker imbalance", frozenset({"slow-batches", "idle-workers"}), frozenset({"slow-batches"})),
    Meaning("gpuprof", "warmup / JIT compile", frozenset({"slow-start", "recompiles"}), frozenset({"slow-start"})),
    Meaning(
        "gpuprof",
        "high tail latency",
        _IN_STEPS | {"slow-batches", "checkpoint-stall"},
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
        """Return what it said."""
        import traceml_ai

        return {"said": list(_traceml_said(traceml_ai.final_summary(timeout_sec=60.0) or {}))}


class GpuProf:
    """gpuprof: a list of insights."""

    def __init__(self, folder: Path) -> None:
        from gpuprof.integrations import LightningCallback

        folder.mkdir(parents=True, exist_ok=True)
        self.database = folder / "gpuprof.db"
        self.callbacks = [LightningCallback(run_name="case", db_path=str(self.database))]

    def result(self) -> dict[str, Any]:
        """Return what it said."""
        from gpuprof import insights

        found = insights.analyze(str(self.database), 1)["insights"]
        return {
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
    """Return how a run is started under a tool; the path of its request follows."""
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


_HARMED = frozenset(
    {"prep-stall", "worker-startup", "too-many-workers", "batch-handoff", "noisy-neighbour", "idle-workers"}
)


def read(tool: str, truth: Truth, result: Mapping[str, Any]) -> Reading:
    """Hold what a rival said about a run against the truth of it."""
    right, said = set(truth.right), list(result.get("said") or ())
    verdicts = [one for one in said if one["primary"]]
    loud = [one for one in verdicts if one["severity"] not in ("info", "low")]
    symptom = cause = False
    for one in said if "host-memory-growth" in right else verdicts:
        for meaning in MEANINGS:
            if meaning.tool == tool and meaning.pattern in one["name"]:
                symptom |= bool(right & meaning.symptom)
                cause |= bool(right & meaning.cause)
    if truth.healthy and verdicts and not loud:
        symptom = cause = True
    wrong_way = bool(right) and right <= _HARMED and any(advises(one, MORE_WORKERS) for one in verdicts)
    against = any("more workers won't help" in a["text"] for one in verdicts for a in one["advice"])
    both = against and any(advises(one, MORE_WORKERS) for one in verdicts)
    return Reading(
        symptom=symptom,
        cause=cause,
        alarm=truth.healthy and not (symptom or cause),
        contradicts=wrong_way or both,
        said="; ".join(one["name"] for one in verdicts) or str(result.get("error", "nothing"))[-120:],
    )


def comparable(found: Sequence[Kept]) -> list[Kept]:
    """Return the draws that the rivals can be asked about: they come as callbacks of Lightning."""
    return [k for k in found if k.result["draw"]["program"]["loop"] == "lightning" and not k.failed]


def compare(found: Sequence[Kept], collector: Collector, python: str) -> str:
    """Run the rivals on draws whose truth is known, keep what they say, and return the table as Markdown."""
    chosen = comparable(found)
    said: dict[str, dict[int, Mapping[str, Any]]] = {tool: {} for tool in NAMES}
    for kept in chosen:
        for tool in NAMES:
            path = collector.path(kept.seed) / f"{tool}.json"
            if not path.is_file():
                path.write_text(json.dumps(_run(kept, collector, tool, python)))
            said[tool][kept.seed] = json.loads(path.read_text())
            reading = read(tool, kept.truth, said[tool][kept.seed])
            mark = "cause" if reading.cause else "symptom" if reading.symptom else "WRONG"
            print(f"{tool} {mark:7s} {reading.said}; {kept.result['described']}", file=sys.stderr, flush=True)
    return markdown(chosen, said)


def _run(kept: Kept, collector: Collector, tool: str, python: str) -> dict[str, Any]:
    """Make the run of a draw once more, in a process of the rival's interpreter."""
    program = program_of(kept.result["draw"]["program"])
    host.wait_until_quiet(collector.cpus, collector.patience_s)
    with tempfile.TemporaryDirectory(prefix="stallmeter-faults-") as temporary:
        folder = Path(temporary)
        request = collector.request(program, kept.seed, folder / "run", gentle_s=2.0 * kept.result["draw"]["seconds"])
        result, log = folder / "result.json", folder / "log"
        path = folder / "request.json"
        path.write_text(json.dumps({**request, "tool": tool, "result": str(result)}))
        with outside.neighbours(program.neighbours, collector.cpus), log.open("w") as out:
            process = subprocess.Popen(
                [*command(python, tool, folder), str(path)],
                cwd=ROOT,
                env=environment(os.environ),
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
            try:
                code = process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                code = -signal.SIGKILL
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if not result.is_file():
            return {"error": f"exit code {code}: {log.read_text(errors='replace').strip()[-1500:]}"}
        return json.loads(result.read_text())


def markdown(found: Sequence[Kept], said: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> str:
    """Return the table that compares."""
    readings = {
        tool: [(k.truth.label, read(tool, k.truth, results[k.seed])) for k in found if k.seed in results]
        for tool, results in said.items()
    }
    head = ["truth", "stallmeter", *(f"{tool}: symptom / cause" for tool in readings)]
    rows = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
    truths = sorted({k.truth.label for k in found}, key=lambda t: (t == HEALTHY, t))
    for truth in [*truths, None]:
        mine = [k.judgement.right for k in found if truth in (None, k.truth.label)]
        cells = [truth or "all", f"{sum(mine)}/{len(mine)}"]
        for those in readings.values():
            part = [reading for planted, reading in those if truth in (None, planted)]
            cells.append(f"{sum(r.symptom for r in part)} / {sum(r.cause for r in part)} of {len(part)}")
        rows.append(f"| {' | '.join(cells)} |")
    contradictions = [str(sum(bool(k.judgement.contradictions) for k in found))]
    alarms = [str(sum(bool(k.judgement.false_alarms) for k in found))]
    for those in readings.values():
        contradictions.append(str(sum(r.contradicts for _, r in those)))
        alarms.append(str(sum(r.alarm for _, r in those)))
    rows += [f"| contradictory or harmful advice | {' | '.join(contradictions)} |"]
    rows += [f"| false alarms on healthy runs | {' | '.join(alarms)} |"]
    return "\n".join(
        [
            "### The same draws under published rivals",
            "",
            (
                "`symptom`: the verdict points at the right place (“input bound” for anything of the input family). "
                "`cause`: it, or its advice, names what was true. gpuprof has no primary, so the best of its list "
                "counts."
            ),
            "",
            *rows,
            "",
        ]
    )
