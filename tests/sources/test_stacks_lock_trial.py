"""A short switch interval and the program's own, in turn: whether the training waits for Python's lock."""

from __future__ import annotations

from stallmeter.records import LockTrial
from stallmeter.sources.stacks.lock_trial import LEAST_STEPS, PAIRS, Passed, SwitchTrial


class Training:
    """Steps that take so long with the short interval, and so long with the usual one; asked once a second."""

    def __init__(self, short_s: float, usual_s: float, *, runs_s: float | None = None) -> None:
        self.trial = SwitchTrial()
        self.short_s, self.usual_s, self.runs_s = short_s, usual_s, runs_s
        self.steps, self.work_s = 0, 0.0
        self.found: list[LockTrial] = []
        self.intervals: list[bool] = []

    def stood_ns(self) -> int | None:
        """Nanoseconds in which a thread that computes for so long in each step did not."""
        return None if self.runs_s is None else int(1e9 * (self.work_s - self.steps * self.runs_s))

    def run(self, seconds: int, *, wanted: bool = True) -> None:
        for _ in range(seconds):
            now = Passed(self.steps, int(self.work_s * 1e9), self.stood_ns())
            self.found += self.trial.turn(now, wanted=wanted, time_s=float(self.steps))
            self.intervals.append(self.trial.short)
            each_s = self.short_s if self.trial.short else self.usual_s
            self.steps += round(1.0 / each_s)
            self.work_s += round(1.0 / each_s) * each_s


def test_steps_that_wait_for_the_lock_are_faster_with_a_short_interval() -> None:
    training = Training(short_s=0.05, usual_s=0.1)
    training.run(100)
    last = training.found[-1]
    assert (last.pairs, last.faster) == (PAIRS, PAIRS)
    assert (round(last.short_step_s, 6), round(last.usual_step_s, 6)) == (0.05, 0.1)


def test_each_has_its_turn_and_then_the_programs_own_stays() -> None:
    training = Training(0.1, 0.1)
    training.run(100)
    changes = sum(one != other for one, other in zip(training.intervals, training.intervals[1:], strict=False))
    assert changes == 2 * PAIRS - 1
    assert not training.intervals[-1]
    assert len(training.found) == PAIRS


def test_slow_steps_are_given_time() -> None:
    training = Training(0.5, 0.5)
    training.run(30)
    assert training.found
    assert training.intervals[: LEAST_STEPS // 2] == [True] * (LEAST_STEPS // 2)


def test_a_time_in_which_no_other_thread_computes_counts_for_nothing() -> None:
    training = Training(0.05, 0.1)
    training.run(2)
    training.run(1, wanted=False)
    assert not training.trial.short
    training.run(2)
    assert not training.found
    training.run(6)
    assert training.found
    assert {one.usual_step_s for one in training.found} == {training.found[0].usual_step_s}


def test_how_long_the_training_thread_stands_still_is_counted_with_the_usual_interval() -> None:
    training = Training(0.05, 0.1, runs_s=0.04)
    training.run(100)
    assert round(training.found[-1].stood_step_s or 0.0, 6) == 0.06


def test_where_nobody_counts_that_is_not_known() -> None:
    training = Training(0.05, 0.1)
    training.run(10)
    assert training.found[-1].stood_step_s is None
