"""What the verdict of a job of hundreds of ranks costs: reading its recording, and telling rank 0 while it runs.

The recordings are simulated, and written by the real recorder. They are read by ``stallmeter report`` in a process of
its own, whose time and largest resident size are measured. Posts are made, sent and read by the real code through a
real ``TCPStore`` on this machine; two minutes of the clock are simulated.

    python -m benchmarks.ranks.scale [--ranks N ...] [--steps N] [--folder F] [--keep] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stallmeter.engine.job_watch import JobWatch
from stallmeter.ranks.channels import StoreChannel
from stallmeter.records import LedgerRecord
from stallmeter.records.diagnosis import Verdict
from stallmeter.window import Window

from .simulated import SimulatedJob, own_verdicts, records_of, write_job

RANKS = (8, 64, 512)
STEPS = 10_000
GOAL_S, GOAL_BYTES, GOAL_BYTES_PER_MIN = 60.0, 1e9, 1e6
NEAR = 0.10
MINUTES = 2


@dataclass(frozen=True, slots=True)
class Read:
    """One reading of a recording."""

    job: SimulatedJob
    recorded_bytes: int
    wall_s: float
    peak_bytes: int
    shown_bytes: Mapping[str, int]
    """By format."""
    primary: Mapping[str, Any]
    lost_s: float
    """In truth."""

    @property
    def is_right(self) -> bool:
        """Whether the late rank is named, and what it costs is right."""
        near = abs(self.primary.get("time_lost_s", 0.0) / self.lost_s - 1.0) <= NEAR
        return self.primary.get("rule") == "straggler" and self.primary.get("ranks") == [self.job.late] and near

    @property
    def row(self) -> str:
        said = f"{self.primary.get('rule', 'nothing')} {self.primary.get('ranks', '')}"
        sizes = " / ".join(f"{size / 1e3:.0f}" for size in self.shown_bytes.values())
        return (
            f"| {self.job.ranks} of {self.job.steps:,} | {self.recorded_bytes / 1e6:,.0f} MB | {self.wall_s:.1f} s | "
            f"{self.peak_bytes / 1e6:.0f} MB | {sizes} kB | {said}, {self.primary.get('time_lost_s', 0.0):.1f} of "
            f"{self.lost_s:.1f} s |"
        )


@dataclass(frozen=True, slots=True)
class Posted:
    """What the ranks of a job tell rank 0."""

    ranks: int
    bytes_per_min: tuple[int, ...]
    """Of all ranks together, by minute of the run."""
    posts: int
    """Of one rank, in all these minutes."""
    round_s: float
    """Longest of rank 0's rounds: reading all posts, merging, judging."""
    post_s: float
    """Longest of one rank's rounds: making its post and sending it."""

    @property
    def row(self) -> str:
        sizes = " / ".join(f"{size / 1e6:.2f}" for size in self.bytes_per_min)
        return (
            f"| {self.ranks} | {self.posts} | {sizes} MB | {1e3 * self.post_s:.0f} ms | {1e3 * self.round_s:.0f} ms |"
        )


def main() -> None:
    """Measure, and print the tables."""
    options = _arguments()
    reads, posts = [], []
    for ranks in options.ranks:
        posts.append(posted(SimulatedJob(ranks, options.steps)))
        print(posts[-1].row, file=sys.stderr, flush=True)
    for ranks in options.ranks:
        job = SimulatedJob(ranks, options.steps)
        folder = options.folder / f"{ranks}x{options.steps}"
        reads.append(read(job, folder))
        print(reads[-1].row, file=sys.stderr, flush=True)
        if not options.keep:
            shutil.rmtree(folder)
    text = table(reads, posts)
    print(text)
    if options.markdown:
        options.markdown.write_text(text)
    if not all(each.is_right for each in reads):
        raise SystemExit("a verdict is wrong")


def read(job: SimulatedJob, folder: Path) -> Read:
    """Write a job's recording, unless it is there, and measure its report."""
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        write_job(folder, job)
        (folder / "complete").touch()
    shown, wall_s, peak_bytes = {}, 0.0, 0
    for form in ("text", "json"):
        output = folder.with_suffix(f".{form}")
        took_s, peak = measured(
            [sys.executable, "-m", "stallmeter", "report", str(folder), "--format", form, "--output", str(output)]
        )
        wall_s, peak_bytes = max(wall_s, took_s), max(peak_bytes, peak)
        shown[form] = output.stat().st_size
    document = json.loads(folder.with_suffix(".json").read_text())
    recorded = sum(path.stat().st_size for path in folder.iterdir())
    return Read(job, recorded, wall_s, peak_bytes, shown, document.get("primary") or {}, job.lost_s())


def measured(command: Sequence[str]) -> tuple[float, int]:
    """Return how long a program ran and its largest resident size in bytes.

    Raises:
        SystemExit: It failed.
    """
    began_s = time.perf_counter()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return wall_s, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class Counting(StoreChannel):
    """A channel that counts what is posted over it."""

    posts = 0
    sent_bytes = 0

    def post(self, rank: int, text: str) -> None:
        type(self).posts += 1
        type(self).sent_bytes += len(text)
        super().post(rank, text)


def posted(job: SimulatedJob) -> Posted:
    """Let all ranks of a job live through some minutes, a second at a time, and count what they tell rank 0."""
    clock = SimpleNamespace(now_s=0.0)
    job = SimulatedJob(job.ranks, min(job.steps, 60 * MINUTES * 30))
    meetings_s = job.meetings_s()
    verdicts = own_verdicts(job, meetings_s)
    Counting.posts = Counting.sent_bytes = 0
    with store() as connect:
        ranks = [_Rank(job, rank, meetings_s, verdicts[rank == job.late], connect, clock) for rank in range(job.ranks)]
        by_minute, before = [], 0
        for second in range(1, 60 * MINUTES + 1):
            clock.now_s = float(second)
            for rank in reversed(ranks):  # rank 0 last: it reads what the others have just sent
                rank.live()
            if second % 60 == 0:
                by_minute.append(Counting.sent_bytes - before)
                before = Counting.sent_bytes
    judged = ranks[0].watch.judged
    primary = None if judged is None else judged.verdict.primary
    if primary is None or (primary.rule, primary.ranks) != ("straggler", (job.late,)):
        raise SystemExit(f"rank 0 of {job.ranks} says {primary and (primary.rule, primary.ranks)}, not the late rank")
    posts = Counting.posts // (job.ranks - 1)
    return Posted(job.ranks, tuple(by_minute), posts, ranks[0].longest_s, max(r.longest_s for r in ranks[1:]))


class _Rank:
    """One rank that lives through simulated seconds."""

    def __init__(
        self,
        job: SimulatedJob,
        rank: int,
        meetings_s: Sequence[float],
        own: Verdict,
        connect: Callable[[str], StoreChannel],
        clock: SimpleNamespace,
    ) -> None:
        self._header = SimpleNamespace(header=job.header(rank))
        self._records = records_of(job, rank, meetings_s)
        self._own = own
        self._window = Window()
        self.watch = JobWatch(
            rank,
            job.ranks,
            lambda topic: {"store": lambda: connect(topic)},
            self._window,
            lambda _: None,
            clock=lambda: clock.now_s,
        )
        self.longest_s = 0.0

    def live(self) -> None:
        """Take the records of one second, up to its ledger, and exchange what is due."""
        for record in self._records:
            self.watch.keep(record)
            if isinstance(record, LedgerRecord):
                self._window.append(record)
                break
        began_s = time.perf_counter()
        self.watch.exchange(self._header, self._own)
        self.longest_s = max(self.longest_s, time.perf_counter() - began_s)


@contextmanager
def store() -> Iterator[Callable[[str], StoreChannel]]:
    """A real store on this machine, and what makes a channel through a client of its own."""
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    # One client for all simulated ranks but one for rank 0's reading would be the same to the server: they take turns.
    client = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=30))
    yield lambda topic: Counting(client, topic)


def table(reads: Sequence[Read], posts: Sequence[Posted]) -> str:
    """Return both tables as Markdown."""
    lines = [
        f"Goals: {GOAL_S:.0f} s and {GOAL_BYTES / 1e9:.0f} GB a report, {GOAL_BYTES_PER_MIN / 1e6:.0f} MB a minute.",
        "",
        "| ranks of kept steps | recording | report | largest resident size | text / JSON | says |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
        *(each.row for each in reads),
        "",
        "| ranks | posts of one | all posts, by minute | making one | rank 0's round |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(each.row for each in posts),
    ]
    return "\n".join(lines) + "\n"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.ranks.scale", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--steps", type=int, default=STEPS, help="kept by each rank")
    parser.add_argument("--folder", type=Path, default=Path("build/ranks-scale"), help="2 GB for 512 ranks")
    parser.add_argument("--keep", action="store_true", help="keep the recordings, and take those that are there")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    main()
