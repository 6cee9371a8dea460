"""worker-startup: workers that start again each epoch, and forks that wait for somebody else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import CodeLook, CodeSpot, EvaluationBatches, Fork, WorkerBatch
from stallmeter.records.diagnosis import Advice, Location
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.worker_startup import WorkerStartup
from stallmeter.window import Window

from .test_slow_function import each, look
from .waiting import waiting
from .windows import START_S, check_fix, fires, ledger, loader, missing, silent, step, window


def epochs(count: int = 5, startup_s: float = 20.0, *more: Any, **options: Any) -> Window:
    """A run of 100 s in which starting workers took so long."""
    info = replace(loader(), start_method="spawn", **options)
    made = replace(ledger(worker_startup=startup_s, start=0.0), epochs=count)
    return window(*(step(i) for i in range(100)), info, *more, made)


def texts(found: Any) -> str:
    return " ".join(a.text for a in found.advice)


def test_fires() -> None:
    found = fires(WorkerStartup(), epochs())
    assert found.time_lost_s == 20.0
    assert "persistent_workers=True" in found.advice[0].text
    assert "num_workers" not in texts(found)
    assert "more workers" not in texts(found).lower()
    assert "fork" in texts(found)


def test_it_is_primary_and_nothing_advises_more_workers() -> None:
    verdict = evaluate(ALL_RULES, epochs())
    assert verdict.primary is not None
    assert verdict.primary.rule == "worker-startup"
    assert not any("num_workers" in a.text for d in verdict.diagnoses for a in d.advice)


def test_persistent_workers_are_not_advised_twice_and_start_once() -> None:
    found = fires(WorkerStartup(), epochs(persistent_workers=True))
    assert "persistent_workers" not in texts(found)
    assert "each epoch" not in found.title
    assert "once" in found.summary


def test_a_loader_that_is_made_anew_is_to_be_made_once() -> None:
    found = fires(WorkerStartup(), epochs(persistent_workers=True, remade=True))
    assert found.title == "Workers start again each epoch"
    assert found.advice[0].text.startswith("Make the loader once, before the epochs")
    assert found.advice[0].predicted_gain_pct is not None


def test_a_single_epoch_starts_once() -> None:
    assert silent(WorkerStartup(), epochs(1))


def test_threshold() -> None:
    assert fires(WorkerStartup(), epochs(5, 10.0))
    assert silent(WorkerStartup(), epochs(5, 9.99))
    assert silent(WorkerStartup(warn_pct=30.0), epochs())


def test_without_workers_there_is_nothing_to_start() -> None:
    assert silent(WorkerStartup(), epochs(num_workers=0))


def test_a_fork_that_waits_is_not_blamed_on_the_data() -> None:
    found = fires(WorkerStartup(), epochs(5, 20.0, *(Fork(time_s=0.0, wall_s=1.8) for _ in range(10))))
    assert "another package" in found.title
    assert found.culprit is not None
    assert "dataset is not to blame" in found.advice[0].text


def test_quick_forks_are_no_culprit() -> None:
    found = fires(WorkerStartup(), epochs(5, 20.0, *(Fork(time_s=0.0, wall_s=0.02) for _ in range(10))))
    assert found.culprit is None


def test_abstains() -> None:
    assert set(missing(WorkerStartup(), Window())) == set(WorkerStartup.needs)


def forked(slower_s: float, optimizer_s: float, **options: Any) -> Window:
    """Five epochs of 20 steps: the first of each takes longer, and so does its optimizer."""
    first = {"epoch_start": True, "forward_s": 0.03 + slower_s, "optimizer_s": 0.015 + optimizer_s}
    first["total_s"] = 0.1 + slower_s + optimizer_s
    steps = [step(i, epoch=i // 20, **(first if i % 20 == 0 else {})) for i in range(100)]
    info = replace(loader(), **{"start_method": "fork", **options})
    return window(*steps, info, replace(ledger(worker_startup=5.0, start=0.0), epochs=5))


def test_memory_that_a_fork_shares_is_copied_by_the_first_step() -> None:
    """The wait alone is below the threshold."""
    found = fires(WorkerStartup(), forked(0.5, 1.0))
    assert found.time_lost_s == pytest.approx(5.0 + 4 * 1.5)
    assert found.summary.endswith("In 6.0 s of it first steps copied memory that forks share.")
    assert "persistent_workers=True" in found.advice[0].text


def test_first_steps_that_do_something_else() -> None:
    """A program that draws a picture in the first step of an epoch is no slower in its optimizer."""
    assert silent(WorkerStartup(), forked(1.5, 0.0))
    assert silent(WorkerStartup(), forked(0.5, 1.0, start_method="spawn"))
    assert silent(WorkerStartup(), forked(0.5, 1.0, persistent_workers=True))


def batches(
    starts: int, *, first_s: float = 1.2, others_s: float = 0.2, workers: int = 2, init_s: float | None = None
) -> list[WorkerBatch]:
    """Each worker makes ten batches, then another one takes its place."""
    return [
        WorkerBatch(
            worker=worker,
            time_s=float(start),
            wall_s=others_s if index else first_s,
            cpu_s=others_s,
            idle_s=0.0 if index else None,
            init_s=None if index else init_s,
        )
        for start in range(starts)
        for worker in range(workers)
        for index in range(10)
    ]


TWO_WORKERS = replace(loader(), num_workers=2, probed=True, start_method="fork")


def again(
    starts: int, count: int = 1, wait_s: float = 40.0, init: str = "", more: Sequence[Any] = (), **options: Any
) -> Window:
    """A run of so many epochs in which workers start so often, and the loop waits in its steps."""
    of_init = {"init_file": "data.py", "init_line": 7, "init_function": init} if init else {}
    info = replace(loader(), num_workers=2, probed=True, start_method="fork", **of_init)
    made = replace(ledger(worker_startup=0.0, start=0.0, data_wait=wait_s), epochs=count)
    return window(*(step(i, data_wait_s=0.02) for i in range(100)), info, *batches(starts, **options), *more, made)


def test_workers_that_start_within_an_epoch_are_waited_for_in_its_steps() -> None:
    """A loader in an endless loop of the program's own: to the run it is one epoch."""
    found = fires(WorkerStartup(), again(31))
    assert found.time_lost_s == pytest.approx(30.0)
    assert "within an epoch" in found.title
    assert "persistent_workers=True" in found.advice[0].text
    assert found.advice[0].predicted_gain_pct is not None
    verdict = evaluate(ALL_RULES, again(31))
    assert verdict.primary is not None
    assert verdict.primary.rule == "worker-startup"


def test_it_is_no_more_than_what_the_loop_waited() -> None:
    assert fires(WorkerStartup(), again(31, wait_s=12.0)).time_lost_s == pytest.approx(12.0)


def test_what_the_users_own_start_takes_counts_with_it() -> None:
    """A table is read in worker_init_fn; the first batch is like others."""
    assert silent(WorkerStartup(), again(31, first_s=0.2, init_s=0.01))
    assert fires(WorkerStartup(), again(31, first_s=0.2, init_s=1.0)).time_lost_s == pytest.approx(30.0)


def test_the_users_own_start_is_named_where_it_takes_most() -> None:
    found = fires(WorkerStartup(), again(31, first_s=0.2, init_s=1.0, init="read_table"))
    assert found.location is not None
    assert (found.location.file, found.location.line, found.location.function) == ("data.py", 7, "read_table")
    assert "Make read_table cheaper (data.py:7): each worker calls it when it starts." in texts(found)
    for changes in ({"init_s": 1.0}, {"init_s": 0.2, "init": "read_table"}):
        found = fires(WorkerStartup(), again(31, **changes))
        assert found.location is None
        assert "Slim down imports and worker_init_fn" in texts(found)


def first_batch(file: str, line: int, function: str, wall_s: float, seen: int = 40) -> CodeLook:
    """What a worker's first batch of 1 s was spent in."""
    spot = CodeSpot(file=file, line=line, function=function, own=True, wall_s=wall_s)
    return CodeLook(
        time_s=0.0, place="workers", bucket="worker_startup", rule="worker-startup", method="samples", seen=seen,
        wall_s=1.0, spots=(spot,),
    )  # fmt: skip


def test_what_the_first_batch_is_spent_in_is_named() -> None:
    """Of starts of 1 s, nearly all of it in first batches, nine tenths of which is the reading of a table."""
    look = first_batch("data.py", 12, "Table.read", 0.9)
    found = fires(WorkerStartup(), again(31, first_s=1.2, more=(look,)))
    assert found.location is not None
    assert (found.location.file, found.location.line, found.location.function) == ("data.py", 12, "Table.read")
    assert found.location.share_pct == pytest.approx(90.0)
    assert "Make Table.read cheaper (data.py:12): each worker calls it when it starts." in texts(found)


@pytest.mark.parametrize(
    "look", [first_batch("data.py", 12, "Table.read", 0.15), first_batch("data.py", 12, "Table.read", 0.9, seen=9)]
)
def test_a_small_part_of_a_first_batch_or_a_short_look_is_not_named(look: CodeLook) -> None:
    assert fires(WorkerStartup(), again(31, first_s=1.2, more=(look,))).location is None


def test_of_workers_that_live_on_the_only_start_is_compared_with_the_users_function() -> None:
    """20 s for one start, of which worker_init_fn takes 1.5: it is not named for a tenth of them."""
    of_init = {"init_file": "data.py", "init_line": 7, "init_function": "seed"}
    for init_s, named in ((1.5, False), (15.0, True)):
        made = batches(1, first_s=0.2, init_s=init_s)
        found = fires(WorkerStartup(), epochs(10, 20.0, *made, persistent_workers=True, num_workers=2, **of_init))
        assert (found.location is not None) == named


@pytest.mark.parametrize(("late", "lost_s"), [(12, 12.0), (11, 11.0), (0, None)])
def test_of_two_loaders_one_begins_anew_within_the_epochs_of_the_other(late: int, lost_s: float | None) -> None:
    """Each starts as often as there are epochs. Of one the steps show in how many of them the loop waited for it."""
    one, other = (replace(info, loader=number) for number, info in enumerate([TWO_WORKERS, TWO_WORKERS]))
    made = replace(ledger(worker_startup=0.0, start=0.0, data_wait=30.0), epochs=13, steps=100)
    steps = [step(i, data_wait_s=1.0 if i % 8 == 7 and i // 8 < late else 0.02) for i in range(100)]
    by_both = [replace(batch, loader=number) for number in (0, 1) for batch in batches(13)]
    found = window(*steps, one, other, *by_both, made)
    if lost_s is None:
        assert silent(WorkerStartup(), found)
    else:
        assert fires(WorkerStartup(), found).time_lost_s == pytest.approx(lost_s)


def forking(every: int, wait_s: float = 0.08, work_s: float = 0.09, starts: int = 21) -> Window:
    """One epoch of 100 steps, of which each so-many-th has a fork; first batches take as long as others."""
    made = ledger(wall_s=14.0, worker_startup=0.0, start=0.0, data_wait=wait_s * 100 / every)
    made = replace(made, epochs=1, steps=100)
    slow = [i % every == every - 1 for i in range(100)]
    steps = [
        step(i, data_wait_s=0.002 + wait_s * has, forward_s=0.05 + work_s * has, total_s=0.1 + (wait_s + work_s) * has)
        for i, has in enumerate(slow)
    ]
    forks = [Fork(time_s=one.time_s - 0.05, wall_s=0.015) for one, has in zip(steps, slow, strict=True) if has]
    return window(TWO_WORKERS, *steps, *forks, *batches(starts, first_s=0.2), made)


def test_forks_within_an_epoch_cost_the_steps_that_they_fall_in() -> None:
    """One of two loaders comes to its end every fifth step. Its batches are cheap: what costs is the fork itself."""
    found = fires(WorkerStartup(), forking(5))
    assert found.title == "Workers start again and again within an epoch"
    assert found.time_lost_s == pytest.approx(20 * (0.08 + 0.09), rel=0.05)
    assert "was slower afterwards" in found.summary
    assert "prep-stall" in found.supersedes
    assert silent(WorkerStartup(), forking(5, wait_s=0.002, work_s=0.001))
    assert silent(WorkerStartup(), forking(5, starts=2)), "something else forks"


def test_one_start_an_epoch_is_none_within() -> None:
    assert silent(WorkerStartup(), again(31, count=31))
    assert silent(WorkerStartup(), again(3))
    assert silent(WorkerStartup(), again(31, first_s=0.21))


def anew(starts: int, count: int = 1, workers: int = 2) -> Window:
    """A run of 100 steps of 0.1 s of their own, and of so many epochs, in which workers start so often."""
    made = replace(ledger(worker_startup=10.0, start=0.0, data_wait=30.0), epochs=count, steps=100)
    info = replace(loader(), num_workers=workers, probed=True, start_method="fork")
    first = [b for b in batches(starts, first_s=0.3, workers=workers) if b.idle_s is None]
    return window(*(step(i, data_wait_s=0.3, total_s=0.4) for i in range(100)), info, *first, made)


def test_a_new_iterator_for_each_batch() -> None:
    """Workers that go on would make 0.15 s of work for each step beside 0.1 s of its own."""
    found = fires(WorkerStartup(), anew(100))
    assert found.time_lost_s == pytest.approx(40.0 - 100 * (0.15 - 0.1))
    assert "for each batch" in found.title
    assert "next()" in found.advice[0].text
    assert found.advice[0].predicted_gain_pct is not None
    verdict = evaluate(ALL_RULES, anew(100))
    assert verdict.primary is not None
    assert verdict.primary.rule == "worker-startup"


def test_a_loader_that_is_begun_anew_now_and_then_has_no_new_iterator_for_each_batch() -> None:
    """Nor have epochs of one batch, of which nothing can be made ahead."""
    assert "for each batch" not in fires(WorkerStartup(), anew(40)).title
    assert "for each batch" not in fires(WorkerStartup(), anew(100, 100, workers=1)).title
    assert "for each batch" in fires(WorkerStartup(), anew(100, 100)).title  # with `watch` each iterator is an epoch


def short_epochs(count: int, batch_s: float, **loader: Any) -> Window:
    """1,000 steps of 6 ms in so many epochs; four workers start for 8 s in all."""
    ready = {"ready": 2, "head_ready": True}
    made = waiting(workers=4, wait_s=0.0005, work_s=0.006, batch_s=batch_s, cpus=2.0, loader=loader, **ready)
    made.append(
        replace(ledger(wall_s=14.5, start=0.0, worker_startup=8.0, data_wait=0.5, forward=6.0, loop=0.0), epochs=count)
    )
    return made


def test_no_workers_are_advised_first_where_they_win_more_than_to_keep_them() -> None:
    """Of two starts one stays where workers are kept; who makes small batches in the loop has none."""
    found = fires(WorkerStartup(), short_epochs(2, 0.002))
    assert [advice.fix.do for advice in found.advice[:2]] == [
        "Set num_workers=0.",
        "Set persistent_workers=True in the DataLoader.",
    ]
    none, kept = (advice.predicted_gain_pct for advice in found.advice[:2])
    assert none is not None
    assert kept is not None
    assert none == pytest.approx(100 * (14.5 / 8.0 - 1), rel=0.1)  # starts are part of what the steps take now
    assert none > kept
    assert "num_workers" not in texts(fires(WorkerStartup(), short_epochs(2, 0.05)))
    assert fires(WorkerStartup(), short_epochs(40, 0.004)).advice[0].fix.do.startswith("Set persistent_workers")


def test_without_workers_the_users_own_start_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program whose worker_init_fn reads the table that its items need ends with an error then."""
    told = fires(WorkerStartup(), short_epochs(2, 0.002, init_function="read_table")).advice[0]
    assert told.fix.do == "Set num_workers=0."
    assert told.fix.limit == "Then read_table is not called: what the dataset needs of it must be done before."
    here = Location("data.py", 7, "read_table", 95.0)
    monkeypatch.setattr(WorkerStartup, "_place", lambda *_: here)
    found = fires(WorkerStartup(), short_epochs(2, 0.002, init_function="read_table"))
    assert [advice.fix.do for advice in found.advice[:2]] == [
        "Set persistent_workers=True in the DataLoader.",
        "Set num_workers=0.",
    ]


def heavy(batch_s: float, startup_s: float = 20.0, **loader: Any) -> Window:
    """Ten epochs in 100 s, on two CPUs, whose steady steps wait 10 ms."""
    made = waiting(workers=2, wait_s=0.01, work_s=0.05, batch_s=batch_s, cpus=2.0, busy_share=0.5, loader=loader)
    made.append(replace(ledger(worker_startup=startup_s, start=0.0), epochs=10))
    return made


def test_what_the_first_batch_takes_is_no_start() -> None:
    """Workers that live on make none ahead either, before an epoch begins."""
    light, first = (fires(WorkerStartup(), heavy(batch_s)) for batch_s in (0.02, 0.5))
    assert light.time_lost_s == pytest.approx(20.0 - 10 * 0.01, abs=0.5)
    assert first.time_lost_s == pytest.approx(20.0 - 10 * 0.49, rel=0.1)
    gains = [advice.predicted_gain_pct for advice in (light.advice[0], first.advice[0])]
    assert None not in gains
    assert gains[0] > gains[1]
    assert silent(WorkerStartup(), heavy(1.5)), "nearly all of it"


def test_of_workers_that_live_on_one_first_batch_is_in_their_start() -> None:
    found = fires(WorkerStartup(), heavy(0.5, persistent_workers=True))
    assert found.time_lost_s == pytest.approx(20.0 - 0.49, rel=0.01)


def validating(start_s: float, **loader: Any) -> Window:
    """Ten epochs in 100 s, each with a validation; workers start for 20 s in training."""
    made = heavy(0.05, **loader)
    made.append(replace(made.ledger.record, validation_parts={"start": start_s, "wait": 1.0}))
    return made


def test_workers_of_validation_that_start_anew_as_well_count_with_those_of_training() -> None:
    """What their first batches take is no start."""
    alone, both = (fires(WorkerStartup(), validating(start_s)) for start_s in (0.0, 10.0))
    assert both.time_lost_s - alone.time_lost_s == pytest.approx(10.0 - 10 * 0.05, rel=0.01)
    assert "9.5 s of it for validation" in both.summary
    kept, all_kept = (next(a for a in found.advice if "persistent" in a.text) for found in (alone, both))
    assert kept.fix.do == "Set persistent_workers=True in the DataLoader."
    assert all_kept.fix.do == "Set persistent_workers=True in the DataLoaders of training and validation."
    assert (kept.predicted_gain_pct or 0.0) < (all_kept.predicted_gain_pct or 0.0)


def test_no_workers_in_either_loader_win_what_both_start() -> None:
    """Validation makes its batches in the loop then, which its gain counts."""

    def advised(start_s: float, batches: int) -> Advice:
        made = short_epochs(2, 0.002)
        made.append(replace(made.ledger.record, validation_parts={"start": start_s, "wait": 0.5}))
        made.append(EvaluationBatches(time_s=START_S, batches=batches, batch_size=32))
        return fires(WorkerStartup(), made).advice[0]

    alone, few, many = advised(0.0, 100), advised(3.0, 100), advised(3.0, 3000)
    assert alone.fix.do == many.fix.do == "Set num_workers=0."
    assert few.fix.do == "Set num_workers=0 in the DataLoaders of training and validation."
    assert alone.predicted_gain_pct == many.predicted_gain_pct
    left_s = 14.5 / (1 + (alone.predicted_gain_pct or 0.0) / 100)
    assert few.predicted_gain_pct == pytest.approx(100 * (14.5 / (left_s - (3.5 - 100 * 0.002)) - 1), rel=0.01)


def test_workers_of_validation_are_its_own_matter_where_those_of_training_live_on() -> None:
    once, lasting = (fires(WorkerStartup(), validating(s, persistent_workers=True)) for s in (0.0, 10.0))
    assert once.time_lost_s == lasting.time_lost_s


@pytest.mark.parametrize(("init_function", "recommended"), [("", 0), ("read_table", 4)])
def test_no_workers_are_not_recommended_beside_advice_to_keep_them(
    monkeypatch: pytest.MonkeyPatch, init_function: str, recommended: int
) -> None:
    """Both at once torch refuses: persistent_workers needs some."""
    if init_function:
        monkeypatch.setattr(WorkerStartup, "_place", lambda *_: Location("data.py", 7, init_function, 95.0))
    verdict = evaluate(ALL_RULES, short_epochs(2, 0.002, init_function=init_function))
    assert verdict.primary is not None
    first = verdict.primary.advice[0].fix.do
    assert first == ("Set persistent_workers=True in the DataLoader." if init_function else "Set num_workers=0.")
    assert verdict.num_workers is not None
    assert verdict.num_workers.recommended == recommended


ASKS, ENDS = "multiprocessing.queues.Queue.get", "multiprocessing.process.BaseProcess.join"


def test_a_function_that_starts_processes_in_each_step() -> None:
    """A second loader's iterator that is made anew there; the framework's own loader has nothing to do with it."""
    calls = look(0.4, function="Net.second_batch", call=ASKS)
    starts = replace(calls, beside=(replace(calls.beside[0], calls=(ASKS, ENDS)),))
    found = fires(WorkerStartup(), each(starts))
    assert (found.time_lost_s, found.title) == (40.0, "Processes start again and again within the steps")
    assert found.location == Location("meter.py", 12, "Net.second_batch", 100.0, ASKS)
    for advice in found.advice:
        check_fix(advice.fix)
    least, most = found.advice[0].gain_interval_pct or (0.0, 0.0)
    assert 0.0 < least < (found.advice[0].predicted_gain_pct or 0.0) < most < 75.0
    primary = evaluate(ALL_RULES, each(starts)).primary
    assert primary is not None
    assert primary.rule == "worker-startup"
    assert silent(WorkerStartup(), each(calls)), "it waits for processes that live on"
    assert silent(WorkerStartup(), each(replace(starts, seen=20))), "few looks"
