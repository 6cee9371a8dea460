"""The same jobs under traceml-ai, from PyPI, in an environment of its own.

    python -m venv /tmp/rivals && /tmp/rivals/bin/pip install traceml-ai==0.5.0 lightning
    python -m benchmarks.ranks --report --rivals-python /tmp/rivals/bin/python

Its launcher starts both ranks, its callback or ``trace_step`` is put into the same programs, with the fault. What it
says is read generously. `symptom`: it names the right rank, or for a fault of all ranks what is wrong; with a healthy
job it warns of nothing. `cause`: it names the kind of work, too.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .draws import FAULTS, Draw

PROGRAM = Path(__file__).with_name("program.py")
PATIENCE_S = 180.0
NAME = "traceml-ai"

_QUIET = ("COMPUTE_BOUND", "NO_CLEAR", "BALANCED")
CAUSES: Mapping[str, tuple[str, ...]] = {
    "data": ("INPUT_STRAGGLER", "INPUT_BOUND"),
    "forward": ("COMPUTE_STRAGGLER",),
    "backward": ("COMPUTE_STRAGGLER", "STRAGGLER"),
    "hook": (),
    "logging": (),
    "checkpoint": (),
    "rotating": (),
    "communication": (),
    "both-data": ("INPUT_BOUND",),
    "healthy": _QUIET,
}
"""Kinds that name the kind of work. None of them is a callback, a logger, a checkpoint or the exchange itself."""

SYMPTOMS: Mapping[str, tuple[str, ...]] = {
    "data": ("INPUT_STRAGGLER", "INPUT_BOUND", "COMPUTE_STRAGGLER", "STRAGGLER"),
    **dict.fromkeys(("forward", "backward"), ("INPUT_STRAGGLER", "COMPUTE_STRAGGLER", "STRAGGLER")),
    **dict.fromkeys(("hook", "logging", "checkpoint"), ("STRAGGLER", "COMPUTE_STRAGGLER", "RESIDUAL_HEAVY")),
    "rotating": ("STRAGGLER", "INPUT_STRAGGLER", "INPUT_BOUND"),
    "communication": ("STRAGGLER",),
    "both-data": ("INPUT_BOUND", "INPUT_STRAGGLER"),
    "healthy": _QUIET,
}


@dataclass(frozen=True, slots=True)
class Reading:
    """What it said of one job."""

    draw: Draw
    symptom: bool
    cause: bool
    said: str


def read(draw: Draw, result: Mapping[str, Any]) -> Reading:
    """Hold what it said against what was planted."""
    primary = result.get("primary") or {}
    kind = str(primary.get("kind") or "")
    ranks = tuple(primary.get("ranks") or ())
    # It names the worst rank with other kinds, too: a right one counts, a wrong one only where a rank is what it says.
    named = ranks == draw.right_ranks or not draw.right_ranks
    symptom = (named or "STRAGGLER" not in kind) and any(kind.startswith(one) for one in SYMPTOMS[draw.fault])
    cause = named and any(kind.startswith(one) for one in CAUSES[draw.fault])
    said = f"{kind or str(result.get('error', 'nothing'))[-100:]} {list(ranks) if ranks else ''}".strip()
    return Reading(draw, symptom or cause, cause, said)


def ask(draws: Sequence[Draw], folder: Path, python: str) -> list[Reading]:
    """Run it on draws, unless what it said of them is kept.

    Args:
        draws: With a result in the folder.
        folder: Where draws are kept.
        python: Interpreter that has it.
    """
    found = []
    for draw in draws:
        path = folder / draw.name / "traceml.json"
        if not path.exists():
            path.write_text(json.dumps(_run(draw, python)))
        found.append(read(draw, json.loads(path.read_text())))
        mark = "cause" if found[-1].cause else "symptom" if found[-1].symptom else "WRONG"
        print(f"{NAME} {mark}: {draw.name} (rank {draw.rank}): {found[-1].said}", file=sys.stderr, flush=True)
    return found


def _run(draw: Draw, python: str) -> dict[str, Any]:
    with TemporaryDirectory(prefix="stallmeter-ranks-") as temporary:
        folder = Path(temporary)
        request, result, log = folder / "request.json", folder / "result.json", folder / "log"
        request.write_text(
            json.dumps(
                {
                    **asdict(draw),
                    "planted": True,
                    "recording": None,
                    "tool": "traceml",
                    "scratch": str(folder / "scratch"),
                    "result": str(result),
                }
            )
        )
        launcher = [str(Path(python).with_name("traceml")), "run", "--logs-dir", str(folder / "traceml")]
        launcher += ["--run-name", "case", "--mode", "summary", "--nproc-per-node", "2"]
        launcher += ["--master-port", str(_free_port()), "--aggregator-port", str(_free_port())]
        with log.open("w") as out:
            process = subprocess.Popen(
                [*launcher, str(PROGRAM), "--args", str(request)],
                stdout=out,
                stderr=out,
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
            try:
                code = process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                code = -signal.SIGKILL
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        ended = folder / "result.json.0"
        if not ended.exists():
            return {"error": f"exit code {code}: {log.read_text(errors='replace').strip()[-1500:]}"}
        return dict(json.loads(ended.read_text())["said"])


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def table(right: Mapping[str, tuple[int, int]], readings: Sequence[Reading]) -> str:
    """Return the table that compares.

    Args:
        right: By fault: how many of stallmeter's verdicts were right, of how many.
        readings: What the rival said of the same draws.
    """
    lines = [f"| fault | stallmeter | {NAME}: symptom | cause |", "| --- | ---: | ---: | ---: |"]
    for fault in FAULTS:
        part = [reading for reading in readings if reading.draw.fault == fault]
        if part:
            lines.append(_row(fault, right.get(fault, (0, 0)), part))
    whole = sum(n for n, _ in right.values()), sum(of for _, of in right.values())
    lines.append(_row("all", whole, readings))
    return "\n".join(lines) + "\n"


def _row(name: str, right: tuple[int, int], part: Sequence[Reading]) -> str:
    symptoms, causes = sum(reading.symptom for reading in part), sum(reading.cause for reading in part)
    return f"| {name} | {right[0]} of {right[1]} | {symptoms} of {len(part)} | {causes} of {len(part)} |"
