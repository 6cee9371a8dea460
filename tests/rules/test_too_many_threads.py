"""too-many-threads: torch's operations have more threads than the process has CPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import CodeLook, CodeStack
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.too_many_threads import TooManyThreads
from stallmeter.window import Window

from .windows import START_S, device_steps, fires, gpus, hosts, loader, missing, run, silent, step

IN_TORCH = ("main (train.py:9)", "Tensor.backward (torch/_tensor.py:566)", "backward (torch/autograd/__init__.py:255)")
OWN = ("main (train.py:9)", "wait_for_device (train.py:3)")
GRADIENTS = ("main (train.py:9)", "all_reduce (torch/distributed/distributed_c10d.py:2800)")


def crowded(
    threads: int | None = 12,
    *more: Any,
    runs_pct: float = 30.0,
    waits_pct: float = 40.0,
    in_torch: float = 0.9,
    beside: tuple[str, ...] = OWN,
    workers: int = 0,
    **host: Any,
) -> Window:
    """A run of 100 s on two CPUs, in which looks find so much of the steps in torch's functions."""
    given = {
        "usable_cpus": 2.0, "host_cpus": 2, "job_cpus": 1.6, "main_cpus": 1.6, "loop_cpu_pct": runs_pct,
        "loop_cpu_wait_pct": waits_pct, "threads_cpus": 0.0, "others_cpus": 0.0, **host,
    }  # fmt: skip
    made = run(
        replace(loader(num_workers=workers), torch_threads=threads),
        *(step(i) for i in range(200)),
        *hosts(60, lambda _: given),
        *more,
    )
    stacks = tuple(
        CodeStack(frames=frames, wall_s=10.0 * share)
        for frames, share in ((IN_TORCH, in_torch), (beside, 1.0 - in_torch))
        if share > 0
    )
    made.append(
        CodeLook(
            time_s=START_S,
            place="loop",
            bucket="steps",
            rule="",
            method="samples",
            seen=200,
            wall_s=10.0,
            stacks=stacks,
        )
    )
    return made


def test_what_the_thread_is_in_torch_and_does_not_run_is_lost() -> None:
    window = crowded()
    found = fires(TooManyThreads(), window)
    assert (found.severity, found.culprit) == (Severity.CRITICAL, "torch.set_num_threads")
    training_s, in_torch_s = window.ledger.training_s, window.code.torch.computing_s
    assert training_s is not None
    assert in_torch_s is not None
    assert in_torch_s == pytest.approx(0.9 * 96.0, rel=0.02)
    least_s, most_s = in_torch_s - 0.28 * training_s, in_torch_s - 0.18 * training_s  # 2 % are batches made in the loop
    assert least_s < found.time_lost_s < most_s
    advice = found.advice[0]
    assert "torch.set_num_threads(2)" in advice.text
    assert "OMP_NUM_THREADS=2" in advice.text
    assert advice.predicted_gain_pct is not None
    assert advice.gain_interval_pct is not None
    assert advice.gain_interval_pct[0] < advice.predicted_gain_pct < advice.gain_interval_pct[1]
    primary = evaluate(ALL_RULES, window).primary
    assert primary is not None
    assert primary.rule == "too-many-threads"


def test_what_stands_still_in_the_programs_own_code_is_not_taken_for_it() -> None:
    """An emulated device: the thread is in torch for a tenth, and runs for as long."""
    assert silent(TooManyThreads(), crowded(in_torch=0.1, runs_pct=12.0, waits_pct=2.0))


def test_what_waits_for_other_ranks_is_not_taken_for_it() -> None:
    window = crowded(in_torch=0.1, runs_pct=12.0, waits_pct=2.0, beside=GRADIENTS)
    assert window.code.torch.computing_s == pytest.approx(9.6, rel=0.1)
    assert silent(TooManyThreads(), window)


@pytest.mark.parametrize("threads", [1, 2])
def test_no_more_threads_than_cpus(threads: int) -> None:
    assert silent(TooManyThreads(), crowded(threads))


def test_a_part_of_a_cpu_may_have_a_thread() -> None:
    assert silent(TooManyThreads(), crowded(3, usable_cpus=2.5))
    found = fires(TooManyThreads(), crowded(4, usable_cpus=2.5))
    assert "torch.set_num_threads(2)" in found.advice[0].text


def test_a_thread_that_runs_all_the_time_is_in_nobodys_way() -> None:
    """Threads that nothing uses: its operations are too small for several."""
    assert silent(TooManyThreads(), crowded(runs_pct=97.0, waits_pct=1.0))


def test_what_others_take_is_not_lost_to_threads() -> None:
    alone = fires(TooManyThreads(), crowded())
    beside = fires(TooManyThreads(), crowded(others_cpus=0.9, job_cpus=1.1, main_cpus=1.1))
    assert beside.time_lost_s < alone.time_lost_s


def test_of_batches_made_in_the_loop_nothing_is_taken_for_its_steps() -> None:
    """They are computed by the same thread."""
    made = crowded(runs_pct=60.0, waits_pct=5.0, in_torch=1.0)
    with_workers = crowded(runs_pct=60.0, waits_pct=5.0, in_torch=1.0, workers=2)
    assert fires(TooManyThreads(), made).time_lost_s > fires(TooManyThreads(), with_workers).time_lost_s


def test_on_a_device_nothing_is_said() -> None:
    assert silent(TooManyThreads(), crowded(12, *device_steps()))
    assert silent(TooManyThreads(), crowded(12, *gpus(60, lambda _: {"utilization_pct": 60.0})))
    other = crowded()
    other.facts.update({"accelerator": "HPUAccelerator"})
    assert silent(TooManyThreads(), other)


def test_of_several_ranks_only_what_waits_for_a_cpu_is_lost() -> None:
    """The others may be waited for in an operation of torch's: the exchange of gradients."""
    alone, one = crowded(waits_pct=20.0), crowded(waits_pct=20.0)
    one.facts.update({"world_size": 2})
    assert one.facts.has_other_ranks
    lost_s = fires(TooManyThreads(), one).time_lost_s
    assert lost_s < fires(TooManyThreads(), alone).time_lost_s / 2
    in_torch_s = one.code.torch.computing_s
    assert in_torch_s is not None
    assert lost_s == pytest.approx(0.2 * in_torch_s)


def test_missing_signals() -> None:
    assert "loader.info" in missing(TooManyThreads(), Window())
