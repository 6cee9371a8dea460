"""Synthetic recordings, written through `Recorder` as a run writes them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stallmeter.recording import Header, Recorder
from stallmeter.records import (
    BUCKETS,
    AllocatorSample,
    DeepProfile,
    DeviceStep,
    Event,
    GpuSample,
    HostSample,
    LedgerRecord,
    LoaderInfo,
    NetworkSample,
    Operator,
    StepRecord,
    SyncCalls,
    WorkerBatch,
    WorkerMemory,
)
from stallmeter.records.diagnosis import (
    Abstention,
    Advice,
    Diagnosis,
    Evidence,
    Location,
    Severity,
    Verdict,
    WorkerAdvice,
)

START_S = 1_700_000_000.0
HOSTILE = "[bold]x[/bold] [/] | <script>alert(1)</script>\n`a` *b* __c__ ![i](http://h) \x1b[31mred # $1 &amp; \\ ~~d~~"
"""A name that means something in rich's markup, in Markdown, in HTML and to a terminal."""

PRIMARY = Diagnosis(
    rule="no-workers",
    severity=Severity.CRITICAL,
    title="No worker prepares batches beside the loop",
    summary="The loop made every batch itself: 60 s of 100 s.",
    time_lost_s=60.0,
    share_pct=60.0,
    confidence=0.9,
    evidence=(
        Evidence("data wait, share of training time", 61.5, "%", 10.0, "our measurement, benchmarks/faults"),
        Evidence("service time of a batch", 0.12, "s"),
    ),
    advice=(Advice("Set num_workers=4.", 138.0), Advice("Make one batch cheaper.")),
    location=Location("transforms.py", 88, "Rotate.__call__", 64.0, "PIL.Image.Image.rotate"),
)
SECOND = Diagnosis(
    rule="slow-callback",
    severity=Severity.WARNING,
    title="A callback takes long",
    summary="ImageLogger took 5 s.",
    time_lost_s=5.0,
    share_pct=5.0,
    confidence=0.8,
    culprit="ImageLogger",
)
ADVICE = WorkerAdvice(
    current=0,
    recommended=4,
    predicted_step_time_s=0.042,
    predicted_gain_pct=138.0,
    limited_by="compute",
    reason="4 workers make a batch in the time of one step",
    confidence=0.8,
)
VERDICT = Verdict(
    primary=PRIMARY,
    diagnoses=(PRIMARY, SECOND),
    abstained=(Abstention("low-utilization", ("gpu_utilization_pct",)),),
    num_workers=ADVICE,
)
COMPUTE_BOUND = Diagnosis(
    rule="compute-bound",
    severity=Severity.INFO,
    title="Compute sets the pace",
    summary="95 % of the training time is compute.",
    time_lost_s=0.0,
    share_pct=0.0,
    confidence=0.9,
)


def step(index: int, **changes: Any) -> StepRecord:
    """0.1 s, of which 0.06 s data wait."""
    known: dict[str, Any] = {
        "index": index,
        "epoch": 0,
        "optimizer_step": index + 1,
        "tracker_step": index,
        "samples": 32,
        "time_s": START_S + 0.1 * (index + 1),
        "total_s": 0.1,
        "data_wait_s": 0.06,
        "forward_s": 0.02,
        "backward_s": 0.02,
        "epoch_start": index == 0,
    }
    return StepRecord(**{**known, **changes})


def ledger(**changes: Any) -> LedgerRecord:
    """100 s: 60 s data wait, 35 s compute, 3 s start, 1 s callbacks, 0.5 s logging, 0.5 s other."""
    spent = {"start": 3.0, "data_wait": 60.0, "forward": 15.0, "backward": 20.0, "callbacks": 1.0, "logging": 0.5}
    known: dict[str, Any] = {
        "time_s": START_S + 100,
        "wall_s": 100.0,
        "steps": 1000,
        "epochs": 2,
        "buckets": {bucket: spent.get(bucket, 0.0) for bucket in BUCKETS} | {"other": 0.5},
        "callbacks": {"ImageLogger": 0.9, "StallMonitor": 0.004},
        "logging": {"MLFlowLogger": 0.5},
        "own_s": 0.004,
        "thread_cpu_s": 0.1,
        "recorded_steps": 20,
        "samples": 32_000,
    }
    return LedgerRecord(**{**known, **changes})


def hardware() -> list[Any]:
    """Two host samples, two GPU samples, worker batches and the loader."""
    return [
        LoaderInfo(
            time_s=START_S,
            kind="DataLoader",
            num_workers=0,
            batch_size=32,
            prefetch_factor=None,
            pin_memory=True,
            persistent_workers=False,
            iterable=False,
            stateful=False,
            in_order=True,
            probed=True,
        ),
        *(
            HostSample(
                time_s=START_S + i,
                job_cpus=1.0 + i,
                usable_cpus=8.0,
                others_cpus=0.5,
                cpu_iowait_pct=2.0,
                job_rss_bytes=2 * 10**9,
                memory_limit_bytes=16 * 10**9,
                network=(
                    NetworkSample(
                        name="eth0",
                        received_bytes_per_s=1e6 * (i + 1),
                        sent_bytes_per_s=2e5,
                        speed_bytes_per_s=1.25e9,
                    ),
                ),
            )
            for i in range(2)
        ),
        *(
            GpuSample(
                time_s=START_S + i,
                index=0,
                uuid="GPU-1",
                name="Tesla T4",
                utilization_pct=30.0 + 40 * i,
                memory_used_bytes=3 * 10**9,
                memory_total_bytes=16 * 10**9,
                power_w=70.0,
                temperature_c=60.0,
            )
            for i in range(2)
        ),
        *(
            WorkerBatch(
                worker=-1,
                time_s=START_S + i,
                wall_s=0.06,
                cpu_s=0.04,
                run_queue_s=0.005,
                collate_s=0.002,
                read_bytes=4096,
                items=32,
            )
            for i in range(3)
        ),
        WorkerMemory(time_s=START_S, workers=4, rss_bytes=4 * 10**9, uss_bytes=10**9),
    ]


def device() -> list[Any]:
    """The device's timeline of 20 steps, the last of them unread, and what else is known of the device."""
    times = {"exposed_wait_s": 0.03, "h2d_s": 0.002, "forward_s": 0.02, "backward_s": 0.02, "optimizer_s": 0.001}
    host = {"host_wait_s": 0.06, "host_idle_s": 0.0, "host_work_s": 0.04}
    return [
        *(DeviceStep(index=i, epoch_start=i == 0, total_s=0.073, **times, **host) for i in range(19)),
        DeviceStep(index=19, **host),
        AllocatorSample(
            time_s=START_S + 90,
            index=0,
            allocated_bytes=10**9,
            allocated_peak_bytes=2 * 10**9,
            reserved_bytes=3 * 10**9,
            reserved_peak_bytes=3 * 10**9,
            alloc_retries=2,
            ooms=0,
        ),
        SyncCalls(time_s=START_S + 1, first_step=5, steps=2, calls={"train.py:7 in step": 4}),
        DeepProfile(
            time_s=START_S + 30,
            cause="compute-bound",
            first_step=300,
            steps=3,
            held_s=0.2,
            slowdown_s=0.05,
            evaluated_s=0.4,
            trace="trace.json.gz",
            trace_bytes=12_345,
            operators=(Operator(name="aten::mm", calls=12, host_s=0.001, device_s=0.03),),
        ),
    ]


def complete_run() -> list[Any]:
    """Every kind of record that a report reads, ended well."""
    return [
        *hardware(),
        *(step(i) for i in range(20)),
        *device(),
        Event(time_s=START_S + 50, name="source nvml switched off", detail="NVMLError: gone"),
        Event(time_s=START_S + 99, name="end", detail="end"),
        ledger(),
        VERDICT,
    ]


def write(folder: Path, records: Iterable[Any], *, rank: int = 0, world_size: int = 1, **header: Any) -> Path:
    """Write a recording and return its folder."""
    known: dict[str, Any] = {
        "run_id": "ab12cd",
        "rank": rank,
        "world_size": world_size,
        "started_s": START_S,
        "host": "node1",
        "pid": 42,
        "version": "0.1.0",
        "framework": "lightning 2.6.6",
        "settings": {"precision": "32-true", "devices": 1},
    }
    recorder = Recorder(folder, Header(**{**known, **header}))
    for record in records:
        recorder.write(record)
    recorder.close()
    return folder
