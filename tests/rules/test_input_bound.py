"""input-bound where the loop asks no loader: looks at its stack tell what goes by before it calls its model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import NO_LOADER, CodeLook, CodeSpot, LoaderInfo, WorkerBatch
from stallmeter.records.code import BEFORE_MODEL, EPOCH_STARTS, LONG_STEPS
from stallmeter.records.diagnosis import Location, Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.compute_bound import ComputeBound
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.input_bound import InputBound
from stallmeter.rules.slow_function import SlowFunction
from stallmeter.window import Window

from .test_slow_function import look
from .windows import START_S, fires, hosts, ledger, loader, silent, step, window

NONE = LoaderInfo(time_s=START_S, kind=NO_LOADER)


def before(*shares: float, call: str = "", seen: int = 200, part: str = "") -> CodeLook:
    """A look in which functions take shares of the steps before these call their model."""
    spots = [
        CodeSpot(
            file="data.py", line=10 + i, function=f"make_{i}", own=True, wall_s=share, calls=(call,) if call else ()
        )
        for i, share in enumerate(shares)
    ]
    return CodeLook(
        time_s=START_S,
        place="loop",
        bucket=BEFORE_MODEL,
        part=part,
        rule="",
        method="samples",
        seen=seen,
        wall_s=1.0,
        spots=tuple(spots),
    )


def without_loader(*looks: CodeLook, info: LoaderInfo = NONE, times: list[float] | None = None) -> Window:
    """100 s of steps that hold everything."""
    none = {"forward_s": 0.0, "backward_s": 0.0, "optimizer_s": 0.0, "data_wait_s": 0.0}
    times = times or [0.1] * 1000
    steps = [step(i, total_s=s, compute_s=s, **none) for i, s in enumerate(times)]
    buckets: dict[str, Any] = {"compute": sum(times), "data_wait": 0.0, "start": 0.0, "loop": 0.0}
    return window(*steps, info, ledger(wall_s=sum(times), steps=len(times), **buckets), *looks)


def test_names_the_function_that_holds_most_of_it() -> None:
    found = fires(InputBound(), without_loader(before(0.3, 0.2)))
    assert found.severity is Severity.CRITICAL
    assert found.time_lost_s == pytest.approx(50.0)
    assert found.location is not None
    assert (found.location.function, found.location.share_pct) == ("make_0", pytest.approx(60.0))
    assert found.advice[0].predicted_gain_pct == pytest.approx(100.0, rel=0.05)
    assert "beside the loop" in found.advice[0].text
    verdict = evaluate(ALL_RULES, without_loader(before(0.3, 0.2)))
    assert verdict.primary is not None
    assert verdict.primary.rule == "input-bound"


def test_a_function_that_is_nearly_all_of_it_is_to_be_made_cheaper_first() -> None:
    """Of 50 s one function takes 46: without it the rest is left, and a fix may leave two fifths of it."""
    first, beside, *_ = fires(InputBound(), without_loader(before(0.46, 0.04))).advice
    assert first.text.startswith("Make make_0 cheaper (data.py:10).")
    assert first.predicted_gain_pct == pytest.approx(100 * (100 / 54 - 1), rel=0.05)
    assert first.gain_interval_pct is not None
    assert first.gain_interval_pct[0] < 100 * (100 / (100 - 0.6 * 46) - 1)
    assert "beside the loop" in beside.text
    beside, second, *_ = fires(InputBound(), without_loader(before(0.3, 0.2))).advice
    assert "beside the loop" in beside.text
    assert second.text.startswith("Make make_0 cheaper")
    assert second.predicted_gain_pct == pytest.approx(100 * (100 / 70 - 1), rel=0.05)


@pytest.mark.parametrize(("line_share", "what"), [(0.45, "torch.tensor in make_0"), (0.3, "make_0"), (None, "make_0")])
def test_the_call_in_the_line_is_named_where_that_holds_much_of_the_function(
    line_share: float | None, what: str
) -> None:
    given = before(0.46, 0.04, call="torch.tensor")
    spots = tuple(replace(spot, line_share=line_share) for spot in given.spots)
    first, *_ = fires(InputBound(), without_loader(replace(given, spots=spots))).advice
    assert first.text.startswith(f"Make {what} cheaper (data.py:10).")


@pytest.mark.parametrize(("blocked", "where"), [(80.0, "or a thread"), (5.0, "or another process")])
def test_a_thread_helps_who_waits_and_a_process_who_computes(blocked: float, where: str) -> None:
    made = without_loader(before(0.3, 0.2))
    for sample in hosts(20, lambda _: {"loop_cpu_pct": 100.0 - blocked, "loop_cpu_wait_pct": 0.0}):
        made.append(sample)
    found = fires(InputBound(), made)
    assert where in found.advice[0].text
    assert found.title == "The loop makes its batches itself before it calls its model"


def test_what_making_batches_beside_the_loop_gains() -> None:
    """Steps of 100 ms, 80 of them a wait: two helpers hand over a batch each 40 ms, one each 80 ms."""
    steps = [step(i, total_s=0.1, data_wait_s=0.08, compute_s=0.02) for i in range(200)]
    buckets: dict[str, Any] = {"compute": 4.0, "data_wait": 16.0, "start": 0.0, "loop": 0.0}
    found = fires(
        InputBound(),
        window(*steps, *hosts(20, lambda i: {"usable_cpus": 2.0}), ledger(wall_s=20.0, steps=200, **buckets)),
    )
    first = found.advice[0]
    assert "beside the loop" in first.text
    assert first.predicted_gain_pct == pytest.approx(150.0, rel=0.05)
    assert first.gain_interval_pct is not None
    least, most = first.gain_interval_pct
    assert 0.0 < least < 25.0
    assert 390.0 < most < 450.0


@pytest.mark.parametrize(("runs_pct", "gain_pct"), [(100.0, 150.0), (60.0, 400.0), (20.0, 400.0)])
def test_what_the_loop_computes_itself_helpers_do_on_as_many_cpus(runs_pct: float, gain_pct: float) -> None:
    """80 of 100 s: two CPUs do it in 40; of what the thread is blocked in nothing is left."""
    made = without_loader(before(0.5, 0.3))
    for sample in hosts(20, lambda i: {"usable_cpus": 2.0, "loop_cpu_pct": runs_pct, "loop_cpu_wait_pct": 0.0}):
        made.append(sample)
    advice = next(a for a in fires(InputBound(), made).advice if "beside the loop" in a.text)
    assert advice.predicted_gain_pct == pytest.approx(gain_pct, rel=0.05)
    assert advice.gain_interval_pct is not None
    assert advice.gain_interval_pct[0] < 25.0, "threads of Python code are one helper"


def late_epochs(first_s: float = 0.6, made: int = 36, workers: int = 1, count: int = 15) -> Window:
    """Epochs of 14 steps of 50 ms, whose first batch comes late; a worker makes some for nothing."""
    steps = [
        step(
            e * 14 + i,
            epoch=e,
            epoch_start=not i,
            total_s=0.05 + (0 if i else first_s),
            data_wait_s=0.002,
            compute_s=0.048,
        )
        for e in range(count)
        for i in range(14)
    ]
    wait_s = count * (first_s + 14 * 0.002)
    buckets: dict[str, Any] = {"compute": count * 14 * 0.048, "data_wait": wait_s, "start": 0.0, "loop": 0.0}
    record = replace(ledger(wall_s=sum(buckets.values()), steps=count * 14, **buckets), epochs=count)
    info = replace(loader(workers), probed=True, persistent_workers=True)
    batches = [
        WorkerBatch(worker=0, time_s=START_S + i, wall_s=0.03, cpu_s=0.03, idle_s=0.0 if i else None)
        for i in range(count * made)
    ]
    return window(*steps, info, *batches, record)


def test_first_batches_that_come_late_though_no_worker_starts_are_told() -> None:
    found = fires(InputBound(), late_epochs())
    assert found.title == "The first batch of each epoch comes late"
    assert found.severity is Severity.CRITICAL
    assert found.time_lost_s == pytest.approx(15 * 0.6)
    assert (
        "0.60 s in each; a worker takes 30 ms for one. Workers make many more batches than are used." in found.summary
    )
    assert found.advice[0].predicted_gain_pct == pytest.approx(100 * 9.0 / 10.5, rel=0.05)
    verdict = evaluate(ALL_RULES, late_epochs())
    assert verdict.primary is not None
    assert verdict.primary.rule == "input-bound"
    assert "Workers make" not in fires(InputBound(), late_epochs(made=14)).summary
    accumulated = late_epochs(made=28)
    accumulated.append(replace(loader(1), probed=True, persistent_workers=True, batches_per_step=2.0))
    assert "Workers make" not in fires(InputBound(), accumulated).summary


def test_batches_that_are_skipped_are_no_start_of_workers() -> None:
    """The loader is made anew each epoch as well: what its worker makes for nothing is not what starting it takes."""
    made = late_epochs(made=36)
    info = replace(loader(1), probed=True, persistent_workers=True, remade=True)
    record = made.ledger.record
    assert record is not None
    spent = {**record.buckets, "worker_startup": 15 * 0.9, "data_wait": 210 * 0.002}
    made.append(info)
    made.append(replace(record, wall_s=sum(spent.values()), buckets=spent))
    found = fires(InputBound(), made)
    assert found.title == "The first batch of each epoch comes late"
    assert found.time_lost_s == pytest.approx(15 * 20 * 0.03)  # two of 22 are made ahead, and left over
    verdict = evaluate(ALL_RULES, made)
    assert [(d.rule, pytest.approx(d.time_lost_s)) for d in verdict.diagnoses[:2]] == [
        ("input-bound", 15 * 0.6),
        ("worker-startup", 15 * (0.3 - 0.028)),
    ]


def late_without_workers(share: float | None = None) -> Window:
    """Epochs whose first batch is asked for 0.6 s, in the loop's own thread; looks find a function in a share of it."""
    steps = [
        step(e * 14 + i, epoch=e, epoch_start=not i, total_s=0.05 if i else 0.65, data_wait_s=0.002 if i else 0.602)
        for e in range(15)
        for i in range(14)
    ]
    spent = {"compute": 15 * 14 * 0.048, "worker_startup": 15 * 0.6, "data_wait": 15 * 14 * 0.002}
    record = ledger(wall_s=sum(spent.values()), steps=15 * 14, **spent, start=0.0, loop=0.0)
    made = window(loader(0), *steps, replace(record, epochs=15))
    if share is not None:
        made.append(replace(before(share), bucket=EPOCH_STARTS))
    return made


def test_an_epoch_that_begins_late_without_workers() -> None:
    made = late_without_workers()
    found = fires(InputBound(), made)
    assert found.title == "The first batch of each epoch comes late"
    assert found.time_lost_s == pytest.approx(15 * 0.6)
    primary = evaluate(ALL_RULES, made).primary
    assert primary is not None
    assert primary.rule == "input-bound"


def test_a_function_that_the_looks_found_there_is_slow_functions_to_tell() -> None:
    made = late_without_workers(0.9)
    assert silent(InputBound(), made)
    primary = evaluate(ALL_RULES, made).primary
    assert primary is not None
    assert primary.rule == "slow-function"
    assert primary.title.endswith("holds up the epochs")
    assert fires(InputBound(), late_without_workers(0.3)).title == "The first batch of each epoch comes late"


def test_one_epoch_and_short_waits_are_no_late_first_batches() -> None:
    assert silent(InputBound(), late_epochs(0.02))
    assert fires(InputBound(), late_epochs(1.0, count=1)).title == InputBound.title


def test_what_is_awaited_is_made_by_others_already() -> None:
    found = fires(InputBound(), without_loader(before(0.5, call="queue.Queue.get")))
    assert "more threads or processes" in found.advice[0].text


def test_a_small_part_of_the_steps_and_few_looks_are_nothing() -> None:
    assert silent(InputBound(), without_loader(before(0.05)))
    assert silent(InputBound(), without_loader(before(0.5, seen=30)))
    assert silent(InputBound(), without_loader())
    quick = without_loader(before(0.09, 0.06, 0.05), times=[0.004] * 2000)  # less than handing a batch over would cost
    assert silent(InputBound(), quick)


def test_one_function_that_is_quick_and_a_large_part_of_quick_steps_is_told() -> None:
    """Points that are drawn in Python, say: to make them beside the loop wins nothing, to make them cheaper does."""
    found = fires(InputBound(), without_loader(before(0.2), times=[0.004] * 2000))
    assert found.severity is Severity.INFO
    assert found.advice[0].text.startswith("Make make_0 cheaper (data.py:10).")
    assert not any("beside the loop" in advice.text for advice in found.advice)


def test_a_quick_function_that_is_most_of_it_is_told_with_its_own_seconds() -> None:
    """A replay buffer that weighs all it holds, beside an environment's steps: 24 % and 12 % of steps of 4 ms."""
    most = without_loader(before(0.24, 0.12), times=[0.004] * 2000)
    found = fires(InputBound(), most)
    assert found.severity is Severity.INFO
    assert found.time_lost_s == pytest.approx(0.24 / 0.36 * fires(InputBound(quick_s=0.0), most).time_lost_s)
    assert found.advice[0].text.startswith("Make make_0 cheaper")
    little = without_loader(before(0.08, 0.05), times=[0.004] * 2000)
    assert fires(InputBound(quick_s=0.0), little)
    assert silent(InputBound(), little)


def test_nought_looks_are_enough_where_the_user_says_so() -> None:
    assert fires(InputBound(min_samples=0.0), without_loader(before(0.5, seen=0)))
    assert fires(SlowFunction(min_samples=0.0), without_loader(look(0.5, call="numpy.histogram", after=0.5, seen=0)))


def test_long_steps_are_weighed_by_their_own_looks() -> None:
    """One in ten steps waits for a burst: what it takes beyond three medians was looked at by itself."""
    times = [0.01] * 9 + [0.3]
    waits = without_loader(before(0.0), before(0.9, part=LONG_STEPS), times=times * 50)
    assert fires(InputBound(), waits).time_lost_s == pytest.approx(0.9 * 50 * (0.3 - 0.03), rel=0.02)


def test_the_steps_are_the_pace_only_where_looks_say_so() -> None:
    assert silent(ComputeBound(), without_loader())
    assert silent(ComputeBound(), without_loader(before(0.5)))
    assert fires(ComputeBound(), without_loader(before(0.02)))
    assert fires(ComputeBound(), without_loader(before()))


def test_looks_of_a_loop_with_a_loader_do_not_count() -> None:
    asked = LoaderInfo(time_s=START_S, kind="DataLoader", num_workers=2, probed=True)
    assert silent(InputBound(), without_loader(before(0.5), info=asked))


def test_it_alone_tells_what_is_prepared_before_the_model() -> None:
    numpy = look(0.5, call="numpy.percentile", before=0.48)
    assert silent(SlowFunction(), without_loader(numpy, before(0.5, call="numpy.percentile")))
    assert fires(SlowFunction(), without_loader(look(0.5, call="numpy.histogram", after=0.5), before(0.01)))


def test_what_grows_is_told_by_step_time_drift() -> None:
    """A replay that is sorted anew for each batch, and grows: what it took at the beginning is left."""
    growing = without_loader(before(0.5), times=[0.02 + 0.0001 * i for i in range(1000)])
    assert silent(InputBound(), growing)
    verdict = evaluate(ALL_RULES, growing)
    assert verdict.primary is not None
    assert verdict.primary.rule == "step-time-drift"


@pytest.mark.parametrize("call", ["PIL.Image.open", "random.choices"])
def test_what_draws_or_reads_before_the_model_is_told_once(call: str) -> None:
    """It makes the batch, whatever it is made with."""
    spot = before(0.5, call=call).spots[0]
    steps = replace(before(0.5), bucket="steps", spots=(spot,), beside=(spot,), before=(spot,))
    verdict = evaluate(ALL_RULES, without_loader(before(0.5, call=call), steps))
    assert [found.rule for found in verdict.diagnoses if found.time_lost_s] == ["input-bound"]


def of_helpers(part: float, bucket: str = "") -> CodeLook:
    """A look at the program's other threads, in which a function of one takes a part of the time."""
    spot = CodeSpot(file="feed.py", line=30, function="Feeder.make", own=True, wall_s=part)
    return CodeLook(
        time_s=START_S, place="helpers", bucket=bucket, rule="", method="samples", seen=100, wall_s=1.0, spots=(spot,)
    )


def test_what_a_thread_makes_is_placed_in_that_thread() -> None:
    """The loop stands at its queue: that is no place where anything could be made cheaper."""
    awaited = without_loader(before(0.3, call="queue.Queue.get"), of_helpers(0.9))
    verdict = evaluate(ALL_RULES, awaited)
    assert verdict.primary is not None
    assert verdict.primary.rule == "input-bound"
    assert verdict.primary.location == Location("feed.py", 30, "Feeder.make", pytest.approx(90.0), None)
    assert "Make Feeder.make (feed.py:30) cheaper." in verdict.primary.advice[1].text


def test_what_a_thread_does_while_the_loop_makes_its_own_batch_is_no_place() -> None:
    verdict = evaluate(ALL_RULES, without_loader(before(0.3), of_helpers(0.9)))
    assert verdict.primary is not None
    assert verdict.primary.location is not None
    assert verdict.primary.location.function == "make_0"


def test_a_loader_without_workers_beside_one_that_has_some_is_named() -> None:
    """Of two loaders the first one's worker pauses, and the second one's batches are made in the loop, untimed."""
    waits = [step(i, total_s=0.12, data_wait_s=0.07) for i in range(40)]
    worker = [
        WorkerBatch(worker=0, time_s=START_S + i, wall_s=0.003, cpu_s=0.003, run_queue_s=0.0, idle_s=0.1)
        for i in range(40)
    ]
    one, two = loader(1), replace(loader(0), loader=1)
    spent = ledger(wall_s=5.0, data_wait=2.8)

    advice = fires(InputBound(), window(one, two, *waits, *worker, spent)).advice
    assert advice[0].text.splitlines()[0] == "Give the second of 2 training loaders workers, too: it has num_workers=0."
    assert not [text for text in (each.text for each in advice) if "watch()" in text]

    alone = window(replace(loader(0), probed=False, why_not="another kind"), *waits, spent)
    assert any("watch()" in each.text for each in fires(InputBound(), alone).advice)


def test_looks_that_stand_for_no_time_are_nothing() -> None:
    """Lines of usual steps tell the parts of a long one, and take no time of it."""
    assert silent(InputBound(), without_loader(before(0.0)))
