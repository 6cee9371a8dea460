"""A case of a benchmark in a process of its own, so that none finds what another has left in memory and caches."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stallmeter.workers.gains import RUN_NOISE

if TYPE_CHECKING:
    from stallmeter import Monitor
    from stallmeter.records.diagnosis import Diagnosis
    from stallmeter.window import Window

ROUNDS = 6

NOISE = RUN_NOISE / 2.0
"""Of each of two measurements."""


def asked(doc: str | None, cases: Sequence[object], seconds: float) -> argparse.Namespace:
    """Return which of some cases are to be measured, by their numbers, or the one that this process is to measure.

    Args:
        doc: Of the module.
        cases: All of them.
        seconds: To measure for, if nothing is said.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", type=int, default=list(range(len(cases))))
    parser.add_argument("--seconds", type=float, default=seconds, help="of all rounds without the change")
    parser.add_argument("--case", nargs=1, type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def faster(said: Mapping[str, float]) -> str:
    """Return how many times as fast steps are without ``usual``, ``least`` and ``most`` of their time, in words."""
    usual, least, most = (f"{1.0 / (1.0 - said[name]):.2f}" for name in ("usual", "least", "most"))
    return f"{usual} ({least} to {most})"


def measured(module: str, *case: object, seconds: float) -> Any:
    """Return what a module prints, as JSON, when it is run for one case.

    Args:
        module: Run with ``python -m``; it knows ``--case`` and ``--seconds``.
        case: What tells it from the others.
        seconds: To measure for.
    """
    arguments = ["--case", *map(str, case), "--seconds", str(seconds)]
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def in_turn(
    steps: Callable[[bool, int], tuple[float, float]], seconds: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the medians of what steps take without a change and with it, both of `ROUNDS` rounds that take turns.

    Args:
        steps: Makes so many steps, with the change or without; returns the seconds of one, and those of a part of it.
        seconds: Of all rounds without the change.
    """
    for changed in (False, True):
        steps(changed, 5)
    number = max(3, int(seconds / ROUNDS / steps(False, 5)[0]))
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for _ in range(ROUNDS):
        for changed, rounds in found.items():
            rounds.append(steps(changed, number))
    without, with_it = (tuple(map(statistics.median, zip(*found[changed], strict=True))) for changed in found)
    return (without[0], without[1]), (with_it[0], with_it[1])


def timed(step: Callable[[bool], None]) -> Callable[[bool, int], tuple[float, float]]:
    """Return what `in_turn` asks for: the seconds of one of so many steps, and nothing of a part of it.

    Args:
        step: One step, with the change or without.
    """

    def steps(changed: bool, number: int) -> tuple[float, float]:
        began_s = time.perf_counter()
        for _ in range(number):
            step(changed)
        return (time.perf_counter() - began_s) / number, 0.0

    return steps


@contextmanager
def monitored() -> Iterator[Monitor]:
    """Record what goes on meanwhile, without reports, in a folder that is gone afterwards."""
    from stallmeter import Monitor

    with (
        tempfile.TemporaryDirectory() as folder,
        Monitor(directory=folder, trackers=None, console=False) as monitor,
    ):
        monitor.run.ending.skip_reports()
        yield monitor


def watched(step: Callable[[bool], None], number: int, judge: Callable[[Window], dict[str, float]]) -> dict[str, float]:
    """Return what is said of a recording of so many steps without the change, while it goes on.

    Args:
        step: As for `timed`.
        number: Of steps.
        judge: Says it, by what was recorded, looks at the training thread included.
    """
    with monitored() as monitor:
        for _ in monitor.watch(range(number)):
            step(False)
        time.sleep(1.2)  # the last looks are taken in
        return judge(monitor.run.window)


def promised(said: Mapping[str, float], ratio: float) -> str:
    """Return what was promised, as times as fast, and whether what was won is inside; for the end of a row.

    Args:
        said: As `promised_pct` returns it.
        ratio: Times as fast that the change made it.
    """
    if not said["gain_pct"]:
        return "nothing "
    least, usual, most = (1.0 + said[name] / 100.0 for name in ("low_pct", "gain_pct", "high_pct"))
    return f"{usual:.2f} ({least:.2f} to {most:.2f}) {'inside' if least <= ratio <= most else 'outside'}"


def promised_pct(found: Diagnosis | None) -> dict[str, float]:
    """Return what a rule promises, percent: as a rule, at least and at most; zeros where it says nothing."""
    advice = found.advice[0] if found else None
    low, high = (advice.gain_interval_pct if advice else None) or (0.0, 0.0)
    return {"gain_pct": (advice.predicted_gain_pct if advice else None) or 0.0, "low_pct": low, "high_pct": high}
