"""validation-heavy: validation takes a large part of the run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.records import CodeLook, CodeSpot, EvaluationBatches
from stallmeter.records.code import LONG_STEPS
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.validation_heavy import ValidationHeavy
from stallmeter.window import Window

from .waiting import waiting
from .windows import START_S, fires, ledger, loader, missing, run, silent, step, window


def part(seconds: float) -> Window:
    """100 s of which so many are validation."""
    rest = 100.0 - seconds
    return window(
        ledger(start=0.0, data_wait=0.0, forward=rest, backward=0.0, optimizer=0.0, validation=seconds, loop=0)
    )


def test_fires():
    """Only what exceeds the usual share counts as lost."""
    found = fires(ValidationHeavy(), part(30.0))
    assert found.summary == "Validation took 30.0 s, 30 % of the training time; 10 % would be usual."
    assert found.time_lost_s == pytest.approx(20.0)
    assert found.severity is Severity.WARNING


def test_critical():
    """When more time goes into validation than into training, it is critical."""
    assert fires(ValidationHeavy(), part(50.0)).severity is Severity.CRITICAL


def test_threshold():
    """It warns from a quarter on, and informs as long as what is beyond a tenth is worth 5 %."""
    assert fires(ValidationHeavy(), part(25.0)).severity is Severity.WARNING
    told = fires(ValidationHeavy(), part(24.9))
    assert told.severity is Severity.INFO
    assert told.time_lost_s == pytest.approx(14.9)
    assert told.title == "Validation takes more of the run than is usual"
    assert told.evidence[0].threshold == 15.0
    assert fires(ValidationHeavy(), part(25.0)).evidence[0].threshold == 25.0
    assert fires(ValidationHeavy(), part(15.0)).severity is Severity.INFO
    assert silent(ValidationHeavy(), part(14.9))


@pytest.mark.parametrize(("every", "epochs", "lost_s"), [(10, 2, 18.0), (50, 2, 10.0), (100, 2, 10.0), (10, 1, 10.0)])
def test_all_but_one_validation_of_an_epoch_can_be_spared(every: int, epochs: int, lost_s: float) -> None:
    """Of 100 steps each tenth: with 20 % of the time it took 10 times what once would."""
    rest = {"start": 0.0, "data_wait": 0.0, "forward": 80.0, "backward": 0.0, "optimizer": 0.0, "loop": 0.0}
    often = window(replace(ledger(steps=200, validation=20.0, **rest), epochs=epochs))
    for i in range(200):
        at = step(i, epoch=i * epochs // 200, epoch_start=i % 100 == 0)
        often.append(replace(at, validation_s=1.0 if i % every == every - 1 else 0.0))
    found = fires(ValidationHeavy(), often)
    assert found.time_lost_s == pytest.approx(lost_s, rel=0.02)
    assert (", 10 times an epoch." in found.summary) == (lost_s > 10.0)
    assert ("Once an epoch it takes 2 s of this run." in found.advice[0].text) == (lost_s > 10.0)


def test_short_runs():
    """A share of almost nothing is not worth a change."""
    quick = window(ledger(wall_s=2.0, start=0, data_wait=0, forward=1, backward=0, optimizer=0, loop=0, validation=0.6))
    assert silent(ValidationHeavy(), quick)
    assert fires(ValidationHeavy(min_lost_s=0.1), quick)


def test_abstains():
    """Without a ledger there is nothing to judge."""
    assert missing(ValidationHeavy(), Window()) == ("ledger.training_s", "ledger.wall_s")


def test_user_thresholds():
    """The user's thresholds count, and can never lead to a negative loss."""
    assert fires(ValidationHeavy(warn_pct=31.0), part(30.0)).severity is Severity.INFO
    assert silent(ValidationHeavy(warn_pct=32.0, info_pct=31.0), part(30.0))
    assert fires(ValidationHeavy(usual_pct=0.0), part(30.0)).time_lost_s == 30.0
    assert fires(ValidationHeavy(warn_pct=5.0, usual_pct=50.0, min_lost_s=0.0), run(validation=20.0)).time_lost_s == 0.0


def loading(start_s: float, wait_s: float) -> Window:
    """A run of 100 s with 30 s of validation, of which its loader took so much."""
    made = part(30.0)
    assert made.ledger.record is not None
    made.append(replace(made.ledger.record, validation_parts={"start": start_s, "wait": wait_s}))
    return made


def test_its_own_loader():
    """What its loader takes is said, and comes first in the advice, when it is most of it."""
    found = fires(ValidationHeavy(), loading(20.0, 5.0))
    assert "20.0 s of it starting its workers and 5.0 s of it waiting for its data" in found.summary
    assert "persistent_workers" in found.advice[0].text
    found = fires(ValidationHeavy(), loading(0.0, 25.0))
    assert "25.0 s of it waiting for its data; 10 %" in found.summary
    assert "num_workers" in found.advice[0].text
    assert not any("persistent_workers" in advice.text for advice in found.advice)
    assert "num_workers" not in str(fires(ValidationHeavy(), loading(24.0, 0.1)).advice)
    assert fires(ValidationHeavy(), loading(2.0, 5.0)).summary == fires(ValidationHeavy(), part(30.0)).summary


def test_what_starts_with_the_workers_of_training_is_another_rules():
    """Workers of both start anew in each epoch: that is one matter, and told once."""
    made = waiting(workers=2, wait_s=0.01, work_s=0.05, batch_s=0.05, cpus=2.0, busy_share=0.5)
    of_all = replace(
        ledger(start=0.0, worker_startup=10.0, validation=30.0, data_wait=0.0, forward=60.0, backward=0.0, loop=0),
        epochs=10,
        validation_parts={"start": 12.5, "wait": 1.0},
    )
    made.append(of_all)
    found = fires(ValidationHeavy(), made)
    assert found.summary.startswith("Validation took 18.0 s, 18 % of the training time, beside 12.0 s in which")
    assert found.time_lost_s == pytest.approx(8.0, rel=0.01)
    assert not any("persistent_workers" in advice.text for advice in found.advice)
    made.append(replace(of_all, validation_parts={"start": 22.5, "wait": 1.0}))
    assert silent(ValidationHeavy(), made)


@pytest.mark.parametrize(("part", "told"), [(0.8, True), (0.2, False)])
def test_training_data_that_is_evaluated_as_well(part: float, told: bool) -> None:
    """As in quickstarts that tell metrics of both after each epoch."""
    both = [
        EvaluationBatches(time_s=START_S, batches=round(100 * share), batch_size=32, of_training=own)
        for share, own in ((part, True), (1.0 - part, False))
    ]
    found = fires(ValidationHeavy(), run(loader(), *both, start=0.0, forward=30.0, backward=20.0, validation=30.0))
    first = found.advice[0]
    assert (first.fix.do == "Leave training's own data out of what is evaluated.") is told
    assert ("80 % of its items training's own" in found.summary) is told
    if told:
        assert first.predicted_gain_pct == pytest.approx(100.0 * (100.0 / 76.0 - 1.0), rel=0.02)
        assert found.advice[1].fix.do.startswith("Validate less often")


@pytest.mark.parametrize(
    ("seconds", "epochs", "said"), [(30.0, 8, "Each 4 epochs"), (30.0, 2, "At 10 %"), (16.0, 8, "Each 2")]
)
def test_how_seldom_is_told_where_there_are_as_many_epochs(seconds: float, epochs: int, said: str) -> None:
    made = part(seconds)
    record = made.ledger.record
    assert record is not None
    made.append(replace(record, epochs=epochs))
    assert fires(ValidationHeavy(), made).advice[0].fix.expect.startswith(said)


def in_small_batches(size: int, items: int = 3200) -> Window:
    """30 s of validation in batches of so many, beside training steps of 98 ms for 32 items."""
    batches = EvaluationBatches(time_s=START_S, batches=items // size, batch_size=size)
    return run(loader(), batches, start=0.0, forward=30.0, backward=20.0, validation=30.0)


def test_batches_much_smaller_than_trainings():
    """As large ones take no more than the forward pass of so many steps: 100 of them take 9.8 s with all else."""
    found = fires(ValidationHeavy(), in_small_batches(1))
    assert "in batches of 1; 10 %" in found.summary
    first = found.advice[0]
    assert "Raise the batch size of validation from 1 to 32" in first.text
    saved_s = 30.0 - 0.35 * 9.8
    assert first.predicted_gain_pct == pytest.approx(100.0 * (100.0 / (100.0 - saved_s) - 1.0), rel=0.1)
    assert first.gain_interval_pct is not None
    assert first.gain_interval_pct[0] < first.predicted_gain_pct < first.gain_interval_pct[1]
    assert "Validate less often" in found.advice[1].text
    assert not any("Double the batch size" in advice.text for advice in found.advice)


def test_batches_that_are_small_and_few_items_to_win_by():
    """Where steps of training take as long for as many items, validating less often comes first."""
    found = fires(ValidationHeavy(), in_small_batches(8, items=18_400))
    assert "in batches" not in found.summary
    assert "Validate less often" in found.advice[0].text
    assert "from 8 to 32" in found.advice[-1].text


@pytest.mark.parametrize("size", [17, 32, 64])
def test_batches_as_large_as_trainings(size: int):
    """Nothing is said of theirs."""
    found = fires(ValidationHeavy(), in_small_batches(size))
    assert "in batches" not in found.summary
    assert "Double the batch size" in found.advice[-1].text


def in_the_midst(evaluated: bool) -> Window:
    """Each twentieth step of 30 ms evaluates for 0.5 s: 100 of 2,000 steps, 50 s of 110."""
    steps = [
        step(i, total_s=0.53 if i % 20 == 0 else 0.03, compute_s=0.53 if i % 20 == 0 else 0.03) for i in range(2000)
    ]
    steps = [replace(one, forward_s=0.0, backward_s=0.0, optimizer_s=0.0) for one in steps]
    spot = CodeSpot(file="train.py", line=12, function="estimate_loss", own=True, wall_s=0.96)
    seen = {"place": "loop", "rule": "step-outliers", "bucket": LONG_STEPS, "method": "samples", "seen": 300}
    look = CodeLook(time_s=START_S, wall_s=1.0, evaluated=(spot,) if evaluated else (), **seen)  # type: ignore[arg-type]
    buckets = dict.fromkeys(("start", "data_wait", "forward", "backward", "optimizer", "validation", "loop"), 0.0)
    record = ledger(wall_s=110.0, steps=2000, compute=110.0, **buckets)
    return window(*steps, record, look)


def test_an_evaluation_in_the_midst_of_the_steps_is_validation() -> None:
    """A loop without a loader, which evaluates in a function of its own."""
    found = fires(ValidationHeavy(), in_the_midst(evaluated=True))
    assert "47.5 s, 43 % of the training time" in found.summary
    assert found.location is not None
    assert found.location.function == "estimate_loss"
    verdict = evaluate(ALL_RULES, in_the_midst(evaluated=True))
    assert verdict.primary is not None
    assert verdict.primary.rule == "validation-heavy"
    assert "step-outliers" not in {one.rule for one in verdict.diagnoses}
    without = evaluate(ALL_RULES, in_the_midst(evaluated=False))
    assert without.primary is not None
    assert without.primary.rule == "step-outliers"
