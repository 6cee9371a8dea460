"""too-few-threads: torch computes with fewer threads than there are free cores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import CodeLook, CodeStack, OptimizerInfo
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.too_few_threads import TooFewThreads
from stallmeter.window import Window

from .windows import START_S, device_steps, fires, hosts, loader, missing, run, silent, window

OPTIMIZER = OptimizerInfo(time_s=START_S, kind="SGD", tensors=20)
"""Of steps of 100 ms: 5 ms for each tensor."""

FACTS = {
    "accelerator": "CPUAccelerator",
    "threads": {"cores": 8, "variables": {"OMP_NUM_THREADS": "1"}},
    "budget": {"host_cpus": 8, "affinity_cpus": 8},
}


def idling(
    threads: int | None = 1,
    *more: Any,
    optimizer: OptimizerInfo | None = OPTIMIZER,
    facts: dict[str, Any] | None = None,
    buckets: dict[str, float] | None = None,
    workers: int = 2,
    **host: float | None,
) -> Window:
    """A run of 100 s that computes with so many threads, on eight cores without a GPU."""
    given: dict[str, Any] = {"usable_cpus": 8.0, "host_cpus": 8, "job_cpus": 1.1, "main_cpus": 1.05}
    given |= {"others_cpus": 0.0, "threads_cpus": 0.0, **host}
    known = [replace(loader(workers), torch_threads=threads), *hosts(30, lambda _: given), *more]
    return run(*known, *([optimizer] if optimizer else []), facts={**FACTS, **(facts or {})}, **(buckets or {}))


def test_fires() -> None:
    """torchrun sets OMP_NUM_THREADS=1, and so do some clusters."""
    found = fires(TooFewThreads(), idling())
    assert (found.severity, found.culprit) == (Severity.WARNING, "OMP_NUM_THREADS=1")
    assert found.summary == (
        "Torch computes 96 % of the training time with 1 thread (OMP_NUM_THREADS=1), and 8 cores are free."
    )
    assert found.advice[0].fix.do == "Set OMP_NUM_THREADS=8: torch has 1 thread."


def test_it_is_the_cause_of_a_run_that_computes() -> None:
    primary = evaluate(ALL_RULES, idling()).primary
    assert primary is not None
    assert primary.rule == "too-few-threads"


@pytest.mark.parametrize(
    ("variables", "threads", "culprit", "do"),
    [
        ({"MKL_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}, 2, "MKL_NUM_THREADS=2", "Set MKL_NUM_THREADS=8"),
        ({"OMP_NUM_THREADS": "2,1"}, 2, "OMP_NUM_THREADS=2", "Set OMP_NUM_THREADS=8"),
        ({"OMP_NUM_THREADS": "8"}, 2, "torch.set_num_threads(2)", "Set torch.set_num_threads(8)"),
        ({}, 4, "torch.set_num_threads(4)", "Set torch.set_num_threads(8)"),
    ],
)
def test_what_set_the_number_is_named(variables: dict[str, str], threads: int, culprit: str, do: str) -> None:
    found = fires(TooFewThreads(), idling(threads, facts={"threads": {"cores": 8, "variables": variables}}))
    assert found.culprit == culprit
    assert found.advice[0].fix.do.startswith(do)


def test_twice_the_threads() -> None:
    """1 to 1.7 times as fast, of which 1.35 is told; more of them win more."""
    two, four = (fires(TooFewThreads(), idling(4 // n, usable_cpus=4.0)).advice[0] for n in (2, 4))
    assert two.predicted_gain_pct == pytest.approx(35.0, abs=2.0)
    assert two.gain_interval_pct is not None
    assert two.gain_interval_pct[0] <= 0.0
    assert two.gain_interval_pct[1] == pytest.approx(70.0, abs=5.0)
    assert (four.predicted_gain_pct or 0.0) > 1.3 * (two.predicted_gain_pct or 0.0)


@pytest.mark.parametrize(
    "made",
    [
        idling(8),
        idling(None),
        idling(job_cpus=7.6),
        idling(others_cpus=6.9),
        idling(usable_cpus=1.5),
        idling(usable_cpus=2.0, job_cpus=1.25, main_cpus=1.0),
        idling(usable_cpus=2.0, others_cpus=0.25),
        idling(usable_cpus=2.0, threads_cpus=0.25),
        idling(4, facts={"threads": {"cores": 4, "variables": {}}}),
        idling(2, facts={"budget": {"host_cpus": 8, "affinity_cpus": 8, "ranks_on_node": 4}}),
        idling(facts={"accelerator": "CUDAAccelerator"}),
        idling(1, *device_steps()),
        idling(buckets={"data_wait": 12.0}),
        idling(buckets={"checkpoint": 40.0}),
    ],
    ids=[
        "all of them",
        "not known",
        "the job keeps them busy",
        "others do",
        "there is one",
        "workers use some of the second",
        "others use some of the second",
        "threads use some of the second",
        "two CPUs of each core",
        "each rank has its part",
        "a GPU",
        "a device",
        "data are waited for",
        "checkpoints take long",
    ],
)
def test_silent(made: Window) -> None:
    assert silent(TooFewThreads(), made)


def test_what_others_use_is_left_to_them() -> None:
    workers = idling(job_cpus=4.1, main_cpus=1.05)
    assert fires(TooFewThreads(), workers).advice[0].fix.do.startswith("Set OMP_NUM_THREADS=5")


def test_short_operations_win_nothing() -> None:
    """97 ms of computing in a step, for 100 tensors and for 120."""
    assert fires(TooFewThreads(), idling(optimizer=replace(OPTIMIZER, tensors=100))).severity is Severity.WARNING
    assert silent(TooFewThreads(), idling(optimizer=replace(OPTIMIZER, tensors=120)))


def test_what_is_no_operation_of_torch_wins_nothing() -> None:
    """Looks find torch in a fifth of the steps: 20 ms for 20 tensors, and for 30."""
    frames = (("main (train.py:9)", "linear (torch/nn/functional.py:1)"), ("main (train.py:9)",))
    stacks = tuple(CodeStack(frames=one, wall_s=s) for one, s in zip(frames, (2.0, 8.0), strict=True))
    look = CodeLook(
        time_s=START_S, place="loop", bucket="steps", rule="", method="samples", seen=200, wall_s=10.0, stacks=stacks
    )
    found = fires(TooFewThreads(), idling(1, look, optimizer=replace(OPTIMIZER, tensors=18)))
    assert found.summary.startswith("Torch computes 19 %")
    assert silent(TooFewThreads(), idling(1, look, optimizer=replace(OPTIMIZER, tensors=30)))


@pytest.mark.parametrize(
    "made",
    [idling(optimizer=None), idling(facts={"threads": None}), idling(others_cpus=None)],
    ids=["tensors", "cores", "neighbours"],
)
def test_what_is_not_known_makes_it_inform(made: Window) -> None:
    found = fires(TooFewThreads(), made)
    assert (found.severity, found.time_lost_s) == (Severity.INFO, 0.0)


def test_nothing_is_named_where_nobody_told_what_set_the_number() -> None:
    found = fires(TooFewThreads(), idling(facts={"threads": None}))
    assert found.culprit is None
    assert found.summary.endswith("with 1 thread, and 8 cores are free.")


def test_abstains() -> None:
    assert "loader.info" in missing(TooFewThreads(), window())
    assert missing(TooFewThreads(), idling(main_cpus=None)) == ("host.loop.beside_cpus",)
