"""Jobs of hundreds of ranks: read in blocks, kept as arrays, told in few bytes, shown with few rows."""

from __future__ import annotations

import math
from array import array
from pathlib import Path

import pytest

from stallmeter.ranks import job, posts
from stallmeter.ranks.job import read_job
from stallmeter.ranks.merge import merge
from stallmeter.ranks.posts import (
    BYTES_PER_MIN,
    LARGEST,
    LEAST,
    PERIOD_S,
    PostPace,
    decode_post,
    encode_post,
    post_bytes,
)
from stallmeter.ranks.steps import COLUMNS, RankSteps, rank_steps
from stallmeter.recording import Header, Recorder
from stallmeter.recording.columns import read_columns
from stallmeter.records import LedgerRecord, StepRecord
from stallmeter.records.diagnosis import Advice, Diagnosis, Severity, Verdict
from stallmeter.records.rows import is_kept
from stallmeter.records.steps import BUCKETS
from stallmeter.report.job.model import MOST_BESIDE, job_report
from stallmeter.rules.job.evaluation import judge

STEPS = 700
"""More than are parsed at once."""


def step(index: int, **seconds: float) -> StepRecord:
    return StepRecord(
        index=index,
        epoch=0,
        optimizer_step=index + 1,
        tracker_step=index,
        samples=2,
        time_s=1e9 + index,
        total_s=sum(seconds.values()),
        data_wait_s=seconds.pop("data_wait_s", 0.0),
        **seconds,
    )


def record(folder: Path, rank: int, world_size: int, late: int = 1) -> Path:
    recorder = Recorder(folder, Header(run_id="r", rank=rank, world_size=world_size, started_s=1e9, host=f"h{rank}"))
    for index in range(STEPS):
        wait, backward = (0.04, 0.01) if rank == late else (0.01, 0.04)
        recorder.write(step(index, data_wait_s=wait, forward_s=0.01 + 1e-6 * index, backward_s=backward))
    spent = {"data_wait": wait * STEPS, "backward": backward * STEPS}
    recorder.write(LedgerRecord(time_s=1e9 + STEPS, wall_s=0.06 * STEPS, steps=STEPS, epochs=1, buckets=spent))
    recorder.close()
    return recorder.path


def test_blocks_hold_what_single_lines_hold(tmp_path):
    record(tmp_path, 0, 1)
    found = read_columns(tmp_path, 0, COLUMNS).steps
    assert list(found["index"]) == list(range(STEPS))
    assert found["forward_s"][300] == pytest.approx(0.0103)
    assert all(math.isnan(value) for value in found["h2d_s"])
    assert {len(column) for column in found.values()} == {STEPS}


@pytest.mark.parametrize(
    "broken", ['["step",7,0,8', '["step",7]', '["step",7,"a","b"]', '["step",7,0,null,7,2,1e9,"x","y"]', '["step",1e']
)
def test_a_damaged_line_costs_itself_alone(tmp_path, broken):
    path = record(tmp_path, 0, 1)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:5], broken, *lines[5:]]) + "\n")
    found = read_columns(tmp_path, 0, COLUMNS).steps
    assert list(found["index"]) == list(range(STEPS))
    assert {len(column) for column in found.values()} == {STEPS}


def test_rows_of_the_same_steps_are_read_of_all_ranks(tmp_path, monkeypatch):
    for rank in range(3):
        record(tmp_path, rank, 3)
    monkeypatch.setattr(job, "MOST_STEPS", STEPS * 3 // 2)
    found = read_job(tmp_path)
    kept = [list(view.steps.index) for view in found.ranks]
    assert kept[0] == kept[1] == kept[2] == [i for i in range(STEPS) if is_kept(i, 2)]
    assert found.merged is not None
    assert {rank for rank, _ in found.merged.lost_s} == {1}


def test_all_steps_are_read_where_they_are_few(tmp_path):
    for rank in range(2):
        record(tmp_path, rank, 2)
    assert [len(view.steps) for view in read_job(tmp_path).ranks] == [STEPS, STEPS]


def test_arrays_and_lists_merge_alike(tmp_path):
    as_arrays = []
    for rank in range(4):
        record(tmp_path, rank, 4)
        as_arrays.append(rank_steps(rank, read_columns(tmp_path, rank, COLUMNS).steps, f"h{rank}"))
    assert all(isinstance(column, array) for column in as_arrays[0].seconds.values())
    as_lists = [
        RankSteps(
            each.rank,
            list(each.index),
            list(each.ends_s),
            {name: list(values) for name, values in each.seconds.items()},
            list(each.optimizer_step),
            each.host,
        )
        for each in as_arrays
    ]
    assert merge(as_arrays) == merge(as_lists)
    short = RankSteps(0, *(column[::2] for column in (as_lists[0].index, as_lists[0].ends_s)), {
        name: values[::2] for name, values in as_lists[0].seconds.items()
    }, as_lists[0].optimizer_step[::2], "h0")  # fmt: skip
    merged = merge([short, *as_arrays[1:]])
    assert merged is not None
    assert (merged.steps, merged.last_index) == (STEPS // 2, STEPS - 2)


def test_ranks_without_any_time_say_nothing():
    empty = [RankSteps(rank, range(50), [0.0] * 50, {}) for rank in range(2)]
    assert merge(empty) is None


def test_a_slow_step_is_shown_with_some_ranks(tmp_path):
    for rank in range(2 * MOST_BESIDE):
        record(tmp_path, rank, 2 * MOST_BESIDE, late=11)
    found = read_job(tmp_path)
    shown = job_report(found, judge(found))
    assert shown.slowest
    for each in shown.slowest:
        assert each.late == 11
        assert len(each.seconds) == MOST_BESIDE
        assert 11 in each.seconds


@pytest.mark.parametrize("world_size", [2, 8, 64, 512, 4096])
def test_posts_are_no_more_than_rank_0_can_take(world_size):
    """From the first post on, however many ranks there are: bytes grow no faster than the time."""
    pace, sent = PostPace(world_size, 0.0), 0.0
    while pace.due_s < 900.0:
        now_s = pace.due_s
        pace.begin(now_s)
        assert LEAST <= pace.most <= LARGEST
        sent += pace.most * (world_size - 1)
        assert sent <= 1.001 * BYTES_PER_MIN * now_s / 60.0
        assert now_s < pace.due_s
    assert pace.due_s - now_s == pytest.approx(max(PERIOD_S, 60.0 * LEAST * (world_size - 1) / BYTES_PER_MIN))


def test_the_last_post_has_the_room_of_half_a_minute():
    pace = PostPace(64, 0.0)
    pace.begin(30.0)
    pace.begin(31.0, last=True)
    assert pace.most == post_bytes(64) > 7000


HEADER = Header(run_id="r", rank=3, world_size=512, started_s=1e9, host="node003", framework="lightning 2.6.6")
LEDGER = LedgerRecord(time_s=1e9, wall_s=30.0, steps=600, epochs=1, buckets=dict.fromkeys(BUCKETS, 1.234567))
FINDING = Diagnosis(
    rule="fetch-stall",
    severity=Severity.WARNING,
    title="Batches wait for storage",
    summary=" ".join(str(7919**k % 99991) for k in range(40)),
    time_lost_s=12.0,
    share_pct=40.0,
    confidence=0.9,
    advice=(Advice.of("Do this or that.", expect="Less of it."),),
)
VERDICT = Verdict(primary=FINDING, diagnoses=(FINDING,))
VARIED = [
    step(i, data_wait_s=0.001 * (i % 7), forward_s=0.01 + 1e-5 * (i * 37 % 101), backward_s=0.03 + 1e-5 * (i * 53 % 97))
    for i in range(600)
]


@pytest.mark.parametrize(
    ("most", "steps", "words"), [(post_bytes(2), 600, True), (post_bytes(512), 24, False), (700, 8, False)]
)
def test_steps_come_before_words(most, steps, words):
    text = encode_post(HEADER, LEDGER, VERDICT, VARIED, facts={"GPU busy, %": 97.0}, most=most)
    found = decode_post(text)
    assert len(text) <= most
    assert len(found.steps) >= steps
    assert found.steps.seconds["forward"][7] == pytest.approx(VARIED[found.steps.index[7]].forward_s, abs=1e-5)
    assert found.verdict is not None
    assert found.verdict.primary is not None
    assert (found.verdict.primary.rule, found.verdict.primary.time_lost_s) == ("fetch-stall", 12.0)
    assert found.ledger is not None
    assert found.ledger.buckets == pytest.approx(LEDGER.buckets)
    assert bool(found.verdict.primary.summary) is words


def test_the_least_post_has_a_ledger_and_a_verdict():
    text = encode_post(HEADER, LEDGER, VERDICT, [], facts={}, most=LEAST)
    assert len(text) <= LEAST
    assert decode_post(text).ledger is not None


def test_a_post_of_another_version_is_none(monkeypatch):
    text = encode_post(HEADER, LEDGER, VERDICT, VARIED, facts={})
    monkeypatch.setattr(posts, "_COMMON", b"something else")
    with pytest.raises(ValueError, match="no post"):
        decode_post(text)
