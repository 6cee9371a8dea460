"""Batches from threads or processes that are not torch's workers: each cause has its rule, and no number is advised."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import CodeLook, CodeSpot, HostSample, LoaderInfo, LockTrial, ProducerLooks, StepRecord
from stallmeter.records.diagnosis import Diagnosis, Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.rule import Rule
from stallmeter.window import Window

from .windows import START_S, batches, fires, hosts, ledger, loader, run, step, window

RULES: dict[str, Rule] = {rule.id: rule for rule in ALL_RULES}


def pipeline(
    *,
    wait_s: float = 0.06,
    work_s: float = 0.04,
    cpus: float = 8.0,
    job_cpus: float = 1.5,
    loop_cpu: float | None = None,
    loop_waits: float | None = None,
    threads: float | None = None,
    **looks: Any,
) -> Window:
    """A run of 1,000 steps with a loader of its own kind, and what was found at work in its wait."""
    steps = [_step(i, wait_s, work_s) for i in range(100)]
    info = LoaderInfo(time_s=START_S, kind="Prefetcher", probed=False, why_not="it is no torch.utils.data.DataLoader")
    known: dict[str, Any] = {"looks": 10, "steps": 10, "period_s": 1.0, "cpu_s": 0.9, "run_queue_s": 0.0} | looks
    found = [ProducerLooks(time_s=START_S + 2 + i, **known) for i in range(10)]
    host = HostSample(
        time_s=START_S,
        usable_cpus=cpus,
        job_cpus=job_cpus,
        others_cpus=0.0,
        main_cpus=job_cpus,
        loop_cpu_pct=None if loop_cpu is None else 100.0 * loop_cpu,
        loop_cpu_wait_pct=None if loop_waits is None else 100.0 * loop_waits,
        threads_cpus=threads,
    )
    hosts = [replace(host, time_s=START_S + 2 + i) for i in range(20)]
    whole = 1000 * (wait_s + work_s)
    return window(info, *steps, *found, *hosts, ledger(wall_s=1.1 * whole, data_wait=1000 * wait_s))


def _step(i: int, wait_s: float, work_s: float) -> StepRecord:
    total = wait_s + work_s
    return step(
        i,
        total_s=total,
        data_wait_s=wait_s,
        forward_s=work_s,
        backward_s=0.0,
        optimizer_s=0.0,
        loop_s=0.0,
        time_s=START_S + 1 + total * i,
    )


IN_THE_STEPS = {"looks": 0, "body_looks": 20, "body_interpreter": 12, "wait_s": 0.001, "work_s": 0.1, "job_cpus": 1.0}
"""Found to wait for the lock in three of five looks at the steps."""

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "threads in code that lets go of the lock, CPUs left": ("too-few-workers", {"running": 2.0}),
    "threads in code that lets go of the lock, no CPU left": (
        "prep-stall",
        {"running": 3.0, "cpus": 2.0, "job_cpus": 1.97},
    ),
    "more threads than CPUs, which others use": ("prep-stall", {"running": 4.0, "cpus": 2.0, "job_cpus": 0.9}),
    "threads in Python": ("lock-contention", {"running": 1.2, "interpreter": 2.8, "job_cpus": 1.0}),
    "one thread in Python": ("too-few-workers", {"running": 0.7, "interpreter": 0.3, "job_cpus": 1.0}),
    "threads in Python that hold up the steps": (
        "lock-contention",
        {**IN_THE_STEPS, "loop_cpu": 0.3},
    ),
    "threads that sleep": ("fetch-stall", {"sleep": 3.8, "running": 0.1, "cpu_s": 0.01, "job_cpus": 0.1}),
    "threads that wait for a connection": ("fetch-stall", {"socket": 3.8, "cpu_s": 0.01, "job_cpus": 0.1}),
    "processes that compute, CPUs left": ("too-few-workers", {"running": 2.0, "outside": 2.0, "processes": 2}),
    "processes that are blocked": ("fetch-stall", {"file": 2.0, "outside": 2.0, "processes": 2, "job_cpus": 0.1}),
    "processes whose batches are received": ("batch-handoff", {"running": 1.0, "outside": 0.1, "processes": 2}),
    "the loop itself computes": ("no-workers", {"loop_running": 9, "job_cpus": 1.0}),
    "the loop itself is blocked": ("no-workers", {"loop_blocked": 10, "job_cpus": 0.4}),
    "the loop itself computes on the only CPU": (
        "prep-stall",
        {"loop_running": 10, "job_cpus": 0.99, "cpus": 1.0},
    ),
    "nobody is seen at work": ("input-bound", {"running": 0.1}),
}


@pytest.mark.parametrize("case", CASES)
def test_each_cause_has_its_rule(case: str) -> None:
    rule, changes = CASES[case]
    verdict = evaluate(ALL_RULES, pipeline(**changes))

    assert verdict.primary is not None
    assert verdict.primary.rule == rule
    assert verdict.num_workers is None
    assert not [text for text in _advice(verdict.primary) if "num_workers" in text]


@pytest.mark.parametrize("case", [case for case, (rule, _) in CASES.items() if rule != "input-bound"])
def test_its_form_and_its_gain(case: str) -> None:
    rule, changes = CASES[case]
    found = fires(RULES[rule], pipeline(**changes))
    gain = found.advice[0].predicted_gain_pct

    if rule != "batch-handoff":
        assert gain is not None
        assert 5 <= gain <= 151  # of steps that are 2.5 times as long as their work
        interval = found.advice[0].gain_interval_pct
        assert interval is not None
        assert interval[0] <= gain <= interval[1]


def test_what_the_loop_is_blocked_in_is_not_told_by_other_threads() -> None:
    """A library's threads are at a socket while the loop makes its batches itself: it may sleep, or read a file."""
    in_the_loop = fires(RULES["fetch-stall"], pipeline(loop_blocked=10, socket=3.0, job_cpus=0.1))
    in_threads = fires(RULES["fetch-stall"], pipeline(socket=3.0, job_cpus=0.1))

    assert "the loop's own thread was at work" in in_the_loop.summary
    assert "connection" not in in_the_loop.summary
    assert "connection" in in_threads.summary


def test_what_the_cpus_allow_bounds_the_gain() -> None:
    found = fires(RULES["too-few-workers"], pipeline(running=1.0, cpus=2.0, job_cpus=1.4))

    assert found.advice[0].predicted_gain_pct == pytest.approx(100 * (1 / 0.7 - 1), rel=0.05)


@pytest.mark.parametrize("case", [case for case, (rule, _) in CASES.items() if rule != "lock-contention"])
def test_a_short_wait_is_no_problem(case: str) -> None:
    _, changes = CASES[case]
    verdict = evaluate(ALL_RULES, pipeline(**(changes | {"wait_s": 0.001, "work_s": 0.1})))

    assert verdict.primary is None or verdict.primary.rule == "compute-bound"


def test_without_the_kernels_words_the_cause_is_not_known() -> None:
    bare = pipeline(looks=0)

    assert (evaluate(ALL_RULES, bare).primary or _nothing()).rule == "input-bound"


def _advice(found: Diagnosis) -> list[str]:
    return [advice.text for advice in found.advice]


def _nothing() -> Diagnosis:
    raise AssertionError("no rule fires")


def test_a_thread_that_computes_all_the_time_does_not_wait_for_the_lock() -> None:
    """Who asks where threads are takes the lock himself: what the loop's thread computes is not what it waited."""
    found = fires(RULES["lock-contention"], pipeline(**IN_THE_STEPS, loop_cpu=0.6))
    assert found.time_lost_s == pytest.approx(0.4 * 110.1 - 1.0, rel=0.01)
    assert RULES["lock-contention"].check(pipeline(**IN_THE_STEPS, loop_cpu=0.97)) is None


def tried(
    short_s: float, usual_s: float, *, pairs: int = 8, faster: int = 8, stood_s: float | None = None, **host: Any
) -> Window:
    """A loop whose steps take so long with a short switch interval, and so long with Python's own."""
    found = pipeline(wait_s=0.001, work_s=0.1, looks=0, **host)
    trial = LockTrial(
        time_s=START_S,
        pairs=pairs,
        faster=faster,
        short_s=5e-5,
        short_step_s=short_s,
        usual_step_s=usual_s,
        stood_step_s=stood_s,
    )
    found.append(trial)
    return found


ONE_THREAD = {"loop_cpu": 0.5, "threads": 0.45, "job_cpus": 0.95}
"""A loop that computes in one thread, beside others of the program's."""


def test_steps_that_are_faster_when_the_lock_changes_hands_sooner_wait_for_it() -> None:
    found = fires(RULES["lock-contention"], tried(0.05, 0.1))
    assert found.time_lost_s == pytest.approx(0.5 * 110.1, rel=0.01)
    away, sooner, _ = found.advice
    assert away.predicted_gain_pct == pytest.approx(100.0, rel=0.01)
    assert sooner.text.startswith("Call sys.setswitchinterval(5e-05) before training.")
    assert sooner.predicted_gain_pct == pytest.approx(100.0)


def test_a_short_interval_wins_a_part_of_what_the_training_thread_stands_still() -> None:
    found = fires(RULES["lock-contention"], tried(0.095, 0.1, stood_s=0.04, **ONE_THREAD))
    assert found.time_lost_s == pytest.approx(0.4 * 96.0, rel=0.01)
    away, sooner, _ = found.advice
    assert (away.predicted_gain_pct or 0.0) > 50.0 > 10.0 > (sooner.predicted_gain_pct or 0.0)


def test_no_more_than_the_other_threads_compute() -> None:
    found = fires(RULES["lock-contention"], tried(0.095, 0.1, stood_s=0.06, **ONE_THREAD))
    assert found.time_lost_s == pytest.approx(0.45 * 110.1, rel=0.01)


@pytest.mark.parametrize(
    "window",
    [
        tried(0.095, 0.1, stood_s=0.04, **ONE_THREAD | {"job_cpus": 1.4}),
        tried(0.095, 0.1, stood_s=0.04, **ONE_THREAD | {"threads": 0.05, "job_cpus": 0.55}),
        tried(0.095, 0.1, stood_s=0.04, faster=5, **ONE_THREAD),
        tried(0.095, 0.1, stood_s=None, **ONE_THREAD),
        tried(0.095, 0.1, stood_s=0.04),
    ],
    ids=["a team of threads", "others hardly compute", "no faster", "nobody counts", "no threads known"],
)
def test_who_stands_still_for_something_else_does_not_wait_for_the_lock(window: Window) -> None:
    assert RULES["lock-contention"].check(window) is None


AT_THE_LOCK = {"body_looks": 20, "body_interpreter": 2}
"""Waits for the lock that looks have met in the steps."""


def test_where_looks_meet_waits_for_the_lock_a_short_interval_need_win_nothing() -> None:
    found = fires(RULES["lock-contention"], tried(0.1, 0.1, stood_s=0.04, **ONE_THREAD, **AT_THE_LOCK, body_blocked=0))
    assert found.time_lost_s == pytest.approx(0.4 * 96.0, rel=0.01)
    assert not any("setswitchinterval" in advice.text for advice in found.advice)


def test_where_they_meet_other_waits_it_is_not_the_lock() -> None:
    window = tried(0.095, 0.1, stood_s=0.04, **ONE_THREAD, **AT_THE_LOCK, body_blocked=6)
    assert RULES["lock-contention"].check(window) is None


def test_the_lock_has_its_part_of_the_waits() -> None:
    window = tried(0.1, 0.1, stood_s=0.04, **ONE_THREAD | {"job_cpus": 1.4}, **AT_THE_LOCK, body_blocked=1)
    assert fires(RULES["lock-contention"], window).time_lost_s == pytest.approx(2 / 3 * 0.4 * 96.0, rel=0.01)


def test_beside_a_gpu_the_training_thread_may_wait_for_that() -> None:
    found = tried(0.095, 0.1, stood_s=0.04, **ONE_THREAD)
    found.facts["accelerator"] = "CUDAAccelerator"
    assert RULES["lock-contention"].check(found) is None


def test_of_a_short_run_two_pairs_tell_what_is_plain() -> None:
    assert fires(RULES["lock-contention"], tried(0.05, 0.1, pairs=2, faster=2))
    assert RULES["lock-contention"].check(tried(0.05, 0.1, pairs=2, faster=1)) is None
    assert RULES["lock-contention"].check(tried(0.05, 0.1, pairs=1, faster=1)) is None


@pytest.mark.parametrize(
    "window",
    [tried(0.095, 0.1), tried(0.11, 0.1), tried(0.08, 0.1, pairs=2, faster=2), tried(0.08, 0.1, faster=5)],
    ids=["hardly faster", "slower", "too few", "by chance"],
)
def test_steps_that_are_hardly_faster_do_not(window: Window) -> None:
    assert RULES["lock-contention"].check(window) is None


def test_threads_that_hardly_compute_hardly_hold_the_lock() -> None:
    assert RULES["lock-contention"].check(pipeline(**IN_THE_STEPS, loop_cpu=0.3, cpu_s=0.05)) is None


def test_a_thread_beside_the_steps_is_said_to_be_one() -> None:
    """Nobody waits for its batches: what it does is moved away, whatever it is."""
    found = fires(RULES["lock-contention"], pipeline(**IN_THE_STEPS, loop_cpu=0.3))
    assert found.title == "Another thread holds Python's lock while the training needs it"
    assert found.advice[0].text.startswith("Move that thread's work into a process of its own")


def test_what_holds_the_lock_beside_the_steps_is_named() -> None:
    """The function of the program's own thread, not what the loop does meanwhile."""
    found = pipeline(**IN_THE_STEPS, loop_cpu=0.3)
    spot = CodeSpot(file="stats.py", line=12, function="Census.count", own=True, wall_s=0.8)
    found.append(
        CodeLook(
            time_s=START_S,
            place="helpers",
            bucket="steps",
            rule="",
            method="samples",
            seen=100,
            wall_s=1.0,
            spots=(spot,),
        )
    )
    verdict = evaluate(ALL_RULES, found)
    assert verdict.primary is not None
    assert verdict.primary.location is not None
    assert verdict.primary.location.function == "Census.count"
    assert verdict.primary.advice[0].text.startswith("Move the work of Census.count (stats.py:12) into a process")


CROWDED: dict[str, Any] = {
    "wait_s": 0.001, "work_s": 0.05, "cpus": 2.0, "job_cpus": 1.9, "loop_cpu": 0.6, "loop_waits": 0.37, "threads": 0.7,
}  # fmt: skip
"""Threads that have their batches ready in time, and hold CPUs that the steps need: with a team of two threads."""

AUGMENTS = CodeLook(
    time_s=START_S,
    place="helpers",
    bucket="steps",
    rule="",
    method="samples",
    seen=100,
    wall_s=1.0,
    spots=(CodeSpot(file="data.py", line=12, function="augment", own=True, wall_s=0.9),),
)


def test_threads_that_make_batches_in_time_take_the_cpus_of_the_steps() -> None:
    window = pipeline(**CROWDED, looks=0)
    window.append(AUGMENTS)
    found = evaluate(ALL_RULES, window).primary
    assert found is not None
    assert (found.rule, found.severity) == ("prep-stall", Severity.WARNING)
    assert found.location is not None
    assert found.location.function == "augment"
    assert found.advice[0].text.startswith("Make augment (data.py:12) cheaper")
    # Two threads compute an operation, and it takes as long as the one that lacks a CPU.
    assert found.advice[0].predicted_gain_pct == pytest.approx(100 * (0.63**-2 - 1), rel=0.01)


@pytest.mark.parametrize(
    "changes",
    [{"loop_waits": 0.05}, {"threads": 0.0}, {"threads": None}, {"job_cpus": 1.2}],
    ids=["hardly waits", "idle", "not known", "CPUs are idle, so it is Python's lock"],
)
def test_a_loop_that_has_its_cpus_is_not_crowded(changes: dict[str, Any]) -> None:
    found = evaluate(ALL_RULES, pipeline(**{**CROWDED, **changes}, looks=0)).primary
    assert found is None or found.rule == "compute-bound"


def test_threads_that_make_no_batches_are_neighbours_of_the_programs_own() -> None:
    cpus = {"usable_cpus": 2.0, "job_cpus": 1.9, "main_cpus": 1.9, "others_cpus": 0.0, "loop_cpu_pct": 70.0}
    held = hosts(20, lambda i: {**cpus, "loop_cpu_wait_pct": 30.0, "threads_cpus": 1.2})
    crowded = run(loader(), *batches(), *held, AUGMENTS)
    found = evaluate(ALL_RULES, crowded).primary
    assert found is not None
    assert found.rule == "noisy-neighbour"
    assert found.title == "Threads that the program started take the CPUs that its training needs"
    assert found.advice[0].text.startswith("Make augment (data.py:12) cheaper")
    assert found.advice[0].predicted_gain_pct == pytest.approx(100 * (1 / 0.7 - 1), rel=0.05)


@pytest.mark.parametrize(("threads_cpus", "told"), [(0.31, True), (0.14, False)])
def test_a_thread_of_the_programs_own_is_told_by_the_wait_that_it_explains(threads_cpus: float, told: bool) -> None:
    """A tokeniser in a thread kept a third of a CPU busy, and the loop waited for one in a third of its time."""
    cpus = {"usable_cpus": 2.0, "job_cpus": 1.95, "main_cpus": 1.95, "others_cpus": 0.0, "loop_cpu_pct": 70.0}
    held = hosts(20, lambda i: {**cpus, "loop_cpu_wait_pct": 30.0, "threads_cpus": threads_cpus})
    verdict = evaluate(ALL_RULES, run(loader(), *batches(), *held, AUGMENTS))
    assert ("noisy-neighbour" in {found.rule for found in verdict.diagnoses}) is told


def in_line(part: float, *, wait_s: float = 0.06) -> Window:
    """Threads that make batches, some of which were found in line for a lock in such a part of the looks."""
    made = pipeline(wait_s=wait_s, running=0.1, sleep=0.0)
    spot = CodeSpot(file="store.py", line=19, function="Store.fetch", own=True, wall_s=0.9)
    look = CodeLook(
        time_s=START_S, place="helpers", rule="", bucket="", method="samples", seen=100, wall_s=1.0, spots=(spot,),
        in_line=part,
    )  # fmt: skip
    made.append(look)
    made.append(replace(look, bucket="steps"))
    return made


def test_threads_that_stand_in_line_for_a_lock_of_the_programs_own() -> None:
    """More of them would stand there as well: each needs a connection of its own."""
    found = evaluate(ALL_RULES, in_line(0.9)).primary
    assert found is not None
    assert (found.rule, found.title) == ("lock-contention", "Threads that make batches stand in line for one lock")
    assert found.location is not None
    assert found.location.function == "Store.fetch"
    assert found.advice[0].text.startswith("Give each thread what the lock guards")
    gain, (least, most) = found.advice[0].predicted_gain_pct, found.advice[0].gain_interval_pct or (0.0, 0.0)
    assert gain is not None
    assert gain == pytest.approx(100 * 60 / 50.1, rel=0.1)
    assert 10 < least < gain < most


def test_few_of_them_in_line_or_a_short_wait_are_no_lock() -> None:
    assert RULES["lock-contention"].check(in_line(0.3)) is None
    assert RULES["lock-contention"].check(in_line(0.9, wait_s=0.003)) is None
