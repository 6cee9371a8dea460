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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from stallmeter.engine.job_watch import MERGED_STEPS
from stallmeter.ranks.channels import StoreChannel
from stallmeter.ranks.job import RankView, assemble, facts_of
from stallmeter.ranks.posts import PostPace, decode_post, encode_post, joined
from stallmeter.records import HostSample, LedgerRecord, StepRecord
from stallmeter.records.diagnosis import Verdict
from stallmeter.rules.job.evaluation import JobVerdict, judge

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
    cpu_s: float
    peak_bytes: int
    shown_bytes: Mapping[str, int]
    """By format."""
    primary: Mapping[str, Any]
    lost_s: float
    """As it was planted."""

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
            f"{self.cpu_s:.1f} s | "
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
    shown, wall_s, cpu_s, peak_bytes = {}, 0.0, 0.0, 0
    for form in ("text", "json"):
        output = folder.with_suffix(f".{form}")
        took_s, used_s, peak = measured(
            [sys.executable, "-m", "stallmeter", "report", str(folder), "--format", form, "--output", str(output)]
        )
        wall_s, cpu_s, peak_bytes = max(wall_s, took_s), max(cpu_s, used_s), max(peak_bytes, peak)
        shown[form] = output.stat().st_size
    document = json.loads(folder.with_suffix(".json").read_text())
    recorded = sum(path.stat().st_size for path in folder.iterdir())
    return Read(job, recorded, wall_s, cpu_s, peak_bytes, shown, document.get("primary") or {}, job.lost_s)


def measured(command: Sequence[str]) -> tuple[float, float, int]:
    """Return how long a program ran, the CPU time that it took, and its largest resident size in bytes.

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
    peak_bytes = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return wall_s, usage.ru_utime + usage.ru_stime, peak_bytes


def posted(job: SimulatedJob) -> Posted:
    """Let all ranks of a job live through some minutes, a second at a time, and count what they tell rank 0."""
    job = SimulatedJob(job.ranks, min(job.steps, 60 * MINUTES * 30))
    meetings_s = job.meetings_s()
    verdicts = own_verdicts(job, meetings_s)
    ranks = [_Rank(job, rank, meetings_s, verdicts[rank == job.late]) for rank in range(job.ranks)]
    by_minute: list[int] = []
    longest_post_s = longest_round_s = 0.0
    said: JobVerdict | None = None
    with store() as channel:
        sent = posts = 0
        for second in range(1, 60 * MINUTES + 1):
            for rank in ranks[1:]:
                if (text := rank.live(float(second))) is not None:
                    began_s = time.perf_counter()
                    channel.post(rank.number, text.decode("ascii"))
                    longest_post_s = max(longest_post_s, rank.took_s + time.perf_counter() - began_s)
                    sent, posts = sent + len(text), posts + 1
            if (own := ranks[0].live(float(second))) is not None:
                began_s = time.perf_counter()
                said = _round(ranks, own, channel)
                longest_round_s = max(longest_round_s, time.perf_counter() - began_s)
            if second % 60 == 0:
                by_minute.append(sent - sum(by_minute))
    primary = None if said is None else said.verdict.primary
    if primary is None or (primary.rule, primary.ranks) != ("straggler", (job.late,)):
        raise SystemExit(f"rank 0 of {job.ranks} says {primary and (primary.rule, primary.ranks)}, not the late rank")
    return Posted(job.ranks, tuple(by_minute), posts // (job.ranks - 1), longest_round_s, longest_post_s)


def _round(ranks: Sequence[_Rank], own: bytes, channel: StoreChannel) -> JobVerdict:
    """Do what rank 0 does when it is time: read all posts, merge, judge."""
    first, *others = ranks
    first.take(own)
    for rank in others:
        if (text := channel.posted(rank.number)) is not None:
            rank.take(text.encode())
    return judge(assemble([rank.view for rank in ranks if rank.view is not None]))


class _Rank:
    """One rank that lives through simulated seconds, and what rank 0 knows of it."""

    def __init__(self, job: SimulatedJob, number: int, meetings_s: Sequence[float], own: Verdict) -> None:
        self.number = number
        self.view: RankView | None = None
        self.took_s = 0.0
        """Time to make the newest post."""
        self._header = job.header(number)
        self._records = records_of(job, number, meetings_s)
        self._own = own
        self._pace = PostPace(job.ranks, 0.0)
        self._most_steps = max(64, MERGED_STEPS // job.ranks)
        self._new: list[StepRecord] = []
        self._ledger: LedgerRecord | None = None
        self._facts: dict[str, float] = {}

    def live(self, now_s: float) -> bytes | None:
        """Take the records of one second, up to its ledger; return a post where it is time for one."""
        for record in self._records:
            if isinstance(record, StepRecord):
                self._new.append(record)
            elif isinstance(record, HostSample):
                self._facts = facts_of([record], ())
            elif isinstance(record, LedgerRecord):
                self._ledger = record
                break
        if now_s < self._pace.due_s or self._ledger is None:
            return None
        self._pace.begin(now_s)
        began_s = time.perf_counter()
        text = encode_post(self._header, self._ledger, self._own, self._new, facts=self._facts, most=self._pace.most)
        self.took_s = time.perf_counter() - began_s
        self._new.clear()
        return text

    def take(self, text: bytes) -> None:
        """Take a post of this rank, as rank 0 does."""
        self.view = joined(self.view, decode_post(text), self._most_steps)


@contextmanager
def store() -> Iterator[StoreChannel]:
    """Return a channel through a client of a real store on this machine; simulated ranks take turns with it."""
    from torch.distributed import TCPStore

    patience = timedelta(seconds=30)
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=patience)
    client = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False, timeout=patience)
    yield StoreChannel(client, "scale")


def table(reads: Sequence[Read], posts: Sequence[Posted]) -> str:
    """Return both tables as Markdown."""
    lines = [
        f"Goals: {GOAL_S:.0f} s and {GOAL_BYTES / 1e9:.0f} GB a report, {GOAL_BYTES_PER_MIN / 1e6:.0f} MB a minute.",
        "",
        "| ranks of kept steps | recording | report | its CPU time | largest resident size | text / JSON | says |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
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
