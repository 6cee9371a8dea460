"""Windows made by hand: a plain run of 100 s, and one change at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from stallmeter.records import (
    BUCKETS,
    DeviceStep,
    GpuSample,
    HostSample,
    LedgerRecord,
    LoaderInfo,
    NetworkSample,
    StepRecord,
    WorkerBatch,
)
from stallmeter.records.diagnosis import Diagnosis, Fix, Verdict
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.rule import Rule
from stallmeter.window import Window

START_S = 1_700_000_000.0
STEPS = 1000
HEALTHY = {"start": 1.0, "data_wait": 2.0, "forward": 30.0, "backward": 50.0, "optimizer": 15.0, "loop": 1.0}
"""Seconds by bucket; with `other` filled up to 100 s."""


def ledger(
    *,
    wall_s: float = 100.0,
    steps: int = STEPS,
    callbacks: Mapping[str, float] | None = None,
    logging: Mapping[str, float] | None = None,
    **seconds: float,
) -> LedgerRecord:
    """A ledger whose named buckets are as given, at the expense of the computing ones: the sum stays ``wall_s``."""
    buckets = dict.fromkeys(BUCKETS, 0.0) | HEALTHY
    buckets["callbacks"] = sum((callbacks or {}).values())
    buckets["logging"] = sum((logging or {}).values())
    buckets |= seconds
    rest = wall_s - sum(buckets.values())
    for name in ("backward", "forward", "optimizer", "data_wait"):
        taken = max(-buckets[name], min(0.0, rest)) if name not in seconds else 0.0
        buckets[name] += taken
        rest -= taken
    assert rest >= -1e-6, "more seconds than the wall has"
    buckets["other"] += max(0.0, rest)
    return LedgerRecord(
        time_s=START_S + wall_s,
        wall_s=wall_s,
        steps=steps,
        epochs=1,
        buckets=buckets,
        callbacks=callbacks or {},
        logging=logging or {},
        samples=32 * steps,
    )


def step(index: int, **changes: Any) -> StepRecord:
    """A step of 0.1 s: 2 ms data wait, 30 ms forward, 50 ms backward, 15 ms optimizer, 3 ms framework."""
    known: dict[str, Any] = {
        "index": index,
        "epoch": 0,
        "optimizer_step": index + 1,
        "tracker_step": index,
        "samples": 32,
        "time_s": START_S + 1.0 + 0.1 * (index + 1),
        "total_s": 0.1,
        "data_wait_s": 0.002,
        "forward_s": 0.03,
        "backward_s": 0.05,
        "optimizer_s": 0.015,
        "loop_s": 0.003,
        "epoch_start": index == 0,
    }
    return StepRecord(**(known | changes))


def window(*records: Any, facts: Mapping[str, Any] | None = None) -> Window:
    """A window with these records in it."""
    made = Window()
    for record in records:
        made.append(record)
    made.facts.update(facts or {})
    return made


def run(*records: Any, facts: Mapping[str, Any] | None = None, **changes: Any) -> Window:
    """A plain run of which the ledger is changed, with more records if any."""
    return window(*(step(i) for i in range(100)), *records, ledger(**changes), facts=facts)


def hosts(count: int, of: Callable[[int], Mapping[str, Any]], *, first_s: float = 2.0) -> list[HostSample]:
    """Host samples, one a second, with the fields that ``of`` returns for each."""
    return [HostSample(time_s=START_S + first_s + i, **of(i)) for i in range(count)]


def gpus(count: int, of: Callable[[int], Mapping[str, Any]], *, index: int = 0) -> list[GpuSample]:
    """Samples of one GPU, one a second."""
    return [GpuSample(**{"time_s": START_S + 2 + i, "index": index, **of(i)}) for i in range(count)]


def device_steps(
    count: int = 50, *, wait_s: float = 0.002, exposed: float = 1.0, beside_s: float = 0.003, **changes: Any
) -> list[DeviceStep]:
    """The steps of `step` on a device, which idles for ``exposed`` of the wait and of the time beside the work."""
    known: dict[str, Any] = {
        "host_wait_s": wait_s,
        "host_idle_s": beside_s,
        "host_work_s": 0.095,
        "total_s": 0.1,
        "exposed_wait_s": exposed * wait_s,
        "h2d_s": 0.001,
        "forward_s": 0.03,
        "backward_s": 0.05,
        "optimizer_s": 0.014,
        "idle_s": exposed * beside_s,
    }
    return [DeviceStep(index=i, epoch_start=i == 0, **(known | changes)) for i in range(count)]


def traffic(
    received: Iterable[float], sent: Iterable[float], speed: float | None = 1e8, name: str = "eth0"
) -> list[HostSample]:
    """Host samples that know nothing but one network interface; rates in bytes/s."""
    pairs = list(zip(received, sent, strict=True))
    return hosts(
        len(pairs),
        lambda i: {
            "network": (
                NetworkSample(
                    name=name,
                    received_bytes_per_s=pairs[i][0],
                    sent_bytes_per_s=pairs[i][1],
                    speed_bytes_per_s=speed,
                ),
            )
        },
    )


def loader(num_workers: int = 2) -> LoaderInfo:
    """A probed loader."""
    return LoaderInfo(time_s=START_S, kind="DataLoader", num_workers=num_workers, batch_size=32, probed=True)


def batches(count: int = 20, *, wall_s: float = 0.1, cpu_s: float = 0.05, queue_s: float = 0.0) -> list[WorkerBatch]:
    """Batches of one worker, blocked for what is neither CPU nor queue."""
    return [
        WorkerBatch(worker=0, time_s=START_S + i, wall_s=wall_s, cpu_s=cpu_s, run_queue_s=queue_s) for i in range(count)
    ]


def ask(rule: Rule, made: Window) -> Verdict:
    """What the judge makes of one rule."""
    return evaluate([rule], made)


def fires(rule: Rule, made: Window) -> Diagnosis:
    """The rule's diagnosis; fails when there is none."""
    found = ask(rule, made)
    assert not found.abstained, found.abstained
    assert found.primary is not None, f"{rule.id} is silent"
    check_form(rule, found.primary, made)
    assert found.primary.time_lost_s <= (made.ledger.wall_s or 0.0)
    return found.primary


NUMBER_WITH_UNIT = re.compile(r"\b(\d[\d.,]*|inf|nan) (%|s|ms|MB|GB|MB/s|CPUs|GPUs?|steps|workers?|batch(es)?)(?=\W|$)")


def check_form(rule: Rule, found: Diagnosis, made: Window) -> None:
    """What holds for every diagnosis of every rule."""
    assert found.rule == rule.id
    assert found.title
    assert not found.title.endswith(".")
    assert found.summary.endswith(".")
    assert NUMBER_WITH_UNIT.search(found.summary), found.summary
    assert found.advice
    for advice in found.advice:
        check_fix(advice.fix)
    assert found.evidence
    for evidence in found.evidence:
        assert evidence.name
        assert evidence.unit
        assert evidence.threshold is None or evidence.source
    assert 0 < found.confidence <= 1
    assert not found.time_lost_s < 0
    assert found.share_pct == pytest.approx(made.ledger.share_pct(found.time_lost_s) or 0.0, nan_ok=True)


IMPERATIVES = """
    Allow Ask Begin Cache Call Check Clear Clone Close Collate Collect Compare Compile Copy Crop Detach Double Exchange
    Find Give Halve Hide Hold Install Keep Leave Let Log Look Lower Make Merge Move Pack Pad Preprocess Raise Read
    Replace Reserve Run Save Send Set Skip Slim Split Start Try Use Validate Write
"""


def check_fix(fix: Fix) -> None:
    """A fix is an imperative of at most 15 words, with at most two lines of 20 words to it."""
    assert fix.do.split()[0].rstrip(",") in IMPERATIVES.split(), fix.do
    assert len(fix.do.split()) <= 15, fix.do
    for line in (fix.do, fix.expect, fix.limit):
        assert len(line.split()) <= 20, line
        assert not line or (line.endswith(".") and line[0].isupper()), line
        assert line == " ".join(line.split()), line


def silent(rule: Rule, made: Window) -> bool:
    """Whether the rule judged and found nothing."""
    found = ask(rule, made)
    assert not found.abstained, found.abstained
    return found.primary is None


def missing(rule: Rule, made: Window) -> tuple[str, ...]:
    """The signals for want of which the rule abstained."""
    found = ask(rule, made)
    assert found.primary is None
    assert [a.rule for a in found.abstained] == [rule.id], "the rule did not abstain"
    return found.abstained[0].missing
