"""The end of a recording, however long it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallmeter.errors import RecordingError
from stallmeter.recording import Header, Recorder
from stallmeter.recording.tail import read_tail
from stallmeter.records import Event, StepRecord
from stallmeter.records.diagnosis import Verdict
from stallmeter.records.steps import STANDS

END = Event(time_s=2.0, name="end", detail="interpreter exit")


def write(folder: Path, records: list[StepRecord | Event | Verdict], *, part_bytes: int = 2**24, rank: int = 3) -> None:
    recorder = Recorder(folder, Header(run_id="abcdef", rank=rank, started_s=1.0), part_bytes=part_bytes)
    for record in records:
        recorder.write(record)
        recorder.flush()
    recorder.close()


def step(time_s: float, total_s: float) -> StepRecord:
    index = int(time_s)
    return StepRecord(
        index=index,
        epoch=0,
        optimizer_step=None,
        tracker_step=index,
        samples=None,
        time_s=time_s,
        total_s=total_s,
        data_wait_s=0.5,
    )


def steps(count: int) -> list[StepRecord | Event | Verdict]:
    return [step(float(index), 1.0) for index in range(count)]


@pytest.mark.parametrize("part_bytes", [2**24, 10_000, 400])
@pytest.mark.parametrize("newest_bytes", [200, 3000, 2**18])
def test_the_newest_records_come_whole_and_in_order(tmp_path: Path, part_bytes: int, newest_bytes: int) -> None:
    write(tmp_path, [*steps(200), END], part_bytes=part_bytes)
    tail = read_tail(tmp_path, 3, newest_bytes)
    *found, last = tail.records
    assert last == END
    assert tail.header.rank == 3
    indices = [step.index for step in found if isinstance(step, StepRecord)]
    assert indices == list(range(200 - len(indices), 200))
    if part_bytes == 2**24:
        assert len(indices) == 200 if newest_bytes == 2**18 else 1 <= len(indices) <= newest_bytes / 60


def test_a_torn_line_is_left(tmp_path: Path) -> None:
    write(tmp_path, [*steps(3), END])
    with (tmp_path / "rank3.0000.jsonl").open("ab") as file:
        file.write(b'["step",4')
    assert read_tail(tmp_path, 3).records[-1] == END


def test_what_the_end_says(tmp_path: Path) -> None:
    cases = {"a": [END, Verdict(primary=None)], "b": [Verdict(primary=None), END], "c": [Verdict(primary=None)]}
    for name, records in cases.items():
        write(tmp_path / name, [*steps(2), *records])  # type: ignore[list-item]
    found = {name: read_tail(tmp_path / name, 3) for name in cases}
    assert {name: (tail.ended, tail.settled) for name, tail in found.items()} == {
        "a": ("interpreter exit", True),
        "b": ("interpreter exit", False),
        "c": (None, False),
    }


def test_a_rank_that_is_not_there(tmp_path: Path) -> None:
    write(tmp_path, steps(1))
    with pytest.raises(RecordingError, match="rank 4"):
        read_tail(tmp_path, 4)


def stands(at_s: float) -> Event:
    return Event(time_s=at_s, name=STANDS, detail=f"for {at_s:.0f} s in backward")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ([], None),
        ([stands(40.0)], "for 40 s in backward"),
        ([stands(40.0), stands(80.0)], "for 80 s in backward"),
        ([stands(40.0), step(41.0, 38.0)], "for 40 s in backward"),  # it ends with the run
        ([stands(40.0), step(41.0, 38.0), step(42.0, 1.0)], None),
    ],
)
def test_where_a_thread_stands_is_known_until_a_step_begins(
    tmp_path: Path, more: list[StepRecord | Event | Verdict], expected: str | None
) -> None:
    write(tmp_path, [*steps(3), *more, END])
    assert read_tail(tmp_path, 3).standing == expected
