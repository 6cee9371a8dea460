"""Is the verdict of a job of two ranks right? Two real ranks with gloo, a fault that is drawn, and its removal.

Each draw runs twice, with its fault and without it, stallmeter watching both. The job's report must name the rule and
the rank, and its lost seconds are held against what the removal saved. Draws are kept in a folder: a benchmark that was
stopped goes on, and ``--report`` asks today's rules about the recordings that are kept.

    python -m benchmarks.ranks [--seeds N] [--minutes M] [--only TEXT ...] [--folder F] [--report] [--markdown FILE]
                               [--rivals-python PYTHON]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from . import rivals
from .draws import FAULTS, LAUNCHERS, Draw, draw

PROGRAM = Path(__file__).with_name("program.py")
PATIENCE_S = 120.0
NEAR = 0.10
"""Lost seconds may be off by this share."""


def main() -> None:
    """Run what is not kept yet, and print the tables."""
    options = _arguments()
    draws = [draw(fault, launcher, seed) for seed in range(options.seeds) for launcher in LAUNCHERS for fault in FAULTS]
    draws = [d for d in draws if not options.only or any(part in d.name for part in options.only)]
    options.folder = options.folder.resolve()  # programs run in a folder of their own
    options.folder.mkdir(parents=True, exist_ok=True)
    begun, failed = time.monotonic(), []
    if not options.report:
        for each in draws:
            if time.monotonic() - begun > 60 * options.minutes:
                break
            if (options.folder / each.name / "result.json").exists():
                continue
            if run(each, options.folder / each.name):
                print(judged(each, options.folder / each.name).line, flush=True)
            else:
                failed.append(each.name)
                print(f"FAILED: {each.name}: a rank did not end; its log is beside its request", flush=True)
    found = [judged(d, options.folder / d.name) for d in draws if (options.folder / d.name / "result.json").exists()]
    text = table(found) + "".join(f"- FAILED: {name}\n" for name in failed)
    if options.rivals_python:
        readings = rivals.ask([j.draw for j in found], options.folder, options.rivals_python)
        text += f"\nThe same jobs under {rivals.NAME}:\n\n{rivals.table(right_by_fault(found), readings)}"
    print(text)
    if options.markdown:
        options.markdown.write_text(text)


def run(each: Draw, folder: Path) -> bool:
    """Train with the fault and without it; keep the recording and both times. Returns whether all ranks ended."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    times = {}
    for name in ("planted", "removed", *(("unsynced",) if each.fault == "communication" else ())):
        request = write_request(each, folder, name, planted=name == "planted", unsynced=name == "unsynced")
        with started(each, request, folder / f"{name}.log"):
            pass
        ends = [json.loads(p.read_text())["loop_s"] for p in sorted(folder.glob(f"{name}.json.*"))]
        if len(ends) != 2:
            return False
        times[name] = max(ends)
    shutil.rmtree(folder / "scratch", ignore_errors=True)
    (folder / "result.json").write_text(json.dumps({"draw": asdict(each), "loop_s": times}))
    return True


def write_request(each: Draw, folder: Path, name: str, **more: object) -> Path:
    """Write what a training is to do: its recording is the folder of that name, and its result lies beside it."""
    request = {
        **asdict(each),
        "recording": str(folder / name),
        "scratch": str(folder / "scratch"),
        "result": str(folder / f"{name}.json"),
        **more,
    }
    path = folder / f"{name}.request.json"
    path.write_text(json.dumps(request))
    return path


@contextmanager
def started(each: Draw, request: Path, log: Path) -> Iterator[None]:
    """Both ranks train inside, and are waited for at the end."""
    python = [sys.executable, "-W", "ignore"]
    command = [*python, str(PROGRAM), str(request)]
    if each.launcher == "plain":
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command = [*python, *torchrun, str(PROGRAM), str(request)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env=environment, cwd=log.parent, start_new_session=True
        )
        try:
            yield
        finally:
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_S)
            with suppress(ProcessLookupError):  # a rank that hangs, or is left behind
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@dataclass(frozen=True, slots=True)
class Judged:
    """One draw with what was said of it."""

    draw: Draw
    document: dict[str, Any]
    """The job's report as JSON."""
    lost_s: float
    """What the removal of the fault saved."""
    live: dict[str, Any] | None = None
    """What rank 0 said itself when the run ended."""
    whole_s: float | None = None
    """What is saved where DDP does not exchange at all: its copies go, too."""

    @property
    def primary(self) -> dict[str, Any]:
        return self.document.get("primary") or {}

    @property
    def warns(self) -> bool:
        return bool(self.primary) and self.primary["severity"] != "info"

    @property
    def is_right(self) -> bool:
        return names_it(self.draw, self.primary)

    @property
    def is_right_live(self) -> bool:
        """Whether rank 0 said so, too, without the others' files."""
        return self.live is not None and names_it(self.draw, self.live.get("primary") or {})

    @property
    def error(self) -> float | None:
        """Of the lost seconds, as a share of the truth; None where little was lost."""
        if self.draw.is_healthy or not self.warns or self.lost_s < 0.2:
            return None
        return float(self.primary["time_lost_s"]) / self.lost_s - 1.0

    @property
    def is_between(self) -> bool | None:
        """Whether an exchange's lost seconds lie between what its sending takes and all that goes with it."""
        if self.whole_s is None or not self.warns:
            return None
        return (1 - NEAR) * self.lost_s <= float(self.primary["time_lost_s"]) <= (1 + NEAR) * self.whole_s

    @property
    def line(self) -> str:
        said = f"{self.primary.get('rule', 'none')} {self.primary.get('ranks', '')}"
        error = "" if self.error is None else f", lost {self.primary['time_lost_s']:.1f} of {self.lost_s:.1f} s"
        live = (self.live or {}).get("primary") or {}
        said += (
            "" if self.is_right == self.is_right_live else f"; live {live.get('rule', 'none')} {live.get('ranks', '')}"
        )
        return f"{'right' if self.is_right else 'WRONG'}: {self.draw.name} (rank {self.draw.rank}): {said}{error}"


def names_it(each: Draw, primary: dict[str, Any]) -> bool:
    """Whether a primary diagnosis is right: the rule and the ranks, and no warning on a healthy job."""
    warns = bool(primary) and primary["severity"] != "info"
    if each.is_healthy:
        return not warns
    return warns and primary["rule"] in each.right_rules and tuple(primary.get("ranks", ())) == each.right_ranks


def judged(each: Draw, folder: Path) -> Judged:
    """Ask for the report of a kept draw."""
    result = json.loads((folder / "result.json").read_text())
    command = [sys.executable, "-m", "stallmeter", "report", str(folder / "planted"), "--format", "json"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    loops = result["loop_s"]
    lives = sorted((folder / "planted").rglob("diagnosis.json"))
    live = json.loads(lives[0].read_text()) if lives else None
    whole_s = loops["planted"] - loops["unsynced"] if "unsynced" in loops else None
    return Judged(each, json.loads(shown), loops["planted"] - loops["removed"], live, whole_s)


def right_by_fault(found: Sequence[Judged]) -> dict[str, tuple[int, int]]:
    """Return by fault how many verdicts are right, of how many."""
    return {
        fault: (sum(j.is_right for j in found if j.draw.fault == fault), sum(j.draw.fault == fault for j in found))
        for fault in FAULTS
    }


def table(found: Sequence[Judged]) -> str:
    """Return the tables as Markdown."""
    lines = [
        "| fault | right | right on rank 0 at its end | lost seconds within 10 % | median error |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for fault in FAULTS:
        part = [j for j in found if j.draw.fault == fault]
        if part:
            lines.append(_row(fault, part))
    lines.append(_row("all", found))
    alarms = sum(j.draw.is_healthy and j.warns for j in found)
    victims = sum(_compute_bound_beside_a_straggler(j) for j in found)
    lines += ["", f"Alarms on healthy jobs: {alarms}. Jobs called compute-bound beside a planted fault: {victims}.", ""]
    between = [j.is_between for j in found if j.is_between is not None]
    if between:
        least_and_most = "what sending takes and what goes with DDP's exchange as a whole"
        counted = f"{sum(between)} of {len(between)} (give or take {100 * NEAR:.0f} %)"
        lines += [
            f"Lost seconds of an exchange lie between {least_and_most} in {counted}.",
            "",
        ]
    lines += [f"- {j.line}" for j in found if not (j.is_right and j.is_right_live)]
    return "\n".join(lines) + "\n"


def _row(name: str, part: Sequence[Judged]) -> str:
    errors = [abs(j.error) for j in part if j.error is not None]
    near = f"{sum(e <= NEAR for e in errors)} of {len(errors)}" if errors else ""
    middle = f"{100 * median(errors):.1f} %" if errors else ""
    right, live = sum(j.is_right for j in part), sum(j.is_right_live for j in part)
    return f"| {name} | {right} of {len(part)} | {live} of {len(part)} | {near} | {middle} |"


def _compute_bound_beside_a_straggler(found: Judged) -> bool:
    live = (found.live or {}).get("primary") or {}
    return not found.draw.is_healthy and "compute-bound" in (found.primary.get("rule"), live.get("rule"))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.ranks", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="draws of each fault under each launcher")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no draw after so many")
    parser.add_argument("--only", nargs="+", default=(), help="draws whose name holds one of these")
    parser.add_argument("--folder", type=Path, default=Path("build/ranks"))
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument("--rivals-python", metavar="PYTHON", help=f"an interpreter with {rivals.NAME}: ask it, too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
