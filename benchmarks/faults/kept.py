"""A draw whose runs have been made: its result, its truth, and the judgement on its verdict."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import truth as truths
from .cause import Cause, Lever, cause_of
from .collect import BARE
from .host import QUIET_CPUS
from .judge import Judgement, judge
from .truth import Truth, gain_pct


@dataclass(frozen=True, slots=True)
class Gain:
    """What the verdict's first advice promised, and what was measured."""

    rule: str
    predicted_pct: float
    measured_pct: float
    interval_pct: tuple[float, float] | None

    @property
    def error_pct(self) -> float:
        """How far the predicted throughput is off the measured one, in percent of the latter."""
        return 100.0 * abs((100.0 + self.predicted_pct) / (100.0 + self.measured_pct) - 1.0)

    @property
    def inside(self) -> bool | None:
        """Whether the interval holds what was measured; None without one."""
        if self.interval_pct is None:
            return None
        return self.interval_pct[0] <= self.measured_pct <= self.interval_pct[1]


@dataclass(frozen=True, slots=True)
class Kept:
    """One draw with everything that is known of it."""

    result: Mapping[str, Any]
    causes: tuple[Cause, ...]
    truth: Truth
    judgement: Judgement

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> Kept:
        """Judge a result as `Collector.collect` keeps it."""
        causes = tuple(cause_of(c) for c in result["draw"]["causes"])
        measured = _measured(result, causes)
        [bare] = measured.pop(BARE, [None])
        truth = truths.of(causes, measured, bare)
        return cls(result, causes, truth, judge(truth, result))

    def saying(self, verdict: Mapping[str, Any]) -> Kept:
        """Return the same run with another verdict."""
        result = {**self.result, **verdict}
        return Kept(result, self.causes, self.truth, judge(self.truth, result))

    @property
    def seed(self) -> int:
        """Its seed."""
        return int(self.result["seed"])

    @property
    def failed(self) -> str:
        """Why the run cannot be judged; empty where it can."""
        return str(self.result.get("error", "")) or self.truth.unclear

    @property
    def disturbed(self) -> bool:
        """Whether other processes used so much of the CPUs that the truth may be another."""
        cured = [c.get("disturbance_cpus", 0.0) for c in self.result.get("cured", ())]
        return max(self.result.get("disturbance_cpus", 0.0), *cured, 0.0) >= QUIET_CPUS

    @property
    def busy(self) -> bool:
        """Whether its host was busy on purpose."""
        return bool(self.result["draw"]["busy"])

    @property
    def confidence(self) -> float | None:
        """How sure the verdict is of its primary."""
        primary = self.result.get("primary")
        return None if primary is None else float(primary["confidence"])

    @property
    def gain(self) -> Gain | None:
        """The primary's first advice, if it promises something that was measured."""
        primary = self.result.get("primary")
        if primary is None or not primary["advice"] or primary["advice"][0]["predicted_gain_pct"] is None:
            return None
        first = primary["advice"][0]
        measured = self._measured_for(primary["rule"], first["text"])
        if measured is None:
            return None
        interval = first.get("gain_interval_pct")
        return Gain(primary["rule"], first["predicted_gain_pct"], measured, interval and (interval[0], interval[1]))

    def _measured_for(self, rule: str, text: str) -> float | None:
        number = re.search(r"num_workers=(\d+)", text)
        if number:
            return self.worker_gains.get(int(number[1]))
        levers = [lv for c in self.causes for lv in c.levers if rule in lv.rules and not _of_workers(lv)]
        known = [self.truth.gains[lv.name] for lv in levers if lv.name in self.truth.gains]
        return max(known, default=None)

    @property
    def worker_gains(self) -> dict[int, float]:
        """Measured gain in percent of other numbers of workers."""
        found: dict[int, float] = {}
        for lever in (lv for c in self.causes for lv in c.levers if _of_workers(lv)):
            for cured in self.result.get("cured", ()):
                if cured["lever"] == lever.name and "error" not in cured:
                    gain = gain_pct(self.result, cured, whole=lever.whole, from_start=False)
                    if gain is not None:
                        found[int(cured["change"]["workers"])] = gain
        return found

    @property
    def workers_of_best_pct(self) -> float | None:
        """Throughput with the recommended number of workers, of the best that was measured; None if it was not."""
        advice, gains = self.result.get("num_workers"), self.worker_gains
        if not advice or not gains:
            return None
        gains = {**gains, int(advice["current"]): 0.0}
        if advice["recommended"] not in gains:
            return None
        return 100.0 * (100.0 + gains[advice["recommended"]]) / (100.0 + max(gains.values()))


def _of_workers(lever: Lever) -> bool:
    return all(set(change) == {"workers"} for change in lever.changes)


def _measured(result: Mapping[str, Any], causes: Iterable[Cause]) -> dict[str, list[float | None]]:
    levers = {lv.name: (lv.whole, c.from_start) for c in causes for lv in c.levers}
    found: dict[str, list[float | None]] = {}
    for cured in result.get("cured", ()):
        whole, from_start = levers.get(cured["lever"], (False, False))
        gain = None if "error" in cured else gain_pct(result, cured, whole=whole, from_start=from_start)
        found.setdefault(cured["lever"], []).append(gain)
    return found


def load(folder: Path, seeds: Iterable[int]) -> list[Kept]:
    """Return the kept draws among these seeds."""
    paths = (folder / f"{seed:05d}" / "result.json" for seed in seeds)
    return [Kept.of(json.loads(path.read_text())) for path in paths if path.is_file()]
