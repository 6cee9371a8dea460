"""How soon is it known which rank died? Rank 1 of two is killed (SIGKILL) in the middle of a training.

Two times are measured from the kill on: until ``stallmeter report DIR`` would say that rank 1 died, asked all the time,
and until a report that says so lies beside the recording, which nothing asks for: rank 0 writes it as it ends, or who
outlives rank 0 where its launcher kills that, too.

    python -m benchmarks.ranks.killed [--rounds N] [--folder F]
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from stallmeter.ranks.job import read_job
from stallmeter.report.job.endings import broken_lines

from .__main__ import started, write_request
from .draws import LAUNCHERS, Draw, draw

PATIENCE_S = 60.0
RANK = 1
SOON_S = 2.0


def main() -> None:
    """Kill in each round once under each launcher, and print how long the report took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    found: dict[str, list[Death]] = {launcher: [] for launcher in LAUNCHERS}
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(options.rounds):
            for launcher in LAUNCHERS:
                each = draw("healthy", launcher, seed)
                death = run(each, (options.folder or Path(scratch)) / f"{launcher}-{seed}")
                found[launcher].append(death)
                print(
                    f"{launcher} {seed}: asked {death.asked_s} s, written {death.written_s} s: {death.said}", flush=True
                )
    for launcher, deaths in found.items():
        asked, written = (_summary([getattr(d, name) for d in deaths]) for name in ("asked_s", "written_s"))
        print(f"{launcher}: asked {asked}; written {written}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """What became known of one killed rank, and when; None where it did not."""

    asked_s: float | None
    """Seconds from the kill to the first answer that names it."""
    written_s: float | None
    """Seconds from the kill to the report that names it."""
    said: str


def run(each: Draw, folder: Path) -> Death:
    """Train, kill, and look until both are known."""
    folder.mkdir(parents=True)
    request = write_request(each, folder, "recording", planted=False, killed_at=each.steps // 2)
    recordings, killed = folder / "recording", folder / "recording.json.killed"
    asked_s: float | None = None
    written_s: float | None = None
    said = ""
    with started(each, request, folder / "log"):
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s and None in (asked_s, written_s):
            time.sleep(0.02)
            if not killed.exists() or not killed.read_text():
                continue
            killed_s = float(killed.read_text())
            if asked_s is None and _asked(recordings):
                asked_s = round(time.time() - killed_s, 2)
            for report in recordings.glob("*/report.md") if written_s is None else ():
                said = naming(report.read_text().splitlines())
                written_s = round(report.stat().st_mtime - killed_s, 2) if said else None
    return Death(asked_s=asked_s, written_s=written_s, said=said)


def _asked(recordings: Path) -> bool:
    """Whether somebody who asks now is told."""
    return any(bool(naming(broken_lines(read_job(folder)))) for folder in recordings.iterdir() if folder.is_dir())


def naming(lines: Iterable[str]) -> str:
    """Return the line that says of the rank that it died, or was the first to be killed; empty where none does."""
    dead = rf"Rank {RANK} (?:died|was ended by SIGKILL)"
    told = re.compile(rf"^[-* ]*(?:{dead}|Ranks .* rank {RANK} .* before the next)")
    return next((line for line in lines if told.search(line)), "")


def _summary(seconds: list[float | None]) -> str:
    known = [each for each in seconds if each is not None]
    if not known:
        return "never"
    soon = sum(each <= SOON_S for each in known)
    return f"median {median(known):.2f} s, most {max(known):.2f} s, {soon} of {len(seconds)} within {SOON_S:.0f} s"


if __name__ == "__main__":
    main()
