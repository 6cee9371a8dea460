"""What a rank tells rank 0: small, exact to ten microseconds, and of the same steps on all ranks."""

from __future__ import annotations

import base64
import json
import random
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.ranks import posts
from stallmeter.ranks.data import DataRead
from stallmeter.ranks.job import RankView, assemble
from stallmeter.ranks.posts import (
    BYTES_PER_MIN,
    LARGEST,
    decode_post,
    encode_post,
    joined,
    post_bytes,
    unpacked,
    view_of_steps,
)
from stallmeter.ranks.steps import with_starts
from stallmeter.recording import Header
from stallmeter.records import Arrivals, LedgerRecord, StepRecord
from stallmeter.records.diagnosis import Advice, Diagnosis, Evidence, Location, Severity, Verdict, WorkerAdvice
from stallmeter.records.rows import ROW

from .synthetic import Program, always, late, records, train

HEADER = Header(
    run_id="20261122-070148-e3dc55", rank=3, world_size=64, started_s=1.7e9, host="node-17.cluster.example", pid=4711
)
LEDGER = LedgerRecord(
    time_s=1.7e9 + 60,
    wall_s=60.123456,
    steps=4000,
    epochs=2,
    buckets=dict.fromkeys(("start", "warmup", "data_wait", "h2d", "forward", "backward", "optimizer"), 1.2345678),
    callbacks={f"Callback{i}": 0.1 for i in range(50)},
)
DIAGNOSIS = Diagnosis(
    rule="input-bound",
    severity=Severity.WARNING,
    title="The loop waits for data that its workers make too slowly",
    summary="In a mean step 31.2 ms were waited for data. " * 20,
    time_lost_s=20.0,
    share_pct=33.0,
    confidence=0.9,
    evidence=tuple(Evidence(f"a value {i}", float(i), "s") for i in range(20)),
    advice=(Advice("Set num_workers=4.", 20.0, (15.0, 25.0)), Advice("Or else.")),
)
VERDICT = Verdict(
    primary=DIAGNOSIS,
    diagnoses=tuple(replace(DIAGNOSIS, rule=f"rule-{i}") for i in range(9)),
    num_workers=WorkerAdvice(
        current=0,
        recommended=4,
        predicted_step_time_s=0.02,
        predicted_gain_pct=40.0,
        limited_by="cpu",
        reason="r" * 300,
        confidence=0.9,
    ),
)
FACTS = {"SM clock, MHz": 1980.123, "GPU temperature, °C": 61.0, "CPUs kept busy by others": 0.123456}
ARRIVALS = Arrivals(
    time_s=1.7e9,
    group="0:default_pg",
    base_s=1.7e9,
    sequence=tuple(range(2000)),
    began_us=tuple(range(0, 20_000_000, 10_000)),
    took_us=(-1,) * 2000,
    sent_bytes=(4096,) * 2000,
)


def some_steps(count: int = 4000, seed: int = 0, first: int = 0) -> list[StepRecord]:
    """Return steps as irregular as they get: little is gained by packing them."""
    draw = random.Random(seed)
    return [
        StepRecord(
            index=first + at,
            epoch=0,
            optimizer_step=first + at,
            tracker_step=at,
            samples=8,
            time_s=1.7e9 + (first + at) * 0.05 + draw.random() * 0.01,
            total_s=0.05,
            data_wait_s=draw.random() * 0.01,
            forward_s=draw.random() * 0.01,
            backward_s=draw.random() * 0.03,
            callbacks_s=None,
            epoch_start=(first + at) % 100 == 0,
        )
        for at in range(count)
    ]


@pytest.mark.parametrize(("rank", "live_on"), [(0, False), (1, False), (1, True)])
def test_round_trip(rank: int, live_on: bool) -> None:
    """Rank 0's view of another is that of its recording, to ten microseconds; its own has the same form."""
    trained = train(
        Program(own={"data_wait": late(0.004, 0.03, {1}), "backward": always(0.01)}, steps=60, epoch=25, accumulation=2)
    ).ranks[rank]
    header = replace(HEADER, rank=rank)
    about = {"facts": FACTS, "arrivals": [ARRIVALS], "live_on": live_on, "ended": "finished"}
    found = decode_post(encode_post(header, LEDGER, VERDICT, records(trained), **about, most=10**6))
    same = view_of_steps(header, LEDGER, VERDICT, records(trained), **about)
    for view in (found, same):
        assert (view.rank, view.header.host, view.header.world_size, view.ended) == (rank, HEADER.host, 64, "finished")
        assert list(view.steps.index) == list(trained.index)
        assert list(view.steps.optimizer_step) == list(trained.optimizer_step)
        assert list(view.steps.starts) == [0, 25, 50]
        assert list(view.steps.ends_s) == pytest.approx(trained.ends_s, abs=1.1e-5)
        assert view.steps.seconds["backward"] == pytest.approx(trained.seconds["backward"], abs=1.1e-5)
        waits = with_starts(trained.seconds, [0] if live_on else [0, 25, 50])["data_wait"]
        assert view.steps.seconds["data_wait"] == pytest.approx(waits, abs=1.1e-5)
        assert view.facts == pytest.approx(FACTS, rel=1e-3)
        assert view.ledger is not None
        assert view.ledger.buckets == LEDGER.buckets
        assert next(iter(view.arrivals)).sequence[-1] == 1999
    assert found.verdict is not None
    assert found.verdict.primary is not None
    assert found.verdict.primary.rule == "rule-0"
    assert found.verdict.num_workers == VERDICT.num_workers


@pytest.mark.parametrize("world_size", [2, 64, 512])
def test_size(world_size: int) -> None:
    """All ranks together send what rank 0 can take, however much each has to say."""
    most = post_bytes(world_size)
    text = encode_post(
        replace(HEADER, world_size=world_size),
        LEDGER,
        VERDICT,
        some_steps(),
        facts=FACTS,
        arrivals=[ARRIVALS],
        most=most,
    )
    assert len(text) <= most <= LARGEST
    assert 2 * (world_size - 1) * len(text) <= BYTES_PER_MIN
    found = decode_post(text)
    assert found.ledger is not None
    assert found.verdict is not None
    if world_size <= 64:
        assert len(found.steps) >= 16 * ROW
    if world_size == 2:
        assert len(found.steps) >= 400


def test_collectives_of_enough_steps_are_sent_where_a_step_has_dozens() -> None:
    """60 of them in each of 33 steps: 512 would tell of eight."""
    draw = random.Random(1)
    began = [i * 1_000 + draw.randrange(900) for i in range(2000)]
    dense = replace(ARRIVALS, began_us=tuple(began))
    steps = [replace(one, total_s=0.06) for one in some_steps(138)]
    for reading, least in ((dense, 1440), (ARRIVALS, 512)):
        found = decode_post(
            encode_post(replace(HEADER, world_size=2), LEDGER, VERDICT, steps, facts=FACTS, arrivals=[reading])
        )
        sent = sum(len(one.sequence) for one in found.arrivals)
        assert sent == (least if least == 512 else pytest.approx(1440, abs=2))
        assert len(found.steps) >= 4 * ROW


@pytest.mark.parametrize("world_size", [2, 64, 512])
def test_all_ranks_send_the_same_steps(world_size: int) -> None:
    """Rows that their index chooses; of two posts one may have chosen half as many as the other."""
    posts = []
    for rank in (1, 2):
        seen = [step for step in some_steps(3000, seed=rank) if rank == 1 or step.index >= 160]
        text = encode_post(replace(HEADER, rank=rank), LEDGER, None, seen, facts={}, most=post_bytes(world_size))
        posts.append(decode_post(text).steps)
    mine, theirs = (set(steps.index) for steps in posts)
    few, many = sorted(({i for i in mine if i >= 160}, theirs), key=len)
    assert few <= many
    if world_size < 512:
        assert few
    for steps in posts:
        rows = {index // ROW for index in steps.index}
        assert set(steps.index) == {index for row in rows for index in range(row * ROW, row * ROW + ROW)}


def test_outliers_stay_at_home() -> None:
    """They were kept on this rank alone."""
    seen = [replace(step, outlier=step.index % 2 == 1) for step in some_steps(40)]
    found = decode_post(encode_post(HEADER, LEDGER, None, seen, facts={}))
    assert set(found.steps.index) == set(range(0, 40, 2))
    assert len(view_of_steps(HEADER, LEDGER, None, seen, facts={}).steps) == 20


def test_no_steps_yet() -> None:
    found = decode_post(encode_post(HEADER, LEDGER, None, [], facts={}))
    assert len(found.steps) == 0
    assert found.verdict is None
    assert found.ended is None


def test_where_a_rank_stands() -> None:
    assert decode_post(encode_post(HEADER, LEDGER, None, [], facts={})).standing is None
    where = "for 62 s in backward: " + "x" * 500
    found = decode_post(encode_post(HEADER, LEDGER, None, [], facts={}, standing=where)).standing
    assert found == where[:160]
    assert view_of_steps(HEADER, LEDGER, None, [], facts={}, standing="here").standing == "here"


def test_which_data_a_rank_goes_through() -> None:
    """What is not told again was told before."""
    trains_on = DataRead(50_000, 50_000, 64, "RandomSampler", "0123abcd", "4567cdef")
    evaluates = DataRead(1_000, 1_000, 128, "SequentialSampler", "89ab0123", "")

    def view(**read: DataRead) -> RankView:
        return decode_post(encode_post(HEADER, LEDGER, VERDICT, some_steps(20), facts={}, **read))

    known = view(trains_on=trains_on, evaluates=evaluates)
    assert (known.trains_on, known.evaluates) == (trains_on, evaluates)
    assert (view().trains_on, view().evaluates) == (None, None)
    assert (view(evaluates=evaluates).trains_on, view(evaluates=evaluates).evaluates) == (None, evaluates)
    later = joined(known, view(evaluates=evaluates), 100)
    assert (later.trains_on, later.evaluates) == (trains_on, evaluates)


def test_where_in_the_code_a_rank_works() -> None:
    places = [Location("train.py", 12, "Net.forward", 71.234), Location("watch.py", 3, "look", 20.0, "torch.svd")]
    text = encode_post(HEADER, LEDGER, None, some_steps(20), facts={}, places=places)
    found = decode_post(text)
    assert list(found.places) == [replace(places[0], share_pct=71.2), places[1]]
    assert list(view_of_steps(HEADER, LEDGER, None, [], facts={}, places=places).places) == places
    assert joined(found, posted(20, 20), 1000).places == found.places
    assert (found.between, joined(found, posted(20, 20), 1000).between) == (None, None)
    post = encode_post(HEADER, LEDGER, None, some_steps(20), facts={}, between=places[1])
    assert decode_post(post).between == places[1]
    assert joined(decode_post(post), posted(20, 20), 1000).between == places[1]
    assert view_of_steps(HEADER, LEDGER, None, [], facts={}, between=places[1]).between == places[1]
    long = [replace(places[0], function="f" * 5000)] * 8
    assert len(encode_post(HEADER, LEDGER, None, some_steps(20), facts={}, places=long, most=1500)) <= 1500


def posted(first: int, count: int, rank: int = 1, **changes: Any) -> RankView:
    header = replace(HEADER, rank=rank)
    view = decode_post(
        encode_post(header, LEDGER, None, some_steps(count, seed=rank, first=first), facts={}, most=10**6)
    )
    return replace(view, **changes)


@pytest.mark.parametrize("most", [64, 100, 250])
def test_joined_is_bounded_and_keeps_whole_rows(most: int) -> None:
    view: RankView | None = None
    for post in range(12):
        view = joined(view, posted(50 * post, 50), most)
        steps = view.steps
        assert len(steps) <= most
        assert len(steps) > most - ROW or post * 50 < most
        assert list(steps.index) == list(range(steps.index[0], 50 * (post + 1)))
        assert steps.index[0] % ROW == 0
        assert {len(steps.ends_s), len(steps.optimizer_step), *map(len, steps.seconds.values())} == {len(steps)}
        assert list(steps.starts) == [index for index in steps.index if index % 100 == 0]
    at_once = joined(None, posted(0, 600), most)
    assert view is not None
    assert list(at_once.steps.index) == list(view.steps.index)
    assert view.steps.earlier_s == pytest.approx(view.steps.ends_s[0] - posted(0, 50).steps.ends_s[0])


def test_joined_takes_each_step_once_and_the_newest_of_all_else() -> None:
    readings = [replace(ARRIVALS, time_s=1.7e9 + at) for at in range(6)]
    before = posted(0, 20, arrivals=readings[:4])
    after = posted(16, 20, ended="finished", arrivals=readings[3:])
    found = joined(joined(None, before, 1000), after, 1000)
    assert list(found.steps.index) == list(range(36))
    assert found.ended == "finished"
    assert list(found.arrivals) == readings


def test_joined_to_what_a_recording_says() -> None:
    """It does not know of weight updates, and has more of the rows; its verdict stays until there is a newer one."""
    before = posted(0, 24)
    recorded = replace(before, steps=replace(before.steps, optimizer_step=()), verdict=VERDICT, facts=FACTS)
    found = joined(recorded, replace(posted(16, 16), facts={}), 100)
    assert list(found.steps.index) == list(range(32))
    assert list(found.steps.optimizer_step) == [None] * 24 + list(range(24, 32))
    assert (found.verdict, found.facts) == (VERDICT, FACTS)


def test_buckets_that_come_later() -> None:
    """A bucket in which nobody had spent time before: until then it was nothing."""
    late_one = [replace(step, checkpoint_s=0.5) for step in some_steps(8, first=8)]
    second = decode_post(encode_post(HEADER, LEDGER, None, late_one, facts={}))
    first = decode_post(encode_post(HEADER, LEDGER, None, some_steps(8), facts={}))
    found = joined(joined(None, first, 100), second, 100)
    assert found.steps.seconds["checkpoint"] == pytest.approx([0.0] * 8 + [0.5] * 8)


@pytest.mark.parametrize("most", [1000, 80], ids=["all steps are kept", "the newest are kept"])
def test_a_job_from_posts(most: int) -> None:
    """Rank 0 finds the late rank in what was posted bit by bit, and of the newest steps tells what all have lost."""
    trained = train(Program(own={"data_wait": late(0.004, 0.03, {1}), "backward": always(0.01)}, steps=200))
    views: dict[int, RankView] = {}
    for rank in (0, 1):
        header = replace(HEADER, rank=rank, world_size=2)
        for cut in range(0, 200, 40):
            part = records(trained.ranks[rank])[cut : cut + 40]
            if rank:
                new = decode_post(encode_post(header, LEDGER, None, part, facts={}))
            else:
                new = view_of_steps(header, LEDGER, None, part, facts={})
            views[rank] = joined(views.get(rank), new, most)
    merged = assemble(views.values()).merged
    assert merged is not None
    assert merged.steps <= most
    assert merged.scale * merged.lost_s[1, "data_wait"] == pytest.approx(199 * 0.03, rel=0.05)


# -- what is no post ---------------------------------------------------------------------------------------------------


def squeezed(text: bytes) -> bytes:
    pack = zlib.compressobj(zdict=posts._COMMON)
    return base64.b85encode(pack.compress(text) + pack.flush())


def packed(whole: object) -> bytes:
    return squeezed(json.dumps(whole).encode())


GOOD = unpacked(encode_post(HEADER, LEDGER, None, some_steps(16), facts=FACTS))


def test_a_post_that_is_made_by_hand() -> None:
    """What follows fails for what is wrong with it, not for how it is packed."""
    assert len(decode_post(packed(GOOD)).steps) == 16


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"no post",
        "ä".encode(),
        base64.b85encode(b"not packed"),
        base64.b85encode(zlib.compress(b"{}")),
        squeezed(b"\xff\xfe"),
        squeezed(b"[" * 100_000),
        squeezed(b'"' + b"x" * 50_000_000 + b'"'),
        packed([]),
        packed(None),
        packed("text"),
        packed({}),
        packed({**GOOD, "header": {"run_id": "x", "started_s": 1.0, "new": 1}}),
        packed({**GOOD, "header": []}),
        packed({**GOOD, "ledger": "[]"}),
        packed({**GOOD, "ledger": '["step",1]'}),
        packed({**GOOD, "facts": {"a": "b"}}),
        packed({**GOOD, "facts": [1]}),
        packed({**GOOD, "steps": [1]}),
        packed({**GOOD, "steps": {"index": [1]}}),
        packed({**GOOD, "steps": {**GOOD["steps"], "index": ["a"] * 16}}),
        packed({**GOOD, "steps": {**GOOD["steps"], "index": [1]}}),
        packed({**GOOD, "steps": {**GOOD["steps"], "forward": [float("nan")] * 16}}),
        packed({**GOOD, "steps": {**GOOD["steps"], "base_s": float("inf")}}),
        packed({**GOOD, "steps": {**GOOD["steps"], "first": [99]}}),
        packed({**GOOD, "arrivals": 5}),
    ],
    ids=lambda text: repr(text[:12]),
)
def test_no_post(text: bytes) -> None:
    with pytest.raises(ValueError):
        decode_post(text)


@given(st.binary(max_size=200))
def test_any_bytes(text: bytes) -> None:
    for given_text in (text, base64.b85encode(text), squeezed(text)):
        with pytest.raises(ValueError):
            decode_post(given_text)


def test_cut_off_anywhere() -> None:
    whole = encode_post(HEADER, LEDGER, VERDICT, some_steps(16), facts=FACTS)
    for end in range(0, len(whole), 7):
        with pytest.raises(ValueError):
            decode_post(whole[:end])
