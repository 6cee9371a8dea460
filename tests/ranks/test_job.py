"""A job is all of its ranks, as far as they are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stallmeter.errors import RecordingError
from stallmeter.ranks import job as job_module
from stallmeter.ranks.job import RankView, assemble, facts_of, read_job
from stallmeter.recording import Header, Recorder
from stallmeter.records import Arrivals, Event, GpuSample, HostSample, LedgerRecord
from stallmeter.records.diagnosis import Verdict
from stallmeter.records.rows import ROW

from .synthetic import STARTED_S, Program, Trained, always, chosen, late, records, train

OWN = {"data_wait": late(0.002, 0.03, {1}), "backward": always(0.01), "callbacks": always(0.001)}


def header(rank: int, world_size: int = 2) -> Header:
    return Header(run_id="run", rank=rank, world_size=world_size, started_s=STARTED_S, host="a", pid=100 + rank)


def views(trained: Trained, world_size: int = 0) -> list[RankView]:
    return [
        RankView(rank=rank.rank, header=header(rank.rank, world_size or len(trained.ranks)), steps=rank)
        for rank in trained.ranks
    ]


def record(folder: Path, trained: Trained) -> None:
    """Write what the ranks recorded."""
    for rank in trained.ranks:
        recorder = Recorder(folder, header(rank.rank, len(trained.ranks)))
        recorder.write(
            LedgerRecord(time_s=STARTED_S, wall_s=1.0, steps=0, epochs=1, buckets={"start": 1.0, "data_wait": 0.0})
        )
        for step in records(rank):
            recorder.write(step)
            if step.index % 50 == 0:
                recorder.write(HostSample(time_s=step.time_s, others_cpus=float(rank.rank)))
        wall_s = trained.wall_s + 1.0
        recorder.write(
            LedgerRecord(time_s=step.time_s, wall_s=wall_s, steps=len(rank), epochs=1, buckets={"start": 1.0})
        )
        recorder.write(Event(time_s=step.time_s, name="end", detail="finished"))
        recorder.write(Verdict(primary=None))
        recorder.flush()
        recorder.close()


def test_a_recording(tmp_path: Path) -> None:
    trained = train(Program(own=OWN, ranks=3, steps=120, epoch=40))
    record(tmp_path, trained)
    job = read_job(tmp_path)
    assert [view.rank for view in job.ranks] == [0, 1, 2]
    assert (job.world_size, job.missing) == (3, ())
    assert job.wall_s == pytest.approx(trained.wall_s + 1.0)
    assert job.training_s == pytest.approx(trained.wall_s)
    second = job.view(1)
    assert second is not None
    assert (second.ended, second.facts) == ("finished", {"CPUs kept busy by others": 1.0})
    assert second.verdict == Verdict(primary=None)
    assert list(second.steps.starts) == [0, 40, 80]
    assert job.view(3) is None
    assert job.merged is not None
    assert job.merged.lost_s[1, "data_wait"] == pytest.approx(117 * 0.03, rel=0.03)
    assert job.exchanges is None
    own = Verdict(primary=None, diagnoses=())
    assert read_job(tmp_path, verdicts={1: own}, known=[1]).ranks[0].verdict is own


def test_rows_of_a_long_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more steps than are merged the same rows are read of all ranks; the answer is the same."""
    record(tmp_path, train(Program(own=OWN, steps=640)))
    monkeypatch.setattr(job_module, "MOST_STEPS", 400)
    merged = read_job(tmp_path).merged
    assert merged is not None
    assert 100 < merged.steps <= 330
    assert merged.steps % ROW == 0
    assert merged.loss_share == pytest.approx(0.03 / 0.0447, rel=0.05)


def test_no_rank(tmp_path: Path) -> None:
    with pytest.raises(RecordingError):
        read_job(tmp_path)
    (tmp_path / "rank0.0000.jsonl").write_bytes(b"")
    with pytest.raises(RecordingError, match="no rank"):
        read_job(tmp_path)


def test_a_rank_that_died_early_hides_nothing() -> None:
    """There are hardly any steps that it has, too."""
    trained = train(Program(own=OWN, ranks=4, steps=400))
    known = views(trained)
    known[3] = replace(known[3], steps=chosen(known[3].steps, lambda index: index < 20))
    job = assemble(known)
    assert job.merged is not None
    assert job.merged.ranks == (0, 1, 2)
    assert job.merged.lost_s[1, "data_wait"] == pytest.approx(399 * 0.03, rel=0.03)
    died_later = assemble([*known[:3], replace(known[3], steps=chosen(trained.ranks[3], lambda index: index < 200))])
    assert died_later.merged is not None
    assert died_later.merged.ranks == (0, 1, 2, 3)
    assert died_later.merged.steps == 200


def test_ranks_of_which_nothing_is_known() -> None:
    job = assemble(views(train(Program(own=OWN, ranks=2, steps=50)), world_size=4))
    assert (job.world_size, job.missing) == (4, (2, 3))
    assert assemble([]).merged is None
    assert assemble([]).wall_s == 0
    assert assemble(views(train(Program(own=OWN, steps=50)))[:1]).merged is None


def test_collectives_of_all_ranks() -> None:
    trained = train(Program(own={"compute": always(0.02)}, meets_in=("compute",), hosts=("a", "a")))
    known = []
    for view in views(trained):
        began = [end - 0.005 + 0.004 * view.rank for end in trained.ranks[0].ends_s]
        arrivals = Arrivals(
            time_s=STARTED_S,
            group="g",
            base_s=STARTED_S,
            sequence=tuple(range(200)),
            began_us=tuple(round((at - STARTED_S) * 1e6) for at in began),
            took_us=(-1,) * 200,
            sent_bytes=(8,) * 200,
        )
        known.append(replace(view, arrivals=[arrivals]))
    job = assemble(known)
    assert job.exchanges is not None
    assert job.exchanges.lost_s[1] == pytest.approx(199 * 0.004, rel=0.02)
    assert assemble([known[0], replace(known[1], arrivals=())]).exchanges is None


def test_facts() -> None:
    """Medians; of what holds now and then, how often."""
    hosts = [HostSample(time_s=0.0, others_cpus=float(n)) for n in (1, 2, 9)]
    gpus = [
        GpuSample(time_s=0.0, index=0, sm_clock_mhz=1000.0 + n, throttle_reasons=("power",) if n else ())
        for n in range(4)
    ]
    assert facts_of(hosts, gpus) == {
        "CPUs kept busy by others": 2.0,
        "SM clock, MHz": 1001.5,
        "clocks held down, % of samples": 75.0,
    }
    assert facts_of([], []) == {}
