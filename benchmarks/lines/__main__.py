"""The place in the code that a verdict names, against what was planted in programs drawn by seed.

python -m benchmarks.lines [--seeds A-B] [--only FAMILY ...] [--folder FOLDER] [--most N]

That is the workers' side; the training thread's is ``python -m benchmarks.lines.loop_side``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from . import worker_side


def main() -> None:
    """Run what is not kept yet, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lines")
    parser.add_argument("--seeds", default="0-3")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--folder", type=Path, default=Path("build/lines"))
    parser.add_argument("--most", type=int, default=1000)
    options = parser.parse_args()
    first, last = map(int, options.seeds.split("-"))
    drawn = worker_side.programs(range(first, last + 1), options.only)[: options.most]
    print(worker_side.HEADER)
    print(f"\n{worker_side.summary(worker_side.measure(drawn, options.folder))}")


if __name__ == "__main__":
    main()
