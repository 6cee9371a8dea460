"""A case of a benchmark in a process of its own, so that none finds what another has left in memory and caches."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from stallmeter.workers.gains import RUN_NOISE

ROUNDS = 6

NOISE = RUN_NOISE / 2.0
"""Of each of two measurements."""


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
