"""Runs the drawn programs whose batches take long, and compares the place that is named with the one that takes most.

Each program runs under stallmeter, twice without it and twice without what was planted, in turn, and alone with a clock
of its own around the planted function and the one beside it. Right is which of them takes more by that clock: how long
a line takes differs from machine to machine, and a lock that nobody else holds takes next to nothing. Recordings are
kept in a folder: a program that is there is not run again, but judged again by today's rules.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stallmeter.recording.reader import Reader
from stallmeter.records import CodeLook
from stallmeter.records.diagnosis import Verdict
from stallmeter.report.model import read_history
from stallmeter.rules.evaluation import diagnose

from .worker_programs import BESIDE, FAMILIES, LIBRARY, Program, draw

SECONDS = {"measured": 9.0, "plain": 5.0, "mended": 3.0, "timed": 0.0}
"""Of training, in each of the forms."""

ORDER = ("measured", "plain", "mended", "plain", "mended", "timed")
"""In which a program runs in its forms."""

SHARE_GOAL = 15.0
"""Points by which the share may be off."""

WAITS_FOR_OTHERS = "lock"
"""The family whose planted time is that of another thread, which holds a lock."""

TIE_POINTS = 5.0
"""Of two functions whose true shares differ by less either may be named."""

GAIN_GOAL = 0.15
"""Part by which the predicted throughput without the function may be off."""

RUNS = "runs.json"
"""What the forms of a program said; written last."""

RUN_S = 300.0
"""The run that the cost of a look is compared with."""

SERVER = """
import socket, threading, time
found = socket.create_server(("127.0.0.1", 0))
print(found.getsockname()[1], flush=True)
def serve(connection):
    try:
        while len(asked := connection.recv(8, socket.MSG_WAITALL)) == 8:
            time.sleep(int(asked) / 1e6)
            connection.sendall(b"x")
    except OSError:
        pass
while True:
    threading.Thread(target=serve, args=(found.accept()[0],), daemon=True).start()
"""


@dataclass(frozen=True, slots=True)
class Result:
    """How one program went."""

    name: str
    workers: int
    context: str
    lightning: bool
    rule: str
    """The verdict; empty where there was none."""
    expected: str
    function: str
    line: int
    call: str
    is_function: bool
    is_line: bool
    share_pct: float | None
    true_share_pct: float
    changed: int
    """Batches that differ from those of the run without stallmeter."""
    compared: int
    added_s: float | None
    """By the look."""
    predicted: float | None
    """Throughput without the function, as a multiple."""
    achieved: float | None


def run(program: Program, port: int, kept: Path) -> None:
    """Run one program in all its forms, and keep what they say and the recording in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        library = home / "site-packages" / "visionkit"
        library.mkdir(parents=True)
        (library / "__init__.py").touch()
        (library / "transforms.py").write_text(LIBRARY)
        for name, source in (("main.py", program.source), ("mended.py", program.mended)):
            (home / name).write_text(source)
        found: dict[str, list[dict[str, Any]]] = {form: [] for form in SECONDS}
        for form in ORDER:
            found[form].append(_run_form(program, form, home, port))
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        (recording,) = (home / "recordings").iterdir()
        shutil.move(recording, kept / recording.name)
        (kept / RUNS).write_text(json.dumps(found))


def _run_form(program: Program, form: str, home: Path, port: int) -> dict[str, Any]:
    result = home / f"{form}.json"
    path = os.pathsep.join([str(home / "site-packages"), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "FORM": "plain" if form == "mended" else form,
        "SECONDS": str(SECONDS[form]),
        "RECORDINGS": str(home / "recordings"),
        "RESULT": str(result),
        "BATCHES": "3",
        "SERVER": str(port),
    }
    source = "mended.py" if form == "mended" else "main.py"
    done = subprocess.run(
        [sys.executable, source], cwd=home, env=environment, capture_output=True, text=True, timeout=120
    )
    if not result.is_file():
        raise RuntimeError(f"{program.name}, {form}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def judged(program: Program, kept: Path) -> Result:
    """Judge what was run by today's rules."""
    found = json.loads((kept / RUNS).read_text())
    (recording,) = (one for one in kept.iterdir() if one.is_dir())
    rates = {form: statistics.mean(one["rate"] for one in found[form]) for form in ("plain", "mended")}
    verdict = diagnose(read_history(recording).window)
    primary = verdict.primary
    place = None if primary is None else primary.location
    added = [record.added_s for record, _ in Reader(recording) if isinstance(record, CodeLook) and record.added_s]
    # What is planted in a library is not taken out.
    achieved = None if program.mended == program.source else rates["mended"] / rates["plain"]
    truth = truth_of(program, found["timed"][0], rates["plain"])
    right = next((one for one in truth if place is not None and place.function in one.functions), None)
    digests = list(zip(found["measured"][0]["digests"], found["plain"][0]["digests"], strict=False))
    return Result(
        name=program.name,
        workers=program.workers,
        context=program.context if program.workers else "",
        lightning=program.lightning,
        rule="" if primary is None else primary.rule,
        expected=truth[0].functions[0],
        function="" if place is None else place.function,
        line=0 if place is None else place.line,
        call=(place.call or "") if place is not None else "",
        is_function=right is not None,
        is_line=place is not None and right is not None and (not right.lines or place.line in right.lines),
        share_pct=None if place is None else place.share_pct,
        true_share_pct=(right or truth[0]).share_pct,
        changed=sum(one != other for one, other in digests),
        compared=len(digests),
        added_s=added[-1] if added else None,
        # What was taken out is what was planted: where the other function takes more, nothing tells what it gains.
        predicted=_predicted(verdict) if right is not None and program.function in right.functions else None,
        achieved=achieved,
    )


@dataclass(frozen=True, slots=True)
class Place:
    """A function that takes a share of the batches, by the program's own clock."""

    functions: tuple[str, ...]
    """Its names; several where no function is the user's."""
    lines: frozenset[int]
    """That take it; empty where they are none of the program's."""
    share_pct: float


def truth_of(program: Program, timed: dict[str, Any], rate: float) -> list[Place]:
    """Return the functions that are right to name, the one that takes most first.

    Args:
        program: What was drawn.
        timed: Seconds by its own clock, its batches made alone.
        rate: Batches a second of its training.
    """
    spent, whole = timed["spent"], timed["whole"]
    if program.family == WAITS_FOR_OTHERS and program.workers:
        # Alone it meets the lock in another phase, in each item: what its workers take longer is the wait for that.
        trained = max(whole - spent, timed["batches"] * program.workers / rate)
        spent, whole = trained - (whole - spent), trained
    planted, beside = 100.0 * spent / whole, 100.0 * timed["beside"] / whole
    lines = frozenset() if program.others else frozenset(program.lines)
    places = [
        Place((program.function, *program.others), lines, planted),
        Place((BESIDE,), frozenset(program.lines_beside), beside),
    ]
    most = max(planted, beside)
    return sorted((one for one in places if one.share_pct >= most - TIE_POINTS), key=lambda one: -one.share_pct)


def _predicted(verdict: Verdict) -> float | None:
    primary = verdict.primary
    for advice in primary.advice if primary is not None else ():
        if advice.fix.limit.startswith("Predicted as if") and advice.predicted_gain_pct is not None:
            return 1.0 + advice.predicted_gain_pct / 100.0
    return None


def measure(programs: list[Program], folder: Path) -> list[Result]:
    """Run what is not kept yet, and return all results."""
    folder.mkdir(parents=True, exist_ok=True)
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port, results = int(server.stdout.readline()), []
    try:
        for program in programs:
            kept = folder / program.name
            if not (kept / RUNS).is_file():
                run(program, port, kept)
            results.append(judged(program, kept))
            print(row(results[-1]), flush=True)
    finally:
        server.kill()
        server.wait()
    return results


def row(one: Result) -> str:
    """Return one result as a row of a table."""
    marks = "".join("✓" if right else "✗" for right in (one.is_function, one.is_line))
    share = "-" if one.share_pct is None else f"{one.share_pct:.0f}"
    gain = "-" if one.predicted is None else f"{one.predicted:.2f}"
    achieved = "-" if one.achieved is None else f"{one.achieved:.2f}"
    how = f"{one.workers} {one.context}{' Lightning' if one.lightning else ''}"
    place = f"{one.function or '-'}:{one.line}{f' ({one.call})' if one.call else ''}"
    return (
        f"| {one.name} | {how} | {one.rule or '-'} | {marks} {place} | {share} / {one.true_share_pct:.0f} | "
        f"{one.changed} of {one.compared} | {gain} / {achieved} |"
    )


HEADER = """\
| program | workers | verdict | place | share, true share (%) | changed batches | predicted, achieved |
|---|---|---|---|---|---|---|"""


def summary(results: list[Result]) -> str:
    """Return the figures to compare with the goals."""
    placed = [one for one in results if one.share_pct is not None]
    off = [abs(one.share_pct - one.true_share_pct) for one in placed if one.is_function and one.share_pct is not None]
    gains = [one.predicted / one.achieved - 1.0 for one in results if one.predicted and one.achieved]
    added = [one.added_s for one in results if one.added_s is not None]
    lines = [
        f"programs: {len(results)}, named: {len(placed)}",
        f"right function: {sum(one.is_function for one in results)} (goal 95 %)",
        f"right line: {sum(one.is_line and one.is_function for one in results)} (goal 90 %)",
        f"share within {SHARE_GOAL:.0f} points: {sum(o <= SHARE_GOAL for o in off)} of {len(off)}"
        + (f", median {statistics.median(off):.0f}, most {max(off):.0f}" if off else ""),
        f"changed batches: {sum(one.changed for one in results)} of {sum(one.compared for one in results)}",
        f"gain within {100 * GAIN_GOAL:.0f} %: {sum(abs(g) <= GAIN_GOAL for g in gains)} of {len(gains)}"
        + (f", median error {100 * statistics.median(map(abs, gains)):.0f} %" if gains else ""),
    ]
    if added:
        lines.append(f"a look adds {statistics.median(added):.2f} s, most {max(added):.2f} s: {max(added) / RUN_S:.2%}")
    return "\n".join(f"- {line}" for line in lines)


def programs(seeds: range, only: list[str]) -> list[Program]:
    """Return the drawn programs."""
    return [draw(family, seed) for seed in seeds for family in FAMILIES if not only or family in only]
