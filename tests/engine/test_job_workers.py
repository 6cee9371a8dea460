"""One number of workers for all ranks: simulated jobs, whose ranks share a folder and a clock that does not run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stallmeter.engine.job_workers import LOOKS, JobWorkers, look_s, part_of
from stallmeter.errors import SettingError
from stallmeter.ranks.channels import FolderChannel
from stallmeter.ranks.run_folder import Channel
from stallmeter.recording import Header, Reader
from stallmeter.records import Event, StepRecord, WorkerChange, WorkerTrial
from stallmeter.records.diagnosis import WorkerAdvice
from stallmeter.timing.clock import StepClock
from stallmeter.timing.ledger import COMPUTE, OTHER, START, Ledger
from stallmeter.workers.apply import OnNumWorkers, WorkerTuner

from ..conftest import FakeTime
from ..ports import free_port
from ..warm import Forks, Program

STEPS = 20


def advice(current: int, recommended: int) -> WorkerAdvice:
    return WorkerAdvice(
        current=current,
        recommended=recommended,
        predicted_step_time_s=0.1,
        predicted_gain_pct=0.0 if recommended == current else 100.0,
        limited_by="compute",
        reason="",
        confidence=0.9,
    )


class Folder(FolderChannel):
    """A channel through files that can be cut."""

    cut: frozenset[int] = frozenset()

    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__(folder)
        self._of = rank

    def post(self, rank: int, text: str) -> bool:
        self._check()
        return super().post(rank, text)

    def posted(self, rank: int) -> str | None:
        self._check()
        return super().posted(rank)

    def _check(self) -> None:
        if self._of in self.cut:
            raise ConnectionError("cut")


class Rank:
    """One rank: its loader, its clock, and what it records."""

    def __init__(self, job: SimulatedJob, rank: int, workers: int, mode: OnNumWorkers) -> None:
        self.rank = rank
        self.loader = SimpleNamespace(num_workers=workers, prefetch_factor=2, persistent_workers=False)
        self.refuses = ""
        self.numbers: list[int] = []
        self.steps: list[StepRecord] = []
        self.records: list[Any] = []
        self.events: list[Event] = []
        self.clock = StepClock(Ledger(START, now=job.time), loop=COMPUTE, idle=OTHER, unix_ns=lambda: 0)
        part = part_of(rank, job.size, 1.0)
        self.tuner = WorkerTuner(
            mode,
            resize=self._resize,
            why_fixed=lambda loader, workers: None,
            guard=lambda name, call, *args: call(*args),
            tell=self.events.append,
            job=part,
        )
        find = partial(job.channels, rank=rank)
        self.carrier = JobWorkers(rank, part, find, every_s=1.0, clock=lambda: job.time.ns / 1e9)

    def _resize(self, loader: Any, workers: int, *, prefetch_factor: int | None = None) -> None:
        if self.refuses:
            raise SettingError(self.refuses)
        loader.num_workers = workers

    def tick(self, advised: WorkerAdvice | None, now_s: float, ended: bool = False) -> None:
        boundaries = self.tuner.take_boundaries()
        for step in self.steps:
            while boundaries and boundaries[0].step <= step.index:
                self.records += self.tuner.on_boundary(boundaries.pop(0))
            self.tuner.step(step)
        self.steps.clear()
        for boundary in boundaries:
            self.records += self.tuner.on_boundary(boundary)
        self.tuner.decide(advised, fresh=True, now_s=now_s)
        header = Header(run_id="run", rank=self.rank, started_s=0.0)
        with suppress(OSError):
            self.records += self.tuner.heard(self.carrier.exchange(SimpleNamespace(header=header), ended))
        if ended:
            self.records += self.tuner.finish(None)

    def of(self, kind: type) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]


class SimulatedJob:
    """Ranks that take each step together.

    Args:
        step_s: How long a step takes each rank, given its number of workers; the job's is the longest.
        best: What is advised for the job.
    """

    def __init__(
        self,
        folder: Path,
        *,
        step_s: Callable[[int, int], float],
        best: int = 6,
        size: int = 2,
        mode: OnNumWorkers = "apply",
        workers: tuple[int, ...] = (),
    ) -> None:
        self.time = FakeTime()
        self.size = size
        self.best = best
        self.deaf: set[int] = set()
        """Ranks whose sampler thread does not come to its turn."""
        self._folder = folder
        self._step_s = step_s
        self._ticked_s = 0.0
        self.ranks = [Rank(self, rank, (workers or (2,) * size)[rank], mode) for rank in range(size)]

    def channels(self, topic: str, *, rank: int) -> Mapping[str, Callable[[], Channel]]:
        return {"files": lambda: Folder(self._folder / ".ranks" / topic.replace("/", "-"), rank)}

    def train(self, epochs: int) -> SimulatedJob:
        for _ in range(epochs):
            for rank in self.ranks:
                rank.tuner.attach(rank.loader)
                if rank.clock.index:
                    rank.tuner.boundary(rank.clock)
                rank.clock.epochs += 1
                rank.numbers.append(rank.loader.num_workers)
            for number in range(STEPS):
                self._step(number)
        return self

    def _step(self, number: int) -> None:
        seconds = max(self._step_s(rank.rank, rank.loader.num_workers) for rank in self.ranks)
        self.time.sleep(seconds)
        now_s = self.time.ns / 1e9
        for rank in self.ranks:
            rank.steps.append(
                StepRecord(
                    index=rank.clock.index, epoch=0, optimizer_step=None, tracker_step=0, samples=1,
                    time_s=now_s, total_s=seconds, data_wait_s=0.0, epoch_start=number == 0,
                )
            )  # fmt: skip
            rank.clock.index += 1
        while self._ticked_s < now_s:
            self._ticked_s += 1.0
            for rank in self.ranks:
                if rank.rank not in self.deaf:
                    now = rank.loader.num_workers
                    rank.tick(advice(now, self.best), now_s)

    def end(self) -> SimulatedJob:
        for rank in reversed(self.ranks):
            rank.tick(None, self.time.ns / 1e9, ended=True)
        return self

    @property
    def numbers(self) -> list[list[int]]:
        return [rank.numbers for rank in self.ranks]

    def outcomes(self, rank: int) -> list[tuple[int, int, str]]:
        return [(t.before, t.workers, t.outcome) for t in self.ranks[rank].of(WorkerTrial)]

    def said(self, rank: int) -> list[tuple[str, str]]:
        return [(e.name, e.detail) for e in self.ranks[rank].events]


@pytest.fixture(autouse=True)
def not_cut() -> Iterator[None]:
    yield
    Folder.cut = frozenset()


def slow_rank_1(rank: int, workers: int) -> float:
    return 2.0 / max(1, workers) if rank == 1 else 0.1


def no_better(rank: int, workers: int) -> float:
    return 1.0


def test_all_ranks_get_the_number_before_the_same_epoch(tmp_path: Path) -> None:
    job = SimulatedJob(tmp_path, step_s=slow_rank_1, size=4).train(6).end()
    assert job.numbers == [[2, 2, 6, 6, 6, 6]] * 4
    for rank in range(4):
        assert job.outcomes(rank) == [(2, 6, "measuring"), (2, 6, "kept")]
        assert [(c.before, c.workers) for c in job.ranks[rank].of(WorkerChange)] == [(2, 6)]
        assert job.said(rank) == [("num_workers", "rank 0 decides for all ranks")]
        kept = job.ranks[rank].of(WorkerTrial)[-1]  # the job's: rank 0 alone would have gained nothing
        assert kept.achieved_gain_pct == pytest.approx(200.0, rel=0.01)
    assert not (tmp_path / ".ranks").exists()


def test_what_is_not_better_for_the_job_is_taken_back_by_all(tmp_path: Path) -> None:
    job = SimulatedJob(tmp_path, step_s=no_better, size=3).train(7).end()
    assert job.numbers == [[2, 2, 6, 2, 2, 2, 2]] * 3
    for rank in range(3):
        assert job.outcomes(rank) == [(2, 6, "measuring"), (2, 6, "reverted")]


def test_epochs_shorter_than_a_message_takes(tmp_path: Path) -> None:
    """Epochs of two seconds, and three for an order to be heard of."""
    job = SimulatedJob(tmp_path, step_s=lambda rank, workers: 0.2 / max(1, workers)).train(40).end()
    assert job.numbers[0] == job.numbers[1]
    assert job.numbers[0][0] == 2
    assert job.numbers[0][-1] == 6
    assert job.outcomes(0) == job.outcomes(1) == [(2, 6, "measuring"), (2, 6, "kept")]


def test_a_rank_that_hears_late_takes_the_number_an_epoch_later(tmp_path: Path) -> None:
    """Nobody waits for it. Nothing is measured while the ranks differ."""
    job = SimulatedJob(tmp_path, step_s=slow_rank_1).train(1)
    job.deaf = {1}
    job.train(1)  # the order is given, and holds from the next epoch on
    job.deaf = set()
    job.train(4).end()
    assert job.numbers == [[2, 2, 6, 6, 6, 6], [2, 2, 2, 6, 6, 6]]
    assert job.outcomes(0) == [(2, 6, "measuring"), (2, 6, "kept")]
    assert job.ranks[0].of(WorkerTrial)[-1].achieved_gain_pct == pytest.approx(200.0, rel=0.01)


def test_a_number_that_one_rank_refuses_is_taken_back(tmp_path: Path) -> None:
    job = SimulatedJob(tmp_path, step_s=slow_rank_1, size=3)
    job.ranks[2].refuses = "this process is a daemon"
    job.train(7).end()
    assert job.numbers[0] == job.numbers[1] == [2, 2, 6, 2, 2, 2, 2]
    assert set(job.numbers[2]) == {2}
    assert job.outcomes(0) == job.outcomes(1) == [(2, 6, "measuring"), (2, 6, "abandoned")]
    for rank in (0, 1):
        assert ("num_workers is not changed", "rank 2: this process is a daemon") in job.said(rank)


def test_a_number_that_rank_0_refuses_is_taken_back(tmp_path: Path) -> None:
    job = SimulatedJob(tmp_path, step_s=slow_rank_1)
    job.ranks[0].refuses = "this process is a daemon"
    job.train(6).end()
    assert job.numbers == [[2] * 6, [2, 2, 6, 2, 2, 2]]
    assert ("num_workers is not changed", "rank 0: this process is a daemon") in job.said(1)


def test_a_rank_that_is_cut_off_ends_with_the_others_number(tmp_path: Path) -> None:
    """It never hears of the order: the others come back to the number that it has."""
    job = SimulatedJob(tmp_path, step_s=no_better, size=3).train(1)
    Folder.cut = frozenset({2})
    job.train(8)
    assert job.ranks[2].numbers == [2] * 9
    assert 6 in job.ranks[0].numbers
    assert [rank.loader.num_workers for rank in job.ranks] == [2, 2, 2]
    assert ("num_workers is not changed", "rank 2 has not said that it took the number") in job.said(0)


def test_ranks_without_a_connection_decide_each_for_itself(tmp_path: Path) -> None:
    Folder.cut = frozenset({0, 1})
    job = SimulatedJob(tmp_path, step_s=slow_rank_1).train(7).end()
    assert [set(numbers) for numbers in job.numbers] == [{2, 6}, {2, 6}]
    assert job.said(0) == [("num_workers", "each rank decides for itself: rank 1 was not heard of in 75 s")]
    assert job.said(1) == [("num_workers", "each rank decides for itself: rank 0 was not heard of in 90 s")]


def test_ranks_with_different_numbers_keep_them(tmp_path: Path) -> None:
    job = SimulatedJob(tmp_path, step_s=slow_rank_1, workers=(2, 4)).train(4).end()
    assert job.numbers == [[2] * 4, [4] * 4]
    why = "the ranks began with different numbers: rank 1 has 4 workers, rank 0 2"
    assert job.said(0) == job.said(1) == [("num_workers is not changed", why)]


def test_every_ranks_function_is_asked_with_the_same_advice(tmp_path: Path) -> None:
    asked: list[WorkerAdvice] = []

    def choose(told: WorkerAdvice) -> int | None:
        asked.append(told)
        return told.recommended - 1 if told.current == 2 else None

    job = SimulatedJob(tmp_path, step_s=slow_rank_1, mode=choose).train(5)
    assert job.numbers == [[2, 2, 5, 5, 5]] * 2
    assert asked[:4] == [advice(2, 6), advice(2, 6), advice(5, 6), advice(5, 6)]


def test_a_run_that_ends_while_it_is_measured(tmp_path: Path) -> None:
    job = SimulatedJob(tmp_path, step_s=slow_rank_1).train(3).end()
    assert job.outcomes(1) == [(2, 6, "measuring"), (2, 6, "unsettled")]


def test_many_ranks_look_more_rarely() -> None:
    assert look_s(1.0, 2) == 1.0
    assert look_s(1.0, 512) == 4.0
    assert LOOKS * look_s(1.0, 512) == 12.0


# -- real processes ----------------------------------------------------------------------------------------------------

PROGRAM = Path(__file__).with_name("workers_of_ranks.py")
TORCHRUN = "from torch.distributed.run import main; main()"
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "GROUP_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PM")


def environment(**more: str) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_VARIABLES)} | more


def ended(*programs: Program) -> None:
    try:
        for program in programs:
            said = program.communicate(timeout=200)
            assert program.returncode == 0, "".join(said)[-3000:]
    finally:
        for program in programs:
            program.kill()


def assert_same_numbers_and_batches(folder: Path) -> None:
    """Both ranks had the same number in each epoch, other ones in time, and the batches that they would have had."""
    had = {
        name: [json.loads((folder / f"{name}-{r}.json").read_text()) for r in (0, 1)] for name in ("with", "without")
    }
    (workers, batches, asked), (others_workers, others_batches, _) = had["with"]
    assert workers == others_workers
    assert workers[:2] == [1, 3]
    assert [batches, others_batches] == [seen for _, seen, _ in had["without"]]
    assert [asked] * 2 == [count for _, _, count in had["without"]]  # nothing of ours went into the process group
    assert batches != others_batches
    [run] = (folder / "rec").iterdir()
    trials = [[r for r, _ in Reader(run, rank) if isinstance(r, WorkerTrial)] for rank in (0, 1)]
    assert [(t.before, t.workers, t.outcome) for t in trials[1][:1]] == [(1, 3, "measuring")]
    assert trials[0][0] == trials[1][0]


@pytest.mark.long
def test_two_ranks_under_torchrun(forks: Forks, tmp_path: Path) -> None:
    where = ["--nnodes", "1", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", free_port()]
    env = environment(OMP_NUM_THREADS="1")
    ended(forks.start(TORCHRUN, *where, PROGRAM, tmp_path, "plain", cwd=tmp_path, env=env, together=True))
    assert_same_numbers_and_batches(tmp_path)


@pytest.mark.long
def test_two_ranks_of_lightning_ddp(forks: Forks, tmp_path: Path) -> None:
    """Started by hand, as Lightning allows: its launcher would start another interpreter."""
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    ended(
        *(
            forks.start(PROGRAM, tmp_path, "lightning", cwd=tmp_path, env=environment(**group, LOCAL_RANK=rank))
            for rank in ("0", "1")
        )
    )
    assert_same_numbers_and_batches(tmp_path)
