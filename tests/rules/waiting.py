"""Windows of a run of 1,000 steps that waits for data, with what workers and host did meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from stallmeter.records import BatchContent, HostSample, LoaderInfo, StepRecord, WorkerBatch, WorkerMemory
from stallmeter.window import Window

from .windows import START_S, ledger, step, window


def waiting(
    *,
    workers: int = 2,
    active: int | None = None,
    threads: float | None = None,
    wait_s: float | Callable[[int], float] = 0.05,
    work_s: float = 0.05,
    batch_s: float | Callable[[int], float] = 0.1,
    cpu_share: float = 1.0,
    queue_share: float = 0.0,
    ready: int | None = 0,
    head_ready: bool | None = False,
    cpus: float = 8.0,
    others_cpus: float = 0.0,
    throttled_pct: float | None = None,
    probed: bool = True,
    loader: dict[str, Any] | None = None,
    busy_share: float = 1.0,
    pinned: tuple[int, int] | None = None,
    spare_bytes: int | None = None,
) -> Window:
    """Build the window.

    Args:
        workers: Of the loader; with 0 the batches are the loop thread's.
        active: So many of them make all batches.
        wait_s: Data wait of a step, or of each one.
        work_s: The rest of a step.
        batch_s: Time to make a batch without waiting for a CPU, or of each one.
        cpu_share: Share of that in which it computes; otherwise it is blocked.
        queue_share: Share of the whole time of a batch that it waits for a CPU.
        ready: Batches ready when one is asked for.
        head_ready: Whether the one that came was.
        cpus: Usable CPUs.
        others_cpus: CPUs that others keep busy.
        throttled_pct: Share of throttled quota periods.
        probed: Whether the workers were probed.
        loader: Changes to the loader's record.
        busy_share: Share of their time in which the workers make batches.
        pinned: CPUs that the workers may run on, and those of the process.
        spare_bytes: That are sent with each batch of a megabyte.
    """
    info = LoaderInfo(
        time_s=START_S, kind="DataLoader", num_workers=workers, batch_size=32, start_method="fork", probed=probed
    )
    records: list[Any] = [replace(info, **(loader or {}))]
    waits = [wait_s(i) if callable(wait_s) else wait_s for i in range(100)]
    now_s = START_S + 1.0
    for i, wait in enumerate(waits):
        now_s += wait + work_s
        records.append(_step(i, wait, work_s, now_s, ready, head_ready))
    for i in range(60) if probed else ():
        made = batch_s(i) if callable(batch_s) else batch_s
        queue = made * queue_share / (1 - queue_share)
        records.append(
            WorkerBatch(
                worker=i % (active or workers) if workers else -1,
                time_s=START_S + 1.5 + 0.1 * i,
                wall_s=made + queue,
                cpu_s=made * cpu_share,
                process_cpu_s=None if threads is None else threads * made * cpu_share,
                run_queue_s=queue,
                idle_s=(made + queue) * (1 / busy_share - 1) if workers and i >= workers else None,
                spare_bytes=spare_bytes,
            )
        )
    if spare_bytes is not None:
        records.append(BatchContent(time_s=START_S, tensors=8, bytes=1_000_000))
    mean = sum(waits) / len(waits)
    own = min(cpus if pinned is None else pinned[0], max(1, workers) * cpu_share * busy_share * 0.9)
    records += [
        HostSample(
            time_s=START_S + 2 + i,
            usable_cpus=cpus,
            others_cpus=others_cpus,
            job_cpus=own,
            main_cpus=0.1,
            cpu_throttled_pct=throttled_pct,
        )
        for i in range(10)
    ]
    if pinned is not None:
        records.append(
            WorkerMemory(time_s=START_S + 5, workers=workers, rss_bytes=1, cpus=pinned[0], process_cpus=pinned[1])
        )
    total = 1000 * (mean + work_s)
    spent = {"start": 1.0, "data_wait": 1000 * mean, "forward": 1000 * work_s, "backward": 0.0, "optimizer": 0.0}
    records.append(ledger(wall_s=total + 1.0, loop=0.0, **spent))
    return window(*records)


def _step(index: int, wait_s: float, work_s: float, time_s: float, ready: int | None, head: bool | None) -> StepRecord:
    return step(
        index,
        total_s=wait_s + work_s,
        data_wait_s=wait_s,
        forward_s=work_s,
        backward_s=0.0,
        optimizer_s=0.0,
        loop_s=0.0,
        time_s=time_s,
        ready=ready,
        head_ready=head,
    )
