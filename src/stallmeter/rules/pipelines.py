"""What rules of the input family share where batches come from threads or processes that are not torch's workers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.pipeline import Pipeline

INSTEAD = ("spent.data_wait_share_pct", "producers.looks", "steps.work_s", "loader.info")
"""Signals that stand in for those of torch's workers."""

CONFIDENCE = 0.75
"""Who is at work was seen, how long each takes was not: less than where workers time themselves; benchmarks/loaders."""

CHEAPER = Advice.of("Make one batch cheaper: simpler or batched transforms, a faster format, a cache.")


class _Rule(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def title(self) -> str: ...


def diagnosis_of(
    rule: _Rule,
    window: Window,
    pipeline: Pipeline,
    *,
    summary: str,
    warn_pct: float,
    evidence: Iterable[Evidence],
    advice: Iterable[Advice],
    supersedes: tuple[str, ...] = (),
    confidence: float = CONFIDENCE,
) -> Diagnosis:
    """Return a diagnosis of the whole data wait.

    Args:
        rule: That says it.
        window: What it has read.
        pipeline: What makes the batches.
        summary: Of the rule.
        warn_pct: The rule's threshold for the wait's share of the training time.
        evidence: Beside the wait.
        advice: The first first.
        supersedes: Other rules' ids that this one explains.
        confidence: Of the rule, 0 to 1.
    """
    share, lost = window.spent.data_wait_share_pct or 0.0, window.spent.bucket_s("data_wait") or 0.0
    return Diagnosis(
        rule=rule.id,
        supersedes=supersedes,
        severity=Severity.CRITICAL if share >= 2 * warn_pct else Severity.WARNING,
        title=rule.title,
        summary=summary,
        time_lost_s=lost,
        share_pct=window.ledger.share_pct(lost) or 0.0,
        confidence=confidence,
        evidence=(
            Evidence("data wait, share of training time", share, "%", warn_pct, "MLPerf Storage"),
            Evidence("wait for data in a step, mean", pipeline.step_s - pipeline.work_s, "s"),
            *evidence,
        ),
        advice=tuple(advice),
    )
