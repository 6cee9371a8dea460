"""One number for all ranks, from what each rank alone would advise."""

from __future__ import annotations

from typing import Any

from stallmeter.ranks.posts import decode_post, encode_post, post_bytes
from stallmeter.recording import Header
from stallmeter.records import BUCKETS, LedgerRecord
from stallmeter.records.diagnosis import Diagnosis, Severity, Verdict, WorkerAdvice
from stallmeter.workers.job import advise_job


def advice(current: int, recommended: int, **changes: Any) -> WorkerAdvice:
    values: dict[str, Any] = {
        "current": current,
        "recommended": recommended,
        "predicted_step_time_s": 0.02,
        "predicted_gain_pct": 0.0 if recommended == current else 90.0,
        "limited_by": "compute",
        "reason": f"{recommended} it is",
        "confidence": 0.9,
    }
    return WorkerAdvice(**{**values, **changes})


def number(*advices: WorkerAdvice, late: tuple[int, ...] = ()) -> int | None:
    found = advise_job(dict(enumerate(advices)), late)
    return None if found is None else found.recommended


def test_the_late_rank_sets_the_pace() -> None:
    """The others' steps are as long as their waits for it: they see no reason for more, or for as many."""
    found = advise_job({0: advice(2, 2), 1: advice(2, 6), 2: advice(2, 0, saves_processes=2)}, late=(1,))
    assert found is not None
    assert (found.recommended, found.predicted_gain_pct) == (6, 90.0)
    assert found.reason == "rank 1 sets the pace: 6 it is"
    assert number(advice(2, 2), advice(2, 5), advice(2, 6), late=(1, 2)) == 6


def test_without_the_late_ranks_advice_there_is_none() -> None:
    assert advise_job({0: advice(2, 0)}, late=(1,)) is None
    assert advise_job({}) is None


def test_alike_ranks_get_enough_for_nearly_all() -> None:
    assert number(advice(2, 4), advice(2, 5)) == 5
    assert number(*[advice(2, 4)] * 29, advice(2, 40)) == 4
    assert number(advice(2, 4), advice(2, 2)) == 4
    assert number(advice(2, 4), advice(2, 2), advice(2, 2)) == 2


def test_fewer_must_be_enough_for_all() -> None:
    assert number(advice(8, 2), advice(8, 4)) == 4
    assert number(advice(8, 2), advice(8, 8), advice(8, 8)) == 8
    saving = {"predicted_gain_pct": 0.0, "saves_processes": 4}
    assert number(advice(8, 4, **saving), advice(8, 3, **saving)) == 4
    assert number(advice(8, 4, **saving), advice(8, 8)) == 8
    assert number(advice(8, 4, **saving), advice(8, 2)) == 4
    assert number(advice(8, 4, **saving), late=(0,)) == 8  # a rank that is late for its data does not give up workers


def test_nobody_agrees() -> None:
    found = advise_job({0: advice(4, 2), 1: advice(4, 8), 2: advice(4, 3, saves_processes=1)})
    assert found is not None
    assert (found.recommended, found.predicted_gain_pct, found.saves_processes) == (4, 0.0, None)
    assert found.reason == "the ranks do not agree on another number"


def test_an_advice_about_another_number_does_not_count() -> None:
    """Rank 2 has not yet seen what was changed."""
    assert number(advice(6, 6), advice(6, 6), advice(2, 9)) == 6


def test_every_rank_needs_room_for_the_number() -> None:
    """All get it: one that has heavier workers must have room, too."""
    found = advise_job({0: advice(2, 2, most=3), 1: advice(2, 6, most=9)}, late=(1,))
    assert found is not None
    assert (found.recommended, found.limited_by, found.predicted_gain_pct) == (3, "memory", None)
    assert found.reason.startswith("rank 0 has room for 3, 6 would help.")
    full = advise_job({0: advice(2, 2, most=2), 1: advice(2, 6, most=9)}, late=(1,))
    assert full is not None
    assert (full.recommended, full.limited_by) == (2, "memory")
    assert full.reason == "6 would help, but rank 0 has no room for more"
    assert number(advice(2, 2, most=6), advice(2, 6), late=(1,)) == 6


def test_a_short_post_holds_the_number_without_its_reason() -> None:
    header = Header(run_id="abcdef", rank=7, world_size=512, started_s=1.7e9, host="node-17", pid=4711)
    buckets = {name: 1234.567 / (i + 3) for i, name in enumerate(BUCKETS)}
    ledger = LedgerRecord(time_s=1.7e9, wall_s=1234.567, steps=98765, epochs=3, buckets=buckets)
    words = Diagnosis(
        rule="input-bound",
        severity=Severity.WARNING,
        title="The training loop waits for data",
        summary=" ".join(str(n * 7919) for n in range(300)),
        time_lost_s=123.4,
        share_pct=12.3,
        confidence=0.8,
    )
    verdict = Verdict(primary=words, diagnoses=(words,), num_workers=advice(2, 6, most=9, reason=words.summary))
    for ranks in (2, 512):
        post = encode_post(header, ledger, verdict, [], facts={}, most=post_bytes(ranks))
        told = decode_post(post).verdict
        assert told is not None
        assert told.num_workers is not None
        assert (told.num_workers.recommended, told.num_workers.most) == (6, 9)
        assert bool(told.num_workers.reason) == (ranks == 2)
        assert len(post) <= post_bytes(ranks)
