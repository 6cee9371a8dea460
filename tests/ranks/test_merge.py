"""Who waits for whom, on ranks whose waits are computed: the right rank, the right bucket, the right seconds."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallmeter.ranks.between import BETWEEN
from stallmeter.ranks.merge import Merged, merge
from stallmeter.ranks.steps import PHASES, RankSteps, before_exchange
from stallmeter.records.rows import is_kept

from .synthetic import Own, Program, Trained, always, late, train

STEP: dict[str, Own] = {
    "data_wait": always(0.002),
    "forward": always(0.006),
    "backward": always(0.008),
    "optimizer": always(0.001),
}
EXTRA_S = 0.03


def program(own: dict[str, Own] | None = None, **kwargs: object) -> Program:
    return Program(own={**STEP, **(own or {})}, **kwargs)  # type: ignore[arg-type]


def merged(trained: Trained, keep: Callable[[int], bool] | None = None) -> Merged:
    found = merge(trained.ranks if keep is None else trained.of(keep))
    assert found is not None
    return found


def every_fourth(index: int) -> bool:
    return index % 4 == 0


def rows(index: int) -> bool:
    return is_kept(index, 4)


LATE = {
    "data": ({"data_wait": late(0.002, EXTRA_S, {1})}, "data_wait"),
    "forward": ({"forward": late(0.006, EXTRA_S, {1})}, "forward"),
    "copy": ({"h2d": late(0.001, EXTRA_S, {1})}, "h2d"),
    "callback": ({"callbacks": late(0.0, EXTRA_S, {1})}, "callbacks"),
    "logging": ({"logging": late(0.0, 5 * EXTRA_S, {1}, every=5)}, "logging"),
}


KEPT: dict[str, Callable[[int], bool] | None] = {"all": None, "every fourth": every_fourth, "rows of eight": rows}


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(
    ("case", "kept"), [(case, kept) for case in LATE for kept in KEPT if (case, kept) != ("logging", "every fourth")]
)
def test_late_rank(case: str, kept: str, ranks: int) -> None:
    """One rank is late with one thing, in each step or now and then; all steps are kept, or some."""
    (own, bucket), keep = LATE[case], KEPT[kept]
    found = merged(train(program(own, ranks=ranks, steps=203 if keep is None else 803)), keep)
    assert found.is_together
    assert found.loss_share == pytest.approx(EXTRA_S / (EXTRA_S + 0.0185), rel=0.08)
    assert found.lost_s[1, bucket] > 0.95 * found.loss_s
    assert {meeting.rank for meeting in found.meetings if meeting.loss_s > EXTRA_S / 2} == {1}
    others = [seconds for rank, seconds in found.waited_s.items() if rank != 1]
    # At the edge of a row one of the two is not seen: who was late, or who waited.
    assert min(others) == pytest.approx(found.loss_s, rel=0.05 if keep is None else 0.15)
    assert found.waited_s[1] < 0.03 * found.loss_s
    assert found.unmet_s == 0


def test_late_now_and_then_and_single_steps() -> None:
    """Most of them hold one side only, who was late or who waited: nothing is said rather than something wrong."""
    found = merged(train(program(LATE["logging"][0], steps=803)), every_fourth)
    assert not found.is_together or found.lost_s[1, "logging"] > 0.9 * found.loss_s
    assert found.lost_by(0) < 0.02 * found.total_s


def test_where_they_wait() -> None:
    """A hook after the exchange is waited for in the next exchange, or where the step's end makes all wait."""
    own = LATE["callback"][0]
    carried = merged(train(program(own)))
    at_the_end = merged(train(program({**own, "loop": always(0.001)}, meets_in=("backward", "loop"))))
    assert carried.waited_in_s[0, "backward"] > 0.95 * carried.loss_s
    assert at_the_end.waited_in_s[0, "loop"] > 0.95 * at_the_end.loss_s
    assert at_the_end.loss_s == pytest.approx(carried.loss_s, rel=0.05)


def test_own_time_is_without_waits() -> None:
    found = merged(train(program(LATE["data"][0])))
    assert found.own_s[0]["backward"] == pytest.approx(found.own_s[1]["backward"], abs=5e-4)
    assert found.own_s[1]["data_wait"] - found.own_s[0]["data_wait"] == pytest.approx(EXTRA_S, rel=0.05)
    assert found.shared_s["data_wait"] == pytest.approx(0.002 * 199, rel=0.2)
    assert found.shared_s["backward"] == pytest.approx(0.009 * 199, rel=0.1)


@pytest.mark.parametrize("ranks", [2, 4])
def test_rotating(ranks: int) -> None:
    """In each step another rank is late: all are, alike."""
    found = merged(train(program({"data_wait": lambda i, r: 0.002 + EXTRA_S * (i % ranks == r)}, ranks=ranks)))
    assert found.loss_s == pytest.approx(199 * EXTRA_S, rel=0.05)
    assert {round(found.lost_by(rank) / found.loss_s * ranks, 1) for rank in range(ranks)} == {1.0}
    assert found.shared_s["data_wait"] == pytest.approx(0.002 * 199, rel=0.2)


@pytest.mark.parametrize("jitter_s", [0.0, 0.0003, 0.001, 0.002])
@pytest.mark.parametrize("ranks", [2, 8])
def test_healthy(ranks: int, jitter_s: float) -> None:
    """Only what chance makes one wait for the other, and nobody in particular."""
    trained = train(program(ranks=ranks, jitter_s=jitter_s, steps=600))
    found = merged(trained)
    assert found.loss_s <= 1.05 * trained.lost_s + 1e-9
    assert found.loss_s >= 0.8 * trained.lost_s or jitter_s < 0.001  # below the noise floor it is left out
    assert all(found.lost_by(rank) < 2 * trained.lost_s / ranks + 0.01 for rank in range(ranks))


@pytest.mark.parametrize("jitter_s", [0.001, 0.002, 0.004])
@pytest.mark.parametrize("extra_s", [0.003, 0.005, 0.01])
def test_late_by_little_more_than_chance(extra_s: float, jitter_s: float) -> None:
    """What was waited is found however large the noise is; it is mostly the late rank's."""
    trained = train(program({"data_wait": late(0.004, extra_s, {1})}, jitter_s=jitter_s, steps=1000))
    found = merged(trained)
    assert found.loss_s == pytest.approx(trained.lost_s, rel=0.1)
    assert found.lost_by(1) > 0.65 * found.loss_s


PERIODS = [2, 3, 8, 10, 16, 50, 64]


@pytest.mark.parametrize("every", [4, 16])
@pytest.mark.parametrize("period", PERIODS)
@pytest.mark.parametrize("bucket", ["checkpoint", "data_wait"])
def test_rows_of_a_long_run(bucket: str, period: int, every: int) -> None:
    """What comes periodically is in as much of the rows as of the run: before the exchange and after it."""
    extra_s = 0.02 * period
    usual_s = 0.002 if bucket == "data_wait" else 0.0
    trained = train(program({bucket: late(usual_s, extra_s, {0}, every=period, at=period - 1)}, steps=1600 * every))
    found = merged(trained, lambda index: is_kept(index, every))
    assert found.is_together
    assert found.loss_share == pytest.approx(0.02 / (0.02 + 0.0185), rel=0.12)
    assert found.lost_s[0, bucket] > 0.9 * found.loss_s


@pytest.mark.parametrize("accumulation", [4, 16, 48, 100])
@pytest.mark.parametrize("counts", [True, False])
def test_accumulation(accumulation: int, counts: bool) -> None:
    """What a rank is late by adds up until the weights are updated."""
    own = LATE["data"][0]
    found = merged(train(program(own, steps=803, accumulation=accumulation, counts_updates=counts)))
    if accumulation > 16 and not counts:
        assert found.loss_s == 0 or not found.is_together  # nobody says that the ranks meet so rarely
        return
    assert found.is_together
    assert found.lost_s[1, "data_wait"] == pytest.approx(800 * EXTRA_S, rel=0.07)


def test_rows_that_begin_within_an_update() -> None:
    """It is not known how far apart the ranks are where a row begins; the first exchange tells."""
    trained = train(program(LATE["data"][0], steps=1600, accumulation=4))
    found = merged(trained, lambda index: (index + 3) // 8 % 4 == 0)
    assert found.is_together
    assert found.lost_s[1, "data_wait"] == pytest.approx(found.steps * EXTRA_S, rel=0.1)


@pytest.mark.parametrize("keep", [None, rows], ids=["all", "rows of eight"])
@pytest.mark.parametrize("bucket", ["checkpoint", "validation"])
def test_now_and_then_on_rank_0(bucket: str, keep: Callable[[int], bool] | None) -> None:
    found = merged(train(program({bucket: late(0.0, 0.3, {0}, every=20, at=19)}, steps=2001)), keep)
    assert found.is_together
    assert found.loss_share == pytest.approx(0.3 / (0.3 + 20 * 0.0184), rel=0.06)
    assert found.lost_s[0, bucket] > 0.9 * found.loss_s


def test_fsdp_waits_in_forward() -> None:
    """Parameters are gathered in the forward pass: who has no batch yet makes the others wait there."""
    found = merged(train(program(LATE["data"][0], ranks=4, meets_in=("forward", "backward"))))
    assert found.lost_s[1, "data_wait"] == pytest.approx(199 * EXTRA_S, rel=0.05)
    assert found.waited_in_s[0, "forward"] > 0.95 * found.loss_s


def test_late_ranks_share_a_loss() -> None:
    """Up to where the second is late both are waited for, beyond that the latest alone; each with its own bucket."""
    both = {"data_wait": late(0.002, 0.03, {2}), "forward": late(0.006, 0.02, {5})}
    found = merged(train(program(both, ranks=8)))
    assert found.loss_s == pytest.approx(199 * 0.03, rel=0.05)
    assert found.lost_s[2, "data_wait"] == pytest.approx(199 * 0.02, rel=0.05)
    assert found.lost_s[5, "forward"] == pytest.approx(199 * 0.01, rel=0.05)


def test_most_ranks_are_slow() -> None:
    """That is no lateness: it is what this job usually takes."""
    found = merged(train(program({"data_wait": late(0.002, EXTRA_S, {0, 1, 2, 3, 4})}, ranks=8)))
    assert found.loss_s < 0.1 * 199 * EXTRA_S
    assert found.shared_s["data_wait"] == pytest.approx(199 * (0.002 + EXTRA_S), rel=0.05)
    assert found.waited_s[7] == pytest.approx(199 * EXTRA_S, rel=0.4)


def test_lateness_that_is_made_up_for() -> None:
    """What a rank was behind after its hook it gains on its batch, which was ready by then: nobody waited for that."""
    own: dict[str, Own] = {
        "callbacks": late(0.0, 0.02, {1}),
        "data_wait": lambda i, r: 0.018 if r == 0 else 0.002,
    }
    found = merged(train(program(own)))
    assert found.loss_s == pytest.approx(199 * 0.004, rel=0.25)
    assert found.lost_s[1, "callbacks"] > 0.8 * found.loss_s


HOSTS = {"unknown": ("", ""), "one": ("a", "a"), "two": ("a", "b")}


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("ahead_s", [0.0, 0.1, -7.0])
@pytest.mark.parametrize("keep", [None, every_fourth], ids=["all", "every fourth"])
def test_clocks(keep: Callable[[int], bool] | None, ahead_s: float, hosts: str) -> None:
    """Clocks may differ between hosts, and between two that have one name; a recording keeps milliseconds."""
    found = merged(
        train(program(LATE["callback"][0], steps=803, hosts=HOSTS[hosts], offset_s={1: ahead_s}, tick_s=0.001)), keep
    )
    assert found.is_together
    assert found.loss_share == pytest.approx(EXTRA_S / (EXTRA_S + 0.0185), rel=0.08)
    assert found.lost_s[1, "callbacks"] > 0.9 * found.loss_s


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("ahead_s", [0.0, 3.0])
def test_between_two_epochs(ahead_s: float, hosts: str) -> None:
    """That time belongs to no step. Rank 0 spends more of it, and the other waits in its first step."""
    between: Own = lambda epoch, rank: 2.0 if rank == 0 else 0.5  # noqa: E731
    clocks = {"hosts": HOSTS[hosts], "offset_s": {1: ahead_s}, "tick_s": 0.001}
    found = merged(train(program(epoch=20, between=between, **clocks)))
    assert found.is_together
    assert found.lost_s[0, BETWEEN] == pytest.approx(9 * 1.5, rel=0.02)
    assert found.total_s == pytest.approx(9 * 2.0 + 199 * 0.0183, rel=0.03)
    assert found.loss_s < 1.05 * 9 * 1.5


def test_workers_start_on_one_rank_longer() -> None:
    startup: Own = lambda epoch, rank: 0.2 + rank  # noqa: E731
    found = merged(train(program(epoch=20, startup=startup)))
    assert found.lost_s[1, "worker_startup"] == pytest.approx(9 * 1.0, rel=0.02)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("jitter_s", [0.0005, 0.002, 0.005, 0.01])
def test_independent_ranks(jitter_s: float, ranks: int) -> None:
    """Nobody waits for anybody: chance brings sums together now and then, and drives them apart as often."""
    for seed in range(5):
        assert not merged(train(program(ranks=ranks, meets_in=(), jitter_s=jitter_s, steps=600, seed=seed))).is_together


def test_independent_ranks_of_different_speed() -> None:
    found = merged(train(program({"data_wait": late(0.002, 0.01, {1})}, meets_in=())))
    assert not found.is_together
    assert found.unmet_s > 0


def test_shifted_steps() -> None:
    """One rank has skipped a batch: its steps go by the weight update, not by their number."""
    trained = train(program({"data_wait": late(0.002, 0.2, {1}, every=10)}, steps=300))
    first, second = trained.ranks
    second = replace(second, index=[index + 1 for index in second.index])
    found = merge([first, second])
    assert found is not None
    assert found.is_together
    assert found.by_update
    assert found.lost_s[1, "data_wait"] == pytest.approx(29.5 * 0.2, rel=0.05)
    assert found.lost_by(0) < 0.05 * found.loss_s


def test_shifted_steps_under_accumulation() -> None:
    trained = train(program(LATE["data"][0], steps=403, accumulation=4))
    first, second = trained.ranks
    second = replace(second, index=[index + 2 for index in second.index])
    found = merge([first, second])
    assert found is not None
    assert found.is_together
    assert found.steps == pytest.approx(100, abs=2)
    assert found.lost_s[1, "data_wait"] == pytest.approx(396 * EXTRA_S, rel=0.05)


def test_first_step_is_left_out() -> None:
    """It compiles, allocates and starts, on one rank longer than on the other."""
    own: dict[str, Own] = {"forward": lambda i, r: 30.0 * (i == 0) * (r + 1) + 0.006}
    found = merged(train(program(own)))
    assert found.total_s < 5
    assert found.own_s[1]["forward"] == pytest.approx(0.006, rel=0.1)


def test_nothing_to_merge() -> None:
    ranks = train(program(steps=50)).ranks
    assert merge([]) is None
    assert merge(ranks[:1]) is None
    assert (
        merge([ranks[0], replace(ranks[1], index=[index + 1000 for index in ranks[1].index], optimizer_step=())])
        is None
    )
    assert merge([RankSteps(0, [], [], {}), RankSteps(1, [], [], {})]) is None
    assert merge([RankSteps(rank, [0, 1, 2], [0.0, 0.0, 0.0], {}) for rank in (0, 1)]) is None
    found = merge([RankSteps(rank, [0, 1, 2], [0.0, 0.0, 0.0], {"compute": [0.0] * 3}) for rank in (0, 1)])
    assert found is not None
    assert found.loss_s == 0
    assert not found.is_together


SECONDS = st.one_of(st.just(0.0), st.floats(0.0, 100.0), st.floats(0.0, 1e-3))


@st.composite
def some_ranks(draw: st.DrawFn) -> list[RankSteps]:
    """Anything that could be read from recordings."""
    count, buckets = (
        draw(st.integers(2, 5)),
        draw(st.lists(st.sampled_from(PHASES), min_size=1, max_size=4, unique=True)),
    )
    first = draw(st.integers(0, 3))
    found = []
    for rank in range(count):
        steps = draw(st.integers(0, 7))
        gaps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 9]), min_size=steps, max_size=steps))
        index = [first + sum(gaps[:at]) for at in range(steps)]
        seconds = {name: draw(st.lists(SECONDS, min_size=steps, max_size=steps)) for name in buckets}
        ends = sorted(draw(st.lists(st.floats(1e9, 2e9), min_size=steps, max_size=steps)))
        updates = draw(st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=steps, max_size=steps))
        starts = [i for i in index if i % 3 == 0]
        found.append(RankSteps(rank, index, ends, seconds, updates, draw(st.sampled_from(["", "a", "b"])), starts))
    return found


@settings(max_examples=150)
@given(some_ranks())
def test_whatever_ranks_recorded(ranks: list[RankSteps]) -> None:
    """It raises nothing, loses no more than there was, and nobody has waited less than nothing."""
    found = merge(ranks)
    if found is None:
        return
    assert 0 <= found.loss_s <= found.total_s * (1 + 1e-9)
    assert found.loss_s == pytest.approx(sum(found.lost_s.values()))
    assert all(seconds >= 0 for seconds in found.lost_s.values())
    assert all(seconds >= 0 for seconds in (*found.waited_s.values(), *found.waited_in_s.values()))
    assert all(meeting.loss_s > 0 for meeting in found.meetings)
    assert found.drift is None or 0 <= found.drift <= 1
    assert found.unmet_s >= 0


@settings(max_examples=40)
@given(
    st.integers(2, 6).flatmap(lambda n: st.permutations(range(n))),
    st.sampled_from(sorted(LATE)),
    st.integers(0, 5),
    st.sampled_from([1, 4]),
)
def test_permuted(order: list[int], case: str, seed: int, accumulation: int) -> None:
    """Which number a rank has changes nothing but the names."""
    trained = train(program(LATE[case][0], ranks=len(order), steps=60, seed=seed, accumulation=accumulation))
    found = merged(trained)
    again = merge([replace(rank, rank=order[rank.rank]) for rank in sorted(trained.ranks, key=lambda r: order[r.rank])])
    assert again is not None
    assert again.loss_s == pytest.approx(found.loss_s)
    assert again.lost_s == pytest.approx({(order[rank], bucket): s for (rank, bucket), s in found.lost_s.items()})
    assert again.waited_s == pytest.approx({order[rank]: s for rank, s in found.waited_s.items()})
    assert again.shared_s == pytest.approx(found.shared_s)


@settings(max_examples=40)
@given(st.sampled_from([2.0, 16.0, 1024.0]), st.sampled_from(sorted(LATE)), st.integers(0, 5))
def test_scaled(factor: float, case: str, seed: int) -> None:
    """All times so many times as long: the answer, too."""
    trained = train(program(LATE[case][0], ranks=3, steps=60, seed=seed, jitter_s=0.0003))
    # From a step on whose fiftieth part is more than what is always left out.
    found = merge([scaled(rank, 10.0) for rank in trained.ranks])
    again = merge([scaled(rank, 10.0 * factor) for rank in trained.ranks])
    assert found is not None
    assert again is not None
    assert again.loss_s == pytest.approx(factor * found.loss_s, rel=1e-6)
    assert again.lost_s == pytest.approx({key: factor * s for key, s in found.lost_s.items()}, rel=1e-6)
    assert again.waited_s == pytest.approx({key: factor * s for key, s in found.waited_s.items()}, rel=1e-6)


def scaled(rank: RankSteps, factor: float) -> RankSteps:
    seconds = {name: [factor * value for value in values] for name, values in rank.seconds.items()}
    # Clocks that say nothing: what they are believed to differ by at least is a fixed time.
    ends_s = [factor * (rank.rank + 1) * at * at for at in rank.index]
    return replace(rank, ends_s=ends_s, seconds=seconds, starts=())


@pytest.mark.parametrize("every", [3, 5, 7, 10, 12, 25])
def test_parameters_are_averaged_now_and_then(every: int) -> None:
    """Each batch is an update, so no update tells where the ranks meet: the collectives do."""
    own = {"data_wait": late(0.002, 0.02, [1]), "compute": always(0.01)}
    ran = train(Program(steps=300, own=own, meets_in=("compute",), accumulation=every, counts_updates=False))
    found = merge(ran.ranks, every)
    assert found is not None
    assert found.is_together
    assert found.lost_s[1, "data_wait"] == pytest.approx(300 * 0.02, rel=0.1)


def test_ranks_that_never_meet_do_not_train_together_whatever_the_collectives_say() -> None:
    own = {"data_wait": late(0.002, 0.02, [1]), "compute": always(0.01)}
    found = merge(train(Program(steps=300, own=own, meets_in=())).ranks, 10)
    assert found is not None
    assert not found.is_together


@pytest.mark.parametrize("called", ["logging", "checkpoint", "validation", "callbacks"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_who_logs_within_the_step_is_late_for_its_exchange(ranks: int, called: str) -> None:
    """Logging from `training_step`, of another length each time: the others wait in the backward pass after it."""

    def uneven(step: int, rank: int) -> float:
        return (step * 7 % 5) * 0.02 if rank == 0 else 0.0

    trained = train(program({called: uneven}, ranks=ranks, order=before_exchange({called})))
    found = merged(trained)
    assert max(found.lost_s, key=found.lost_s.__getitem__) == (0, called)
    # Of many ranks the middle one decides, and one that is taken to have logged in the step before is late as well.
    assert found.loss_s == pytest.approx(trained.lost_s, rel=0.05 if ranks == 2 else 0.25)
    assert found.waited_s[0] < 0.1 * found.waited_s[1]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("every", [5, 20])
def test_one_rank_evaluates_and_the_others_stand_in_a_barrier(ranks: int, every: int) -> None:
    """In a plain loop all that has no name is one bucket: the barrier at the end of the step lies in it, too."""

    def now_and_then(step: int, rank: int) -> float:
        return 0.5 if rank == 0 and step % every == every - 1 else 0.0

    own = {"data_wait": always(0.002), "compute": always(0.05), "validation": now_and_then}
    order = before_exchange({"validation"})
    trained = train(Program(ranks=ranks, steps=160, own=own, meets_in=("compute",), order=order))
    found = merged(trained)
    assert max(found.lost_s, key=found.lost_s.__getitem__) == (0, "validation")
    assert found.loss_s == pytest.approx(trained.lost_s, rel=0.05)
    assert {meeting.rank for meeting in found.meetings} == {0}


@pytest.mark.parametrize("called", ["checkpoint", "validation", "callbacks"])
def test_steps_of_any_length_do_not_say_that_others_wait_at_once(called: str) -> None:
    """The others wait in the next step, whose pass is as uneven as all."""
    draw = random.Random(7)
    lengths = [draw.uniform(0.02, 0.2) for _ in range(400)]
    own = {
        "data_wait": always(0.002),
        "backward": lambda step, rank: lengths[step],
        called: lambda step, rank: 0.05 if rank == 0 else 0.0,
    }
    trained = train(Program(steps=400, own=own))
    found = merged(trained)
    assert max(found.lost_s, key=found.lost_s.__getitem__) == (0, called)
    assert found.loss_s == pytest.approx(trained.lost_s, rel=0.05)
