"""What a run would gain without one function of those that make batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.records import CodeLook, CodeSpot
from stallmeter.records.diagnosis import Advice, Diagnosis, Location, Severity
from stallmeter.rules.location import located, with_gain
from stallmeter.window import Window
from stallmeter.workers.forecast import forecast
from stallmeter.workers.function_gain import (
    Crowd,
    FunctionGain,
    _step_without_s,
    _without,
    gain_without_function,
    shares,
    with_validation,
)
from stallmeter.workers.gains import REMAINS
from stallmeter.workers.model import Limits, LoaderCosts, predict_step_time_s

from ..rules.windows import check_fix, ledger
from .test_forecast import begin

SERVICE_S = 0.1


def test_a_batch_without_it_is_as_much_shorter_as_its_share():
    found = gain_without_function(begin(1, SERVICE_S), 0.8, 0.8)
    assert found is not None
    assert found.batch_without_s == pytest.approx(0.2 * found.batch_s)
    assert found.step_without_s < found.batch_s
    assert found.gain_pct > 100.0
    assert found.interval_pct is not None
    assert found.interval_pct[0] < found.gain_pct < found.interval_pct[1]


@given(st.floats(0, 1), st.floats(0, 1))
def test_more_of_it_gone_never_gains_less(one, other):
    window = begin(2, SERVICE_S)
    gains = [gain_without_function(window, share, share) for share in sorted((one, other))]
    assert None not in gains
    assert gains[0].gain_pct <= gains[1].gain_pct + 1e-6  # type: ignore[union-attr]


def test_what_is_left_of_a_batch_that_is_little_else_is_not_well_known():
    window = begin(0, SERVICE_S)

    def spread(share: float) -> float:
        found = gain_without_function(window, share, share)
        assert found is not None
        assert found.interval_pct is not None
        least, most = (1.0 + pct / 100.0 for pct in found.interval_pct)
        return most / least

    assert spread(0.97) > 1.1 * spread(0.5)


def test_without_measurements_nothing_is_predicted():
    assert gain_without_function(Window(), 0.5, 0.5) is None


def test_shares_of_wall_cpu_and_waiting_time():
    assert shares((1.0, 0.5), (0.6, 0.1)) == pytest.approx((0.6, 0.2, 1.0))
    assert shares((1.0, None), (0.6, None)) == (0.6, None, None)
    assert shares((0.0, 0.0), (0.0, 0.0)) == (0.0, 0.0, 0.0)


def _found(rule: str, first_gain_pct: float | None) -> Diagnosis:
    return Diagnosis(
        rule=rule,
        severity=Severity.WARNING,
        title="",
        summary="",
        time_lost_s=1.0,
        share_pct=10.0,
        confidence=0.9,
        advice=(Advice.of("Do this.", gain_pct=first_gain_pct), Advice.of("Or that.")),
    )


def _window(rule: str = "prep-stall", share: float = 0.8) -> Window:
    window = begin(1, SERVICE_S)
    spot = CodeSpot(file="t.py", line=8, function="Rotate.__call__", own=True, wall_s=share, cpu_s=share)
    look = CodeLook(
        time_s=0.0, place="workers", rule=rule, method="profile", seen=3, wall_s=1.0, cpu_s=1.0, spots=(spot,)
    )
    window.append(look)
    return window


@pytest.mark.parametrize(("first_gain_pct", "place"), [(1e6, 1), (None, 1), (1.0, 0)])
def test_the_advice_stands_behind_the_first_unless_it_wins_more(first_gain_pct, place):
    window = _window("too-few-workers")
    found = with_gain(located(_found("too-few-workers", first_gain_pct), window), window)
    advice = found.advice[place]
    assert found.location == Location("t.py", 8, "Rotate.__call__", 80.0)
    assert advice.fix.do == "Make Rotate.__call__ cheaper (t.py:8)."
    assert advice.fix.expect.startswith("A batch would take ")
    assert "with 1 worker a step is then" in advice.fix.expect
    assert len(found.advice) == 3


def test_what_is_known_of_a_library_stands_behind_its_place():
    window = _window("too-few-workers")
    look = window.code.looks[0]
    reads = replace(look.spots[0], calls=("h5py.Dataset.__getitem__",))
    window.append(replace(look, time_s=1.0, spots=(reads,)))
    found = with_gain(located(_found("too-few-workers", 1.0), window), window)
    assert found.advice[0].fix.do == "Make Rotate.__call__ cheaper (t.py:8)."
    assert "rdcc_nbytes" in found.advice[1].fix.do
    assert len(found.advice) == 4


def test_of_cheaper_batches_the_place_comes_first_where_it_is_most_of_them():
    """A setting is a fix of its own: that comes second only where the place wins nearly as much."""
    window = _window(share=0.3)
    own = with_gain(located(_found("prep-stall", None), window), window).advice[1].predicted_gain_pct or 0.0
    won = own / (100.0 + own)
    for rule, times, place in (("prep-stall", 1.9, 0), ("prep-stall", 2.1, 1), ("too-few-workers", 1.9, 1)):
        usual = 100.0 * times * won / (1.0 - times * won)
        found = with_gain(located(_found(rule, usual), window), window)
        assert found.advice[place].fix.do.startswith("Make Rotate.__call__ cheaper"), (rule, usual)


@pytest.mark.parametrize(("share", "place"), [(0.55, 0), (0.4, 1)])
def test_a_place_that_is_most_of_a_batch_comes_before_batches_that_cost_nothing(share, place):
    """However much these would win: nobody can have them."""
    window = _window(share=share)
    found = with_gain(located(_found("prep-stall", 400.0), window), window)
    assert found.advice[place].fix.do.startswith("Make Rotate.__call__ cheaper")


def _validating(share: float, function: str = "Rotate.__call__") -> Window:
    """The same beside validations of 20 of 100 s, in which looks found the function of another one for a share."""
    window = _window()
    window.append(ledger(validation=20.0))
    found = (share, function), (0.99 - share, "Net.forward")
    spots = tuple(CodeSpot(file="t.py", line=8, function=name, own=True, wall_s=4.0 * part) for part, name in found)
    look = CodeLook(
        time_s=0.0,
        place="loop",
        rule="validation-heavy",
        bucket="validation",
        method="samples",
        seen=200,
        wall_s=4.0,
        spots=spots,
    )
    window.append(look)
    return window


def test_what_validations_spend_in_the_same_function_is_won_as_well():
    """Their loader makes its batches in the loop, and the looks at the training thread find the function there."""
    other, window = _validating(0.5, "Other.__call__"), _validating(0.5)
    alone = with_gain(located(_found("prep-stall", None), other), other)
    both = with_gain(located(_found("prep-stall", None), window), window)
    (before,), (after,) = ([a for a in found.advice if a.fix.do.startswith("Make Rotate")] for found in (alone, both))
    assert before.predicted_gain_pct is not None
    assert after.predicted_gain_pct is not None
    saved = [1.0 - 100.0 / (100.0 + gain) for gain in (before.predicted_gain_pct, after.predicted_gain_pct)]
    training_s = window.ledger.training_s
    assert training_s is not None
    assert saved[1] - saved[0] == pytest.approx(0.5 * 20.0 / training_s)
    assert before.gain_interval_pct is not None
    assert after.gain_interval_pct is not None
    assert after.gain_interval_pct[0] > before.gain_interval_pct[0]
    assert "all validations 10 s less" in after.fix.expect
    assert "validations" not in before.fix.expect
    check_fix(after.fix)


def test_what_validations_spend_in_a_function_beside_the_model_is_won_as_well():
    """A metric is computed of each batch, of training and of validation alike."""
    window, other = _validating(0.5), _validating(0.5, "Other.__call__")
    place = Location("t.py", 8, "Rotate.__call__", 12.0)
    metric = replace(
        _found("slow-function", 10.0), location=place, advice=(Advice("Make it cheaper.", 10.0, (5.0, 20.0)),)
    )
    (before,), (after,) = with_gain(metric, other).advice, with_gain(metric, window).advice
    training_s = window.ledger.training_s
    assert training_s is not None
    saved = [1.0 - 100.0 / (100.0 + (found.predicted_gain_pct or 0.0)) for found in (before, after)]
    assert saved[1] - saved[0] == pytest.approx(0.5 * 20.0 / training_s)
    assert before.gain_interval_pct == (5.0, 20.0)
    assert after.gain_interval_pct is not None
    assert after.gain_interval_pct[0] > 5.0
    assert after.gain_interval_pct[1] > 20.0


@given(st.floats(0.01, 1), st.floats(0, 1000), st.floats(-50, 5000))
def test_with_validation_a_gain_stays_a_gain(share: float, gain_pct: float, least_pct: float):
    found = FunctionGain(0.1, 0.05, 0.05, 0, gain_pct, (least_pct, 6000.0))
    more = with_validation(found, _validating(0.99 * share), file="t.py", function="Rotate.__call__")
    assert more.interval_pct is not None
    assert more.gain_pct >= gain_pct - 1e-6
    assert more.interval_pct[0] >= least_pct - 1e-6
    assert max(more.gain_pct, *more.interval_pct) < 100.0 / REMAINS


def _at_workers(spot: CodeSpot) -> CodeLook:
    """A look into batches of a second in all."""
    return CodeLook(
        time_s=0.0, place="workers", rule="", method="profile", seen=3, wall_s=1.0, cpu_s=1.0, spots=(spot,)
    )


def test_what_workers_make_for_each_other_is_to_be_left_out_first():
    """More workers make it once more: before their number, too."""
    window = begin(2, SERVICE_S)
    spot = CodeSpot(file="t.py", line=8, function="Lines.parse", own=True, wall_s=0.9, cpu_s=0.9)
    look = _at_workers(spot)
    window.append(replace(look, repeated=(spot,)))
    found = with_gain(located(_found("too-few-workers", 400.0), window), window)
    first = found.advice[0]
    check_fix(first.fix)
    assert first.fix.do == "Skip other workers' items before Lines.parse makes them (t.py:8)."
    expected = gain_without_function(window, 0.45, 0.45)
    assert expected is not None
    assert first.predicted_gain_pct == expected.gain_pct
    assert found.evidence[-1].value == pytest.approx(45.0)
    assert len(found.advice) == 4
    fewer = with_gain(located(_found("too-many-workers", 10.0), window), window)
    assert fewer.advice[0] == first
    window.append(replace(look, repeated=(replace(spot, wall_s=0.3, cpu_s=0.3),)))  # of which half is its own
    assert len(with_gain(located(_found("too-few-workers", 400.0), window), window).advice) == 3
    assert with_gain(_found("too-many-workers", 10.0), window).advice[0].text == "Do this."


def test_a_librarys_function_is_not_to_be_made_cheaper_and_comes_second():
    """As where a dataset and its transforms are a library's: what it calls may be called less."""
    window = _window()
    look = window.code.at("workers")
    assert look is not None
    spot = replace(look.spots[0], function="ImageFolder.__getitem__", own=False, calls=("PIL.Image.resize",))
    window.append(replace(look, spots=(spot,)))
    found = with_gain(located(_found("prep-stall", 1.0), window), window)
    assert found.advice[0].text == "Do this."
    assert found.advice[1].fix.do == "Call PIL.Image.resize less, or on less data."


def test_a_fix_may_leave_two_fifths_of_a_function():
    found = gain_without_function(_window(), 0.8, 0.8)
    assert found is not None
    assert found.interval_pct is not None
    saved = found.gain_pct / (100.0 + found.gain_pct)
    assert found.interval_pct[0] <= 100.0 * 0.6 * saved / (1.0 - 0.6 * saved)


def test_what_a_part_of_it_gains_is_a_gain_of_the_run():
    """Steps are a fifth of the run: nothing that a loader can do gains more than a quarter."""
    window = begin(1, SERVICE_S)
    record = window.ledger.record
    assert record is not None
    spent = {**record.buckets, "validation": 4.0 * (window.ledger.training_s or 0.0)}
    wall_s = record.wall_s + spent["validation"]
    window.append(replace(record, time_s=record.time_s + 1.0, wall_s=wall_s, buckets=spent))
    found = gain_without_function(window, 0.8, 0.8)
    assert found is not None
    assert found.interval_pct is not None
    assert found.interval_pct[1] < 40.0


def test_what_is_slow_now_and_then_has_no_such_gain():
    window = _window("slow-batches")
    found = with_gain(located(_found("slow-batches", 1.0), window), window)
    assert len(found.advice) == 2


def _eased(costs: LoaderCosts, part: float, crowd: Crowd, *, first: bool = False, held_s: float = 0.0) -> LoaderCosts:
    """Without a part of a batch, and without as much of the crowd."""
    return _without(costs, part, part, crowd, first=first, gone=part, held_s=held_s)


def test_what_the_loop_waits_for_a_cpu_is_eased_by_what_was_measured_and_not_by_what_a_worker_waits():
    cost = {"current": 2, "work_s": 0.02, "service_s": 0.022, "cpu_s": 0.022, "loop_cpu_s": 0.015, "step_time_s": 0.025}
    eased = _eased(LoaderCosts(**cost), 0.8, Crowd(0.005, 0.0, 0.0))
    assert eased.work_s == pytest.approx(0.02 - 0.8 * 0.005 * 20 / 21.2)  # not while it receives a batch, in 1.2 ms
    most = _eased(LoaderCosts(**cost), 0.8, Crowd(0.1, 0.0, 0.0))
    assert most.work_s == pytest.approx(0.015 - 0.0012)  # it computes that long


def test_of_an_epochs_start_the_wait_for_a_first_batch_gets_shorter_where_workers_are_there_at_once():
    costs = LoaderCosts(current=1, work_s=0.01, service_s=0.1, cpu_s=0.1, start_once_s=0.01, start_each_s=0.002)
    nobody = Crowd(0.0, 0.0, 0.0)
    assert _eased(costs, 0.9, nobody, first=True).start_once_s == pytest.approx(0.001)
    assert _eased(costs, 0.9, nobody).start_once_s == 0.01


def test_a_hand_over_that_is_late_for_want_of_a_cpu_gets_shorter_and_none_is_made_up():
    cost = {"current": 2, "work_s": 0.02, "service_s": 0.022, "cpu_s": 0.022}
    eased = _eased(LoaderCosts(**cost, handover_s=0.003), 0.5, Crowd(0.0, 0.002, 0.0))
    assert eased.handover_s == pytest.approx(0.002)
    assert _eased(LoaderCosts(**cost), 0.5, Crowd(0.0, 0.0, 0.0)).handover_s is None


def test_a_hand_over_waits_for_the_next_batch_no_longer_than_that_takes():
    """Python code in a worker holds the lock that its sending thread needs: 5 ms of 14, and of 1.4 as many at most."""
    costs = LoaderCosts(
        current=2, work_s=0.002, service_s=0.014, cpu_s=0.014, handover_s=0.0062, loop_cpu_s=0.003, step_time_s=0.0082
    )
    limits, crowd = Limits(available_cpus=4.0), Crowd(0.0, 0.0, 0.005)
    now_s = predict_step_time_s(costs, limits, 2)
    assert now_s == pytest.approx(0.0082)
    after_s = _step_without_s(costs, limits, 0.9, 0.9, crowd, first=False)
    assert 0.002 + 0.0012 < after_s < 0.002 + 0.0012 + 0.0014
    slow_s = _step_without_s(costs, limits, 0.9, 0.9, replace(crowd, held_s=0.0), first=False)
    assert slow_s == pytest.approx(0.0082), "a machine that is slow at handing over"


def test_a_worker_at_a_time_and_the_loop_have_a_cpu_each():
    """Two workers that rest until the loop takes a batch: only one is at work then. Two threads of a loop want more."""
    cost = {"current": 2, "work_s": 0.0047, "service_s": 0.0084, "cpu_s": 0.0091, "step_time_s": 0.0079}
    crowd, limits = Crowd(0.0025, 0.0, 0.0), Limits(available_cpus=2.0)
    alone_s = _step_without_s(LoaderCosts(**cost, loop_cpu_s=0.0036), limits, 0.6, 0.6, crowd, first=False)
    assert alone_s == pytest.approx(0.0012 + 0.0047 - 0.0025 * 4.7 / 5.9, rel=0.03)
    threads_s = _step_without_s(LoaderCosts(**cost, loop_cpu_s=0.0075), limits, 0.6, 0.6, crowd, first=False)
    assert threads_s > 1.1 * alone_s
    fewer = Limits(available_cpus=1.0)
    assert _step_without_s(LoaderCosts(**cost, loop_cpu_s=0.0036), fewer, 0.6, 0.6, crowd, first=False) > alone_s


def test_without_workers_the_loop_waits_for_none_of_them():
    window = begin(0, SERVICE_S)
    found = gain_without_function(window, 0.5, 0.5)
    outlook = forecast(window)
    assert found is not None
    assert outlook is not None
    assert outlook.asked is not None
    costs, _ = outlook.asked
    assert found.step_without_s >= costs.work_s + 0.5 * costs.service_s - 1e-6


def test_workers_that_still_set_the_pace_keep_the_cpus_as_busy():
    """Half of a batch gone: they make twice as many, and the loop waits for a CPU as before."""
    cost = {"work_s": 0.004, "service_s": 0.04, "cpu_s": 0.04, "loop_cpu_s": 0.002, "step_time_s": 0.04}
    costs, crowd = LoaderCosts(current=1, turnaround_s=0.0, **cost), Crowd(0.002, 0.0, 0.0)
    step_s = _step_without_s(costs, Limits(available_cpus=2.0), 0.5, 0.5, crowd, first=False)
    assert step_s == pytest.approx(0.02)
    # Next to nothing left: the loop sets the pace, and has the CPUs for itself.
    alone_s = _step_without_s(costs, Limits(available_cpus=2.0), 0.99, 0.99, crowd, first=False)
    assert alone_s == pytest.approx(0.0012 + 0.004 - 0.002 * 4 / 5.2, rel=0.05)


def test_what_is_the_same_for_each_item_is_to_be_done_once():
    """It says how to make the place cheaper, where it is most of that, and comes before a number of workers."""
    window = begin(2, SERVICE_S)
    spot = CodeSpot(file="t.py", line=8, function="bank", own=True, wall_s=0.9, cpu_s=0.9)
    look = _at_workers(spot)
    window.append(look)
    before = with_gain(located(_found("prep-stall", 400.0), window), window)
    assert "Make bank cheaper (t.py:8)." in [one.fix.do for one in before.advice]
    window.append(replace(look, unvarying=(spot,)))
    found = with_gain(located(_found("prep-stall", 400.0), window), window)
    first = found.advice[0]
    check_fix(first.fix)
    assert first.fix.do == "Call bank once in each worker and keep the result, not for each item (t.py:8)."
    expected = gain_without_function(window, 0.9, 0.9)
    assert expected is not None
    assert first.predicted_gain_pct == expected.gain_pct
    assert not any(one.fix.do.startswith("Make bank cheaper") for one in found.advice)
    assert found.evidence[-1].value == pytest.approx(90.0)
    read = replace(spot, function="Items.__getitem__", calls=("pandas.read_csv",), called_there="pandas.read_csv")
    window.append(replace(look, spots=(replace(spot, wall_s=1.0),), unvarying=(replace(read, wall_s=0.5, cpu_s=0.5),)))
    half = with_gain(located(_found("too-few-workers", 400.0), window), window)
    assert "Call pandas.read_csv once" in " ".join(one.fix.do for one in half.advice)
    assert any(one.fix.do.startswith("Make bank cheaper") for one in half.advice), "of which half is something else"
    opened = replace(read, calls=("h5py.File.__init__",), called_there="h5py.File.__init__")
    window.append(replace(look, unvarying=(opened,)))
    opens = with_gain(located(_found("prep-stall", 400.0), window), window).advice[0].fix
    check_fix(opens)
    assert opens.do.startswith("Call h5py.File once in each worker")
    window.append(replace(look, unvarying=(replace(spot, wall_s=0.15, cpu_s=0.15),)))
    assert with_gain(located(_found("prep-stall", 400.0), window), window).advice == before.advice


def test_what_is_known_of_a_librarys_call_follows_the_first_advice_of_any_rule():
    """Of `compute-bound` it is said where it holds, on a CPU alone; and it is said once."""
    window = Window()
    place = Location("dqn.py", 70, "make_batch", 95.0, "torch.tensor")
    waits = replace(_found("input-bound", 400.0), location=place)
    found = with_gain(waits, window)
    assert found.advice[0] == waits.advice[0]
    assert found.advice[1].fix.do.startswith("Give torch one array, not a list of them")
    assert with_gain(found, window) == found
    other = replace(waits, location=replace(place, call="json.loads"))
    assert with_gain(other, window).advice == waits.advice
