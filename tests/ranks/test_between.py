"""What ranks do between two epochs: no step holds it, the ledger has its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from stallmeter.ranks.between import BETWEEN, gaps_s, shares_between, tail_s
from stallmeter.ranks.merge import Merged, merge
from stallmeter.ranks.steps import RankSteps
from stallmeter.records import BUCKETS, LedgerRecord

from .synthetic import Own, Program, always, chosen, train

EPOCHS, EVERY = 10, 20
GAPS = EPOCHS - 1


def trained(between: Own, ranks: int = 2) -> list[RankSteps]:
    own = {"data_wait": always(0.002), "forward": always(0.006), "backward": always(0.01)}
    program = Program(
        ranks=ranks, steps=EPOCHS * EVERY, own=own, epoch=EVERY, between=between, hosts=["a"] * ranks, tick_s=0.001
    )
    return train(program).ranks


def ledger(steps: RankSteps, after_s: float = 0.0, **beyond: float) -> LedgerRecord:
    """What a rank's steps hold, and more."""
    inside = {name: sum(values) for name, values in steps.seconds.items()}
    buckets = {name: inside.get(name, 0.0) + beyond.get(name, 0.0) for name in BUCKETS}
    return LedgerRecord(
        time_s=steps.ends_s[-1] + after_s,
        wall_s=sum(buckets.values()),
        steps=EPOCHS * EVERY,
        epochs=EPOCHS,
        buckets=buckets,
    )


def merged(ranks: list[RankSteps], *beyond: Mapping[str, float]) -> Merged:
    known = [ledger(rank, **spent) for rank, spent in zip(ranks, beyond, strict=True)]
    found = merge([replace(r, between=shares_between(r, own)) for r, own in zip(ranks, known, strict=True)])
    assert found is not None
    assert found.is_together
    return found


@pytest.mark.parametrize("name", ["validation", "checkpoint", "logging", "callbacks"])
def test_one_rank_works_and_the_others_stand_at_a_barrier(name: str) -> None:
    """Between two epochs all take as long; only what they spend it in tells them apart."""
    whole_s = GAPS * 1.5
    found = merged(trained(always(1.5), ranks=3), {"other": whole_s}, {name: whole_s}, {"other": whole_s})
    assert found.lost_s[1, name] == pytest.approx(whole_s, rel=0.02)
    assert found.loss_s == pytest.approx(whole_s, rel=0.05)
    assert found.waited_in_s[0, BETWEEN] == pytest.approx(whole_s, rel=0.02)
    assert found.gaps == GAPS
    assert found.gaps_s == pytest.approx(whole_s, rel=0.02)
    assert sum(meeting.between for meeting in found.meetings) == GAPS


def test_one_rank_works_and_the_others_wait_in_the_next_step() -> None:
    found = merged(trained(lambda epoch, rank: 1.5 * (rank == 0)), {"validation": GAPS * 1.5}, {})
    assert found.lost_s[0, "validation"] == pytest.approx(GAPS * 1.5, rel=0.02)
    assert not any(meeting.between for meeting in found.meetings)


def test_one_validates_longer_than_the_other() -> None:
    """What both spend in it is nobody's lateness."""
    found = merged(trained(always(1.5)), {"validation": GAPS * 1.5}, {"validation": GAPS * 0.5, "other": GAPS * 1.0})
    assert found.lost_s[0, "validation"] == pytest.approx(GAPS * 1.0, rel=0.02)
    assert found.shared_s["validation"] == pytest.approx(GAPS * 0.5, rel=0.02)


def test_all_validate_alike() -> None:
    spent = {"validation": GAPS * 1.5}
    found = merged(trained(always(1.5)), spent, spent)
    assert found.loss_s < 0.2  # chance
    assert found.shared_s["validation"] == pytest.approx(GAPS * 1.5, rel=0.02)


def test_what_has_no_name_stays_without_one() -> None:
    """Nobody can tell from the ledgers who waits for whom in it."""
    ranks = trained(always(1.5))
    assert shares_between(ranks[0], ledger(ranks[0], other=GAPS * 1.5)) == {}
    assert shares_between(ranks[0], None) == {}
    assert merged(ranks, {"other": GAPS * 1.5}, {"other": GAPS * 1.5}).loss_s < 0.2


def test_shares() -> None:
    """What lies in the steps is none of it; of a long run a part of the steps is kept."""
    rank = trained(always(1.0))[0]
    assert len(gaps_s(rank)) == GAPS
    assert shares_between(rank, ledger(rank, validation=GAPS * 0.75)) == {"validation": pytest.approx(0.75, rel=0.01)}
    inside = replace(rank, seconds={**rank.seconds, "callbacks": [0.002] * len(rank)})
    assert shares_between(inside, ledger(inside)) == {}
    half = chosen(rank, lambda index: index % (2 * EVERY) < EVERY + 1)
    kept = shares_between(half, ledger(rank, validation=GAPS * 0.75))
    assert kept == {"validation": pytest.approx(0.75, rel=0.01)}
    assert sum(shares_between(rank, ledger(rank, validation=GAPS * 9.0, checkpoint=GAPS * 9.0)).values()) <= 1.0 + 1e-9


def test_after_the_last_step() -> None:
    """One validates once more, and the others stand until it has done so; who leaves before waits for nobody."""
    ranks = trained(always(1.0))
    known = [ledger(ranks[0], 3.0, validation=GAPS + 3.0), ledger(ranks[1], 3.0, other=GAPS + 3.0)]
    assert tail_s(ranks[0], known[0]) == pytest.approx(3.0)
    assert tail_s(chosen(ranks[0], lambda index: index < 100), known[0]) == 0.0

    def lost(*tails: float) -> Merged:
        ended = [replace(rank, tail_s=tail) for rank, tail in zip(ranks, tails, strict=True)]
        found = merge([replace(r, between=shares_between(r, own)) for r, own in zip(ended, known, strict=True)])
        assert found is not None
        return found

    both = lost(3.0, 3.0)
    assert both.lost_s[0, "validation"] == pytest.approx(GAPS + 3.0, rel=0.02)
    assert both.span_s == pytest.approx(both.total_s, rel=0.02)
    assert lost(3.0, 0.0).lost_s[0, "validation"] < GAPS + 0.5


def test_what_one_does_in_the_last_step_is_waited_for_once() -> None:
    """A last checkpoint of 60 s in the last step, for which the other stands at a barrier; or leaves at once."""

    def ended(tail_s: float) -> Merged:
        ranks = []
        for rank, saved_s, tail in ((0, 60.0, 0.5), (1, 0.0, tail_s)):
            saved = [0.0] * 199 + [saved_s]
            ends = [1000.0 + 0.1 * (i + 1) + saved[i] for i in range(200)]
            seconds = {"compute": [0.1] * 200, "checkpoint": saved}
            ranks.append(RankSteps(rank, range(200), ends, seconds, range(1, 201), "a", (0,), {}, tail))
        found = merge(ranks)
        assert found is not None
        return found

    waited = ended(60.5)
    assert waited.lost_s == {(0, "checkpoint"): pytest.approx(60.0)}
    assert [meeting.between for meeting in waited.meetings] == [True]
    assert ended(0.5).lost_s == {(0, "checkpoint"): pytest.approx(60.0)}
