"""Is the function right that the training thread lost its time in, and the line, and the share?

Programs are drawn from seeds (`loop_programs`), run with stallmeter watching, and each times its own functions. What is
kept in a folder is not run again.

    python -m benchmarks.lines.loop_side [--seeds N] [--only TEXT ...] [--minutes M] [--folder F] [--report]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stallmeter.records.diagnosis import Diagnosis, Severity

from .loop_programs import FAMILIES, Program, draw

NEAR_POINTS = 15.0
"""A share may be off by so many points."""

TIE_POINTS = 5.0
"""Of two functions whose shares differ by less either may be named."""

PATIENCE_S = 120.0


_SILENT = Diagnosis(
    rule="", severity=Severity.INFO, title="", summary="", time_lost_s=0.0, share_pct=0.0, confidence=0.0
)


@dataclass(frozen=True, slots=True)
class Judged:
    """One program, and what was said of it."""

    program: Program
    said: dict[str, Any] | None
    """The location of the expected rule's diagnosis; None where there was none."""
    short: str
    """The function that took most, by the program's own clock."""
    true_pct: float
    found: tuple[str, ...]
    """The rules that spoke in place of the expected one; empty where that did."""

    @property
    def true(self) -> tuple[str, str, int]:
        """File, qualified function and line."""
        name = self.program.holder + self.short
        return self.program.file, name, self.program.line(self.short)

    @property
    def function(self) -> bool:
        said = self.said
        return said is not None and (said["file"], said["function"]) == self.true[:2]

    @property
    def line(self) -> bool:
        return self.function and self.said is not None and self.said["line"] == self.true[2]

    @property
    def off(self) -> float | None:
        """Points by which the share is off."""
        return self.said["share_pct"] - self.true_pct if self.said is not None and self.function else None


def run(program: Program, folder: Path) -> bool:
    """Run a program in its folder; returns whether it came to its end."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in program.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "main.py"]
    if program.zero_code:
        command = [sys.executable, "-m", "stallmeter", "run", "--", *command]
    environment = {**os.environ, "TRUTH": "truth.json", "STALLMETER_DIR": "recordings"}
    with (folder / "log").open("w") as log, suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            command, cwd=folder, env=environment, stdout=log, stderr=log, timeout=PATIENCE_S, check=False
        )
        return done.returncode == 0 and (folder / "truth.json").exists()
    return False


def judged(program: Program, folder: Path) -> Judged:
    """Read what was said and what was true."""
    from stallmeter.recording import find_recording
    from stallmeter.report.model import read_history
    from stallmeter.rules.evaluation import diagnose
    from stallmeter.rules.location import located

    truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    window = read_history(find_recording(folder / "recordings")).window
    verdict = diagnose(window)
    spoke = next((d for d in verdict.diagnoses if d.rule == program.rule), None)
    # On a busy machine another rule may speak, or none: what was seen there is judged all the same.
    said = (spoke or located(replace(_SILENT, rule=program.rule), window)).location
    fields = None if said is None else {name: getattr(said, name) for name in said.__dataclass_fields__}
    short = max(truth["spent"], key=lambda name: float(truth["spent"][name]))
    named = "" if fields is None else fields["function"].rpartition(".")[2]
    tie = TIE_POINTS / 100.0 * truth["whole"]
    if truth["spent"].get(named, 0.0) >= truth["spent"][short] - tie:
        short = named  # both take as much: either is right
    share = 100.0 * truth["spent"][short] / truth["whole"]
    return Judged(program, fields, short, share, () if spoke else tuple(d.rule for d in verdict.diagnoses))


def main() -> None:
    """Run what is not kept yet, and print the table."""
    options = _arguments()
    programs = [draw(family, seed) for seed in range(options.seeds) for family in (*FAMILIES, "import")]
    programs = [p for p in programs if not options.only or any(part in p.name for part in options.only)]
    begun = time.monotonic()
    for program in programs:
        folder = options.folder / program.name.replace(" ", "-")
        if options.report or (folder / "truth.json").exists():
            continue
        if time.monotonic() - begun > 60 * options.minutes:
            break
        print(line_of(judged(program, folder)) if run(program, folder) else f"FAILED {program.name}", flush=True)
    kept = [(p, options.folder / p.name.replace(" ", "-")) for p in programs]
    found = [judged(p, folder) for p, folder in kept if (folder / "truth.json").exists()]
    print(table(found))


def line_of(judged: Judged) -> str:
    """Return one program in a line."""
    said = judged.said
    where = "nothing" if said is None else f"{said['file']}:{said['line']} {said['function']} {said['share_pct']:.0f} %"
    program = judged.program
    file, function, line = judged.true
    true = f"{file}:{line} {function} {judged.true_pct:.0f} %"
    mark = "right" if judged.line else "function" if judged.function else "WRONG"
    rules = f" (verdict: {', '.join(judged.found)})" if judged.found else ""
    return f"{mark:8} {program.name:20} {where}; true: {true}{rules}"


def table(found: list[Judged]) -> str:
    """Return the table by family."""
    rows = [
        "| family | programs | place named | function | line | share within 15 points | by the expected rule |",
        "|---|---|---|---|---|---|---|",
    ]
    for family in (*dict.fromkeys(j.program.family for j in found), ""):
        those = [j for j in found if family in ("", j.program.family)]
        named = [j for j in those if j.said is not None]
        near = [j for j in those if j.off is not None and abs(j.off) <= NEAR_POINTS]
        own = sum(not j.found for j in those)
        right = sum(j.function for j in those), sum(j.line for j in those), len(near)
        rows.append(
            f"| {family or 'all'} | {len(those)} | {len(named)} | {right[0]} | {right[1]} | {right[2]} | {own} |"
        )
    return "\n".join(rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--folder", type=Path, default=Path("build/bench-lines-loop"))
    parser.add_argument("--report", action="store_true", help="ask today's rules about what is kept; run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
