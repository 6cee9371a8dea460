"""The recommended number of workers against an exhaustive sweep, on loaders that are drawn by seed.

Each drawn loader runs once through stallmeter, with a number of workers drawn too. From this recording alone today's
rules recommend a number and the model predicts the step time for every number. Then the loader runs with every number
in a plain loop without stallmeter, in shuffled rounds. What counts is the throughput of the recommended number as a
share of the best one's, and the error of the predicted step time.

Recordings and sweeps are kept in a folder. A draw that is there is not measured again, so a benchmark that was stopped
goes on, unless its sweep has fewer rounds than are asked for: it gets the others. The tables always show what today's
code says of the kept recordings.

    python -m benchmarks.workers [--minutes M] [--even | --odd] [--seeds A-B] [--only NAME ...] [--report] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import shutil
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from stallmeter import __version__
from stallmeter.recording import find_recording

from .draws import Draw, draw, maker
from .judging import Judgement, judge, sentences, summary, table
from .measure import QUIET_CPUS, Truth, forked, record, sweep

IMPORTED = ("lightning.pytorch.utilities", "webdataset", "torch._dynamo")
"""What some loaders need and takes seconds to import: once, before the forks."""

SEEDS = "0-95"
GOAL_ERROR_PCT = 5.0


def main() -> None:
    """Measure what is not there yet, and print the tables."""
    options = _arguments()
    first, last = (int(number) for number in options.seeds.split("-"))
    wanted = [seed for seed in range(first, last + 1) if options.parity is None or seed % 2 == options.parity]
    draws = [d for d in map(draw, wanted) if not options.only or any(part in d.name for part in options.only)]
    options.folder.mkdir(parents=True, exist_ok=True)
    if not options.report:
        _measure_all(draws, options)
    judged = [found for each in draws if (found := judged_draw(each, options.folder)) is not None]
    found = summary(judged)
    print(f"\n{table(judged)}\n\n{sentences(found)}")
    if options.json:
        about = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), **_machine()}
        options.json.write_text(json.dumps({**about, **found}, indent=1) + "\n")
    error = found["median_error_pct"]
    sys.exit(0 if not found["misses"] and error is not None and error <= GOAL_ERROR_PCT else 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no draw after so long")
    parity = parser.add_mutually_exclusive_group()
    parity.add_argument("--even", dest="parity", action="store_const", const=0, help="seeds that the docs report")
    parity.add_argument("--odd", dest="parity", action="store_const", const=1, help="seeds for tuning")
    parser.add_argument("--seeds", default=SEEDS, metavar="A-B", help=f"which seeds (default {SEEDS})")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of draws")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--disturbed", action="store_true", help="sweep kept draws again that other jobs disturbed")
    parser.add_argument("--rounds", type=int, default=3, help="of each number; a kept sweep gets those it is short of")
    parser.add_argument("--seconds", type=float, default=0.8, help="of each measured setting in each round")
    parser.add_argument("--record", type=float, default=5.0, metavar="SECONDS", help="of the recorded run")
    parser.add_argument(
        "--folder", type=Path, default=Path("benchmarks/results/workers"), help="where results are kept"
    )
    parser.add_argument("--json", type=Path, help="file to write the tables to")
    return parser.parse_args()


def _measure_all(draws: Sequence[Draw], options: argparse.Namespace) -> None:
    import importlib

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    end = time.monotonic() + 60 * options.minutes
    for each in draws:
        if time.monotonic() >= end:
            print("no time for more")
            return
        kept = options.folder / each.name / "sweep.json"
        again = options.disturbed and kept.exists() and _was_disturbed(kept)
        if kept.exists() and not again and _rounds(kept) >= options.rounds:
            continue
        began = time.monotonic()
        try:
            measure_draw(each, options, again=again)
        except RuntimeError as error:
            print(f"{each.name}: {error}", flush=True)
            continue
        found = judged_draw(each, options.folder)
        assert found is not None
        print(
            f"{each.name} ({each}): {found.recommended} recommended, best {found.best}, {found.of_best_pct:.0f} % "
            f"of it, {time.monotonic() - began:.0f} s",
            flush=True,
        )


def measure_draw(each: Draw, options: argparse.Namespace, *, again: bool = False) -> None:
    """Record a draw and sweep it; both are kept, or nothing is.

    A kept draw is not recorded anew. Its sweep gets the rounds that it is short of, or is made ``again``.
    """
    place = options.folder / each.name
    before = json.loads((place / "sweep.json").read_text()) if (place / "sweep.json").exists() else None
    with ExitStack() as stack:
        make = maker(each, options.folder / "data", stack)
        if before is None:
            shutil.rmtree(place, ignore_errors=True)
            recorded_s, others = forked(lambda: record(each, make, place / "run", options.record))
        else:
            recorded_s, others = before["recorded_step_s"], before["recorded_others_cpus"]
        known = {} if before is None or again else truth_of(before)
        numbers = tuple(known) or each.numbers
        done = len(known[numbers[0]].rounds_s) if known else 0
        truth, failed = sweep(each, make, numbers, rounds_=range(done, options.rounds), seconds=options.seconds)
    truth = {w: known[w] + t if known else t for w, t in truth.items()}
    if each.start not in truth:
        raise RuntimeError(f"could not be measured with {each.start} workers: {failed[:1]}")
    result = {
        "draw": asdict(each),
        "recorded_step_s": recorded_s,
        "recorded_others_cpus": others,
        "failed": failed,
        "sweep": {workers: asdict(t) for workers, t in truth.items()},
        **_machine(),
    }
    (place / "sweep.json").write_text(json.dumps(result, indent=1) + "\n")


def judged_draw(each: Draw, folder: Path) -> Judgement | None:
    """Judge a kept draw; None where there is none."""
    kept = folder / each.name / "sweep.json"
    if not kept.exists():
        return None
    truth = truth_of(json.loads(kept.read_text()))
    return judge(each.name, each.start, find_recording(folder / each.name / "run"), truth)


def truth_of(kept: Mapping[str, Any]) -> dict[int, Truth]:
    """Return what a kept sweep measured of each number of workers."""
    return {int(w): Truth(tuple(t["rounds_s"]), t["others_cpus"]) for w, t in kept["sweep"].items()}


def _rounds(kept: Path) -> int:
    return min(len(truth.rounds_s) for truth in truth_of(json.loads(kept.read_text())).values())


def _was_disturbed(kept: Path) -> bool:
    return max(truth.others_cpus for truth in truth_of(json.loads(kept.read_text())).values()) > QUIET_CPUS


def _machine() -> dict[str, Any]:
    """Where and with what this was measured."""
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "stallmeter": __version__,
    }


if __name__ == "__main__":
    main()
