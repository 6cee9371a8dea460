"""Recordings of jobs of hundreds of ranks: numbers that are drawn, written by the real recorder.

All ranks compute the same, but for a little that differs in each step, and one of them is late in each step with its
forward pass. The others wait for it in their backward pass, eight ranks to a host, each host with a clock of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from stallmeter.recording import Header, Recorder
from stallmeter.records import Event, HostSample, LedgerRecord, LoaderInfo, StepRecord, WorkerBatch
from stallmeter.records.diagnosis import Verdict
from stallmeter.report.model import read_history
from stallmeter.rules.evaluation import diagnose

PER_HOST = 8
START_S, BEGUN_S = 3.0, 1.7e9
WAIT_S, FORWARD_S, BACKWARD_S, OPTIMIZER_S, LOOP_S = 0.0015, 0.014, 0.026, 0.003, 0.0005
LATE_S = 0.012
"""What the late rank's forward pass takes beyond the others'."""

JITTER_S = 0.0003
"""Mean of what differs between ranks in each step."""

FLUSH_STEPS = 1000


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """One job."""

    ranks: int
    steps: int

    @property
    def late(self) -> int:
        """The rank that all others wait for."""
        return self.ranks // 3

    def header(self, rank: int) -> Header:
        """Return the first line of a rank's recording."""
        host = rank // PER_HOST
        return Header(
            run_id=f"simulated-{self.ranks}",
            rank=rank,
            world_size=self.ranks,
            started_s=BEGUN_S + 0.7 * host,
            host=f"node{host:03d}",
            pid=1000 + rank % PER_HOST,
            version="simulated",
            framework="lightning 2.6.6",
        )

    @property
    def lost_s(self) -> float:
        """What the others wait for the late rank."""
        return LATE_S * self.steps

    def arrivals_s(self, rank: int) -> array[float]:
        """Return how long after a step's begin this rank enters the exchange, for each step."""
        random = Random(rank)
        own_s = WAIT_S + FORWARD_S + (LATE_S if rank == self.late else 0.0)
        return array("d", (own_s + random.expovariate(1.0 / JITTER_S) for _ in range(self.steps)))

    def meetings_s(self) -> array[float]:
        """Return when the last rank enters the exchange, for each step."""
        last_s = self.arrivals_s(0)
        for rank in range(1, self.ranks):
            last_s = array("d", map(max, last_s, self.arrivals_s(rank)))
        return last_s


def records_of(job: SimulatedJob, rank: int, meetings_s: Sequence[float]) -> Iterator[Any]:
    """Yield what one rank records, without its verdict and its end."""
    began_s = job.header(rank).started_s
    now_s = began_s + START_S
    ledger_due_s = now_s
    buckets = dict.fromkeys(("data_wait", "forward", "backward", "optimizer", "callbacks", "loop"), 0.0)
    buckets = {"start": START_S, **buckets}
    yield LoaderInfo(time_s=now_s, kind="DataLoader", num_workers=4, batch_size=32, prefetch_factor=2, probed=True)
    for index, own_s in enumerate(job.arrivals_s(rank)):
        spent = {
            "data_wait": WAIT_S,
            "forward": own_s - WAIT_S,
            "backward": meetings_s[index] - own_s + BACKWARD_S,
            "optimizer": OPTIMIZER_S,
            "callbacks": 0.0001,
            "loop": LOOP_S,
        }
        total_s = sum(spent.values())
        now_s += total_s
        for name, seconds in spent.items():
            buckets[name] += seconds
        yield WorkerBatch(
            worker=index % 4, time_s=now_s, wall_s=0.09, cpu_s=0.085, process_cpu_s=0.086, run_queue_s=0.001,
            collate_s=0.004, read_bytes=0, items=32, idle_s=0.07,
        )  # fmt: skip
        yield StepRecord(
            index=index, epoch=0, optimizer_step=index + 1, tracker_step=index, samples=32, time_s=now_s,
            total_s=total_s, epoch_start=index == 0, ready=3, head_ready=True,
            **{f"{name}_s": seconds for name, seconds in spent.items()},
        )  # fmt: skip
        if now_s >= ledger_due_s or index == job.steps - 1:
            ledger_due_s = now_s + 1.0
            yield HostSample(
                time_s=now_s, cpu_user_pct=55.0, cpu_system_pct=4.0, cpu_steal_pct=0.1, host_cpus=96, usable_cpus=12.0,
                job_cpus=4.5, main_cpus=1.0, loop_cpu_pct=96.0, loop_cpu_wait_pct=0.2, others_cpus=0.3, ranks_cpus=30.0,
                job_processes=5, job_rss_bytes=9_000_000_000, memory_used_bytes=80_000_000_000, open_files=120,
            )  # fmt: skip
            yield LedgerRecord(
                time_s=now_s, wall_s=now_s - began_s, steps=index + 1, epochs=1, buckets=dict(buckets),
                callbacks={"ModelCheckpoint": buckets["callbacks"]}, own_s=0.002 * index / 100,
                thread_cpu_s=0.01 * (now_s - began_s), recorded_steps=index + 1, samples=32 * (index + 1),
            )  # fmt: skip


def write_rank(
    folder: Path, job: SimulatedJob, meetings_s: Sequence[float], verdicts: tuple[Verdict, Verdict] | None, rank: int
) -> None:
    """Write one rank's recording.

    Args:
        folder: The recording's folder.
        job: What is simulated.
        meetings_s: As `SimulatedJob.meetings_s` returns it.
        verdicts: Of a rank that waits and of the late one.
        rank: Whose.
    """
    recorder = Recorder(folder, job.header(rank))
    end = Event(time_s=BEGUN_S, name="end", detail="end")
    last = [] if verdicts is None else [verdicts[rank == job.late], end]
    for number, record in enumerate(chain(records_of(job, rank, meetings_s), last)):
        recorder.write(record)
        if number % FLUSH_STEPS == 0:
            recorder.flush()
    recorder.close()


def write_job(folder: Path, job: SimulatedJob) -> None:
    """Write the recordings of all ranks, with the verdicts that today's rules come to on a waiting and the late one."""
    meetings_s = job.meetings_s()
    verdicts = own_verdicts(job, meetings_s)
    with ProcessPoolExecutor(max_workers=2) as pool:
        for _ in pool.map(partial(write_rank, folder, job, meetings_s, verdicts), range(job.ranks)):
            pass


def own_verdicts(job: SimulatedJob, meetings_s: Sequence[float]) -> tuple[Verdict, Verdict]:
    """Return what a rank that waits says of itself, and what the late one says."""
    waiting, late = (0 if job.late else 1), job.late
    with TemporaryDirectory() as temporary:
        for rank in (waiting, late):
            write_rank(Path(temporary), job, meetings_s, None, rank)
        return tuple(read_history(Path(temporary), rank).guarded(diagnose) for rank in (waiting, late))  # type: ignore[return-value]
