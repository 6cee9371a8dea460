"""A recording loses at most what was not flushed, and says what is wrong with a file that is none."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallmeter import records as r
from stallmeter.errors import RecordingError
from stallmeter.recording import (
    Header,
    Position,
    Reader,
    Recorder,
    decode,
    encode,
    find_recording,
    ranks,
)
from stallmeter.records.diagnosis import Abstention, Advice, Diagnosis, Evidence, Severity, Verdict, WorkerAdvice
from stallmeter.records.redaction import redact

HEADER = Header(run_id="abc", started_s=1.7e9)
STEP = r.StepRecord(
    index=4, epoch=1, optimizer_step=None, tracker_step=4, samples=8, time_s=1.7e9, total_s=0.5, data_wait_s=0.25
)
DIAGNOSIS = Diagnosis(
    rule="input-bound",
    severity=Severity.WARNING,
    title="t",
    summary="s",
    time_lost_s=1.0,
    share_pct=10.0,
    confidence=0.5,
    evidence=(Evidence("wait", 10.0, "%", 5.0, "XProf"),),
    advice=(Advice("more", 12.0, (9.0, 15.0)), Advice("less")),
)
VERDICT = Verdict(
    primary=DIAGNOSIS,
    diagnoses=(DIAGNOSIS,),
    abstained=(Abstention("x", ("service_s",)),),
    num_workers=WorkerAdvice(
        current=0,
        recommended=2,
        predicted_step_time_s=0.1,
        predicted_gain_pct=50.0,
        limited_by="cpu",
        reason="r",
        confidence=0.9,
    ),
    runner_up=DIAGNOSIS,
)
RECORDS = [
    STEP,
    r.LedgerRecord(time_s=1.7e9, wall_s=3.0, steps=2, epochs=1, buckets={"start": 1.0, "loop": 2.0}, samples=9),
    r.WindowRecord(time_s=1.7e9, tracker_step=3, duration_s=10.0, metrics={"a": 1.0}, hardware={"b": 2.0}),
    r.UserMetrics(time_s=1.7e9, tracker_step=3, metrics={"loss": 0.5}),
    r.HostSample(time_s=1.7e9, network=(r.NetworkSample(name="eth0", received_bytes_per_s=1.0, sent_bytes_per_s=2.0),)),
    r.GpuSample(time_s=1.7e9, index=0, uuid="GPU-1"),
    r.GpuSample(time_s=1.7e9, index=0, throttle_reasons=("power_cap", "sw_thermal"), ecc_corrected=3, pcie_width=16),
    r.GpuSample(time_s=1.7e9, index=0, throttle_reasons=()),
    r.WorkerBatch(worker=1, time_s=1.7e9, wall_s=0.5, cpu_s=0.25),
    r.LoaderInfo(time_s=1.7e9, kind="DataLoader", num_workers=2),
    r.Fork(time_s=1.7e9, wall_s=0.01),
    r.WorkerMemory(time_s=1.7e9, workers=2, rss_bytes=100),
    r.Event(time_s=1.7e9, name="n", detail="d"),
    VERDICT,
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda x: type(x).__name__)
def test_every_record_comes_back_as_it_was(record: r.Record | Verdict) -> None:
    assert decode(encode(record)) == record


def numbers(value: object, name: str = "") -> Iterator[tuple[str, float]]:
    """Every float in a record, with where it stands."""
    if is_dataclass(value):
        for one in fields(value):
            yield from numbers(getattr(value, one.name), f"{name}.{one.name}")
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from numbers(part, f"{name}[{key}]")
    elif isinstance(value, tuple):
        for i, part in enumerate(value):
            yield from numbers(part, f"{name}[{i}]")
    elif isinstance(value, float):
        yield name, value


@pytest.mark.parametrize("kind", [*get_args(r.Record), Verdict], ids=lambda kind: kind.__name__)
@settings(max_examples=50)
@given(data=st.data())
def test_our_numbers_keep_six_digits_and_the_users_all(kind: type[Any], data: st.DataObject) -> None:
    """However small or large they are."""
    record = data.draw(st.from_type(kind))
    kept = dict(numbers(decode(encode(record))))
    for name, value in numbers(record):
        if kind is r.UserMetrics or not math.isfinite(value):
            assert repr(kept[name]) == repr(value)
        else:
            assert abs(kept[name] - value) <= 5e-7 * abs(value)


@given(st.floats(1e9, 4e9))
def test_a_time_is_kept_whole(time_s: float) -> None:
    for record in (r.Fork(time_s=time_s, wall_s=0.1), replace(STEP, time_s=time_s)):
        assert decode(encode(record)).time_s == time_s  # type: ignore[union-attr]


def test_a_gpu_sample_of_an_older_version() -> None:
    """Fields that it did not have are not measured."""
    line = '["gpu",{"time_s":1.0,"index":0,"name":"Tesla T4","utilization_pct":50.0,"memory_clock_mhz":5000.0}]'
    record = decode(line)
    assert isinstance(record, r.GpuSample)
    assert (record.utilization_pct, record.throttle_reasons, record.sm_active_pct) == (50.0, None, None)


def test_a_gpu_sample_of_a_newer_version() -> None:
    """Fields that this version does not know are passed over."""
    assert decode('["gpu",{"time_s":1.0,"index":0,"fan_pct":30.0}]') == r.GpuSample(time_s=1.0, index=0)


def test_what_is_written_can_be_read_while_it_grows(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run", HEADER)
    recorder.write(STEP)
    reader = Reader(tmp_path / "run")
    assert list(reader) == []
    recorder.flush()
    assert [x for x, _ in reader] == [STEP]
    recorder.write(VERDICT)
    recorder.close()
    assert [x for x, _ in reader] == [VERDICT]
    assert reader.header() == HEADER


def test_a_torn_last_line_is_left_for_later(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, HEADER)
    recorder.write(STEP)
    recorder.close()
    whole = encode(STEP).encode()
    with recorder.path.open("ab") as file:
        file.write(whole[:20])
    reader = Reader(tmp_path)
    assert len(list(reader)) == 1
    with recorder.path.open("ab") as file:
        file.write(whole[20:] + b"\n")
    assert [x for x, _ in reader] == [STEP]
    assert reader.skipped == 0


def test_garbage_in_the_middle_is_skipped_and_counted(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, HEADER)
    recorder.flush()
    with recorder.path.open("ab") as file:
        file.write(b'{"not": "ours"}\n\xff\xfe\n["step"]\n["future-kind", {}]\n["host", 3]\n')
        file.write(encode(STEP).encode() + b"\n")
    reader = Reader(tmp_path)
    assert [x for x, _ in reader] == [STEP]
    assert reader.skipped == 4


def test_parts_rotate_and_positions_carry_over(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, HEADER, part_bytes=600)
    for i in range(20):
        recorder.write(r.Event(time_s=float(i), name="n" * 50))
        recorder.flush()
    recorder.close()
    assert len(list(tmp_path.glob("rank0.*.jsonl"))) > 2
    everything = list(Reader(tmp_path))
    assert [x.time_s for x, _ in everything] == [float(i) for i in range(20)]
    for record, position in everything:
        rest = [x.time_s for x, _ in Reader(tmp_path, position=position)]
        assert rest == [float(i) for i in range(int(record.time_s) + 1, 20)]


def test_a_second_recorder_never_overwrites_the_first(tmp_path: Path) -> None:
    for _ in range(2):
        recorder = Recorder(tmp_path, HEADER)
        recorder.write(STEP)
        recorder.close()
    assert len(list(Reader(tmp_path))) == 2


class FullDisk:
    """Takes half a write, then fails until there is room."""

    def __init__(self, file: object) -> None:
        self.file = file
        self.full = True

    def write(self, data: bytes) -> int:
        if self.full:
            self.file.write(data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        return self.file.write(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self.file, name)


def test_a_full_disk_leaves_no_half_line_and_loses_nothing(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, HEADER)
    disk = recorder._file = FullDisk(recorder._file)
    recorder.write(STEP)
    with pytest.raises(OSError, match="No space"):
        recorder.flush()
    recorder.write(VERDICT)
    disk.full = False
    recorder.close()
    assert [x for x, _ in Reader(tmp_path)] == [STEP, VERDICT]


def test_a_descriptor_that_the_program_closed_and_got_again_is_let_alone(tmp_path: Path) -> None:
    """A daemon closes all that it does not know; its next file has the number."""
    recorder = Recorder(tmp_path / "run", HEADER)
    recorder.write(STEP)
    recorder.flush()
    number = recorder._file._fd
    os.close(number)
    recorder.write(VERDICT)
    recorder.flush()  # it is opened anew
    os.close(recorder._file._fd)
    theirs = os.open(tmp_path / "theirs", os.O_RDWR | os.O_CREAT)
    assert theirs == number
    recorder.write(STEP)
    recorder.flush()
    assert os.fstat(theirs).st_size == 0
    recorder.close()
    assert os.fstat(theirs).st_size == 0, "it is not closed, either"
    os.close(theirs)
    assert [x for x, _ in Reader(tmp_path / "run")] == [STEP, VERDICT, STEP]


def test_a_part_that_is_deleted_and_whose_descriptor_is_closed_is_begun_anew(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, HEADER)
    recorder.write(STEP)
    recorder.flush()
    os.close(recorder._file._fd)
    recorder.path.unlink()
    recorder.write(VERDICT)
    recorder.close()
    assert [x for x, _ in Reader(tmp_path)] == [VERDICT]
    (told,) = recorder.take_losses()
    assert "has been deleted" in told


def test_errors_name_the_fix(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="no file or folder"):
        find_recording(tmp_path / "nowhere")
    with pytest.raises(RecordingError, match="holds no recording"):
        find_recording(tmp_path)
    (tmp_path / "rank0.0000.jsonl").write_text("hello\n")
    with pytest.raises(RecordingError, match="first line is not a header"):
        Reader(tmp_path).header()
    (tmp_path / "rank0.0000.jsonl").write_text(json.dumps(["header", {"schema": 99, "run_id": "x", "started_s": 0}]))
    with pytest.raises(RecordingError, match="upgrade stallmeter"):
        Reader(tmp_path).header()
    with pytest.raises(RecordingError, match="rank 3"):
        list(Reader(tmp_path, rank=3))


def test_the_newest_recording_below_a_folder_is_found(tmp_path: Path) -> None:
    for name in ("20260101-000000-aaaaaa", "20260102-000000-bbbbbb"):
        Recorder(tmp_path / name, HEADER).close()
    newest = tmp_path / "20260102-000000-bbbbbb"
    assert find_recording(tmp_path) == newest
    assert find_recording(newest) == newest
    assert find_recording(newest / "rank0.0000.jsonl") == newest
    Recorder(newest, Header(run_id="abc", rank=2, started_s=0)).close()
    assert ranks(newest) == (0, 2)


def test_passwords_never_reach_the_file(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, Header(run_id="x", started_s=0, settings={"uri": "http://me:s3cret@host/x"}))
    recorder.write(r.Event(time_s=0, name="n", detail="postgresql://me:s3cret@db refused"))
    recorder.close()
    assert "s3cret" not in recorder.path.read_text()


@given(st.text(), st.text())
def test_any_text_survives(name: str, detail: str) -> None:
    event = r.Event(time_s=0.0, name=redact(name), detail=redact(detail))
    line = encode(event)
    assert "\n" not in line
    assert decode(line) == r.Event(time_s=0.0, name=redact(event.name), detail=redact(event.detail))


def test_a_position_behind_the_end_reads_nothing(tmp_path: Path) -> None:
    Recorder(tmp_path, HEADER).close()
    assert list(Reader(tmp_path, position=Position(9, 0))) == []
