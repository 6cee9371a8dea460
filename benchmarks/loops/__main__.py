"""The command: runs draws, keeps what came out of each, prints the tables.

python -m benchmarks.loops --seeds 0-2                       # resumes what is kept in build/loops
python -m benchmarks.loops --loops ignite keras --minutes 2
python -m benchmarks.loops --report --markdown out.md
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import table
from .draws import FAULTS, LOOPS, REFERENCE, Draw, drawn


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.loops", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=_seeds, default=range(3), metavar="A-B", help="both included; default 0-2")
    parser.add_argument("--loops", nargs="+", choices=LOOPS, default=LOOPS)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    parser.add_argument("--folder", type=Path, default=Path("build/loops"), help="where results are kept")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no draw after so many")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many frameworks at the same time")
    parser.add_argument("--again", action="store_true", help="run draws that are kept, too")
    parser.add_argument("--calmer", action="store_true", help="run again what others disturbed")
    parser.add_argument("--report", action="store_true", help="train nothing; print the tables of what is kept")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    return parser.parse_args(arguments)


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def collect(todo: Sequence[Draw], folder: Path, until: float, jobs: int) -> None:
    """Run draws, those of one framework in forks of one process, so many frameworks at the same time."""
    folder.mkdir(parents=True, exist_ok=True)
    groups = [[one for one in todo if one.loop == loop] for loop in (REFERENCE, *LOOPS)]
    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(_train, group, folder, until) for group in groups if group]:
            done.result()


def _train(group: Sequence[Draw], folder: Path, until: float) -> None:
    if time.monotonic() > until:
        return
    command = [sys.executable, "-m", "benchmarks.loops.child", group[0].loop]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for one in group:
            if time.monotonic() > until:
                break
            began = time.monotonic()
            line = [one.seed, one.fault, one.how, str((folder / f"{one.name}.json").absolute())]
            child.stdin.write(json.dumps(line) + "\n")
            child.stdin.flush()
            said = ""
            while not said.startswith('["'):  # what the program itself prints comes first
                said = child.stdout.readline() or '["gone"'
            print(f"{one.name}: {time.monotonic() - began:.1f} s {said.strip()}", file=sys.stderr, flush=True)
        child.stdin.close()


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse(argv)
    wanted = [one for one in drawn(arguments.seeds, tuple(arguments.loops)) if one.fault in arguments.faults]
    if not arguments.report:
        kept = {one.draw.name: one for one in table.load(arguments.folder, wanted)}
        todo = [
            one
            for one in wanted
            if arguments.again or one.name not in kept or (arguments.calmer and kept[one.name].disturbed)
        ]
        collect(todo, arguments.folder, time.monotonic() + 60 * arguments.minutes, arguments.jobs)
    text = table.markdown(table.load(arguments.folder, wanted))
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()
