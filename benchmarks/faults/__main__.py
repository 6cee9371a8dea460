"""The command: runs draws, keeps what came out, prints how it goes, and writes the tables.

python -m benchmarks.faults --seeds 0-239 --folder build/faults             # resumes what is kept there
python -m benchmarks.faults --seeds 0-239 --odd --minutes 30
python -m benchmarks.faults --rejudge --odd                                # today's rules on the kept recordings
python -m benchmarks.faults --report --even --markdown out.md              # tables of what is kept
python -m benchmarks.faults --show 17 18                                   # the draws of seeds
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import table
from .collect import Collector
from .draw import draw
from .kept import Kept, load

DEFAULT = Path("build/faults")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=seeds, default=range(240), metavar="A-B", help="both included; default 0-239")
    half = parser.add_mutually_exclusive_group()
    half.add_argument("--odd", action="store_true", help="seeds that thresholds may be tuned on")
    half.add_argument("--even", action="store_true", help="seeds that are reported")
    parser.add_argument("--folder", type=Path, default=DEFAULT, help="where results and recordings are kept")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no draw after so many")
    parser.add_argument("--again", action="store_true", help="run draws that are kept, too")
    parser.add_argument("--family", nargs="+", metavar="NAME", help="only draws of these families")
    parser.add_argument("--rejudge", action="store_true", help="train nothing; ask today's rules about the recordings")
    parser.add_argument("--report", action="store_true", help="train nothing; print the tables of what is kept")
    parser.add_argument("--show", nargs="+", type=int, metavar="SEED", help="say what seeds draw")
    parser.add_argument("--rivals-python", metavar="PATH", help="ask traceml-ai and gpuprof, which it has, as well")
    parser.add_argument("--rivals-draws", type=int, default=40, metavar="N", help="about so many draws at most")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument("--patience", type=float, default=10.0, metavar="S", help="longest wait for free CPUs")
    parser.add_argument("--retries", type=int, default=1, help="of a draw that other processes disturbed")
    return parser.parse_args(arguments)


def seeds(text: str) -> range:
    """Read ``A-B`` or ``A``."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def wanted(arguments: argparse.Namespace) -> list[int]:
    """Return the seeds that the options choose."""
    return [
        seed
        for seed in arguments.seeds
        if not (arguments.odd and seed % 2 == 0)
        and not (arguments.even and seed % 2)
        and (not arguments.family or draw(seed).family in arguments.family)
    ]


def collect(arguments: argparse.Namespace, chosen: Sequence[int]) -> None:
    """Run the draws that are not kept yet."""
    from .child import can_throttle

    began = time.monotonic()
    collector = collector_of(arguments)
    todo = [s for s in chosen if arguments.again or not (collector.path(s) / "result.json").is_file()]
    if not can_throttle():
        todo = [s for s in todo if not draw(s).program.quota_cpus]
    if not todo:
        return
    with collector.ready():
        for number, seed in enumerate(todo, 1):
            minutes = (time.monotonic() - began) / 60
            if minutes > arguments.minutes:
                print(f"stopped after {minutes:.0f} min; {len(todo) - number + 1} draws are left", file=sys.stderr)
                return
            if arguments.again:
                shutil.rmtree(collector.path(seed), ignore_errors=True)
            found = Kept.of(collector.collect(draw(seed)))
            print(f"[{minutes:5.1f} min, {number}/{len(todo)}] {table.line(found)}", file=sys.stderr, flush=True)


def collector_of(arguments: argparse.Namespace) -> Collector:
    """Return what makes the runs."""
    return Collector(folder=arguments.folder, patience_s=arguments.patience, retries=arguments.retries)


def rejudged(folder: Path, found: Sequence[Kept]) -> list[Kept]:
    """Ask today's rules about the recordings."""
    from .ours import reevaluated

    return [k.saying(reevaluated(folder / k.result["recording"])) if "recording" in k.result else k for k in found]


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse(argv)
    if arguments.show:
        for seed in arguments.show:
            print(draw(seed).described)
        return
    chosen = wanted(arguments)
    if not (arguments.rejudge or arguments.report):
        collect(arguments, chosen)
    found = load(arguments.folder, chosen)
    if arguments.rejudge:
        found = rejudged(arguments.folder, found)
    text = table.markdown(found)
    if arguments.rivals_python:
        from .rivals import comparable, compare

        with collector_of(arguments).ready() as collector:
            chosen_few = comparable(found)[: arguments.rivals_draws]
            text += "\n" + compare(chosen_few, collector, arguments.rivals_python)
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)
    if arguments.json:
        arguments.json.write_text(json.dumps(document(found), indent=1) + "\n")


def document(found: Sequence[Kept]) -> dict[str, Any]:
    """Return everything behind the tables as plain data."""
    return {
        "summary": table.summary(found),
        "draws": [
            {
                "seed": k.seed,
                "described": k.result["described"],
                "truth": k.truth.label,
                "right_verdicts": sorted(k.truth.right),
                "gains_pct": dict(k.truth.gains),
                "said": k.judgement.label,
                "right": k.judgement.right,
                "contradictions": k.judgement.contradictions,
                "false_alarms": k.judgement.false_alarms,
                "unexpected": k.judgement.unexpected,
                "confidence": k.confidence,
                "disturbance_cpus": k.result.get("disturbance_cpus"),
            }
            for k in found
        ],
    }


if __name__ == "__main__":
    main()
