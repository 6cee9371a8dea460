"""The command: runs the cases, prints how it goes, and writes the confusion matrix with everything behind it.

python -m benchmarks.faults --seeds 5 --markdown docs/explain/accuracy-faults.md --json faults.json
python -m benchmarks.faults --only prep-stall no-workers-io --seeds 1 --recordings /tmp/faults
python -m benchmarks.faults --rejudge /tmp/faults          # today's rules on the recordings of earlier runs
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from . import table
from .case import Case
from .cases import CASES, CPUS, choose
from .runner import Run, Runner, disturbed, gather, usable_cpus


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", metavar="ID", help="cases, by id or by truth")
    parser.add_argument(
        "--levels",
        default="rotate",
        help="'rotate': one intensity a seed, each in its turn; 'all': every intensity with every seed; or a number",
    )
    parser.add_argument("--jobs", type=int, default=1, help=f"runs at a time, each on {CPUS} CPUs of its own")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument("--recordings", type=Path, metavar="DIR", help="keep the recordings here")
    parser.add_argument("--rejudge", type=Path, metavar="DIR", help="train nothing; ask the rules about recordings")
    parser.add_argument("--patience", type=float, default=20.0, metavar="S", help="longest wait for free CPUs")
    parser.add_argument("--retries", type=int, default=1, help="of a run that other processes disturbed")
    parser.add_argument("--rivals", action="store_true", help="run traceml-ai and gpuprof on the same cases")
    parser.add_argument("--rivals-python", metavar="PATH", help="interpreter that has them")
    return parser.parse_args(arguments)


def plan(cases: Sequence[Case], seeds: int, levels: str, first_seed: int = 0) -> list[Run]:
    """Return the runs to make, seed by seed, so that a broken-off benchmark has seen every case."""
    runs = []
    for seed in range(first_seed, first_seed + seeds):
        for number, case in enumerate(cases):
            count = len(case.shapes)
            chosen = {"rotate": [(seed + number) % count], "all": list(range(count))}.get(levels)
            runs += [Run(case, level, seed) for level in (chosen or [int(levels)])]
    return runs


def makers(arguments: argparse.Namespace, **how: Any) -> list[Runner]:
    """Return as many runners as runs go side by side, each with CPUs of its own."""
    known = usable_cpus(CPUS * arguments.jobs)
    if len(known) < CPUS * arguments.jobs:
        raise SystemExit(f"{arguments.jobs} runs at a time need {CPUS * arguments.jobs} CPUs; there are {len(known)}")
    return [
        Runner(cpus=known[i * CPUS : (i + 1) * CPUS], patience_s=arguments.patience, **how)
        for i in range(arguments.jobs)
    ]


def reevaluated(folder: Path, cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
    """Ask today's rules about the recordings of earlier runs."""
    from .ours import reevaluated as ask

    ids = {case.id for case in cases}
    for kept in sorted(folder.glob("*/result.json")):
        result = json.loads(kept.read_text())
        if result["case"] in ids and Path(result.get("recording", "")).is_dir():
            yield {**result, **ask(Path(result["recording"]))}


def about(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Say when, where and on what."""
    machine: dict[str, Any] = next((r["machine"] for r in results if "machine" in r), {})
    cores = os.cpu_count()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{cores} cores, {platform.system()} {platform.machine()}; each run on {CPUS} of them",
        **{name: version for name, version in machine.items() if version},
        "runs that other processes disturbed": sum(map(disturbed, results)),
    }


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse(argv)
    cases = choose(arguments.only)
    started = time.monotonic()
    results: list[dict[str, Any]] = []
    recordings = arguments.recordings.resolve() if arguments.recordings else None

    def say(result: dict[str, Any]) -> None:
        results.append(result)
        [(_, judgement)] = table.judged([result], CASES)
        mark = "right" if judgement.clean else "WRONG" if not judgement.right else "flawed"
        line = table.describe(result, judgement)
        print(f"[{time.monotonic() - started:4.0f} s, {len(results)}] {mark:6s} {line}", file=sys.stderr, flush=True)
        if arguments.json:
            write_json(arguments.json, results)
        if recordings and not arguments.rejudge:
            (recordings / f"{result['case']}-{result['level']}-{result['seed']}" / "result.json").write_text(
                json.dumps(result)
            )

    if arguments.rejudge:
        for result in reevaluated(arguments.rejudge, cases):
            say(result)
    else:
        runs = plan(cases, arguments.seeds, arguments.levels, arguments.first_seed)
        print(f"{len(runs)} runs", file=sys.stderr)
        results = gather(runs, makers(arguments, recordings=recordings), retries=arguments.retries, on_result=say)
    pairs = table.judged(results, CASES)
    facts = {**about(results), "seconds": round(time.monotonic() - started)}
    text = table.markdown(pairs, cases, facts)
    print(text)
    print(table.signal_table(results), file=sys.stderr)
    if arguments.rivals:
        from . import rivals

        compared, facts["rivals"] = rivals.compare(cases, pairs, arguments)
        print(compared)
        text += "\n" + compared
    if arguments.markdown:
        arguments.markdown.write_text(text)
    if arguments.json:
        write_json(arguments.json, results, facts)


def write_json(path: Path, results: Sequence[dict[str, Any]], facts: dict[str, Any] | None = None) -> None:
    """Write everything that is known so far."""
    pairs = table.judged(results, CASES)
    document = {
        "about": facts or about(results),
        "summary": table.summary(pairs),
        "matrix": {truth: dict(row) for truth, row in table.matrix(pairs).items()},
        "runs": [
            {
                **result,
                "judgement": {name: getattr(judgement, name) for name in judgement.__slots__},
                "ledger_error_pct": table.ledger_error_pct(result),
            }
            for result, judgement in pairs
        ],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
