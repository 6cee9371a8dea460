"""A long synthetic run with everything that changes over time: ledger readings, steps, workers, host and GPUs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from stallmeter.records import (
    BUCKETS,
    Event,
    GpuSample,
    HostSample,
    LedgerRecord,
    LoaderInfo,
    NetworkSample,
    StepRecord,
    WorkerBatch,
)

from .recordings import START_S, VERDICT

STEP_S = 0.1


def long_run(steps: int, *, workers: int = 4, gpus: int = 1, ended: bool = True) -> Iterator[Any]:
    """One tick a second: ten steps, the workers' batches, a sample of the machine, the ledger."""
    noise = random.Random(1)
    spent = dict.fromkeys(BUCKETS, 0.0)
    yield LoaderInfo(time_s=START_S, kind="DataLoader", num_workers=workers, batch_size=32, probed=True)
    for index in range(steps):
        wait = 0.06 * noise.random()
        work = STEP_S - wait
        at = START_S + STEP_S * (index + 1)
        spent["data_wait"] += wait
        spent["forward"] += work
        yield StepRecord(
            index=index,
            epoch=index // 1000,
            optimizer_step=index,
            tracker_step=index,
            samples=32,
            time_s=at,
            total_s=STEP_S,
            data_wait_s=wait,
            forward_s=work,
            epoch_start=index % 1000 == 0,
        )
        if workers:
            yield WorkerBatch(
                worker=index % workers,
                time_s=at,
                wall_s=3 * STEP_S,
                cpu_s=STEP_S,
                run_queue_s=STEP_S * noise.random(),
                items=32,
            )
        if index % 10 == 9 or index == steps - 1:
            yield from _machine(at, noise, gpus)
            yield LedgerRecord(
                time_s=at, wall_s=STEP_S * (index + 1), steps=index + 1, epochs=index // 1000 + 1, buckets=dict(spent)
            )
    if ended:
        yield Event(time_s=START_S + STEP_S * steps, name="end", detail="end")
        yield VERDICT


def _machine(at: float, noise: random.Random, gpus: int) -> Iterator[Any]:
    yield HostSample(
        time_s=at,
        job_cpus=2 + noise.random(),
        main_cpus=1.0,
        others_cpus=noise.random(),
        usable_cpus=8.0,
        job_processes=5,
        job_rss_bytes=int(4e9 + 1e9 * noise.random()),
        memory_limit_bytes=16 * 10**9,
        disk_read_bytes_per_s=1e8 * noise.random(),
        network=(NetworkSample(name="eth0", received_bytes_per_s=2e6, sent_bytes_per_s=1e6 * noise.random()),),
        pressure_cpu_pct=100 * noise.random(),
        cpu_iowait_pct=3 * noise.random(),
    )
    for index in range(gpus):
        yield GpuSample(
            time_s=at,
            index=index,
            name="Tesla T4",
            utilization_pct=100 * noise.random(),
            memory_used_bytes=3 * 10**9,
            memory_total_bytes=16 * 10**9,
            power_w=50.0,
            power_limit_w=70.0,
        )
