"""How long steps take, and which of them count."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.records.rows import is_kept
from stallmeter.window import Window
from stallmeter.window.ledger import LedgerSignals
from stallmeter.window.loader import LoaderSignals
from stallmeter.window.startup import ExcessOfFirstWaits
from stallmeter.window.steps import MIN_STEADY_STEPS, OPENERS, SETTLED_STEPS, SLOW_STEPS, WARMUP_STEPS, StepSignals

from ..rules.windows import START_S, ledger, loader, run, step, window


def test_the_warm_up_is_apart():
    """First steps and the first of each epoch say nothing about a steady step."""
    slow = [step(i, total_s=9.0) for i in range(1, WARMUP_STEPS)]
    made = window(step(0, total_s=9.0, epoch_start=True), *slow, *(step(i) for i in range(3, 30)))
    made.append(step(30, total_s=9.0, epoch_start=True))
    assert made.steps.step_time_s is not None
    assert made.steps.step_time_s.max == pytest.approx(0.1)


def test_a_very_short_run_has_nothing_but_warm_up():
    """Where there are no other steps, those of the warm-up are better than none."""
    made = window(step(0, epoch_start=True), step(1), step(2))
    assert made.steps.step_time_s is not None
    assert made.steps.step_time_s.count == 2


@pytest.mark.parametrize(("num_workers", "count"), [(0, 40 - WARMUP_STEPS), (2, None), (None, None)])
def test_epochs_of_one_step(num_workers, count):
    """Their steps are judged where nothing starts with an epoch; workers would start in each of them."""
    made = epochs(40, first_wait_s=0.05, num_workers=num_workers, steps=1)
    assert (made.steps.step_time_s and made.steps.step_time_s.count) == count
    assert (made.steps.data_wait_s and made.steps.data_wait_s.median) == (0.05 if count else None)


def test_the_mean_is_one_over_steps_not_over_time():
    """A loop that is slow for a while has all steps of that while recorded, and few of the others."""
    slow = [step(i, total_s=0.050) for i in range(3, 203)]
    fast = [step(i, total_s=0.001, every=16) for i in range(203, 16_203) if is_kept(i, 16)]
    assert len(fast) > 4 * len(slow)
    made = window(*slow, *fast)
    assert made.steps.step_time_s is not None
    assert made.steps.step_time_s.mean == pytest.approx((200 * 0.050 + 16_000 * 0.001) / 16_200, rel=0.15)


def test_one_late_look_at_the_clock_does_not_cost_the_others_their_detail():
    """What a sampler that was held up takes at once is recorded thinly."""
    even = [step(i, total_s=0.001, every=2) for i in range(3, 20_003) if is_kept(i, 2)]
    late = [step(i, total_s=0.001, every=64) for i in range(20_003, 21_003) if is_kept(i, 64)]
    made = window(*even, *late)
    assert len(made.steps.steady) > 1000


def test_steps_that_claim_to_stand_for_none_are_no_error():
    assert window(*(step(i, every=0) for i in range(20)), ledger()).steps.outliers(3.0) is not None


def test_validation_is_no_part_of_a_step():
    """A step in which validation ran took as long as the others."""
    made = window(*(step(i) for i in range(20)), step(20, total_s=5.1, validation_s=5.0))
    assert made.steps.step_time_s is not None
    assert made.steps.step_time_s.max == pytest.approx(0.1)


def epochs(
    count: int, first_wait_s: float, *, num_workers: int | None = 2, steps: int = 20, persistent: bool = False
) -> Window:
    """Epochs whose first wait is long and whose other waits are 2 ms."""
    made = Window()
    if num_workers is not None:
        made.append(replace(loader(num_workers), persistent_workers=persistent))
    for epoch in range(count):
        for i in range(steps):
            wait = first_wait_s if i == 0 else 0.002
            made.append(step(epoch * steps + i, epoch=epoch, epoch_start=i == 0, data_wait_s=wait))
    return made


def first_waits(made: Window) -> ExcessOfFirstWaits:
    found = made.steps.first_waits
    assert found is not None
    return found


def test_start_up_is_what_exceeds_the_steady_wait():
    """The first wait of each epoch, less an ordinary one."""
    assert first_waits(epochs(3, 0.5)).all_s == pytest.approx(3 * 0.498)


def test_start_up_is_not_known_before_a_steady_wait_is():
    """With too few steady steps there is nothing to compare with."""
    assert first_waits(epochs(1, 0.5, steps=WARMUP_STEPS + MIN_STEADY_STEPS - 1)).all_s == 0.0
    assert first_waits(epochs(1, 0.5, steps=WARMUP_STEPS + MIN_STEADY_STEPS)).all_s > 0.0


def test_without_workers_nothing_starts_up():
    """The first wait in the loop's own thread is an ordinary one."""
    assert first_waits(epochs(3, 0.04, num_workers=0)).all_s == 0.0


def test_a_loader_that_begins_each_epoch_late():
    """No batch takes that long: a sampler reads the dataset, or a table is read anew."""
    made = epochs(3, 0.5, num_workers=0)
    assert first_waits(made).late_s == pytest.approx(3 * 0.498)
    assert first_waits(made).all_s == first_waits(made).late_s


def test_what_is_late_once_is_done_once():
    made = epochs(1, 0.5, num_workers=0)
    for i in range(20):
        made.append(step(20 + i, epoch=1, epoch_start=i == 0, data_wait_s=0.002))
    assert first_waits(made).all_s == 0.0


def test_late_first_waits_are_never_forgotten():
    assert first_waits(epochs(300, 0.5, steps=10, num_workers=0)).late_s == pytest.approx(300 * 0.498)


def test_workers_that_live_on_begin_late():
    """All of them make a first batch at once: what they may take for it is no start."""
    made = epochs(4, 2.0, persistent=True)
    assert first_waits(made).late_s == pytest.approx(3 * 1.998)
    assert first_waits(epochs(4, 0.1, persistent=True)).late_s == 0.0


def test_workers_that_live_on_start_once():
    """At the end of an epoch they have run out of batches: the first wait of the next one is a wait for a batch."""
    made = epochs(3, 0.5, persistent=True)
    assert first_waits(made).all_s == pytest.approx(0.498)
    made.append(replace(loader(4), persistent_workers=True))
    made.append(step(60, epoch=3, epoch_start=True, data_wait_s=0.5))
    assert first_waits(made).all_s == pytest.approx(2 * 0.498)


def test_workers_of_a_loader_that_is_made_anew_start_each_time():
    """Whatever it says of them: they end with their loader."""
    made = epochs(1, 0.5, persistent=True)
    for epoch in (1, 2):
        made.append(replace(loader(2), persistent_workers=True, remade=True))
        made.append(step(20 * epoch, epoch=epoch, epoch_start=True, data_wait_s=0.5))
    assert first_waits(made).all_s == pytest.approx(3 * 0.498)


def test_a_short_first_wait_is_no_negative_start_up():
    """An epoch whose first batch was already there takes nothing back."""
    assert first_waits(epochs(3, 0.0)).all_s == 0.0


def test_start_up_is_never_forgotten():
    """Hundreds of epochs count in full, although only some first waits are kept."""
    assert first_waits(epochs(300, 0.1, steps=10)).all_s == pytest.approx(300 * 0.098)


def test_the_only_epochs_start_up_is_settled_once(monkeypatch):
    """It is known from then on, and reading it does not look at the steps any more."""
    made = epochs(1, 0.5, steps=WARMUP_STEPS + SETTLED_STEPS)
    monkeypatch.setattr(StepSignals, "data_wait_s", property(lambda self: pytest.fail("looked at the steps")))
    assert first_waits(made).all_s == pytest.approx(0.498)


def test_saves():
    """Only steps with a checkpoint in them tell what one costs."""
    made = run(step(100, checkpoint_s=0.0), step(101, checkpoint_s=2.0, total_s=2.1))
    assert made.steps.save_s is not None
    assert (made.steps.save_s.count, made.steps.save_s.median) == (1, 2.0)


def test_slow_steps_are_the_slowest_of_all_steady_ones():
    """They survive the thinning of the sample; first steps of an epoch and the warm-up are none."""
    made = Window(steps=16)
    for i in range(1000):
        made.append(step(i, total_s=9.0 if i == 2 else i / 1000, epoch_start=i % 500 == 499))
    assert [s.index for s in made.steps.slowest] == [998, 997, 996, 995, 994, 993, 992, 991, 990, 989]
    made.append(step(1000, total_s=0.9975, validation_s=0.9))
    assert 1000 not in {s.index for s in made.steps.slowest}
    made.append(step(1001, total_s=2.0))
    made.append(step(1001, total_s=2.0))
    assert [s.index for s in made.steps.slowest][:3] == [1001, 1001, 998]


def test_a_part_alone():
    """Steps need no window, only what tells of loader and ledger."""
    about, total = LoaderSignals(), LedgerSignals()
    made = StepSignals(about, total, size=16)
    assert (made.count, made.begun_s, made.step_time_s, made.outliers(3.0)) == (0, float("-inf"), None, None)
    for i in range(100):
        made.append(
            step(i, epoch_start=i % 10 == 0, total_s=5.0 if i == 55 else 0.1, forward_s=4.0 if i == 55 else 0.03)
        )
    assert (made.count, made.begun_s) == (88, START_S + 1.0 + 0.2)
    assert len(made.steady) <= 16
    assert len(made.slowest) == SLOW_STEPS
    assert made.outliers(3.0) is None
    total.append(ledger(steps=100))
    found = made.outliers(3.0)
    assert found is not None
    assert (found.count, found.longest_s) == (0, 0.0)


def test_outliers():
    """Steps whose body takes three times the median, and what they took beyond it."""
    made = run(*(step(200 + i, total_s=1.1, forward_s=1.03) for i in range(2)), steps=102).steps.outliers(3.0)
    assert made is not None
    assert made.count == 2
    assert made.excess_s == pytest.approx(2.0)
    assert made.longest_s == pytest.approx(1.08)


def test_only_even_steps_are_the_sample():
    """A step that was recorded for being slow is among the slowest, and in no median."""
    made = window(
        *(step(i) for i in range(20)), step(20, total_s=9.0, outlier=True), step(21, epoch_start=True, outlier=True)
    )
    assert made.steps.step_time_s is not None
    assert made.steps.step_time_s.max == pytest.approx(0.1)
    assert made.steps.slowest[0].index == 20


def test_first_steps_of_epochs_are_bounded():
    """However many epochs of one step there are."""
    made = epochs(3 * OPENERS, 0.05, num_workers=0, steps=1)
    assert made.steps.step_time_s is not None
    assert made.steps.step_time_s.count <= OPENERS


def test_long_steps_are_counted_where_they_are_recorded():
    """The while of a save is recorded in full, the rest one row in two: thinned alike, half of the saves were gone."""
    steps = []
    for i in range(400):
        long = i % 40 == 39
        every = 1 if i % 40 >= 32 else 2
        if every == 1 or i // 8 % 2:
            steps.append(step(i, total_s=1.0 if long else 0.01, forward_s=0.99 if long else 0.0, every=every))
    found = window(*steps, ledger(wall_s=20.0, steps=400, start=0.0, data_wait=0.0)).steps.outliers(3.0)
    assert found is not None
    assert found.count == 10
