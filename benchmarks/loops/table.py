"""What came out: for each loop and fault how many verdicts were right, and how far the wait was off."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .draws import FAULTS, HOWS, LOOPS, REFERENCE, UNNAMED, Draw

WAITS = ("no workers", "storage", "too few workers")
"""Faults whose wait is compared with what the program's own clock says."""

CLOSE = 0.05
BUSY = 0.8
"""Where others keep more than this share of all CPUs busy it is right to say so."""


@dataclass(frozen=True)
class Kept:
    """One draw and what came out of it."""

    draw: Draw
    result: dict[str, Any]

    @property
    def seen(self) -> dict[str, Any]:
        return self.result["seen"]

    @property
    def once(self) -> bool:
        """Whether each step was counted, and counted once."""
        return self.seen["recordings"] == 1 and self.seen["steps"] == self.result["steps"]

    @property
    def disturbed(self) -> bool:
        return self.result["others_cpus"] > BUSY * (os.cpu_count() or 1)

    @property
    def right(self) -> bool:
        """Whether the primary is one that is right; where others took the CPUs, that is one, too."""
        said = self.seen.get("primary")
        return self.once and (said in self.draw.expected or (self.disturbed and said == "noisy-neighbour"))

    @property
    def quiet(self) -> bool:
        """Whether nothing is warned of but neighbours that were there."""
        return not set(self.seen.get("warnings") or ()) - ({"noisy-neighbour"} if self.disturbed else set())

    @property
    def wait_error(self) -> float | None:
        """Share by which the measured wait is off."""
        if self.draw.fault not in WAITS or "wait_s" not in self.seen or not self.result["wait_s"]:
            return None
        return self.seen["wait_s"] / self.result["wait_s"] - 1


def load(folder: Path, wanted: Sequence[Draw]) -> list[Kept]:
    found = []
    for one in wanted:
        path = folder / f"{one.name}.json"
        if path.is_file():
            found.append(Kept(one, json.loads(path.read_text())))
    return found


def _cell(found: Sequence[Kept]) -> str:
    if not found:
        return "·"
    right = sum(one.right for one in found)
    errors = [one.wait_error for one in found if one.wait_error is not None]
    said = f"{right}/{len(found)}"
    if errors:
        worst = max(errors, key=abs)
        said += f" ({100 * worst:+.1f} %)"
    return said


def _rows(found: Sequence[Kept]) -> list[str]:
    rows = []
    for loop in (REFERENCE, *LOOPS):
        for how in HOWS:
            mine = [one for one in found if (one.draw.loop, one.draw.how) == (loop, how)]
            if mine:
                cells = (_cell([one for one in mine if one.draw.fault == fault]) for fault in FAULTS)
                rows.append(f"| {loop}, {how} | {' | '.join(cells)} |")
    return rows


def _share(which: Sequence[bool]) -> str:
    return f"{sum(which)} of {len(which)} ({100 * sum(which) / max(1, len(which)):.1f} %)"


def _names_neighbours(one: Kept) -> bool:
    return one.disturbed and one.seen.get("primary") == "noisy-neighbour"


def _same_as_lightning(found: Sequence[Kept]) -> list[bool]:
    """Compare with the same fault in Lightning, where neither verdict is the neighbours'."""
    alone = [one for one in found if not _names_neighbours(one)]
    reference = {
        (one.draw.seed, one.draw.fault): one.seen.get("primary") for one in alone if one.draw.loop == REFERENCE
    }
    alike = []
    for one in alone:
        key = one.draw.seed, one.draw.fault
        unnamed = one.draw.fault == "slow hook" and (one.draw.loop, one.draw.how) in UNNAMED
        if one.draw.loop != REFERENCE and key in reference and not unnamed:
            pair = {reference[key], one.seen.get("primary")}
            alike.append(len(pair) == 1 or pair in _families())
    return alike


def _families() -> list[set[str | None]]:
    """Pairs whose first advice is the same, for items that wait."""
    return [{"no-workers", "fetch-stall"}, {"too-few-workers", "fetch-stall"}, {None, "compute-bound"}]


def markdown(found: Sequence[Kept]) -> str:
    """Return the tables."""
    lines = [f"| loop | {' | '.join(FAULTS)} |", "| --- |" + " ---: |" * len(FAULTS), *_rows(found), ""]
    errors = [abs(one.wait_error) for one in found if one.wait_error is not None]
    healthy = [one for one in found if one.draw.fault == "healthy"]
    lines += [
        "| figure | draws |",
        "| --- | ---: |",
        f"| right primary | {_share([one.right for one in found])} |",
        f"| each step counted once | {_share([one.once for one in found])} |",
        f"| wait within 5 % of the program's own clock | {_share([error <= CLOSE for error in errors])} |",
        f"| healthy runs without a warning | {_share([one.quiet for one in healthy])} |",
        f"| same primary as Lightning, where neither names neighbours | {_share(_same_as_lightning(found))} |",
        f"| verdicts that name neighbours, with reason | {_share([_names_neighbours(one) for one in found])} |",
    ]
    wrong = [
        f"- {one.draw.name}: {one.seen.get('primary')}, {one.seen.get('recordings')} recordings, "
        f"{one.seen.get('steps')} of {one.result['steps']} steps, others took {one.result['others_cpus']:.1f} CPUs"
        for one in found
        if not one.right
    ]
    return "\n".join([*lines, "", *wrong]) + "\n"
