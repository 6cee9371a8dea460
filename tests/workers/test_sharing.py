"""What workers share, as the model takes it: no gain is predicted where one at a time gets through."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.records import (
    CodeLook,
    CodeSpot,
    HostSample,
    LedgerRecord,
    LoaderInfo,
    StepRecord,
    WorkerBatch,
    WorkerChange,
    WorkerWaits,
)
from stallmeter.rules.fetch_stall import FetchStall
from stallmeter.window import Window
from stallmeter.workers import Limits, LoaderCosts
from stallmeter.workers.forecast import Outlook, forecast
from stallmeter.workers.measured import operation
from stallmeter.workers.model import predict_step_time_s, predict_step_times_s
from stallmeter.workers.sharing import AT_ONCE, learn_from_repeats, learn_from_waits

from .test_forecast import begin


def run(*, workers: int = 4, service_s: float = 0.16, step_s: float = 0.04, in_line: bool = False) -> Window:
    """Blocked workers that are the limit: together they make a batch every 40 ms."""
    window = Window()
    window.append(LoaderInfo(time_s=0, kind="DataLoader", num_workers=workers, prefetch_factor=2))
    fill(window, workers, service_s, step_s, in_line=in_line)
    return window


def fill(
    window: Window, workers: int, service_s: float, step_s: float, *, in_line: bool = False, first: int = 0
) -> None:
    begin_s = 1.0 + first * 0.1
    window.append(HostSample(time_s=begin_s, usable_cpus=8.0, others_cpus=0.0, job_cpus=0.5, main_cpus=0.1))
    for i in range(200):
        window.append(
            StepRecord(
                index=first + i, epoch=0, optimizer_step=None, tracker_step=i, samples=4, time_s=begin_s + i * step_s,
                total_s=step_s, data_wait_s=step_s - 0.002, epoch_start=i == 0, ready=0, head_ready=False,
            )
        )  # fmt: skip
        ahead = i * 7 % workers if in_line else workers - 1
        wall_s = 2 * service_s * (1 + ahead) / (1 + workers) if in_line else service_s
        window.append(
            WorkerBatch(
                worker=i % workers, time_s=begin_s + i * step_s + wall_s, wall_s=wall_s, cpu_s=0.001, run_queue_s=0.0,
                ahead=ahead, in_flight=1.0 + ahead,
            )
        )  # fmt: skip
    window.append(
        LedgerRecord(
            time_s=begin_s + 200 * step_s, wall_s=(1 + (first > 0)) * 200 * step_s, steps=first + 200, epochs=1,
            buckets={"data_wait": (1 + (first > 0)) * 190 * step_s, "compute": 20 * step_s, "other": 0.0},
        )
    )  # fmt: skip


def ask(window: Window) -> Outlook:
    found = forecast(window)
    assert found is not None
    return found


def look(window: Window, *, lock: int, sleep: int, contended: int) -> None:
    for i in range(6):
        window.append(
            WorkerWaits(
                time_s=float(i), looks=8, workers=lock + sleep, lock=lock, sleep=sleep, queued=lock, contended=contended
            )
        )


def test_one_lock_for_all_no_gain_from_more_workers() -> None:
    window = run()
    look(window, lock=24, sleep=8, contended=8)

    found = ask(window)

    assert found.recommended <= 4
    assert found.gain_pct == 0.0
    assert found.advice.limited_by == "lock"
    assert "wait for each other at a lock held 40 ms for a batch" in found.advice.reason


def test_a_lock_held_part_of_the_time_allows_for_that_much_more() -> None:
    window = run()
    look(window, lock=2, sleep=30, contended=2)

    found = ask(window)

    use = window.workers.waits.lock_use
    assert use == pytest.approx(0.6, abs=0.1)
    assert found.recommended > 4
    assert found.gain_pct == pytest.approx(100 * (1 / use - 1), rel=0.25)


def test_a_store_that_serves_one_at_a_time_allows_no_more() -> None:
    found = ask(run(in_line=True, step_s=0.064))

    assert found.advice.limited_by == "bandwidth"
    assert found.recommended <= 4


def test_without_evidence_more_workers_are_recommended_with_doubt() -> None:
    window = run()
    look(window, lock=0, sleep=32, contended=0)

    found = ask(window)

    assert found.recommended == AT_ONCE  # and then one sees
    assert re.search(r"less is gained; if not, \d+ would be best$", found.advice.reason)
    assert re.match(r"A first step: \d+ would be best if the readers share no store", found.limit)
    assert "If the workers share the store" in found.advice.reason
    assert found.confidence < 0.7


def test_a_number_that_was_tried_before_leaves_no_doubt() -> None:
    window = run()
    window.append(WorkerChange(time_s=20.0, step=200, before=4, workers=5))
    fill(window, 5, 0.16, 0.032, first=200)

    assert window.present() is not window
    assert "share" not in ask(window.present()).limit


def test_the_diagnosis_names_the_lock_and_what_to_do_about_it() -> None:
    window = run()
    look(window, lock=24, sleep=8, contended=8)

    found = FetchStall().check(window)

    assert found is not None
    assert "75% of that for a lock that another process held" in found.summary
    assert "threads" not in " ".join(advice.text for advice in found.advice), "they would stand in the same line"
    assert found.advice[0].text.startswith("Hold the lock for less")
    assert not any("num_workers" in advice.text for advice in found.advice)


def test_without_the_lock_what_is_done_under_it_is_done_side_by_side() -> None:
    """More of the time is slept than waited for the lock: in it, so that the lock sets the pace."""
    window = run()
    look(window, lock=14, sleep=18, contended=28)
    found = FetchStall().check(window)
    outlook = ask(window)
    assert found is not None
    assert outlook.asked is not None
    assert outlook.asked[1].shared_by == "lock"
    unlocked = outlook.without.gain_pct(outlook.without.unlocked_s)
    assert unlocked is not None
    assert found.title == "The workers wait for each other at a lock"
    assert re.search(r"44% of that for a lock .* and 56% in a sleep", found.summary)
    assert found.advice[0].text.startswith("Hold the lock for less")
    assert found.advice[0].predicted_gain_pct == pytest.approx(outlook.of_run(unlocked))
    assert unlocked < (outlook.without.gain_pct(outlook.without.unblocked_s) or 0.0)


def test_each_reader_of_a_store_makes_the_others_wait_as_long_as_was_seen() -> None:
    """Alone a batch takes 20 ms, 10 of them in the store: two workers make one each 15 ms, many one each 10."""
    costs = LoaderCosts(current=2, work_s=0.001, service_s=0.020, cpu_s=0.001, turnaround_s=0.0, handover_s=0.0)
    limits = Limits(shared_s=0.010, adds_s=0.010)
    times = predict_step_times_s(costs, limits, 40)
    assert times[1:4] == [pytest.approx(0.020), pytest.approx(0.015), pytest.approx(0.040 / 3)]
    assert times[40] == pytest.approx(0.010, rel=0.05)


def test_a_store_takes_no_longer_for_a_batch_than_the_steps_that_it_feeds() -> None:
    window = run(in_line=True, step_s=0.03)
    known = operation(window)
    assert known is not None
    costs, limits = learn_from_waits(window, *known)
    assert limits.adds_s == limits.shared_s == pytest.approx(0.03, rel=0.01)
    assert costs.service_s <= known[0].service_s


def test_workers_that_stand_in_line_for_a_lock_are_not_needed() -> None:
    """Twelve wait for one lock: what they waited for it, in each batch, needs no further batches to bridge it."""
    window = run(workers=12, service_s=0.48)
    look(window, lock=80, sleep=8, contended=8)

    advice = ask(window).advice

    assert advice.recommended <= 3
    assert advice.saves_processes == 12 - advice.recommended
    assert advice.limited_by == "lock"


def repeats(window: Window, part: float) -> None:
    """Each worker makes the items of all for such a part of a batch's time."""
    spot = CodeSpot(file="t.py", line=8, function="Lines.parse", own=True, wall_s=part, cpu_s=part)
    window.append(
        CodeLook(
            time_s=0.0, place="workers", rule="", method="profile", seen=3, wall_s=1.0, cpu_s=1.0, spots=(spot,),
            repeated=(spot,),
        )
    )  # fmt: skip


def test_workers_that_each_make_all_items_win_nothing_by_their_number() -> None:
    window = begin(2, 0.1)
    more = ask(window)
    assert more.recommended > 2
    assert more.gain_pct > 5.0

    repeats(window, 1.0)
    found = ask(window)

    assert found.recommended <= 2
    assert found.gain_pct == 0.0
    assert found.advice.limited_by == "repeats"
    assert "each makes the items of all, which takes 5" in found.advice.reason
    assert found.without.no_cpu_s == more.without.no_cpu_s
    assert found.without.best_workers_s > more.without.best_workers_s
    assert found.without.best_workers_s == pytest.approx(found.without.now_s, rel=0.1)


def test_a_little_of_a_batch_that_is_made_for_all_decides_nothing() -> None:
    window = begin(2, 0.1)
    before = ask(window).advice
    repeats(window, 0.1)
    assert ask(window).advice == before


@given(st.integers(0, 8), st.floats(0.2, 1.0), st.floats(0.001, 1.0))
def test_what_is_made_for_all_leaves_a_batch_as_it_was_measured(workers: int, part: float, service_s: float) -> None:
    window = Window()
    repeats(window, part)
    costs = LoaderCosts(current=workers, service_s=service_s, cpu_s=service_s, work_s=0.01, loop_cpu_s=0.01)
    alone, limits = learn_from_repeats(window, costs, Limits(available_cpus=64.0))
    assert alone.service_s + (max(1, workers) - 1) * limits.adds_s == pytest.approx(service_s)
    assert 0 < limits.shared_s <= service_s


def test_fewer_workers_that_each_make_all_items_spare_the_cpus() -> None:
    """Four on two CPUs make everything four times."""
    window = Window()
    repeats(window, 1.0)
    costs = LoaderCosts(current=4, service_s=0.04, cpu_s=0.04, work_s=0.002, loop_cpu_s=0.002)
    known = learn_from_repeats(window, costs, Limits(available_cpus=2.0))
    one, four = (predict_step_time_s(*known, workers) for workers in (1, 4))
    assert four == pytest.approx(0.021, rel=0.1)  # two CPUs for 42 ms of it
    assert one == pytest.approx(0.011, rel=0.2)  # the items of one batch, once
