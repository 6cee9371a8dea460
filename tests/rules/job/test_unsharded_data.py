"""Ranks that all go through the whole dataset."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.ranks.data import read_in_evaluation, read_in_training
from stallmeter.ranks.job import Job
from stallmeter.records import EvaluationBatches, LoaderInfo
from stallmeter.records.diagnosis import Diagnosis, Severity
from stallmeter.rules.job.dealing import evaluate_a_part
from stallmeter.rules.job.evaluation import judge
from stallmeter.rules.job.unsharded_data import UnshardedData

from ..windows import check_fix
from .jobs import Known, diagnosis, job, verdict_of
from .test_ddp_times import times

RULE = UnshardedData()
WHOLE = LoaderInfo(
    time_s=1.0,
    kind="DataLoader",
    num_workers=2,
    batch_size=8,
    items=800,
    items_drawn=800,
    sampler="RandomSampler",
    data_digest="0123abcd",
    order_digest="4567cdef",
)


def reading(
    *changes: dict[str, Any],
    starts: tuple[int, ...] = (0, 100),
    ended: str | None = "end",
    exchanging: int | None = None,
    framework: str = "loop",
    validation_s: float = 0.0,
) -> Job:
    """Ranks of 200 steps and two passes, each with a loader of its own."""
    ranks = len(changes)
    made = job(
        lambda rank, step: {"validation": 0.0 if step % 100 else validation_s},
        ranks=ranks,
        known={rank: Known(ended=ended) for rank in range(ranks)},
    )
    among = replace(times(0.001, 0.001)[0], ranks=ranks if exchanging is None else exchanging)
    views = tuple(
        replace(
            view,
            trains_on=read_in_training(replace(WHOLE, **own)),
            steps=replace(view.steps, starts=starts),
            ddp=[among] if exchanging != 0 else [],
            header=replace(view.header, framework=framework),
        )
        for view, own in zip(made.ranks, changes, strict=True)
    )
    return replace(made, ranks=views)


def said(made: Job) -> Diagnosis:
    (found,) = RULE.check(made, [])
    return found


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_of_n_ranks_needs_an_nth(ranks):
    """So many times as fast is the training."""
    made = reading(*[{}] * ranks)
    found = said(made)
    assert found.severity is Severity.CRITICAL
    assert found.time_lost_s == pytest.approx(made.training_s * (1 - 1 / ranks))
    assert f"{100 // ranks} steps instead of 100" in found.summary
    (advice,) = found.advice
    check_fix(advice.fix)
    assert advice.predicted_gain_pct == pytest.approx(100.0 * (ranks - 1))
    assert advice.gain_interval_pct is not None
    assert advice.gain_interval_pct[0] < advice.predicted_gain_pct < advice.gain_interval_pct[1]


def test_it_is_the_jobs_cause():
    """Whatever else the ranks lose, it is done so many times."""
    verdict = judge(reading({}, {})).verdict
    assert verdict.primary is not None
    assert verdict.primary.rule == RULE.id


def test_ranks_that_draw_alike_compute_alike():
    """Of the same state of the random numbers."""
    assert "the same in each step" in said(reading({}, {})).summary
    assert "the same in each step" not in said(reading({}, {"order_digest": "1"})).summary
    assert "the same in each step" not in said(reading({"order_digest": ""}, {"order_digest": ""})).summary


def test_validation_stays():
    """It is not of these steps."""
    made, usual = reading({}, {}, validation_s=1.0), reading({}, {})
    assert said(made).time_lost_s == pytest.approx(said(usual).time_lost_s)
    (least, most), (_, usual_most) = (
        one.advice[0].gain_interval_pct or (0.0, 0.0) for one in (said(made), said(usual))
    )
    assert least < 100.0 * made.training_s / (made.training_s - said(made).time_lost_s) - 100.0 < most
    assert most == pytest.approx(usual_most, rel=0.01), "it is split as well, as a rule"
    assert said(made).evidence[-1].value == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("sampler", "framework", "words"),
    [
        ("RandomSampler", "loop", "DistributedSampler(dataset)"),
        ("SequentialSampler", "lightning 2.5", "Trainer(use_distributed_sampler=True)"),
        ("WeightedRandomSampler", "lightning 2.5", "num_samples=len(dataset) // world_size"),
    ],
)
def test_advice_by_who_draws(sampler, framework, words):
    """Torch has no weighted sampler for ranks."""
    (advice,) = said(reading({"sampler": sampler}, {"sampler": sampler}, framework=framework)).advice
    assert words in advice.fix.do
    check_fix(advice.fix)


def test_a_single_pass_that_came_to_its_end():
    """The run's last step is the pass's."""
    assert RULE.check(
        reading({"items": 1600, "items_drawn": 1600}, {"items": 1600, "items_drawn": 1600}, starts=(0,)), []
    )


@pytest.mark.parametrize(
    "made",
    [
        reading({}, {"data_digest": "1"}),
        reading({"data_digest": ""}, {"data_digest": ""}),
        reading({}, {"items": 400}),
        reading({"items_drawn": 400}, {"items_drawn": 400}),
        reading({}, {}, starts=(0, 50, 100, 150)),
        reading({}, {}, starts=(0,)),
        reading({}, {}, starts=(0,), ended=None),
        reading({}, {"items": None, "items_drawn": None}),
        reading({"kind": "DataLoaderDispatcher"}, {}),
        reading({"batches_per_step": 2.0}, {"batches_per_step": 2.0}),
    ],
    ids=[
        "other data",
        "not known",
        "other items",
        "half of them",
        "breaks off",
        "another pass",
        "goes on",
        "split",
        "read by one",
        "some may be skipped",
    ],
)
def test_silent(made):
    """Where a rank may have its own part, or stops before the end of its loader."""
    assert RULE.check(made, []) == []
    assert RULE.lacks(made) == ()


@pytest.mark.parametrize(
    "made", [reading({}, {}, exchanging=0), reading({}, {}, exchanging=1)], ids=["nobody exchanges", "of groups"]
)
def test_abstains(made):
    """Ranks that are parts of one model read the same with good reason."""
    assert RULE.check(made, []) == []
    assert RULE.lacks(made)


class TestEvaluation:
    """Ranks that evaluate the same data, each of them all."""

    @pytest.mark.parametrize("digest", ["0123abcd", ""])
    def test_each_rank_evaluates_a_part(self, digest):
        """What is validated is halved; where it may be a part already, nothing is said of it."""
        found = EvaluationBatches(
            time_s=1.0, batches=100, batch_size=8, items=800, items_drawn=800, sampler="SequentialSampler"
        )
        heavy = diagnosis("validation-heavy", 2.0)
        made = reading({"data_digest": ""}, {"data_digest": ""}, validation_s=1.5)
        views = [
            replace(
                view,
                evaluates=read_in_evaluation(replace(found, data_digest=digest)),
                verdict=verdict_of(Known(diagnoses=[heavy])),
            )
            for view in made.ranks
        ]
        made = replace(made, ranks=tuple(views))
        advice = evaluate_a_part(made, heavy)
        if not digest:
            assert advice == ()
            return
        (split,) = advice
        check_fix(split.fix)
        assert split.predicted_gain_pct == pytest.approx(100.0 * (made.training_s / (made.training_s - 1.5) - 1.0))
        assert evaluate_a_part(made, diagnosis("slow-callback", 2.0)) == ()
        primary = judge(made).verdict.primary
        assert primary is not None
        assert (primary.rule, primary.advice[0]) == ("validation-heavy", split)
        informs = Known(diagnoses=[replace(heavy, severity=Severity.INFO, time_lost_s=0.1)])
        made = replace(made, ranks=tuple(replace(view, verdict=verdict_of(informs)) for view in made.ranks))
        (told,) = judge(made).verdict.diagnoses
        assert (told.rule, told.advice[0]) == ("validation-heavy", split)
