"""What a rule says: verdict, evidence, advice and the time that was lost."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .code import CodeSpot, function_key

SURE = 0.6
"""A primary cause with less confidence than this is shown as probable, with the runner-up beside it."""


class Severity(str, Enum):
    """How much a diagnosis matters: ``info`` needs no action, ``critical`` costs the most."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measured number that supports a diagnosis."""

    name: str
    """What was measured, in words."""
    value: float
    """The measured value, in ``unit``."""
    unit: str
    """Unit of ``value`` and ``threshold``."""
    threshold: float | None = None
    """The value from which the rule fires; None when the number only informs."""
    source: str = ""
    """Where the threshold comes from."""


_EXPECT, _LIMIT = "Expect: ", "Limit: "


@dataclass(frozen=True, slots=True)
class Fix:
    """One thing to do, in three short lines."""

    do: str
    """What to change: an imperative with the exact setting or code."""
    expect: str = ""
    """What should be different in the next run; empty where that is plain."""
    limit: str = ""
    """What bounds the gain, or when it does not help; empty where nothing is known to."""

    def __str__(self) -> str:
        lines = (self.do, f"{_EXPECT}{self.expect}" * bool(self.expect), f"{_LIMIT}{self.limit}" * bool(self.limit))
        return "\n".join(line for line in lines if line)

    @classmethod
    def read(cls, text: str) -> Fix:
        """Take apart what `str` put together. Any other text is something to do, with nothing expected."""
        parts: dict[str, list[str]] = {"": [], _EXPECT: [], _LIMIT: []}
        part = ""
        for line in text.splitlines():
            part = next((label for label in (_EXPECT, _LIMIT) if line.startswith(label)), part)
            parts[part].append(line.removeprefix(part))
        return cls(*("\n".join(lines) for lines in parts.values()))


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do about it. A diagnosis lists its advice cheapest first."""

    text: str
    """The setting to change or the work to move; then, each on a line of its own, ``Expect: …`` and ``Limit: …``."""
    predicted_gain_pct: float | None = None
    """Predicted rise of throughput in percent; None when nothing was predicted."""
    gain_interval_pct: tuple[float, float] | None = None
    """Least and most of that rise, which hold it in 8 of 10 runs; None when nothing was predicted."""

    @classmethod
    def of(
        cls,
        do: str,
        *,
        expect: str = "",
        limit: str = "",
        gain_pct: float | None = None,
        interval_pct: tuple[float, float] | None = None,
    ) -> Advice:
        """Make one from its lines; see `Fix`. Each is a sentence of at most 20 words, ``do`` of 15."""
        return cls(str(Fix(do, expect, limit)), gain_pct, interval_pct)

    @property
    def fix(self) -> Fix:
        """The text as its lines."""
        return Fix.read(self.text)


@dataclass(frozen=True, slots=True)
class Location:
    """The place in the code that holds most of what a diagnosis names."""

    file: str
    """Relative to the program; of a library, from its package on."""
    line: int
    """Counted from 1: where the function spends the most."""
    function: str
    """Qualified; the user's own where there is one."""
    share_pct: float
    """Of the time that was looked at."""
    call: str | None = None
    """The library call beneath it that took the most; None where it is the function itself."""
    line_share_pct: float | None = None
    """As ``share_pct``, of the line alone; None where not known."""

    @classmethod
    def of(cls, spot: CodeSpot, share_pct: float) -> Location:
        """Return the place of a function that a look saw, with its share of what was looked at, in percent."""
        of_line = None if spot.line_share is None else share_pct * spot.line_share
        return cls(spot.file, spot.line, spot.function, share_pct, spot.call_in_line, of_line)

    @property
    def key(self) -> tuple[str, ...]:
        """What tells its function from others, on all ranks alike."""
        return function_key(self.file, self.function, self.line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The verdict of one rule on one run."""

    rule: str
    """Id of the rule, kebab-case: the problem's name."""
    severity: Severity
    title: str
    """The problem as a statement."""
    summary: str
    """One sentence with numbers and units."""
    time_lost_s: float
    """Avoidable seconds of wall time, from the ledger, so that causes can be compared; 0 when nothing is lost."""
    share_pct: float
    """``time_lost_s`` as a percentage of the wall time."""
    confidence: float
    """0 to 1: how sure the rule is that this is the cause."""
    evidence: tuple[Evidence, ...] = ()
    advice: tuple[Advice, ...] = ()
    culprit: str | None = None
    """Name of the guilty part (a callback's class, a logger, an interface), when there is one."""
    location: Location | None = None
    """Where in the code; None where nobody looked, or where no place holds enough of it."""
    supersedes: tuple[str, ...] = ()
    """Ids of rules that explain the same seconds, whose diagnoses are left out in favour of this one."""
    ranks: tuple[int, ...] = ()
    """Ranks of the job that it holds for; empty when it holds for all alike, and for a run of one rank."""


@dataclass(frozen=True, slots=True)
class Abstention:
    """A rule that could not judge, and the signals that it missed."""

    rule: str
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAdvice:
    """A recommended ``num_workers`` with the gain that the model predicts for it."""

    current: int
    recommended: int
    """Equals ``current`` when nothing better is predicted."""
    predicted_step_time_s: float | None
    predicted_gain_pct: float | None
    """Predicted rise of throughput in percent."""
    limited_by: str
    """What binds at the recommended value: compute, workers, cpu, memory, bandwidth, lock, repeats or unknown."""
    reason: str
    confidence: float
    """0 to 1."""
    prefetch_factor: int | None = None
    """Batches that each of the recommended workers should prepare ahead, where a deeper queue helps; None leaves it."""
    prefetch_gain_pct: float | None = None
    """Predicted rise of throughput by the deeper queue alone."""
    saves_processes: int | None = None
    """Worker processes fewer at the same speed, where that is all the recommended number is for; None elsewhere."""
    saves_bytes: int | None = None
    """Memory that only those held; None when that was not measured."""
    most: int | None = None
    """Workers that fit at most, into this rank's equal part of the node's memory and /dev/shm, and into the dataset's
    shards; None where nothing is known to limit them."""
    torch_threads: int | None = None
    """Threads of the loop (``torch.set_num_threads``) that the recommended number is meant with; None leaves them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Everything the rules say about a run at one moment."""

    primary: Diagnosis | None
    """The one primary cause; None when nothing could be judged."""
    diagnoses: tuple[Diagnosis, ...] = ()
    """All diagnoses, the primary first, then by time lost."""
    abstained: tuple[Abstention, ...] = ()
    num_workers: WorkerAdvice | None = None
    runner_up: Diagnosis | None = None
    """What the cause most likely is if it is not the primary; None when nothing else comes into question."""

    @property
    def is_probable(self) -> bool:
        """Whether the primary cause is less than `SURE`, so that reports say "probably" and name the runner-up."""
        return self.primary is not None and self.primary.confidence < SURE
