"""Added time where the loop computes in Python all the time: with looks at its stack, without, and without stallmeter.

Such a loop holds the interpreter's lock, which every look takes from it: the worst case, and that of environments,
simulators and tokenisers. Each block is a run of its own, because looks are many in its first seconds. Work is a fixed
number of pieces; the blocks of a round are in random order, and a ratio is one of a round.

    python benchmarks/overhead/looks.py [--rounds 6] [--seconds 8]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time

from stallmeter import Monitor

PIECES = 40
"""Of a step; one takes about 0.25 ms."""


def piece(depth: int) -> float:
    """Work in Python, some frames deep, as a simulator's or a parser's is."""
    if depth:
        return piece(depth - 1)
    found = {}
    for number in range(1500):
        found[number & 255] = number * 0.5 + len(found)
    return sum(found.values())


def step() -> None:
    for _ in range(PIECES):
        piece(8)


def run(contender: str, steps: int) -> float:
    """Return how long a run took, s, without its beginning and its end."""
    if contender == "bare":
        return loop(range(steps))
    with (
        tempfile.TemporaryDirectory() as folder,
        Monitor(directory=folder, trackers=None, console=False, loop_looks=contender == "looks") as monitor,
    ):
        monitor.run.ending.skip_reports()
        return loop(monitor.watch(range(steps)))


def loop(loader) -> float:
    began = time.perf_counter()
    for _ in loader:
        step()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=8.0)
    arguments = parser.parse_args()
    steps = int(arguments.seconds / (run("bare", 100) / 100))
    contenders = ["bare", "no looks", "looks"]
    took: dict[str, list[float]] = {name: [] for name in contenders}
    run("looks", 100)  # what is imported with it
    for _ in range(arguments.rounds):
        for name in random.sample(contenders, len(contenders)):
            took[name].append(run(name, steps))
    for name in contenders:
        ratios = [100 * (ours / bare - 1) for ours, bare in zip(took[name], took["bare"], strict=True)]
        seconds = statistics.median(took[name])
        print(
            f"{name:9s} {seconds:7.2f} s {statistics.median(ratios):+6.2f} %  ({min(ratios):+.2f} … {max(ratios):+.2f})"
        )


if __name__ == "__main__":
    main()
