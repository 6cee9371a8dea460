"""Two runs side by side: what changed, and whether it changed by more than the noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...errors import RecordingError
from ...records import BUCKETS
from .. import wording
from ..json import SCHEMA, to_json
from ..model import WRONG_VALUES, History, Report
from .noise import ALIKE_PCT, Interval, Noise, interval_of_difference, noise_of_rate, noise_of_steps

Metric = Literal["step_time", "throughput"]
Unit = Literal["s", "%", "samples/s", "steps/s"]

METRICS: tuple[Metric, ...] = ("step_time", "throughput")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What is compared of one run. None is: not measured."""

    source: str
    """Where it was read."""
    run_id: str | None
    version: str | None
    """Version of stallmeter that recorded it."""
    framework: str | None
    host: str | None
    ended: str | None
    """Why the run ended; None when it goes on, or could not say."""
    steps: int
    wall_s: float | None
    num_workers: int | None
    batch_size: int | None
    numbers: Mapping[str, float | None]
    """By key of `NUMBERS`."""
    ledger_s: Mapping[str, float]
    """Seconds per step by bucket; empty without a step."""
    rule: str | None
    """Id of the primary cause."""
    title: str | None
    share_pct: float | None
    """Share of the wall time that the primary cause lost."""
    probable: bool = False
    """Whether the primary cause is not sure."""
    cause_ranks: tuple[int, ...] = ()
    """Ranks of the job that the primary cause holds for; empty when it holds for all alike."""
    rank: int | None = None
    """Whose steps and ledger are compared."""
    world_size: int | None = None
    running: bool | None = None
    """Of a run without an end: whether its process still ran; None where that could not be told."""
    noise: Mapping[str, Noise | None] = field(default_factory=dict)
    """By key of `NUMBERS`; empty where only a summary is known."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number that runs are compared by."""

    key: str
    label: str
    unit: Unit
    higher_is_better: bool
    read: Callable[[Mapping[str, Any]], float | None]
    """From the report as JSON."""


NUMBERS = (
    Number("step_time_median_s", "step time, median", "s", False, lambda d: _in(d, "step_time_s", "median")),
    Number("step_time_mean_s", "step time, mean", "s", False, lambda d: _in(d, "step_time_s", "mean")),
    Number("step_time_p95_s", "step time, p95", "s", False, lambda d: _in(d, "step_time_s", "p95")),
    Number("data_wait_pct", "data wait, of training", "%", False, lambda d: _in(d, "run", "data_wait_share_pct")),
    Number("samples_per_s", "throughput", "samples/s", True, lambda d: _in(d, "throughput", "samples_per_s")),
    Number("steps_per_s", "throughput", "steps/s", True, lambda d: _in(d, "throughput", "steps_per_s")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One number before and after."""

    key: str
    label: str
    unit: Unit
    higher_is_better: bool = False
    before: float | None
    after: float | None
    interval: Interval | None = None
    """Between which values the difference lies with 95 % confidence; None when that cannot be told."""

    @property
    def difference(self) -> float | None:
        """After minus before, in the unit; None when one was not measured."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def change_pct(self) -> float | None:
        """The difference as a percentage of before; None where before is 0, or next to it."""
        difference = self.difference
        change = math.nan if difference is None or not self.before else 100.0 * difference / self.before
        return change if math.isfinite(change) else None

    @property
    def worse_pct(self) -> float | None:
        """By how many percent it got worse; negative when it got better."""
        change = self.change_pct
        return None if change is None else -change if self.higher_is_better else change

    @property
    def beyond_noise(self) -> bool | None:
        """Whether the interval leaves out 0; None without an interval."""
        return None if self.interval is None else not self.interval[0] <= 0.0 <= self.interval[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs, and whether the second is a regression."""

    before: Side
    after: Side
    changes: tuple[Change, ...]
    ledger: tuple[Change, ...]
    """Seconds per step, by bucket."""
    metric: Metric
    max_regression_pct: float | None
    """None when nobody asked for a limit."""

    @property
    def decisive(self) -> Change:
        """The number that decides: median step time, or samples/s (steps/s where sizes are not known)."""
        by_key = {change.key: change for change in self.changes}
        if self.metric == "step_time":
            return by_key["step_time_median_s"]
        samples = by_key["samples_per_s"]
        return by_key["steps_per_s"] if samples.difference is None else samples

    @property
    def alike(self) -> bool | None:
        """Whether the decisive number differs by less than one run each can tell; None where it was not measured."""
        worse = self.decisive.worse_pct
        return None if worse is None else abs(worse) < ALIKE_PCT

    @property
    def wall(self) -> Change | None:
        """The wall time of as many steps; None where they were not as many."""
        before, after = self.before, self.after
        if before.steps != after.steps:
            return None
        return Change(key="wall_s", label="wall time", unit="s", before=before.wall_s, after=after.wall_s)

    @property
    def regressed(self) -> bool:
        """Whether it got worse by more than the limit and, where that can be told, by more than the noise."""
        worse = self.decisive.worse_pct
        if worse is None or self.max_regression_pct is None:
            return False
        return worse > self.max_regression_pct and self.decisive.beyond_noise is not False

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the two may not be comparable, one sentence each."""
        return tuple(_doubts(self.before, self.after))


def compare_sides(
    before: Side, after: Side, *, metric: Metric = "step_time", max_regression_pct: float | None = None
) -> Comparison:
    """Compare two runs.

    Args:
        before: The run to compare with.
        after: The run in question.
        metric: What decides about a regression.
        max_regression_pct: From how many percent worse on it is one.

    Raises:
        RecordingError: A limit was given, and what decides was not measured in one of them.
    """
    made = Comparison(
        before=before,
        after=after,
        changes=tuple(_change(number, before, after) for number in NUMBERS),
        ledger=tuple(_ledger(before, after)),
        metric=metric,
        max_regression_pct=max_regression_pct,
    )
    if max_regression_pct is not None and made.decisive.worse_pct is None:
        side = before if not made.decisive.before else after
        raise RecordingError(f"{side.source} has no {metric.replace('_', ' ')}, so a regression cannot be judged")
    return made


def side_of_history(history: History, report: Report) -> Side:
    """Return what is compared of a recording.

    Args:
        history: The recording, with its steps.
        report: Its report.

    Raises:
        RecordingError: The recording holds values of a wrong type.
    """

    def noise(_: object) -> dict[str, Noise | None]:
        times = [step.step_time_s for step in history.window.steps.steady]
        readings = history.timeline.readings
        return {
            "step_time_median_s": noise_of_steps(times, statistics.median),
            "step_time_mean_s": noise_of_steps(times, statistics.fmean),
            "samples_per_s": noise_of_rate(readings, lambda r: r.samples),
            "steps_per_s": noise_of_rate(readings, lambda r: r.steps),
        }

    document = history.guarded(lambda _: to_json(report))
    return side_of_document(document, str(history.folder), history.guarded(noise))


def side_of_document(document: Any, source: str, noise: Mapping[str, Noise | None] | None = None) -> Side:
    """Return what is compared of a report as JSON, for example the artifact ``diagnosis.json`` of an MLflow run.

    Args:
        document: The parsed JSON.
        source: Where it was read.
        noise: By key of `NUMBERS`; none for a summary.

    Raises:
        RecordingError: It is no report, or one of a newer stallmeter.
    """
    if not isinstance(document, dict) or not isinstance(document.get("schema"), int):
        raise RecordingError(f"{source} holds no report of stallmeter")
    if document["schema"] > SCHEMA:
        raise RecordingError(
            f"{source} has schema {document['schema']}, this stallmeter reads up to {SCHEMA}: upgrade stallmeter"
        )
    try:
        return _side(document, source, noise or {})
    except WRONG_VALUES as exc:
        raise RecordingError(f"{source} is damaged: a value in it has a wrong type ({exc})") from exc


def _side(document: Mapping[str, Any], source: str, noise: Mapping[str, Noise | None]) -> Side:
    run, steps = document["run"], int(document["steps"])
    loader, primary = run.get("loader") or {}, document["primary"] or {}
    ledger = {name: _number(seconds) or 0.0 for name, seconds in document["ledger"].items()}
    return Side(
        source=source,
        run_id=run.get("id"),
        version=run.get("version"),
        framework=run.get("framework"),
        host=run.get("host"),
        ended=run.get("ended"),
        steps=steps,
        wall_s=_number(document["wall_s"]),
        num_workers=loader.get("num_workers"),
        batch_size=loader.get("batch_size"),
        numbers={number.key: number.read(document) for number in NUMBERS},
        ledger_s={name: seconds / steps for name, seconds in ledger.items()} if steps else {},
        rule=primary.get("rule"),
        title=primary.get("title"),
        share_pct=_number(primary.get("share_pct")),
        probable=document.get("probable") is True,
        cause_ranks=tuple(map(int, primary.get("ranks") or ())),
        rank=run.get("rank"),
        world_size=run.get("world_size"),
        running=None if run.get("running") is None else bool(run["running"]),
        noise=noise,
    )


def _in(document: Mapping[str, Any], *path: str) -> float | None:
    value: Any = document
    for key in path:
        value = None if value is None else value.get(key)
    return _number(value)


def _number(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _change(number: Number, before: Side, after: Side) -> Change:
    a, b = before.numbers[number.key], after.numbers[number.key]
    interval = None
    if a is not None and b is not None:
        interval = interval_of_difference(a, before.noise.get(number.key), b, after.noise.get(number.key))
    return Change(
        key=number.key,
        label=number.label,
        unit=number.unit,
        higher_is_better=number.higher_is_better,
        before=a,
        after=b,
        interval=interval,
    )


def _ledger(before: Side, after: Side) -> Iterator[Change]:
    others = sorted({*before.ledger_s, *after.ledger_s} - set(BUCKETS))
    for bucket in (*BUCKETS, *others):
        a, b = before.ledger_s.get(bucket), after.ledger_s.get(bucket)
        if a or b:
            yield Change(key=bucket, label=bucket, unit="s", before=a, after=b)


def _doubts(before: Side, after: Side) -> Iterator[str]:
    if before.batch_size != after.batch_size:
        yield (
            f"The batch size changed from {_said(before.batch_size)} to {_said(after.batch_size)}: "
            "compare samples per second, not steps"
        )
    # A recording of one rank may come from a time when that was not noted.
    if (before.world_size or 1) != (after.world_size or 1):
        yield (
            f"The number of ranks changed from {before.world_size or 1} to {after.world_size or 1}: samples per second "
            "are one rank's"
        )
    for what, a, b in (("host", before.host, after.host), ("framework", before.framework, after.framework)):
        if a != b:
            yield f"The {what} changed from {_said(a)} to {_said(b)}"
    for name, side in (("first", before), ("second", after)):
        if side.ended is None:
            yield f"Of the {name} run: {wording.without_end(side.running)}"


def _said(value: object) -> str:
    return "unknown" if value is None else str(value)
