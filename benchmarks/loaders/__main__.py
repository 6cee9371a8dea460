"""Draws programs by seed, runs each with its planted work and without, and judges what stallmeter says.

    python -m benchmarks.loaders                # seeds 0 to 44
    python -m benchmarks.loaders --report       # the table of what is kept

Draws are kept in a folder: a benchmark that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .draws import IN_LOOP, PROCESSES, Draw, draw

SECONDS = 6.0
KEPT = Path(tempfile.gettempdir()) / "stallmeter-bench-loaders"
SURE, NO = 6.0, 4.0
"""A change that wins 5 % counts; between these, percent, the measurement cannot tell."""

FINE = frozenset({"none", "compute-bound"})
INPUT = frozenset({"no-workers", "too-few-workers", "prep-stall", "fetch-stall", "batch-handoff", "lock-contention"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Time of a step in seconds, as it is, without what was planted, and with more who make batches."""

    step_s: float
    free_s: float
    more_s: float | None

    @property
    def gain_pct(self) -> float:
        """Rise of throughput without what was planted."""
        return 100.0 * (self.step_s / self.free_s - 1.0)

    @property
    def more_gain_pct(self) -> float:
        """Rise of throughput with more who make batches."""
        return 0.0 if self.more_s is None else 100.0 * (self.step_s / self.more_s - 1.0)


def with_more(one: Draw) -> Draw | None:
    """The same work made by more: processes for Python code, the double number of threads else; beside the loop."""
    if one.work == "healthy":
        return None
    if one.mechanism in PROCESSES:
        return replace(one, producers=2 * one.producers)
    if one.work == "python":
        return replace(one, mechanism="pool of processes", producers=max(2, one.producers))
    if one.mechanism in IN_LOOP or one.producers == 1:
        return replace(one, mechanism="threads and a queue", producers=2)
    return replace(one, producers=2 * one.producers)


def right(one: Draw, measured: Measured) -> frozenset[str]:
    """Return the primaries that are right."""
    if measured.gain_pct < NO:
        return FINE
    found: set[str] = set(FINE) if measured.gain_pct < SURE else set()
    if one.work in ("sleep", "socket"):
        return frozenset(found | {"fetch-stall"} | ({"no-workers"} if one.mechanism in IN_LOOP else set()))
    if one.work == "healthy":
        return INPUT  # it was to be healthy, and is not: whatever names the wait
    more = measured.more_gain_pct
    if more >= NO:
        if one.mechanism in IN_LOOP:
            found.add("no-workers")
        elif one.work == "python" and one.producers > 1 and one.mechanism not in PROCESSES:
            found.add("lock-contention")
        else:
            found |= {"too-few-workers"} | ({"lock-contention"} if one.work == "python" else set())
    if more < SURE:
        found.add("prep-stall")
    return frozenset(found)


def run(one: Draw, folder: str, seconds: float = SECONDS) -> float:
    """Run one program; return the time of a step in seconds."""
    command = [sys.executable, "-m", "benchmarks.loaders.program", json.dumps(asdict(one)), folder, str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["step_s"])


def measure(one: Draw, folder: Path) -> dict[str, Any]:
    """Run a draw as it is under stallmeter, and twice without it; keep what came of it."""
    run(one, str(folder / "recording"))
    more = with_more(one)
    measured = Measured(
        step_s=run(one, "", 3.5),
        free_s=run(replace(one, batch_s=0.0), "", 3.0),
        more_s=None if more is None else run(more, "", 3.5),
    )
    kept = {"draw": asdict(one), "measured": asdict(measured)}
    (folder / "measured.json").write_text(json.dumps(kept, indent=1))
    return kept


def judge(folder: Path) -> dict[str, Any] | None:
    """Ask today's rules about a kept draw."""
    path = folder / "measured.json"
    if not path.exists():
        return None
    from stallmeter.recording.files import find_recording
    from stallmeter.report.model import read_history
    from stallmeter.rules.evaluation import diagnose

    kept = json.loads(path.read_text())
    one, measured = Draw(**kept["draw"]), Measured(**kept["measured"])
    verdict = diagnose(read_history(find_recording(folder / "recording")).window)
    primary = verdict.primary
    label = "none" if primary is None else primary.rule
    gain = primary.advice[0].predicted_gain_pct if primary is not None and primary.advice else None
    expected = right(one, measured)
    state = "right" if label in expected else "abstained" if label == "input-bound" else "wrong"
    return {
        "seed": one.seed,
        "mechanism": one.mechanism,
        "work": one.work,
        "producers": one.producers,
        "gain_pct": measured.gain_pct,
        "more_pct": measured.more_gain_pct,
        "right": sorted(expected),
        "said": label,
        "state": state,
        "predicted_pct": gain,
    }


def table(found: list[dict[str, Any]]) -> str:
    """Return the verdicts as a table."""
    lines = [
        "| seed | batches by | work | without it | with more | said | |",
        "| ---: | --- | --- | ---: | ---: | --- | --- |",
    ]
    for each in found:
        by = f"{each['mechanism']} ({each['producers']})"
        gains = f"{each['gain_pct']:+.0f} % | {each['more_pct']:+.0f} %"
        right_ = "" if each["state"] == "right" else f"{each['state']}; {', '.join(each['right'])}"
        lines.append(f"| {each['seed']} | {by} | {each['work']} | {gains} | {each['said']} | {right_ or 'right'} |")
    states = [each["state"] for each in found]
    lines.append(f"\n{states.count('right')} of {len(found)} right, {states.count('abstained')} abstained.")
    return "\n".join(lines)


def main() -> None:
    """Run what is not kept yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-44", help="first and last, or some: 3,7")
    parser.add_argument("--kept", type=Path, default=KEPT)
    parser.add_argument("--report", action="store_true", help="run nothing")
    given = parser.parse_args()
    first, _, last = given.seeds.partition("-")
    seeds = range(int(first), int(last) + 1) if last else [int(seed) for seed in first.split(",")]
    folders = {seed: given.kept / f"{seed:03d}" for seed in seeds}
    for seed, folder in folders.items():
        if not given.report and not (folder / "measured.json").exists():
            folder.mkdir(parents=True, exist_ok=True)
            print(f"seed {seed}: {draw(seed)}", file=sys.stderr, flush=True)
            measure(draw(seed), folder)
    print(table([found for folder in folders.values() if (found := judge(folder)) is not None]))


if __name__ == "__main__":
    main()
