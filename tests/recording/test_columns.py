"""A few columns of a rank's steps are read as its records are, whatever else is in its files."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallmeter import records as r
from stallmeter.errors import RecordingError
from stallmeter.recording import Header, Reader, Recorder, decode, encode
from stallmeter.recording.columns import Columns, read_columns

HEADER = Header(run_id="abc", rank=1, world_size=2, started_s=1.7e9)
NAMES = ("index", "time_s", "total_s", "data_wait_s", "forward_s", "optimizer_step", "epoch_start", "outlier")


def step(index: int, **changes: object) -> r.StepRecord:
    whole = r.StepRecord(
        index=index,
        epoch=0,
        optimizer_step=None if index % 3 else index // 3,
        tracker_step=index,
        samples=8,
        time_s=1.7e9 + index,
        total_s=1.0 + index / 8,
        data_wait_s=index / 8,
        forward_s=None if index % 2 else 1.0,
        epoch_start=index % 10 == 0,
        outlier=index % 7 == 0,
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def ledger(steps: int) -> r.LedgerRecord:
    return r.LedgerRecord(time_s=1.7e9 + steps, wall_s=float(steps), steps=steps, epochs=1, buckets={"start": 1.0})


def write(folder: Path, count: int, part_bytes: int = 10**9) -> list[r.StepRecord]:
    recorder = Recorder(folder, HEADER, part_bytes=part_bytes)
    steps = [step(index) for index in range(count)]
    for each in steps:
        recorder.write(each)
        recorder.write(r.HostSample(time_s=each.time_s, others_cpus=float(each.index)))
        if each.index % 5 == 0:
            recorder.write(ledger(each.index))
    recorder.flush()
    recorder.close()
    return steps


def same(found: Columns, steps: list[r.StepRecord]) -> None:
    """Compare with records; what a step has no value of is no number."""
    for name in NAMES:
        expected = [getattr(each, name) for each in steps]
        assert len(found.steps[name]) == len(expected)
        for value, wanted in zip(found.steps[name], expected, strict=True):
            assert math.isnan(value) if wanted is None else value == pytest.approx(float(wanted), abs=1e-6)


@pytest.mark.parametrize("part_bytes", [10**9, 2000])
@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 700])
def test_columns(tmp_path: Path, count: int, part_bytes: int) -> None:
    """In one file or several."""
    steps = write(tmp_path, count, part_bytes)
    found = read_columns(tmp_path, 1, NAMES, last=("ledger", "verdict"), some=("host", "gpu"), most=16)
    same(found, steps)
    assert found.header.run_id == "abc"
    assert found.last == ({"ledger": ledger((count - 1) // 5 * 5)} if count else {})
    assert list(found.some["gpu"]) == []
    hosts = [sample for sample in found.some["host"] if isinstance(sample, r.HostSample)]
    assert len(hosts) == len(found.some["host"])
    assert min(count, 8) <= len(hosts) <= 32
    if count > 200:  # spread over the run
        assert min(h.others_cpus or 0.0 for h in hosts) < count / 4
        assert max(h.others_cpus or 0.0 for h in hosts) > count * 3 / 4


@pytest.mark.parametrize("wants", [lambda i: i % 4 == 0, lambda i: i // 32 % 2 == 0, lambda _: False])
def test_some_steps(tmp_path: Path, wants: Callable[[int], bool]) -> None:
    steps = write(tmp_path, 300)
    same(read_columns(tmp_path, 1, NAMES, wants=wants), [each for each in steps if wants(each.index)])


def test_a_field_that_is_newer_than_the_recording(tmp_path: Path) -> None:
    """Its column is there, and empty."""
    write(tmp_path, 3)
    found = read_columns(tmp_path, 1, ("index", "not_yet_s"))
    assert list(found.steps["index"]) == [0.0, 1.0, 2.0]
    assert len(found.steps["not_yet_s"]) == 3
    assert all(map(math.isnan, found.steps["not_yet_s"]))


def test_torn_lines(tmp_path: Path) -> None:
    """A line that is cut off, or garbage in the middle, costs nothing but itself."""
    steps = write(tmp_path, 400)
    path = tmp_path / "rank1.0000.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if line.startswith(b'["step",20,'))
    lines[at] = lines[at][:40] + b"\n"
    at = next(i for i, line in enumerate(lines) if line.startswith(b'["step",30,'))
    lines[at:at] = [b'["step",5000,"x"]\n', b'["step",\n', b'["step","a",1]\n', b"\x00\xff\n", b'["step",99,[],{}]\n']
    path.write_bytes(b"".join(lines) + b'["step",400,0,null,400,8,170')
    same(read_columns(tmp_path, 1, NAMES), [each for each in steps if each.index != 20])


def test_no_recording(tmp_path: Path) -> None:
    with pytest.raises(RecordingError):
        read_columns(tmp_path, 1, NAMES)
    (tmp_path / "rank1.0000.jsonl").write_bytes(b'["header",')
    with pytest.raises(RecordingError):
        read_columns(tmp_path, 1, NAMES)


@pytest.mark.parametrize("count", [0, 1, 2000])
def test_collectives_come_back_as_they_were(tmp_path: Path, count: int) -> None:
    arrivals = r.Arrivals(
        time_s=1.7e9,
        group="0:default_pg",
        base_s=1.7e9,
        sequence=tuple(range(count)),
        began_us=tuple(range(0, count * 1000, 1000)),
        took_us=(-1,) * count,
        sent_bytes=tuple(range(count)),
    )
    recorder = Recorder(tmp_path, HEADER)
    recorder.write(arrivals)
    recorder.flush()
    recorder.close()
    assert list(read_columns(tmp_path, 1, (), some=("arrivals",)).some["arrivals"]) == [arrivals]
    assert [record for record, _ in Reader(tmp_path, 1)] == [arrivals]


NUMBERS = st.lists(st.integers(-(2**53), 2**53), max_size=5).map(tuple)


@settings(max_examples=30)
@given(st.text(max_size=20), NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.integers(0, 2 * 10**9))
def test_any_collectives(
    group: str,
    sequence: tuple[int, ...],
    began: tuple[int, ...],
    took: tuple[int, ...],
    sent: tuple[int, ...],
    base_s: int,
) -> None:
    arrivals = r.Arrivals(
        time_s=1.7e9,
        group=group,
        base_s=float(base_s),
        sequence=sequence,
        began_us=began,
        took_us=took,
        sent_bytes=sent,
    )
    assert decode(encode(arrivals)) == arrivals
