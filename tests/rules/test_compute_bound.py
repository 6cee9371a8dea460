"""compute-bound: the training step itself sets the pace."""

from __future__ import annotations

import pytest

from stallmeter.records import BatchContent
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.compute_bound import ComputeBound
from stallmeter.rules.evaluation import evaluate
from stallmeter.window import Window

from .waiting import waiting
from .windows import device_steps, fires, gpus, hosts, ledger, loader, missing, run, silent, step, window


def test_fires():
    """A healthy run is told what sets its pace."""
    found = fires(ComputeBound(), run())
    assert found.summary == "97 % of the training time went into the steps themselves (100.0 ms in a typical one)."
    assert (found.severity, found.time_lost_s) == (Severity.INFO, 0.0)


def test_primary_of_a_healthy_run():
    """Nothing else is said about a healthy run, and nothing warns."""
    verdict = evaluate(ALL_RULES, run())
    assert verdict.primary is not None
    assert [d.rule for d in verdict.diagnoses] == ["compute-bound"]


@pytest.mark.parametrize(
    ("pct", "word"), [(95.0, "good"), (90.0, "good"), (75.0, "fair"), (70.0, "fair"), (60.0, "low")]
)
def test_utilization(pct, word):
    """The GPU's utilization is put into words."""
    found = fires(ComputeBound(), run(*gpus(10, lambda i: {"utilization_pct": pct})))
    assert f"in use {pct:.0f} % of the time, which is {word}" in found.summary
    assert (f"the other {100 - pct:.0f} % of it are paid for as well" in found.summary) == (pct < 90.0)


def test_threshold():
    """It fires at the threshold and is silent just below it."""

    def part(seconds: float) -> Window:
        known = ledger(start=0, data_wait=0, forward=seconds, backward=0, optimizer=0, loop=0, other=100 - seconds)
        return window(*(step(i) for i in range(20)), known)

    assert fires(ComputeBound(), part(70.0))
    assert ComputeBound().check(part(69.9)) is None


def test_validation_aside():
    """Validation is no part of the training steps and takes nothing from their share."""
    assert fires(ComputeBound(), run(validation=80.0)).evidence[0].value == pytest.approx(100 * 17 / 19)


@pytest.mark.parametrize("bucket", ["data_wait", "callbacks", "logging", "checkpoint"])
def test_a_loss_beside_it(bucket):
    """Where something takes a tenth of the time, that is worth more than this remark."""
    assert silent(ComputeBound(), run(start=0.0, **_seconds(bucket, 10.0)))
    assert fires(ComputeBound(), run(start=0.0, **_seconds(bucket, 9.9)))


def _seconds(bucket: str, seconds: float) -> dict:
    return {bucket: {"A": seconds} if bucket in ("callbacks", "logging") else seconds}


def test_never_beside_low_utilization():
    """What says that the GPU idles and what says that compute sets the pace cannot stand together."""
    made = run(
        *hosts(20, lambda i: {"usable_cpus": 8.0, "job_cpus": 1.0}),
        *gpus(20, lambda i: {"utilization_pct": 20.0, "memory_used_bytes": 1, "memory_total_bytes": 2}),
    )
    assert [d.rule for d in evaluate(ALL_RULES, made).diagnoses] == ["low-utilization"]


def test_abstains():
    """Without steps there is nothing to judge."""
    assert missing(ComputeBound(), window(ledger())) == ("steps.step_time_s",)


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(ComputeBound(step_pct=98.0), run())


def test_a_hand_over_that_stays_belongs_to_the_step():
    """A fifth of the time is waited for batches that lie ready, one tensor each: no change of the loader helps."""
    made = waiting(workers=1, wait_s=0.012, work_s=0.05, batch_s=0.05, ready=2, head_ready=True, busy_share=0.8)
    made.append(BatchContent(time_s=1.0, tensors=1, bytes=4096))
    assert fires(ComputeBound(), made).evidence[1].value > 10.0
    # A worker that sets the pace can be helped.
    assert silent(ComputeBound(), waiting(workers=1, wait_s=0.02, work_s=0.05, batch_s=0.07))


def test_a_batch_made_in_no_time_belongs_to_the_step():
    """The loop makes its batches itself, in 2 of 12 ms: no change would make them cheaper than a hand-over."""
    assert fires(ComputeBound(), waiting(workers=0, wait_s=0.002, work_s=0.01, batch_s=0.002, ready=None))
    assert silent(ComputeBound(), waiting(workers=0, wait_s=0.004, work_s=0.01, batch_s=0.004, ready=None))


@pytest.mark.parametrize(
    ("accelerator", "first"),
    [
        ("CPUAccelerator", "Ask for a GPU"),
        (None, "Ask for a GPU"),
        ("CUDAAccelerator", "Use mixed"),
        ("MPSAccelerator", "Use mixed"),
    ],
)
def test_without_a_gpu_nothing_is_said_that_needs_one(accelerator, first):
    advice = fires(ComputeBound(), run(facts={"accelerator": accelerator})).advice
    assert advice[0].fix.do.startswith(first)
    for words in ("mixed precision", "batch size"):
        assert sum(words in a.fix.do for a in advice) == (first == "Use mixed")


def test_what_validates_is_said_to_be_left_out():
    """Else 97 % of steps would stand above a ledger with validation at 13 %."""
    assert "% of the training time went into" in fires(ComputeBound(), run(loader())).summary
    found = fires(ComputeBound(), run(loader(), validation=8.0))
    assert "% of the training time, validation left out, went into the steps" in found.summary


def test_a_device_that_follows_the_host_may_idle():
    """Whether it does, its utilization would tell: without that nothing is said of who sets the pace."""
    assert silent(ComputeBound(), run(*device_steps()))
    assert fires(ComputeBound(), run(*device_steps(exposed=0.1)))
    assert fires(ComputeBound(), run(*device_steps(), *gpus(20, lambda i: {"utilization_pct": 97.0})))
