"""What a run gains when the cause of a loss is gone: the saved time, as far as loader and device allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import LoaderInfo, WorkerBatch
from stallmeter.window import Window
from stallmeter.workers.gains import (
    UNKNOWN,
    Gain,
    gain_by_looks,
    gain_of_start,
    gain_with_more_cpus,
    gain_without,
    skipped_s,
)

from ..rules.waiting import waiting
from ..rules.windows import START_S, device_steps, gpus, ledger, loader, run, step, window


def within(gain: Gain, pct: float) -> bool:
    assert gain.interval_pct is not None
    least, most = gain.interval_pct
    return least <= pct <= most


def held(batch_s: float, *, pause_s: float = 0.05, work_s: float = 0.05, workers: int = 2, **options: Any) -> Window:
    """A run of 1,000 steps, each held up by something that is booked beside its work and its wait."""
    wait_s = max(0.001, batch_s / max(1, workers) - work_s - pause_s)
    made = waiting(workers=workers, wait_s=wait_s, work_s=work_s + pause_s, batch_s=batch_s, **options)
    total = 1000 * (wait_s + work_s + pause_s)
    spent = {"data_wait": 1000 * wait_s, "forward": 1000 * work_s, "backward": 0.0, "optimizer": 0.0}
    made.append(ledger(wall_s=total, start=0.0, loop=0.0, callbacks={"Slow": 1000 * pause_s}, **spent))
    return made


def test_all_of_it_is_won_where_the_loader_keeps_up() -> None:
    """101 ms a step become 51 ms: workers that need 20 ms for two batches have time to spare."""
    gain = gain_without(held(0.02), 50.0)
    assert gain.pct == pytest.approx(100 * (101 / 51 - 1))


def test_what_the_loader_takes_is_not_won() -> None:
    """Two workers with 150 ms for a batch allow a step each 75 ms, whatever the loop needs."""
    gain = gain_without(held(0.15), 50.0)
    assert gain.pct == pytest.approx(100 * (101 / 75.25 - 1), rel=0.1)
    assert within(gain, 100 * (101 / 75 - 1))


def test_nothing_is_won_where_the_loader_sets_the_pace() -> None:
    """The loop waits for its workers already: what it is no longer held up by, it waits longer."""
    gain = gain_without(held(0.3), 50.0)
    assert gain.pct == pytest.approx(0.0, abs=3.0)
    assert within(gain, 0.0)


def test_without_workers_the_loop_makes_its_batches_itself() -> None:
    made = held(0.15, workers=0)
    before = (made.ledger.training_s or 0.0) / 1000
    assert gain_without(made, 50.0).pct == pytest.approx(100 * (before / (before - 0.05) - 1))


def test_rare_pauses_in_which_the_queue_fills_up() -> None:
    """Between them the loop goes at the pace of its workers: what they made in the pause is missing without it."""
    made = waiting(workers=2, wait_s=0.04, work_s=0.02, batch_s=0.14)
    spent = {"data_wait": 40.0, "forward": 20.0, "backward": 0.0, "optimizer": 0.0, "checkpoint": 30.0}
    made.append(ledger(wall_s=90.0, start=0.0, loop=0.0, **spent))
    gain = gain_without(made, 30.0, in_steps=False)
    assert gain.pct == pytest.approx(100 * (90 / 70.25 - 1), rel=0.1)


def test_workers_that_need_not_start_again() -> None:
    """Their start is the time that is saved, so it is not among what is left."""
    made = waiting(workers=2, wait_s=0.001, work_s=0.05, batch_s=0.02)
    spent = {"data_wait": 1.0, "forward": 50.0, "backward": 0.0, "optimizer": 0.0, "worker_startup": 49.0}
    made.append(ledger(start=0.0, loop=0.0, **spent))
    gain = gain_without(made, 40.0, in_steps=False, starts_workers=True)
    assert gain.pct == pytest.approx(100 * (100 / 60 - 1))


def test_long_steps_are_in_the_mean_of_all() -> None:
    """Their excess is work of the loop like the rest: no reserve of the loader hides behind it."""
    made = waiting(workers=2, wait_s=0.001, work_s=0.09, batch_s=0.02)
    made.append(ledger(wall_s=91.0, start=0.0, data_wait=1.0, forward=90.0, backward=0.0, optimizer=0.0, loop=0.0))
    assert gain_without(made, 40.0).pct == pytest.approx(100 * (91 / 51 - 1))


def test_the_device_computes_on() -> None:
    """A callback that waits for the device is charged with its work: that stays."""
    busy = device_steps(beside_s=0.05, exposed=0.0, host_work_s=0.05)
    hidden = gain_without(run(*busy, callbacks={"Slow": 50.0}), 50.0)
    assert hidden.pct == pytest.approx(0.0, abs=1.0)
    idle = device_steps(beside_s=0.05, exposed=1.0, host_work_s=0.05, total_s=0.1)
    shown = gain_without(run(*idle, callbacks={"Slow": 50.0}), 50.0)
    assert shown.pct == pytest.approx(100 * (99 / 49 - 1), rel=0.05)
    assert gain_without(run(*busy, h2d=50.0), 50.0, on_device=True).pct == pytest.approx(100 * (99 / 49 - 1))


def test_the_interval_knows_what_the_fix_leaves() -> None:
    whole, part = (gain_without(run(callbacks={"A": 20.0}), 20.0, least=least) for least in (1.0, 0.5))
    assert whole.pct == part.pct
    assert whole.interval_pct is not None
    assert part.interval_pct is not None
    assert part.interval_pct[0] < whole.interval_pct[0] < (whole.pct or 0.0) < whole.interval_pct[1]
    assert part.interval_pct[1] == whole.interval_pct[1]
    assert within(part, 100 * (99 / 89 - 1))


def test_a_function_known_by_looks_is_not_gone_for_certain() -> None:
    """Of 20 s of 99 a fix may leave 8; few looks are less sure still."""
    sure, unsure = (gain_by_looks(run(callbacks={"A": 20.0}), 20.0, looks) for looks in (10_000, 10))
    assert within(sure, 100 * (99 / 87 - 1))
    assert not within(gain_without(run(callbacks={"A": 20.0}), 20.0), 100 * (99 / 87 - 1))
    assert sure.interval_pct is not None
    assert unsure.interval_pct is not None
    assert unsure.interval_pct[0] < sure.interval_pct[0] < sure.interval_pct[1] < unsure.interval_pct[1]


def test_of_a_large_part_no_more_is_believed_than_what_remains_allows() -> None:
    """A fix of 80 of 99 s saves up to 1.3 times that: more than there is, where 19 s are predicted to be left."""
    window = run(callbacks={"A": 80.0}, forward=10.0, backward=5.0, optimizer=2.0, data_wait=1.0)
    found = gain_by_looks(window, 80.0, 10_000)
    assert found.pct == pytest.approx(100 * (99 / 19 - 1))
    assert found.interval_pct is not None
    most = 99 / (0.4 * 19)
    assert found.interval_pct[1] == pytest.approx(
        100 * (99 / 19 + ((most - 99 / 19) ** 2 + (0.08 * 99 / 19) ** 2) ** 0.5 - 1)
    )


def test_an_unseen_loader_may_have_no_reserve() -> None:
    seen = gain_without(run(loader(0), callbacks={"A": 20.0}), 20.0)
    unseen = gain_without(run(replace(loader(2), probed=False), callbacks={"A": 20.0}), 20.0)
    assert seen.pct == unseen.pct
    assert seen.interval_pct is not None
    assert unseen.interval_pct is not None
    assert unseen.interval_pct[0] < seen.interval_pct[0]


def test_of_the_start() -> None:
    """Of the whole wall time: training itself gets no faster."""
    made = run(start=40.0)
    gain = gain_of_start(made, 38.0, least=0.5)
    assert gain.pct == pytest.approx(100 * (100 / 62 - 1))
    assert within(gain, 100 * (100 / 81 - 1))


def test_with_more_cpus() -> None:
    """Two workers that compute 100 ms for a batch allow 50 ms a step, and on one CPU 100 ms."""
    made = waiting(workers=2, wait_s=0.08, work_s=0.02, batch_s=0.1, cpus=1.0)
    gain = gain_with_more_cpus(made)
    assert gain.pct == pytest.approx(100.0, rel=0.15)
    assert within(gain, 95.0)


@pytest.mark.parametrize("seconds", [None, 0.0, -1.0, float("nan"), float("inf")])
def test_what_is_not_known_is_not_predicted(seconds: float | None) -> None:
    assert gain_without(run(), seconds) == UNKNOWN
    assert gain_of_start(run(), seconds) == UNKNOWN
    assert gain_without(Window(), 1.0) == gain_of_start(Window(), 1.0) == UNKNOWN
    assert gain_with_more_cpus(Window()) == gain_with_more_cpus(run()) == UNKNOWN


def test_no_miracles() -> None:
    """However much is claimed, some time is left."""
    gain = gain_without(window(step(5), ledger()), 1e9)
    assert gain.pct == pytest.approx(4900.0)


@pytest.mark.parametrize(("work_s", "pause_s"), [(0.0163, 0.054), (0.0318, 0.122), (0.004, 0.013), (0.0213, 0.13)])
def test_nothing_is_left_of_the_loop(work_s: float, pause_s: float) -> None:
    """A loss as large as all of its time leaves 0 s of CPU, not -1e-18."""
    assert gain_without(held(0.02, pause_s=pause_s, work_s=work_s), 1e6).pct is not None


def test_batches_that_nobody_uses_are_counted_of_one_loader() -> None:
    """Of the second loader a step takes three batches: all that its workers make are used, though steps are fewer."""

    def both(per_step: float) -> Window:
        records: list[Any] = []
        for number, (each, slow_s, first_s) in enumerate(((1.0, 0.15, 0.15), (3.0, 0.02, 1.5))):
            of = per_step if number else each
            info = LoaderInfo(time_s=START_S, kind="DataLoader", num_workers=2, probed=True, loader=number)
            records.append(replace(info, start_method="fork", batches_per_step=of))
            records += [
                WorkerBatch(
                    worker=i % 2,
                    time_s=START_S,
                    wall_s=first_s if i < 2 else slow_s,
                    cpu_s=0.01,
                    run_queue_s=0.0,
                    idle_s=None if i < 2 else 0.02,
                    loader=number,
                )
                for _ in range(10)
                for i in range(round(100 * each))
            ]
        return run(*records, replace(ledger(wall_s=120.0, steps=1000, worker_startup=20.0), epochs=10))

    assert skipped_s(both(3.0)) == 0.0
    assert skipped_s(both(1.0)) == pytest.approx(10 * (200 - 4) * (298 * 0.02 + 2 * 1.5) / 300 / 2, rel=0.1)


class TestADevice:
    """What it computes is no host's time to save."""

    def made(self, utilization_pct: float | None, sm_active_pct: float | None = None, **spent: Any) -> Window:
        known = {} if utilization_pct is None else {"utilization_pct": utilization_pct, "sm_active_pct": sm_active_pct}
        return run(*device_steps(exposed=0.0), *(gpus(20, lambda i: known) if known else ()), **spent)

    def test_its_events_bound_the_gain(self) -> None:
        """A step of 100 ms on the device, nothing of it idle by its events."""
        assert (gain_without(self.made(None), 50.0).pct or 0.0) < 5.0

    def test_its_utilization_knows_of_gaps_between_kernels(self) -> None:
        """It is busy for 30 % of that: half of the time can go, with copies that utilization does not tell of."""
        assert gain_without(self.made(30.0), 50.0).pct == pytest.approx(100.0 * 50.0 / 49.0, rel=0.05)
        assert (gain_without(self.made(60.0), 90.0).pct or 0.0) < 100.0 * (1 / 0.6 - 1.0)

    def test_fewer_and_larger_kernels_may_fill_it(self) -> None:
        """A tenth of its multiprocessors has work: most of the time in which it is busy may go as well."""
        plain = gain_without(self.made(30.0, 3.0), 65.0, most=1.05)
        filled = gain_without(self.made(30.0, 3.0), 65.0, most=1.05, larger_kernels=True)
        assert plain.interval_pct is not None
        assert filled.interval_pct is not None
        assert filled.pct == plain.pct
        assert filled.interval_pct[0] == plain.interval_pct[0]
        assert filled.interval_pct[1] > 1.3 * plain.interval_pct[1]
        full = gain_without(self.made(30.0, 30.0), 65.0, most=1.05, larger_kernels=True)
        assert full.interval_pct == pytest.approx(plain.interval_pct)

    def test_the_start_of_workers_is_not_hidden_behind_it(self) -> None:
        """A callback of 60 s beside 40 s of device and 20 s of start: 60 of the 120 s stay."""
        made = self.made(None, worker_startup=20.0, callbacks={"Plot": 60.0})
        training_s = made.ledger.training_s or 0.0
        device_s = 0.1 * (made.ledger.record.steps if made.ledger.record else 0)
        pct = gain_without(made, 200.0).pct
        assert pct is not None
        assert 1.0 + pct / 100.0 <= training_s / min(training_s, device_s + 20.0) + 0.01
