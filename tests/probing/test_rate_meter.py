"""What is counted, and when it is enough."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.probing.rate_meter import MIN_STEPS, RateMeter, warm_up


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def run(
    step_s: Callable[[int], float],
    *,
    workers: int = 0,
    seconds: float = 1.0,
    limit_s: float = 1e6,
    samples: int | None = 8,
) -> tuple[RateMeter, int, list[float]]:
    """Tick until the meter has enough; return it with the number of ticks and the parts it on_progress."""
    clock, on_progress = Clock(), []
    meter = RateMeter(
        workers=workers,
        seconds=seconds,
        deadline_s=clock.s + limit_s,
        now=clock,
        synchronize=lambda: None,
        on_progress=on_progress.append,
    )
    for i in range(1_000_000):
        clock.s += step_s(i)
        if meter.tick(samples):
            return meter, i + 1, on_progress
    raise AssertionError("it never had enough")


def test_warm_up_is_left_out() -> None:
    meter, ticks, on_progress = run(lambda i: 5.0 if i < warm_up(0) else 0.01)
    rate = meter.rate()
    assert rate is not None
    assert rate.settled
    assert rate.step_time_s == pytest.approx(0.01)
    assert rate.samples_per_s == pytest.approx(800)
    assert ticks == warm_up(0) + rate.steps
    assert 5 <= len(on_progress) <= 11
    assert on_progress == sorted(on_progress)


def test_whole_rounds_of_the_workers() -> None:
    """Four workers deliver four batches at once: a cut inside a round would be wrong by up to a round."""
    meter, _, _ = run(lambda i: 0.4 if i % 4 == 0 else 0.0, workers=4, seconds=3.0)
    rate = meter.rate()
    assert rate is not None
    assert rate.steps % 4 == 0
    assert rate.step_time_s == pytest.approx(0.1)


def test_slow_steps_are_measured_longer_than_asked() -> None:
    meter, _, _ = run(lambda _: 10.0, seconds=1.0)
    assert meter.rate() is not None
    assert meter.rate().steps == MIN_STEPS


def test_deadline_in_the_warm_up() -> None:
    meter, ticks, _ = run(lambda _: 10.0, workers=4, limit_s=35.0)
    rate = meter.rate()
    assert ticks == 4
    assert rate is not None
    assert not rate.settled
    assert (rate.steps, rate.step_time_s, rate.batch_samples) == (3, pytest.approx(10.0), 8)


def test_one_step_has_no_rate() -> None:
    meter, ticks, _ = run(lambda _: 10.0, limit_s=5.0)
    assert ticks == 1
    assert meter.rate() is None


def test_not_over_has_no_rate() -> None:
    meter = RateMeter(workers=0, seconds=1, deadline_s=1e9, now=lambda: 0.0, synchronize=lambda: None)
    assert meter.rate() is None
    meter.tick(1)
    assert meter.rate() is None


def test_unknown_batch_size() -> None:
    rate = run(lambda _: 0.01, samples=None)[0].rate()
    assert rate is not None
    assert rate.samples_per_s is None
    assert rate.steps_per_s == pytest.approx(100)


def test_the_device_is_waited_for_at_both_ends_only() -> None:
    """A step that only launches work is fast; what it launched is waited for before the clock is read."""
    clock = Clock()
    owed = 0.0
    waits = 0

    def synchronize() -> None:
        nonlocal owed, waits
        clock.s += owed
        owed, waits = 0.0, waits + 1

    meter = RateMeter(workers=0, seconds=0.1, deadline_s=1e9, now=clock, synchronize=synchronize)
    for _ in range(10_000):
        clock.s += 0.001
        owed += 0.009
        if meter.tick(1):
            break
    assert waits == 3
    assert meter.rate().step_time_s == pytest.approx(0.01)


@given(
    times=st.lists(st.floats(0.001, 1.0), min_size=60, max_size=60),
    workers=st.integers(0, 8),
    limit_s=st.floats(0.01, 30.0),
)
def test_never_beyond_the_first_step_after_the_deadline(times: list[float], workers: int, limit_s: float) -> None:
    meter, ticks, _ = run(lambda i: times[i % 60], workers=workers, seconds=5.0, limit_s=limit_s)
    before = sum(times[i % 60] for i in range(ticks - 1))
    assert before < limit_s + 1e-9
    rate = meter.rate()
    if rate is not None:
        assert min(times) - 1e-9 <= rate.step_time_s <= max(times) + 1e-9


def test_a_pause_is_part_of_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("stallmeter.probing.rate_meter.time.sleep", lambda s: clock.__setitem__(0, clock[0] + s))
    meter = RateMeter(
        workers=0, seconds=1.0, deadline_s=100.0, now=lambda: clock[0], synchronize=lambda: None, pause_s=0.25
    )
    while not meter.tick(8):
        clock[0] += 0.25
    rate = meter.rate()
    assert rate is not None
    assert rate.step_time_s == pytest.approx(0.5)
