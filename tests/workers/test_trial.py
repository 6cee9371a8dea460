"""The state machine that tries numbers of workers: proposes, measures, keeps or takes back, and ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.records import StepRecord, WorkerTrial
from stallmeter.records.diagnosis import WorkerAdvice
from stallmeter.workers.settings import Change
from stallmeter.workers.trial import (
    MAX_REVERTS,
    MIN_STEPS,
    Proposal,
    StepTimeEstimate,
    StepTimes,
    WorkerTrials,
    gain,
    is_better,
)

EPOCH = 30


def step(index: int, seconds: float, **known: float | bool) -> StepRecord:
    return StepRecord(
        index=index,
        epoch=index // EPOCH,
        optimizer_step=None,
        tracker_step=index,
        samples=4,
        time_s=float(index),
        total_s=seconds,
        **{"data_wait_s": 0.0, "epoch_start": index % EPOCH == 0, **known},
    )


def advice(current: int, recommended: int, gain_pct: float = 50.0) -> WorkerAdvice:
    return WorkerAdvice(
        current=current,
        recommended=recommended,
        predicted_step_time_s=0.1,
        predicted_gain_pct=gain_pct,
        limited_by="workers",
        reason="",
        confidence=0.9,
    )


class Loop:
    """A loop whose step takes ``time_of(workers)`` and which sets what the tuner proposes between its epochs."""

    def __init__(self, time_of: Callable[[int], float], *, workers: int = 0, reverts: bool = True) -> None:
        self.time_of = time_of
        self.tuner = WorkerTrials(reverts=reverts)
        self.tuner.begin(workers, persistent=False)
        self.workers = workers
        self.index = 0
        self.trials: list[WorkerTrial] = []
        self.history = [workers]

    def epoch(self, recommend: Callable[[int], int], steps: int = EPOCH) -> None:
        for i in range(steps):
            self.tuner.step(step(self.index, self.time_of(self.workers) * (1 + 0.01 * (i % 2)), epoch_start=i == 0))
            self.index += 1
        proposal = self.tuner.propose(advice(self.workers, recommend(self.workers)))
        if proposal is not None:
            assert proposal.before == self.workers
            self.workers = proposal.workers
        self.trials += self.tuner.boundary(proposal, step=self.index, time_s=float(self.index))
        self.history.append(self.workers)

    @property
    def outcomes(self) -> list[tuple[int, int, str]]:
        return [(t.before, t.workers, t.outcome) for t in self.trials]


def test_faster_is_kept():
    loop = Loop(lambda w: 0.2 if w < 4 else 0.1)
    for _ in range(4):
        loop.epoch(lambda _: 4)
    assert loop.history == [0, 4, 4, 4, 4]
    assert loop.outcomes == [(0, 4, "measuring"), (0, 4, "kept")]
    assert loop.trials[1].predicted_gain_pct == 50
    assert loop.trials[1].achieved_gain_pct == pytest.approx(100, rel=1e-3)


def test_slower_is_taken_back():
    loop = Loop(lambda w: 0.1 if w < 4 else 0.2)
    for _ in range(5):
        loop.epoch(lambda _: 4)
    assert loop.history == [0, 4, 0, 0, 0, 0]
    assert loop.outcomes == [(0, 4, "measuring"), (0, 4, "reverted")]
    assert loop.trials[1].achieved_gain_pct == pytest.approx(-50, rel=1e-3)


def test_no_faster_is_taken_back():
    """A gain within the noise costs workers for nothing."""
    loop = Loop(lambda w: 0.1 if w < 4 else 0.098)
    loop.epoch(lambda _: 4)
    loop.epoch(lambda _: 4)
    assert loop.history == [0, 4, 0]


def test_what_looks_better_is_measured_for_longer():
    """A busy machine hides a gain for an epoch; with more steps it shows, or it is given up."""
    for settles, expected in ((True, [0, 4, 4, 4, 4, 4]), (False, [0, 4, 4, 4, 0, 0])):
        loop = Loop(lambda w: 0.2)

        def epoch_of(number: int, loop: Loop = loop, settles: bool = settles) -> Callable[[int], float]:
            wild = number == 1 or not settles
            return lambda w: 0.2 if w == 0 else ((0.1 if loop.index % 30 < 22 else 0.4) if wild else 0.1)

        for number in range(5):
            loop.time_of = epoch_of(number)
            loop.epoch(lambda _: 4)
        assert loop.history == expected


def test_one_after_the_other():
    loop = Loop(lambda w: 1.0 / (1 + w))
    for _ in range(8):
        loop.epoch(lambda w: w + 2)
    assert loop.history == [0, 2, 2, 4, 4, 6, 6, 8, 8]
    assert [t.outcome for t in loop.trials] == ["measuring", "kept"] * 4


def test_the_model_is_not_believed_for_ever():
    """After two numbers that were not better nothing more is tried."""
    loop = Loop(lambda w: 0.1 + 0.1 * w)
    ask = iter(range(1, 50))
    for _ in range(12):
        loop.epoch(lambda _: next(ask))
    assert [t.outcome for t in loop.trials].count("reverted") == MAX_REVERTS
    assert loop.workers == 0


def test_epochs_too_short_to_measure_are_added_up():
    loop = Loop(lambda w: 0.2 if w == 0 else 0.1)
    for _ in range(12):
        loop.epoch(lambda _: 2, steps=6)
    assert loop.history[:3] == [0, 0, 0]
    assert loop.workers == 2
    assert loop.outcomes[-1] == (0, 2, "kept")


def test_advice_on_another_number_is_ignored():
    tuner = WorkerTrials()
    tuner.begin(0, persistent=False)
    for i in range(EPOCH):
        tuner.step(step(i, 0.1))
    assert tuner.propose(None) is None
    assert tuner.propose(advice(3, 4)) is None
    assert tuner.propose(advice(0, 0)) is None
    assert tuner.propose(replace(advice(0, 4), saves_processes=2)) is None
    assert tuner.propose(replace(advice(0, 4), torch_threads=1)) is None, "these are two changes"
    assert tuner.propose(advice(0, 4)) == Proposal(before=0, workers=4, predicted_gain_pct=50.0)


def test_before_the_loader_is_known_nothing_is_proposed():
    assert WorkerTrials().propose(advice(0, 4)) is None


def test_the_end_of_the_run():
    """What is better is kept; what is not, or was not measured, remains undecided."""
    kept, worse, short = (Loop(f) for f in (lambda w: 0.2 - 0.1 * (w > 0), lambda w: 0.1 + w, lambda _: 0.1))
    for loop, steps in ((kept, EPOCH), (worse, EPOCH), (short, 3)):
        loop.epoch(lambda _: 4)
        for _ in range(steps):
            loop.tuner.step(step(loop.index, loop.time_of(4), epoch_start=False))
            loop.index += 1
        loop.trials += loop.tuner.finish(0.0)
    assert [loop.outcomes[-1][2] for loop in (kept, worse, short)] == ["kept", "unsettled", "unsettled"]
    assert worse.trials[-1].achieved_gain_pct < 0
    assert short.trials[-1].achieved_gain_pct is None
    assert kept.tuner.finish(0.0) == ()


def test_numbers_that_somebody_else_chose():
    """They are measured and never taken back, and any may come again."""
    tuner = WorkerTrials(reverts=False)
    tuner.begin(0, persistent=False)
    found: list[WorkerTrial] = []
    for epoch, chosen in enumerate((3, 0, 3)):
        for i in range(EPOCH):
            tuner.step(step(epoch * EPOCH + i, 0.1))
        assert tuner.propose(advice(tuner.workers or 0, 9)) is None
        taken = Proposal(before=tuner.workers or 0, workers=chosen)
        found += tuner.boundary(taken, step=(epoch + 1) * EPOCH, time_s=0.0)
    found += tuner.finish(0.0)
    assert [(t.workers, t.outcome) for t in found] == [
        (3, "measuring"), (3, "set"), (0, "measuring"), (0, "set"), (3, "measuring"), (3, "set"),
    ]  # fmt: skip
    assert found[1].achieved_gain_pct == pytest.approx(0)


# -- how fast it was ---------------------------------------------------------------------------------------------------


def test_speed_leaves_out_what_disturbs():
    """First steps, validation, checkpoints, the step behind them, and steps kept because they are odd."""
    meter = StepTimes(persistent=False)
    for i in range(1, 60):
        meter.add(step(i + 100, 0.1, epoch_start=False))
    for odd in ({"epoch_start": True}, {"validation_s": 3.0}, {}, {"checkpoint_s": 4.0}, {}, {"outlier": True}):
        meter.add(step(200, 9.0, **{"epoch_start": False, **odd}))
    found = meter.speed(None)
    assert found is not None
    assert found.step_time_s == pytest.approx(0.1)
    assert found.noise_s == pytest.approx(0.0, abs=1e-12)


def test_the_start_of_workers_is_spread_over_the_epoch():
    """Workers that start each epoch anew cost what the loop waits for their first batch."""
    for persistent, expected in ((False, 0.1 + 2.0 / 50), (True, 0.1)):
        meter = StepTimes(persistent=persistent)
        for i in range(100):
            meter.add(step(i, 0.1, epoch_start=i % 50 == 0, data_wait_s=2.0 if i % 50 == 0 else 0.0))
        found = meter.speed(50)
        assert found is not None
        assert found.step_time_s == pytest.approx(expected)


def test_too_few_steps_have_no_speed():
    meter = StepTimes(persistent=False)
    for i in range(MIN_STEPS - 1):
        meter.add(step(i + 100, 0.1, epoch_start=False))
    assert meter.speed(None) is None


def test_noise_decides():
    assert is_better(StepTimeEstimate(0.1, 0.001), StepTimeEstimate(0.09, 0.001))
    assert not is_better(StepTimeEstimate(0.1, 0.01), StepTimeEstimate(0.09, 0.01))
    assert not is_better(StepTimeEstimate(0.1, 0.0), StepTimeEstimate(0.098, 0.0))
    assert gain(StepTimeEstimate(0.2, 0.0), StepTimeEstimate(0.1, 0.0)) == pytest.approx(1.0)
    assert gain(StepTimeEstimate(0.2, 0.0), StepTimeEstimate(0.0, 0.0)) == 0.0


@given(
    times=st.lists(st.floats(0.01, 1.0), min_size=9, max_size=9),
    wishes=st.lists(st.integers(0, 8), min_size=1, max_size=25),
    start=st.integers(0, 8),
)
def test_it_ends_and_never_ends_up_slower(times, wishes, start):
    """Whatever the model wishes: no number is tried twice, and what stands at the end is no slower than the start."""
    loop = Loop(lambda w: times[w], workers=start)
    for wish in wishes:
        loop.epoch(lambda _, wish=wish: wish)
    for _ in range(2):
        loop.epoch(lambda w: w)
    tried = [t.workers for t in loop.trials if t.outcome == "measuring"]
    assert len(set(tried)) == len(tried)
    assert start not in tried
    assert loop.tuner.trial is None
    assert times[loop.workers] <= times[start]
    assert loop.tuner.workers == loop.workers
    assert all(t.achieved_gain_pct > 0 for t in loop.trials if t.outcome == "kept")


def change(setting: str, value: int, gain_pct: float | None) -> Change:
    return Change(setting=setting, before=0, value=value, predicted_gain_pct=gain_pct)


def measured(steps: int = 2 * EPOCH, seconds: float = 0.1) -> WorkerTrials:
    trials = WorkerTrials()
    trials.begin(2, persistent=False)
    for i in range(steps):
        trials.step(step(i, seconds))
    trials.boundary(None, step=steps, time_s=0.0)
    return trials


def test_the_change_that_is_predicted_to_gain_most_is_tried_first():
    trials = measured()
    few, many = change("pin_memory", True, 20.0), change("persistent_workers", True, 90.0)
    found = trials.propose(advice(2, 4, gain_pct=50.0), [many, few])
    assert found is not None
    assert (found.setting, found.workers) == ("persistent_workers", True)
    found = trials.propose(advice(2, 4, gain_pct=50.0), [few])
    assert found is not None
    assert (found.setting, found.workers) == ("num_workers", 4)
    trials.refuse(Proposal(before=0, workers=True, setting="pin_memory"))
    assert trials.propose(None, [few]) is None


def test_a_setting_that_is_not_faster_comes_back_and_is_not_tried_again():
    trials = measured()
    one = change("prefetch_factor", 8, 30.0)
    taken = trials.propose(None, [one])
    assert taken is not None
    (begun,) = trials.boundary(taken, step=2 * EPOCH, time_s=0.0)
    assert (begun.setting, begun.outcome) == ("prefetch_factor", "measuring")
    assert trials.workers == 2
    for i in range(EPOCH):
        trials.step(step(2 * EPOCH + i, 0.1))
    back = trials.propose(None, [one])
    assert back == Proposal(before=8, workers=0, setting="prefetch_factor", revert=True)
    (ended,) = trials.boundary(back, step=3 * EPOCH, time_s=0.0)
    assert (ended.setting, ended.outcome) == ("prefetch_factor", "reverted")
    for i in range(EPOCH):
        trials.step(step(3 * EPOCH + i, 0.1))
    trials.boundary(None, step=4 * EPOCH, time_s=0.0)
    assert trials.propose(None, [one]) is None


def test_workers_that_are_kept_save_their_start_and_that_is_measured():
    """Steps are as long as before: what is won is the start of the workers, 3 s an epoch of 30 steps of 0.1 s."""
    trials = WorkerTrials()
    trials.begin(2, persistent=False)
    at = 0
    taken = None
    for epoch in range(6):
        for i in range(EPOCH):
            trials.step(step(at, 0.1, epoch_start=i == 0, data_wait_s=0.05 if i == 0 else 0.0))
            at += 1
        proposal = trials.propose(None, [change("persistent_workers", True, 90.0)]) if epoch >= 2 else None
        taken = taken or proposal
        startup_s = 3.0 if taken is None or proposal is not None else 0.0
        ended = trials.boundary(proposal, step=at, time_s=float(at), startup_s=startup_s)
        if ended and ended[0].outcome == "kept":
            assert ended[0].achieved_gain_pct == pytest.approx(100.0, rel=0.1)
            return
    pytest.fail("it was not kept")
