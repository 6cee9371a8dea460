"""Ranks that recorded apart become one recording, or none."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stallmeter.cli import main
from stallmeter.errors import RecordingError
from stallmeter.ranks.joining import MOST_APART_S, join
from stallmeter.recording import Header, Reader, Recorder, find_recording, ranks
from stallmeter.records import Event, LedgerRecord, StepRecord

BEGUN_S = 1_700_000_000.0
HEADER = Header(run_id="abcdef", world_size=2, started_s=BEGUN_S, host="a", pid=1, framework="loop")


def recorded(folder: Path, *, ended: bool = True, part_bytes: int = 2**20, **about: Any) -> Path:
    """Record a rank of twenty steps; returns the recording's folder."""
    recorder = Recorder(folder, replace(HEADER, **about), part_bytes=part_bytes)
    for index in range(20):
        step = {"index": index, "tracker_step": index, "time_s": BEGUN_S + index, "optimizer_step": index}
        recorder.write(StepRecord(epoch=0, samples=1, total_s=1.0, data_wait_s=0.5, forward_s=0.5, **step))
        recorder.flush()
    buckets = {"data_wait": 10.0, "forward": 10.0}
    recorder.write(LedgerRecord(time_s=BEGUN_S + 20, wall_s=20.0, steps=20, epochs=1, buckets=buckets))
    if ended:
        recorder.write(Event(time_s=BEGUN_S + 20, name="end", detail="end"))
    recorder.close()
    return folder


def two(folder: Path, **about: Any) -> list[Path]:
    return [
        recorded(folder / "host0" / "20260101-120000-abcdef"),
        recorded(folder / "host1" / "20260101-120000-abcdef", **{"rank": 1, "host": "b", **about}),
    ]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_all_parts_of_all_ranks_are_in_the_new_recording(tmp_path: Path) -> None:
    folders = [recorded(tmp_path / "0" / "run", part_bytes=700), recorded(tmp_path / "1" / "run", rank=1)]
    (folders[0] / "cursor-mlflow-rank0.json").write_text("{}")
    before = contents(tmp_path)
    joined = join([path.parent for path in reversed(folders)], tmp_path / "new" / "job")
    assert (joined.ranks, joined.world_size, joined.missing, joined.not_ended) == ((0, 1), 2, (), ())
    made = contents(tmp_path / "new")
    expected = {f"job/{path.name}": path.read_bytes() for folder in folders for path in folder.glob("rank*.jsonl")}
    assert len(expected) > 3
    assert made == expected
    assert {name: content for name, content in contents(tmp_path).items() if not name.startswith("new")} == before
    assert [len([r for r, _ in Reader(joined.folder, rank) if isinstance(r, StepRecord)]) for rank in (0, 1)] == [
        20,
        20,
    ]


def test_by_default_it_lies_beside_the_lowest_rank(tmp_path: Path) -> None:
    assert join(two(tmp_path)).folder == tmp_path / "host0" / "20260101-120000-abcdef-merged"


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"rank": 0}, "rank 0 is in"),
        ({"world_size": 4}, "number of ranks is 2"),
        ({"framework": "lightning 2.6.0"}, "framework is 'loop'"),
        ({"started_s": BEGUN_S + MOST_APART_S + 61}, "begins 11 minutes after"),
        ({"started_s": BEGUN_S - MOST_APART_S - 61}, "begins 11 minutes after"),
    ],
)
def test_what_is_of_two_jobs_is_not_joined(tmp_path: Path, about: dict[str, Any], said: str) -> None:
    folders = two(tmp_path, **about)
    before = contents(tmp_path)
    with pytest.raises(RecordingError, match=said):
        join(folders)
    assert contents(tmp_path) == before


def test_a_run_of_one_rank_is_no_job(tmp_path: Path) -> None:
    folders = [recorded(tmp_path / "a", world_size=1), recorded(tmp_path / "b", world_size=1, rank=1)]
    with pytest.raises(RecordingError, match="a job of one rank"):
        join(folders)


@pytest.mark.parametrize(("times", "said"), [(1, "two recordings or more"), (2, "given twice")])
def test_one_recording_is_nothing_to_join(tmp_path: Path, times: int, said: str) -> None:
    with pytest.raises(RecordingError, match=said):
        join([recorded(tmp_path / "a")] * times)


@pytest.mark.parametrize("there", ["file", "empty folder", "recording"])
def test_nothing_is_overwritten(tmp_path: Path, there: str) -> None:
    folders, target = two(tmp_path), tmp_path / "job"
    {"file": target.touch, "empty folder": target.mkdir, "recording": lambda: recorded(target)}[there]()
    before = contents(tmp_path)
    with pytest.raises(RecordingError, match="nothing is overwritten"):
        join(folders, target)
    assert contents(tmp_path) == before


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = two(tmp_path)
    before = contents(tmp_path)
    copyfile = shutil.copyfile

    def fills_up(source: Path, target: Path) -> None:
        if "rank1" in source.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        copyfile(source, target)
        # What looks for the newest recording at this moment finds none that is half made.
        assert find_recording(tmp_path).parent.name in ("host0", "host1")

    monkeypatch.setattr(shutil, "copyfile", fills_up)
    with pytest.raises(OSError, match="No space left"):
        join(folders, tmp_path / "job")
    assert contents(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["host0", "host1"]


def test_what_is_missing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [recorded(tmp_path / "a", world_size=4), recorded(tmp_path / "b", world_size=4, rank=2, ended=False)]
    (folders[1] / "rank3.0000.jsonl").write_text("torn")
    assert main(["merge", *map(str, folders), "--output", str(tmp_path / "job")]) == 0
    out, err = capsys.readouterr()
    assert "2 of 4 ranks" in out
    assert "rank3.0000.jsonl has no header" in err
    assert "still missing: ranks 1 and 3" in err
    assert "no end is recorded of rank 2" in err
    assert ranks(tmp_path / "job") == (0, 2)


def test_a_mistake_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["merge", str(recorded(tmp_path / "a")), str(tmp_path / "nowhere")]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("stallmeter: there is no file or folder")
    assert err.count("\n") == 1
