"""DDP sends the model's buffers before each forward pass, and that takes the time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.ranks.code import BUFFERS
from stallmeter.ranks.job import Job
from stallmeter.records.diagnosis import Diagnosis, Severity
from stallmeter.rules.job.evaluation import judge
from stallmeter.rules.job.sent_buffers import SentBuffers
from stallmeter.rules.job.straggler import own_work_s

from ..windows import check_fix
from .jobs import job
from .test_ddp_times import times

RULE = SentBuffers()


def sending(*shares: float | None, framework: str = "loop") -> Job:
    """Ranks of which looks find each so often in the sending of buffers."""
    made = job(ranks=len(shares))
    views = tuple(
        replace(
            view,
            header=replace(view.header, framework=framework),
            facts=view.facts if share is None else {**view.facts, BUFFERS: share},
        )
        for view, share in zip(made.ranks, shares, strict=True)
    )
    return replace(made, ranks=views)


def test_what_all_ranks_spend_in_it_is_what_the_one_does_that_spends_least():
    """The other one waits there for a late rank as well."""
    made = sending(0.25, 0.4)
    (said,) = RULE.check(made, [])
    ledger = made.ranks[0].ledger
    assert ledger is not None
    assert said.time_lost_s == pytest.approx(0.25 * own_work_s(made.ranks[0]) * ledger.steps)
    assert said.severity is Severity.WARNING
    assert said.culprit == "broadcast_buffers"
    gain, interval = said.advice[0].predicted_gain_pct, said.advice[0].gain_interval_pct
    assert gain is not None
    assert interval is not None
    assert interval[0] < gain < interval[1]
    for advice in said.advice:
        check_fix(advice.fix)


def test_a_buffer_that_is_most_of_them_is_named():
    """As the rank tells that has the most."""

    def told(largest_bytes: int) -> Diagnosis:
        noted = times(0.001, 0.001, 2)[:1]
        noted = [replace(noted[0], buffers_bytes=1000, largest_buffer="queue", largest_buffer_bytes=largest_bytes)]
        made = sending(0.25, 0.4)
        return RULE.check(replace(made, ranks=(made.ranks[0], replace(made.ranks[1], ddp=noted))), [])[0]

    assert told(900).summary.endswith(" Most of them is queue.")
    assert [(one.name, one.value) for one in told(900).evidence[2:]] == [
        ("buffers of the model", 1000.0),
        ("the largest of them, queue", 900.0),
    ]
    assert "queue" not in told(400).summary
    assert len(RULE.check(sending(0.25, 0.4), [])[0].evidence) == 2, "where no reading tells"


def test_it_is_the_cause_of_the_job():
    primary = judge(sending(0.25, 0.25)).verdict.primary
    assert primary is not None
    assert primary.rule == "sent-buffers"


@pytest.mark.parametrize(
    ("framework", "words"),
    [
        ("loop", "in DistributedDataParallel."),
        ("lightning 2.6", "DDPStrategy(broadcast_buffers=False)"),
        ("transformers 5.0", "TrainingArguments(ddp_broadcast_buffers=False)"),
    ],
)
def test_in_the_words_of_the_framework(framework: str, words: str):
    assert words in RULE.check(sending(0.3, 0.3, framework=framework), [])[0].advice[0].text


@pytest.mark.parametrize("shares", [(0.3, 0.05), (0.0, 0.0)])
def test_silent(shares: tuple[float, ...]):
    """One rank that waits there waits for the other."""
    assert RULE.check(sending(*shares), []) == []


def test_abstains():
    assert RULE.lacks(sending(0.3, None))
    assert RULE.check(sending(0.3, None), []) == []
    assert not RULE.lacks(sending(0.3, 0.3))
