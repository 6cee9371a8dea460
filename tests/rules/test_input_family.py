"""One wait, one cause: each rule of the input family finds its own case, and no other one is told beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import NO_LOADER, BatchContent, HostSample, LoaderInfo, WorkerBatch
from stallmeter.records.diagnosis import Advice, Diagnosis, Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.batch_handoff import BatchHandoff
from stallmeter.rules.cpu_throttled import CpuThrottled
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.fetch_stall import FetchStall
from stallmeter.rules.idle_workers import IdleWorkers
from stallmeter.rules.input_bound import InputBound
from stallmeter.rules.no_workers import NoWorkers
from stallmeter.rules.noisy_neighbour import NoisyNeighbour
from stallmeter.rules.pinned_workers import PinnedWorkers
from stallmeter.rules.prep_stall import ONE_THREAD, PrepStall
from stallmeter.rules.rule import Rule
from stallmeter.rules.slow_batches import SlowBatches
from stallmeter.rules.slow_sampler import SlowSampler
from stallmeter.rules.too_few_workers import TooFewWorkers
from stallmeter.rules.too_many_workers import TooManyWorkers
from stallmeter.rules.views_sent_whole import ViewsSentWhole
from stallmeter.rules.weight import won_s
from stallmeter.window import Window

from .waiting import waiting
from .windows import START_S, fires, hosts, ledger, loader, missing, run, silent, step, window

CASES: dict[str, dict[str, Any]] = {
    "no-workers": {"workers": 0, "wait_s": 0.1, "ready": None, "head_ready": None},
    "too-few-workers": {"workers": 1, "wait_s": 0.05, "cpus": 8.0},
    "prep-stall": {"workers": 2, "wait_s": 0.05, "cpus": 2.0, "batch_s": 0.2},
    "pinned-workers": {
        "workers": 2,
        "wait_s": 0.05,
        "batch_s": 0.05,
        "work_s": 0.03,
        "cpus": 4.0,
        "queue_share": 0.5,
        "pinned": (1, 4),
    },
    "views-sent-whole": {"workers": 1, "wait_s": 0.05, "batch_s": 0.03, "spare_bytes": 50_000_000},
    "idle-workers": {
        "workers": 4,
        "active": 2,
        "wait_s": 0.05,
        "batch_s": 0.2,
        "loader": {"iterable": True, "shards_itself": True},
    },
    "fetch-stall": {"workers": 2, "wait_s": 0.05, "batch_s": 0.2, "cpu_share": 0.1},
    "slow-batches": {
        "workers": 4,
        "wait_s": lambda i: 0.6 if i % 12 == 0 else 0.001,
        "batch_s": lambda i: 0.7 if i % 12 == 0 else 0.02,
        "ready": 3,
    },
    "batch-handoff": {
        "workers": 2,
        "wait_s": 0.03,
        "batch_s": 0.004,
        "ready": 4,
        "head_ready": True,
        "busy_share": 0.1,
    },
    "too-many-workers": {
        "workers": 4,
        "wait_s": 0.003,
        "work_s": 0.005,
        "batch_s": 0.0002,
        "ready": 8,
        "head_ready": True,
    },
    "slow-sampler": {
        "workers": 2,
        "wait_s": 0.03,
        "batch_s": 0.004,
        "ready": 4,
        "head_ready": True,
        "busy_share": 0.1,
        "loader": {"indices_s": 0.028},
    },
    "noisy-neighbour": {
        "workers": 2,
        "wait_s": 0.05,
        "cpus": 2.0,
        "others_cpus": 1.2,
        "queue_share": 0.5,
        "batch_s": 0.1,
    },
    "cpu-throttled": {"workers": 2, "wait_s": 0.05, "cpus": 1.0, "throttled_pct": 80.0},
    "input-bound": {"workers": 2, "wait_s": 0.05, "probed": False, "ready": None, "head_ready": None},
}
RULES: dict[str, Rule] = {
    rule.id: rule
    for rule in (
        NoWorkers(),
        TooFewWorkers(),
        PinnedWorkers(),
        ViewsSentWhole(),
        PrepStall(),
        IdleWorkers(),
        FetchStall(),
        SlowBatches(),
        BatchHandoff(),
        TooManyWorkers(),
        NoisyNeighbour(),
        CpuThrottled(),
        SlowSampler(),
        InputBound(),
    )
}


def test_the_cases_cover_the_family() -> None:
    elsewhere = {"lock-contention"}  # of loaders without workers: test_pipelines
    assert set(CASES) == {r.id for r in ALL_RULES if getattr(r, "family", None) == "input"} - elsewhere == set(RULES)


@pytest.mark.parametrize("truth", CASES)
def test_each_case_has_one_cause(truth: str) -> None:
    verdict = evaluate(ALL_RULES, waiting(**CASES[truth]))
    assert verdict.primary is not None
    assert verdict.primary.rule == truth
    family = [d.rule for d in verdict.diagnoses if d.rule in CASES]
    assert family == [truth]


def test_a_hundredth_of_the_batches_that_takes_most_of_the_wait() -> None:
    """The model leaves it out, and knows of a wait that is even: without these there is little left of it."""
    rare = {
        "workers": 2,
        "work_s": 0.02,
        "wait_s": lambda i: 1.9 if i % 100 == 99 else 0.01,
        "batch_s": lambda i: 0.3 if i == 50 else 0.06,
        "ready": 3,
    }
    found = evaluate(ALL_RULES, waiting(**rare)).primary
    assert found is not None
    assert found.rule == "slow-batches"


@pytest.mark.parametrize(("threads", "rule"), [(1.4, "prep-stall"), (0.05, "fetch-stall"), (None, "fetch-stall")])
def test_a_dataset_with_threads_of_its_own_computes_while_the_loop_waits_for_them(
    threads: float | None, rule: str
) -> None:
    """Four threads decode in its __getitems__, and the loop's own thread is blocked for nearly all of a batch."""
    one = {"torch_threads": 1}
    made = waiting(workers=0, wait_s=0.1, cpu_share=0.04, cpus=2.0, ready=None, head_ready=None, loader=one)
    host = {"usable_cpus": 2.0, "job_cpus": 2.0, "main_cpus": 2.0, "others_cpus": 0.0, "threads_cpus": threads}
    for sample in hosts(600, lambda i: {**host, "loop_cpu_pct": 50.0, "loop_cpu_wait_pct": 12.0}):
        made.append(sample)
    found = evaluate(RULES.values(), made).primary  # type: ignore[arg-type]
    assert found is not None
    assert found.rule in {rule, "no-workers"} if rule == "fetch-stall" else found.rule == rule
    if rule == "prep-stall":
        assert "threads of the dataset's own" in found.summary


ONE_LATE: dict[str, Any] = {
    "workers": 1,
    "wait_s": lambda i: 0.6 if i % 16 == 0 else 0.001,
    "batch_s": lambda i: 0.7 if i % 16 == 0 else 0.005,
    "work_s": 0.08,
    "cpus": 8.0,
}


def test_late_batches_of_one_worker_that_is_fast_enough_else() -> None:
    """It has 0.08 s for a batch and takes 0.05 on average: more workers would only hide what is wrong."""
    verdict = evaluate(ALL_RULES, waiting(**ONE_LATE))
    assert verdict.primary is not None
    assert (verdict.primary.rule, verdict.primary.title) == ("slow-batches", "A few slow batches hold up the loop")
    too_slow = {**ONE_LATE, "batch_s": lambda i: 0.7 if i % 16 == 0 else 0.06}
    other = evaluate(ALL_RULES, waiting(**too_slow)).primary
    assert other is not None
    assert other.rule != "slow-batches"


@pytest.mark.parametrize("truth", CASES)
def test_each_rule_fires_alone_and_keeps_its_form(truth: str) -> None:
    made = waiting(**CASES[truth])
    found = fires(RULES[truth], made)
    assert found.severity in (Severity.WARNING, Severity.CRITICAL)
    assert found.rule == truth
    assert 0 < found.time_lost_s <= (made.spent.bucket_s("data_wait") or 0.0) + 1e-9


# Of idle workers it is said at all times: as information.
@pytest.mark.parametrize("truth", sorted(CASES.keys() - {"idle-workers"}))
def test_a_small_wait_is_no_matter(truth: str) -> None:
    case = {**CASES[truth], "work_s": 5.0}
    if truth == "too-many-workers":
        assert fires(RULES[truth], waiting(**case)).severity is Severity.INFO
        return
    assert silent(RULES[truth], waiting(**case))


@pytest.mark.parametrize(
    ("work_s", "title"),
    [(0.03, "The loop waits while its batches are prepared"), (0.002, "Preparing batches uses up the CPUs")],
)
def test_cpus_that_are_not_used_up_are_not_said_to_be(work_s: float, title: str) -> None:
    """The loop makes its batches itself, and one worker alone would do that no sooner."""
    found = fires(PrepStall(), waiting(workers=0, wait_s=0.02, work_s=work_s, batch_s=0.02, cpus=2.0))
    assert found.title == title


def test_workers_that_do_nothing_for_the_speed_are_no_loss() -> None:
    """Twelve for two CPUs: still input-bound, and fewer would do the same."""
    busy = {"workers": 12, "wait_s": 0.045, "work_s": 0.005, "batch_s": 0.1, "cpus": 2.0, "queue_share": 0.8}
    verdict = evaluate(ALL_RULES, waiting(**busy))
    assert verdict.primary is not None
    assert verdict.primary.rule == "prep-stall"
    found = {d.rule: d for d in verdict.diagnoses}["too-many-workers"]
    assert (found.severity, found.time_lost_s, found.share_pct) == (Severity.INFO, 0.0, 0.0)
    advice = verdict.num_workers
    assert advice is not None
    assert advice.recommended == 3
    assert advice.saves_processes == 12 - advice.recommended
    assert advice.predicted_gain_pct == 0
    assert f"num_workers={advice.recommended}" in found.advice[0].fix.do
    assert f"{advice.saves_processes} processes less" in found.advice[0].fix.expect


def test_workers_may_be_needed_once_steps_are_shorter() -> None:
    """A callback takes most of each step: without it a single worker would hold the loop up."""
    idle = waiting(workers=8, wait_s=0.0005, work_s=0.05, batch_s=0.02, ready=16, head_ready=True)
    assert idle.ledger.record is not None
    held_up = replace(idle.ledger.record, buckets={**idle.ledger.record.buckets, "callbacks": 60.0})
    idle.append(replace(held_up, callbacks={"Plot": 60.0}, wall_s=held_up.wall_s + 60.0))
    verdict = evaluate(ALL_RULES, idle)
    assert verdict.primary is not None
    assert verdict.primary.rule == "slow-callback"
    assert "too-many-workers" not in {d.rule for d in verdict.diagnoses}
    assert verdict.num_workers is not None
    assert verdict.num_workers.recommended == 8


def test_workers_that_are_not_needed_do_not_hide_that_the_run_is_healthy() -> None:
    idle = waiting(workers=8, wait_s=0.0005, work_s=0.05, batch_s=0.02, ready=16, head_ready=True)
    verdict = evaluate(ALL_RULES, idle)
    assert verdict.primary is not None
    assert verdict.primary.rule == "compute-bound"
    assert [d.rule for d in verdict.diagnoses] == ["compute-bound", "too-many-workers"]
    assert verdict.num_workers is not None
    assert verdict.num_workers.recommended == 1


def test_too_few_workers_are_never_said_to_be_too_many() -> None:
    verdict = evaluate(ALL_RULES, waiting(**{**CASES["too-few-workers"], "workers": 4, "batch_s": 0.4}))
    assert "too-many-workers" not in {d.rule for d in verdict.diagnoses}
    assert verdict.num_workers is not None
    assert verdict.num_workers.recommended >= 4


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda r: r.id)
def test_missing_signals(rule: Rule) -> None:
    assert "spent.data_wait_share_pct" in missing(rule, Window())


@pytest.mark.parametrize(
    ("rule", "case"),
    [
        (NoWorkers(gain_pct=1e6), "no-workers"),
        (TooFewWorkers(gain_pct=1e6), "too-few-workers"),
        (PrepStall(cpu_share=1.1), "prep-stall"),
        (FetchStall(blocked=0.95), "fetch-stall"),
        (SlowBatches(tail_factor=100.0), "slow-batches"),
        (BatchHandoff(slow_handover_s=0.1), "batch-handoff"),
        (TooManyWorkers(gain_pct=1e6), "too-many-workers"),
        (NoisyNeighbour(others_share=0.9), "noisy-neighbour"),
        (CpuThrottled(throttled_pct=90.0), "cpu-throttled"),
        (InputBound(warn_pct=60.0), "input-bound"),
    ],
    ids=lambda x: getattr(x, "id", ""),
)
def test_user_thresholds(rule: Rule, case: str) -> None:
    assert silent(rule, waiting(**CASES[case]))


def advice(truth: str, **changes: Any) -> str:
    verdict = evaluate(ALL_RULES, waiting(**{**CASES[truth], **changes}))
    assert verdict.primary is not None
    assert verdict.primary.rule == truth
    return " ".join(a.text for a in verdict.primary.advice)


STATEFUL = "Raise the loader's snapshot_every_n_steps"


@pytest.mark.parametrize(("every", "told"), [(1, True), (4, True), (50, False), (0, False), (None, False)])
def test_a_state_that_is_sent_with_each_batch_comes_first(every: int | None, told: bool) -> None:
    state = {"snapshot_every_batches": every, "stateful": every is not None}
    found = fires(BatchHandoff(), waiting(**{**CASES["batch-handoff"], "loader": state}))
    assert found.advice[0].text.startswith(STATEFUL) is told
    if told:
        assert found.advice[0].predicted_gain_pct is not None
        assert found.advice[0].gain_interval_pct is not None
        assert found.advice[0].gain_interval_pct[0] == 0.0
        assert found.advice[1].text.startswith("Collate")


def test_a_state_is_no_matter_where_batches_come_quickly() -> None:
    prompt = waiting(**{**CASES["prep-stall"], "loader": {"snapshot_every_batches": 1}})
    assert STATEFUL not in " ".join(advice.text for advice in fires(PrepStall(), prompt).advice)


def test_workers_limited_by_cpu_and_by_input_get_different_advice() -> None:
    """The same step budget, the same wait: only what the workers do differs."""
    by_cpu = advice("prep-stall")
    by_input = advice("fetch-stall", cpus=2.0)
    assert "transforms" in by_cpu
    assert "num_workers" not in by_cpu
    assert "num_workers" in by_input
    assert "SSD" in by_input


def test_no_workers_gives_a_number_with_a_gain() -> None:
    verdict = evaluate(ALL_RULES, waiting(**CASES["no-workers"]))
    assert verdict.num_workers is not None
    assert verdict.primary is not None
    number = verdict.num_workers.recommended
    assert number > 0
    assert verdict.primary.advice[0].text.startswith(f"Set num_workers={number} ")
    assert (verdict.primary.advice[0].predicted_gain_pct or 0) > 50


def test_workers_are_no_advice_to_a_dataset_that_uses_the_gpu() -> None:
    """Forked ones could not: their first item would end the training."""
    made = waiting(**CASES["no-workers"])
    assert made.loader.info is not None
    made.append(replace(made.loader.info, makes_on_device=True))
    verdict = evaluate(ALL_RULES, made)
    assert verdict.num_workers is None
    assert verdict.primary is not None
    assert verdict.primary.rule == "no-workers"
    assert "on the GPU" in verdict.primary.summary
    assert "whole batch" in verdict.primary.advice[0].text
    assert (verdict.primary.advice[0].predicted_gain_pct or 0) > 50
    assert not any("num_workers=" in advice.text for found in verdict.diagnoses for advice in found.advice)


@pytest.mark.parametrize("truth", CASES)
def test_the_number_of_workers_never_contradicts_the_cause(truth: str) -> None:
    advice = evaluate(ALL_RULES, waiting(**CASES[truth])).num_workers
    if advice is None:
        assert truth == "input-bound"
        return
    change = advice.recommended - advice.current
    more = {"no-workers", "too-few-workers", "fetch-stall", "slow-batches"}
    fewer = {"too-many-workers", "batch-handoff", "idle-workers"}
    assert (change > 0) <= (truth in more)
    assert (change < 0) <= (truth in fewer)
    if change == 0:
        assert not advice.predicted_gain_pct


def test_workers_beside_a_loop_that_makes_its_batches_are_advised_though_cheaper_items_win_more() -> None:
    made = waiting(workers=0, wait_s=0.1, batch_s=0.1, work_s=0.02, cpus=1.2, ready=None, head_ready=None)
    verdict = evaluate(ALL_RULES, made)
    assert verdict.primary is not None
    assert verdict.primary.rule == "prep-stall"
    first, second, *_ = verdict.primary.advice
    assert verdict.num_workers is not None
    number, gain_pct = verdict.num_workers.recommended, verdict.num_workers.predicted_gain_pct or 0.0
    assert number > 0
    assert second.text.startswith(f"Set num_workers={number} ")
    assert 5.0 < gain_pct < (first.predicted_gain_pct or 0.0)


def test_cpus_that_workers_take_from_the_loops_own_work_are_missed_without_a_wait_for_data() -> None:
    """A loop that computes with several threads gets its batches in time, and is slow itself."""
    more: dict[str, Any] = {"workers": 2, "wait_s": 0.001, "work_s": 0.1, "batch_s": 0.16, "cpus": 2.0, "ready": 4}
    assert PrepStall().check(waiting(**more, head_ready=True)) is None
    found = fires(PrepStall(), crowded_loop(**more))
    assert "has its batches in time" in found.summary
    assert (found.advice[0].predicted_gain_pct or 0) > 10
    assert not found.advice[0].fix.do.startswith(ONE_THREAD)
    several = fires(PrepStall(), crowded_loop(**{**more, "batch_s": 0.08}, threads=2.0, queue_share=0.5))
    assert several.advice[0].fix.do.startswith(ONE_THREAD)
    least, most = several.advice[0].gain_interval_pct or (0.0, 0.0)
    assert 0.0 < least < (several.advice[0].predicted_gain_pct or 0.0) <= most


def crowded_loop(**more: Any) -> Window:
    """Batches are there in time, and the training thread waits for a CPU in 40 % of its own work."""
    made = waiting(**more, head_ready=True)
    for i in range(10):
        made.append(
            HostSample(
                time_s=START_S + 3 + i,
                usable_cpus=2.0,
                others_cpus=0.0,
                job_cpus=2.0,
                main_cpus=1.1,
                loop_cpu_wait_pct=40.0,
            )
        )
    return made


def epochs_with_a_tail(quiet_s: float, crowded_s: float, epochs: int = 8) -> Window:
    """Epochs of 20 steps on two CPUs. One worker is at work beside the first 17 of each, and then rests."""
    records: list[Any] = [replace(loader(), num_workers=1, probed=True, persistent_workers=True)]
    now_s, ended_s, training_s = START_S, None, 0.0
    for epoch in range(epochs):
        each_s = 17 * (crowded_s + 0.001) / 20
        for i in range(20):
            end_s = now_s + (i + 1) * each_s
            idle_s = None if ended_s is None else max(0.0, end_s - each_s - ended_s)
            made = {"cpu_s": each_s / 2, "run_queue_s": each_s / 2, "idle_s": idle_s}
            records.append(WorkerBatch(worker=0, time_s=end_s, wall_s=each_s, **made))
            ended_s = end_s
        for i in range(20):
            work_s = crowded_s if i < 17 else quiet_s
            now_s += work_s + 0.001
            training_s += work_s + 0.001
            taken = {"time_s": now_s, "total_s": work_s + 0.001, "data_wait_s": 0.001, "forward_s": work_s}
            index = 20 * epoch + i
            records.append(step(index, epoch=epoch, epoch_start=not i, backward_s=0.0, optimizer_s=0.0, **taken))
    spent = {"data_wait": 0.001 * 20 * epochs, "start": 0.0, "backward": 0.0, "optimizer": 0.0, "loop": 0.0}
    spent["forward"] = training_s - spent["data_wait"]
    made_ledger = ledger(wall_s=training_s, steps=20 * epochs, **spent)
    made_host = hosts(12, lambda _: {"usable_cpus": 2.0, "others_cpus": 0.0, "job_cpus": 2.0, "main_cpus": 1.5})
    return window(*records, *made_host, replace(made_ledger, epochs=epochs))


def test_steps_beside_which_the_worker_rests_show_what_it_takes_from_the_others() -> None:
    """120 ms beside it and 60 without: nobody has measured a wait for a CPU."""
    found = fires(PrepStall(), epochs_with_a_tail(0.06, 0.12))
    assert "has its batches in time" in found.summary
    gain = found.advice[0]
    assert gain.predicted_gain_pct == pytest.approx(83.0, abs=5.0)
    assert gain.gain_interval_pct is not None
    assert gain.gain_interval_pct[0] > 25.0


@pytest.mark.parametrize(("quiet_s", "crowded_s"), [(0.12, 0.12), (0.108, 0.12), (0.12, 0.06)])
def test_a_worker_that_takes_little_from_the_steps_is_no_matter(quiet_s: float, crowded_s: float) -> None:
    assert PrepStall().check(epochs_with_a_tail(quiet_s, crowded_s)) is None


def test_while_some_cpus_are_idle_more_workers_help_though_full_speed_needs_more_cpus() -> None:
    """One worker keeps one of two CPUs busy: a second one doubles the speed, cheaper batches do more."""
    verdict = evaluate(ALL_RULES, waiting(workers=1, wait_s=0.18, work_s=0.02, batch_s=0.2, cpus=2.0))
    assert verdict.primary is not None
    assert verdict.primary.rule == "prep-stall"
    assert verdict.num_workers is not None
    assert verdict.num_workers.recommended > 1
    assert (verdict.num_workers.predicted_gain_pct or 0.0) > 50.0
    assert any(a.text.startswith(f"Set num_workers={verdict.num_workers.recommended}") for a in verdict.primary.advice)
    # Two keep both busy.
    full = evaluate(ALL_RULES, waiting(workers=2, wait_s=0.08, work_s=0.02, batch_s=0.2, cpus=2.0))
    assert full.num_workers is not None
    assert full.num_workers.recommended == 2
    assert not any("num_workers" in a.text for d in full.diagnoses for a in d.advice)


def test_that_cpus_are_missing_is_said_only_where_they_are() -> None:
    """The loop's own work needs CPUs, too: without it they seem to be enough."""
    busy = waiting(**CASES["prep-stall"])
    summary = fires(PrepStall(), busy).summary
    assert "loop and batches need 4.1 CPUs at full speed and can have 2.0" in summary
    alone = waiting(**{**CASES["prep-stall"], "cpus": 8.0})
    found = fires(PrepStall(), alone)
    assert "at full speed" not in found.summary
    assert not [a for a in found.advice if "more CPUs" in a.text]


@pytest.mark.parametrize(("workers", "limit"), [(0, "With workers alone"), (2, "More workers on the same CPUs")])
def test_more_cpus_are_for_workers(workers: int, limit: str) -> None:
    """A loop that makes its batches itself has no use for them."""
    (more,) = (
        a
        for a in fires(PrepStall(), waiting(**{**CASES["prep-stall"], "workers": workers})).advice
        if "more CPUs" in a.text
    )
    assert more.fix.limit.startswith(limit)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_slow_sampler_is_no_matter_of_workers(workers: int) -> None:
    ready = None if workers == 0 else 4
    made = waiting(
        workers=workers,
        wait_s=0.009,
        work_s=0.007,
        batch_s=0.009 if workers == 0 else 0.0004,
        ready=ready,
        head_ready=None if workers == 0 else True,
        busy_share=0.05,
        loader={"indices_s": 0.008},
    )
    verdict = evaluate(ALL_RULES, made)
    assert verdict.primary is not None
    assert verdict.primary.rule == "slow-sampler"
    assert "Choosing the items of a batch takes 8.0 ms" in verdict.primary.summary
    assert verdict.primary.advice[0].text.startswith("Make the sampler cheaper")
    assert verdict.primary.advice[0].predicted_gain_pct == pytest.approx(100.0, rel=0.1)
    assert verdict.num_workers is not None
    assert verdict.num_workers.recommended == workers


def test_workers_that_are_there_are_not_advised_anew() -> None:
    found = fires(InputBound(), waiting(**CASES["input-bound"]))
    assert not [a for a in found.advice if "Let DataLoader workers" in a.text]


def test_tiny_data_without_workers_is_healthy() -> None:
    made = waiting(workers=0, wait_s=0.0005, work_s=0.002, batch_s=0.0004, ready=None, head_ready=None)
    assert [d.rule for d in evaluate(ALL_RULES, made).diagnoses if d.severity is not Severity.INFO] == []


def test_a_neighbour_that_costs_nothing_is_not_blamed() -> None:
    made = waiting(wait_s=0.0005, work_s=0.1, batch_s=0.02, others_cpus=1.5, cpus=2.0, queue_share=0.6)
    assert [d.rule for d in evaluate(ALL_RULES, made).diagnoses if d.severity is not Severity.INFO] == []


def test_workers_that_never_pause_set_the_pace() -> None:
    """Python work in a worker keeps finished batches from being sent: not the hand-over, the worker is too slow."""
    made = waiting(workers=1, wait_s=0.0134, work_s=0.020, batch_s=0.0325, ready=1, head_ready=True, cpus=2.0)
    verdict = evaluate(ALL_RULES, made)
    assert verdict.primary is not None
    assert verdict.primary.rule == "too-few-workers"
    assert verdict.num_workers is not None
    assert verdict.num_workers.recommended > 1


def test_a_loader_that_would_be_too_slow_alone_is_the_cause_on_a_busy_host_too() -> None:
    made = waiting(workers=2, wait_s=0.20, work_s=0.02, batch_s=0.3, cpus=2.0, others_cpus=0.8, queue_share=0.3)
    verdict = evaluate(ALL_RULES, made)
    assert verdict.primary is not None
    assert verdict.primary.rule == "prep-stall"
    assert "Other jobs hold CPUs as well" in verdict.primary.summary


def test_a_cause_whose_removal_wins_nothing_is_not_the_primary() -> None:
    """A callback runs while the workers catch up: without it the loop would wait for them all the longer."""
    made = waiting(workers=1, wait_s=0.03, work_s=0.07, batch_s=0.1, cpus=8.0)
    verdict = evaluate(ALL_RULES, made)
    callback = Diagnosis(
        rule="slow-callback", severity=Severity.WARNING, title="", summary="", time_lost_s=60.0, share_pct=60.0,
        confidence=0.9, advice=(Advice.of("Run it less often.", gain_pct=0.0),),
    )  # fmt: skip
    assert verdict.primary is not None
    assert verdict.primary.rule == "too-few-workers"
    whole = {"training_s": made.ledger.training_s, "wall_s": made.ledger.wall_s}
    assert (
        won_s(callback, **whole) < won_s(verdict.primary, **whole) < verdict.primary.time_lost_s < callback.time_lost_s
    )


def test_workers_that_pause_while_cpus_are_free_keep_up() -> None:
    """Batches lie ready, and a busy loop takes some time to receive them: their preparation is no cause."""
    case = {"workers": 2, "wait_s": 0.003, "work_s": 0.019, "batch_s": 0.024, "ready": 3, "head_ready": True}
    calm = waiting(**case, cpus=2.0, busy_share=0.6)
    calm.append(BatchContent(time_s=0.0, tensors=1, bytes=4096))
    assert silent(PrepStall(), calm)
    assert evaluate(ALL_RULES, calm).primary is None or not evaluate(ALL_RULES, calm).primary.time_lost_s


def test_a_worker_that_waits_for_its_own_threads_computes() -> None:
    batch = WorkerBatch(worker=0, time_s=0.0, wall_s=0.1, cpu_s=0.002, process_cpu_s=0.15, run_queue_s=0.001)
    assert batch.blocked_s == 0.0
    assert replace(batch, process_cpu_s=0.04).blocked_s == pytest.approx(0.059)
    assert replace(batch, worker=-1).blocked_s == pytest.approx(0.097)


def test_workers_whose_own_threads_have_no_cpu_are_not_blocked() -> None:
    """Their CPU time is a third of a batch's time: where CPUs are free the rest is a wait, where none are it is not."""
    case: dict[str, Any] = {"workers": 3, "wait_s": 0.02, "work_s": 0.04, "batch_s": 0.18, "cpu_share": 0.01}
    crowded = {**case, "cpus": 2.0, "others_cpus": 1.0}
    found = fires(PrepStall(), waiting(**crowded, threads=30.0))
    assert found.evidence[2].name == "CPU time of a worker over its own thread's"
    assert found.evidence[2].value == pytest.approx(30.0)
    assert silent(PrepStall(), waiting(**case, cpus=2.0, threads=30.0))
    assert silent(PrepStall(), waiting(**{**crowded, "cpu_share": 0.3}, threads=1.0))


def test_behind_a_wrapper_workers_that_pause_show_that_batches_lie_ready() -> None:
    """The queue cannot be looked into; the workers make batches in a twelfth of the time, and the loop waits 40 ms."""
    hidden = {**CASES["batch-handoff"], "ready": None, "head_ready": None, "wait_s": 0.04}
    made = waiting(**{**hidden, "busy_share": 0.08})
    made.append(BatchContent(time_s=1.0, tensors=200, bytes=4096))
    found = fires(BatchHandoff(), made)
    assert found.evidence[2].value == pytest.approx(0.04)
    # Busy workers may be what it waits for.
    assert silent(BatchHandoff(), waiting(**{**hidden, "busy_share": 0.7}))


def test_single_items_that_a_wrapper_makes_batches_of_are_to_be_put_together_by_the_workers() -> None:
    """48 items a batch, of one tensor each: it is their number that costs, not that of the tensors."""
    hidden = {**CASES["batch-handoff"], "ready": None, "head_ready": None, "wait_s": 0.13, "batch_s": 0.001}
    for batch_size, fires_so in ((None, True), (4, False)):  # a step may also take several batches
        made = waiting(**hidden, loader={"batch_size": batch_size, "batches_per_step": 48.0})
        made.append(BatchContent(time_s=1.0, tensors=1, bytes=100_000))
        found = evaluate([BatchHandoff()], made).primary
        assert (found is not None) is fires_so
        if found is not None:
            assert found.advice[0].fix.do == "Make whole batches in the workers, before they are handed over."
            assert (found.advice[0].predicted_gain_pct or 0.0) > 50.0


@pytest.mark.parametrize(("batch_s", "first"), [(0.001, "Set num_workers=0."), (0.02, "Collate each batch")])
def test_without_workers_nothing_is_handed_over(batch_s: float, first: str) -> None:
    """Batches of 200 tensors that the loop would make sooner than it takes one over, and such as it would not."""
    made = waiting(**{**CASES["batch-handoff"], "batch_s": batch_s, "wait_s": 0.04})
    made.append(BatchContent(time_s=1.0, tensors=200, bytes=4096))
    found = fires(BatchHandoff(), made)
    assert found.advice[0].text.startswith(first)
    gains = [one.predicted_gain_pct for one in found.advice if one.predicted_gain_pct is not None]
    assert len(gains) == 2
    assert gains[0] > 0.9 * gains[1]


def test_idle_workers_wait_for_nothing_but_the_hand_over() -> None:
    """It comes in bursts: half of the waits are short, and the mean is what it costs."""
    bursts = {**CASES["batch-handoff"], "wait_s": lambda i: 0.09 if i % 3 == 0 else 0.003}
    made = waiting(**bursts)
    made.append(BatchContent(time_s=1.0, tensors=0, bytes=0, pickled_bytes=12_000_000))
    assert fires(BatchHandoff(), made).evidence[2].value == pytest.approx(0.032, rel=0.02)
    verdict = evaluate(ALL_RULES, made)
    assert verdict.primary is not None
    assert verdict.primary.rule == "batch-handoff"
    # A worker that is late now and then is waited for, too, if workers have little time to spare.
    assert silent(BatchHandoff(), waiting(**{**bursts, "busy_share": 0.7}))


def test_cheaper_items_come_before_workers_that_win_much_less() -> None:
    """No CPU is left for more workers than one, which wins less than half of what items without work would."""
    scarce = waiting(workers=0, wait_s=0.1, work_s=0.01, batch_s=0.1, cpus=1.0, ready=None, head_ready=None)
    verdict = evaluate(ALL_RULES, scarce)
    assert verdict.primary is not None
    assert verdict.primary.rule == "prep-stall"


def with_companions(
    made: Window, *, job_cpus: float = 1.95, others_cpus: float = 0.01, waits_pct: float = 40.0
) -> Window:
    """The training process keeps 0.6 CPUs busy, and its thread is without one for a part of the time."""
    for i in range(20):
        made.append(
            HostSample(
                time_s=START_S + 20 + i, usable_cpus=2.0, others_cpus=others_cpus, job_cpus=job_cpus, main_cpus=0.6,
                loop_cpu_wait_pct=waits_pct,
            )
        )  # fmt: skip
    return made


def test_processes_of_the_programs_own_that_make_no_batches_are_neighbours_too() -> None:
    loop = run(LoaderInfo(time_s=START_S, kind=NO_LOADER))
    found = fires(NoisyNeighbour(), with_companions(loop))
    assert found.summary.endswith("while other processes of the program kept 1.4 of 2.0 CPUs busy.")
    assert "os.nice" in found.advice[0].text
    assert found.advice[0].predicted_gain_pct == pytest.approx(66, abs=2)
    # Nor is it said of others that they are the program's: without these, whoever is left fills the CPUs.
    assert silent(NoisyNeighbour(), with_companions(run(LoaderInfo(time_s=START_S, kind=NO_LOADER)), waits_pct=3.0))
    assert silent(NoisyNeighbour(), with_companions(run(LoaderInfo(time_s=START_S, kind=NO_LOADER)), job_cpus=0.9))


def test_workers_are_no_neighbours_of_their_loop() -> None:
    """They keep 1.3 CPUs busy with batches; what is left is theirs, too, where they are not known."""
    keeps_up: dict[str, Any] = {"workers": 2, "wait_s": 0.001, "work_s": 0.05, "batch_s": 0.065, "cpus": 2.0}
    case = {**keeps_up, "ready": 4, "head_ready": True, "busy_share": 0.6}
    made = waiting(**case)
    for i in range(950):  # one for each step, as the 60 that are there
        made.append(WorkerBatch(worker=i % 2, time_s=START_S + i, wall_s=0.065, cpu_s=0.065, run_queue_s=0.0))
    assert silent(NoisyNeighbour(), with_companions(made))
    unknown = waiting(**{**case, "probed": False, "ready": None, "head_ready": None})
    assert silent(NoisyNeighbour(), with_companions(unknown))


def test_processes_that_make_what_is_waited_for_are_none() -> None:
    made = run(LoaderInfo(time_s=START_S, kind=NO_LOADER), data_wait=20.0)
    assert silent(NoisyNeighbour(), with_companions(made))


def test_a_loop_that_waits_for_a_cpu_has_neighbours_too() -> None:
    """The loader keeps up; the training thread is without a CPU for a fifth of the time."""
    quiet: dict[str, Any] = {"wait_s": 0.002, "work_s": 0.05, "batch_s": 0.02, "cpus": 2.0, "others_cpus": 1.5}
    made = waiting(**quiet, ready=4, head_ready=True, busy_share=0.2)
    for i in range(20):
        made.append(
            HostSample(
                time_s=START_S + 20 + i, usable_cpus=2.0, others_cpus=1.5, job_cpus=0.4, main_cpus=0.3,
                loop_cpu_wait_pct=20.0,
            )
        )  # fmt: skip
    found = fires(NoisyNeighbour(), made)
    assert found.summary.startswith("The training thread could have run and had no CPU during 20 % of the time")
    assert found.advice[0].predicted_gain_pct == pytest.approx(23, abs=4)
    assert silent(NoisyNeighbour(loop_pct=25.0), made)


@pytest.mark.parametrize(
    ("threads", "queue_share", "said"), [(2.0, 0.5, True), (1.2, 0.5, False), (2.0, 0.1, False), (None, 0.5, False)]
)
def test_workers_that_compute_with_a_thread_for_each_cpu_are_to_have_one(
    threads: float | None, queue_share: float, said: bool
) -> None:
    """NumPy's library starts a thread for each CPU in each worker: with two of two each the CPUs are short."""
    case = {**CASES["prep-stall"], "threads": threads, "queue_share": queue_share}
    found = fires(PrepStall(), waiting(**case))
    assert found.advice[0].fix.do.startswith(ONE_THREAD) is said
    number = evaluate(ALL_RULES, waiting(**case)).num_workers
    assert number is not None
    assert number.recommended == number.current
    assert ("with one thread each, as is advised" in number.reason) is said
    if said:
        least, most = found.advice[0].gain_interval_pct or (0.0, 0.0)
        assert 0.0 < least < (found.advice[0].predicted_gain_pct or 0.0) < most
        assert "2.0 threads each" in found.advice[0].fix.expect


@pytest.mark.parametrize(
    ("threads", "queue_share", "waits_pct", "said"),
    [(2.0, 0.5, 33.0, True), (1.2, 0.5, 33.0, False), (2.0, 0.1, 33.0, False), (2.0, 0.5, 20.0, False)],
)
def test_threads_of_workers_that_keep_up_take_the_cpus_of_the_loop(
    threads: float, queue_share: float, waits_pct: float, said: bool
) -> None:
    """Steps take as long while no batch is made: threads spin on for a while, and by that nothing is lost to them."""
    made = waiting(
        workers=1, threads=threads, queue_share=queue_share, wait_s=0.002, work_s=0.08, batch_s=0.02, cpus=2.0,
        ready=2, head_ready=True, busy_share=0.5,
    )  # fmt: skip
    for i in range(20):
        made.append(
            HostSample(
                time_s=START_S + 20 + i, usable_cpus=2.0, others_cpus=0.0, job_cpus=1.95, main_cpus=1.1,
                loop_cpu_pct=62.0, loop_cpu_wait_pct=waits_pct,
            )
        )  # fmt: skip
    if not said:
        assert silent(PrepStall(), made)
        return
    found = fires(PrepStall(), made)
    first, *others = found.advice
    assert first.fix.do.startswith(ONE_THREAD)
    gain, (least, most) = first.predicted_gain_pct or 0.0, first.gain_interval_pct or (0.0, 0.0)
    assert 5.0 < least < gain < most
    assert gain == pytest.approx(100 * (1 / (0.98 * 0.67**1.5) - 1), rel=0.05)
    assert found.time_lost_s == pytest.approx((made.ledger.training_s or 0.0) * gain / (100 + gain))
    [cheaper] = [one for one in others if one.fix.do.startswith("Make items cheaper")]
    assert cheaper.predicted_gain_pct is None, "by steps beside which no batch is made it wins little"


@pytest.mark.parametrize(("workers", "title"), [(0, "The loop's own thread waits"), (1, "The workers wait")])
def test_nobody_speaks_of_workers_where_there_are_none(workers: int, title: str) -> None:
    made = waiting(workers=workers, wait_s=0.1, batch_s=0.1, cpu_share=0.04, cpus=2.0, ready=None, head_ready=None)
    found = fires(RULES["fetch-stall"], made)
    assert found.title == f"{title} for storage or the network"
    assert ("the workers were" in found.summary) == bool(workers)
