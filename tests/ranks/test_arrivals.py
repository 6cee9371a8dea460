"""Who came late to the collectives, where the ledgers of all ranks are alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallmeter.ranks.arrivals import MIN_STEPS, Exchanges, late_in_exchanges, steps_apart
from stallmeter.ranks.steps import RankSteps
from stallmeter.records import Arrivals

T0 = 1.7e9
OWN_S, EXCHANGE_S, AFTER_S = 0.020, 0.004, 0.003

Late = Callable[[int, int], float]


def job(
    late: Late,
    *,
    ranks: int = 2,
    steps: int = 60,
    clocks: Mapping[int, float] | None = None,
    hosts: Sequence[str] = (),
    completes: bool = False,
    jitter_s: float = 0.0002,
) -> tuple[dict[int, list[Arrivals]], list[RankSteps]]:
    """Return what ranks note that ask for two collectives a step, the first half-way, and wait for the second.

    Args:
        late: Seconds of a rank beyond the others before the first, by step and rank.
        ranks: How many.
        steps: Of each.
        clocks: By how much some clocks are ahead.
        hosts: Of each.
        completes: Whether the end of each collective is noted, as of NCCL's.
        jitter_s: Standard deviation of each rank's own time.
    """
    draw = random.Random(7)
    now = [T0] * ranks
    rows: list[list[tuple[float, float, float]]] = [[] for _ in range(ranks)]
    began: list[list[tuple[float, float]]] = [[] for _ in range(ranks)]
    for step in range(steps):
        first = [t + OWN_S / 2 + late(step, rank) + abs(draw.gauss(0, jitter_s)) for rank, t in enumerate(now)]
        second = [t + OWN_S / 2 for t in first]
        ends = (max(first) + EXCHANGE_S, max(second) + EXCHANGE_S)
        for rank in range(ranks):
            began[rank] += [(first[rank], ends[0] - first[rank]), (second[rank], ends[1] - second[rank])]
            rows[rank].append((ends[1] - now[rank], AFTER_S, ends[1] + AFTER_S))
        now = [ends[1] + AFTER_S] * ranks
    ahead = [(clocks or {}).get(rank, 0.0) for rank in range(ranks)]
    arrivals = {
        rank: [
            Arrivals(
                time_s=T0,
                group="0:default",
                base_s=T0,
                sequence=tuple(range(len(began[rank]))),
                began_us=tuple(round((at - T0 + ahead[rank]) * 1e6) for at, _ in began[rank]),
                took_us=tuple(round(took * 1e6) if completes else -1 for _, took in began[rank]),
                sent_bytes=(1000,) * len(began[rank]),
            )
        ]
        for rank in range(ranks)
    }
    found = [
        RankSteps(
            rank,
            list(range(steps)),
            [end + ahead[rank] for _, _, end in rows[rank]],
            {"compute": [body for body, _, _ in rows[rank]], "other": [after for _, after, _ in rows[rank]]},
            (),
            hosts[rank] if hosts else "a",
        )
        for rank in range(ranks)
    ]
    return arrivals, found


def judged(late: Late, **kwargs: object) -> Exchanges:
    found = late_in_exchanges(*job(late, **kwargs))  # type: ignore[arg-type]
    assert found is not None
    return found


def slow(rank: int, seconds: float = 0.03) -> Late:
    return lambda step, r: seconds * (r == rank)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_late_in_the_body_of_a_plain_loop(ranks: int) -> None:
    """Its ledger is like the others': all have the same long body."""
    found = judged(slow(1), ranks=ranks)
    assert found.lost_s[1] == pytest.approx(59 * 0.03, rel=0.03)
    assert sum(s for rank, s in found.lost_s.items() if rank != 1) < 0.01
    assert found.late_steps[1] == 59
    assert found.total_s == pytest.approx(59 * (OWN_S + EXCHANGE_S + AFTER_S + 0.03), rel=0.02)
    assert found.loss_s == sum(found.lost_s.values())
    others = [s for rank, s in found.stood_s.items() if rank != 1]
    assert others == pytest.approx([59 * 0.03] * (ranks - 1), rel=0.03)
    assert found.stood_s[1] < 0.01


def test_rotating() -> None:
    found = judged(lambda step, rank: 0.03 * (step % 2 == rank))
    assert found.lost_s[0] == pytest.approx(found.lost_s[1], rel=0.1)
    assert found.late_steps[0] + found.late_steps[1] == 59


def test_healthy() -> None:
    assert judged(slow(1, 0.0)).loss_s < 0.02 * judged(slow(1, 0.0)).total_s


@pytest.mark.parametrize("ahead_s", [-3.0, 0.5])
def test_two_hosts(ahead_s: float) -> None:
    """Their clocks are apart by what the ends of steps are."""
    found = judged(slow(1), clocks={1: ahead_s}, hosts=("a", "b"))
    assert found.lost_s[1] == pytest.approx(59 * 0.03, rel=0.03)


def test_the_first_step_is_left_out() -> None:
    found = judged(lambda step, rank: 20.0 * rank * (step == 0))
    assert found.loss_s < 0.1
    assert found.total_s < 5


@pytest.mark.parametrize("completes", [True, False])
def test_the_exchange_itself(completes: bool) -> None:
    """From the last arrival to the end: as noted, else the end of the bucket of the backward pass."""
    arrivals, steps = job(slow(1), completes=completes)
    for rank in steps:
        rank.seconds["backward"] = rank.seconds.pop("compute")  # type: ignore[attr-defined,index]
    found = late_in_exchanges(arrivals, steps)
    assert found is not None
    assert found.is_measured is completes
    assert found.exchange_s == pytest.approx(59 * EXCHANGE_S, rel=0.1)
    assert found.per_step == pytest.approx(2.0, rel=0.02)
    assert found.bytes_per_step == pytest.approx(2000, rel=0.02)


def test_where_the_body_of_a_loop_goes_on_after_the_exchange_its_end_is_not_known() -> None:
    assert judged(slow(1)).exchange_s is None
    assert judged(slow(1), completes=True).exchange_s is not None


def test_ends_that_are_noted_from_a_moment_on_speak_for_the_steps_before() -> None:
    arrivals, steps = job(slow(1), completes=True)
    later = {
        rank: [replace(found[0], took_us=tuple(-1 if i < 60 else t for i, t in enumerate(found[0].took_us)))]
        for rank, found in arrivals.items()
    }
    found = late_in_exchanges(later, steps)
    assert found is not None
    assert found.exchange_s == pytest.approx(59 * EXCHANGE_S, rel=0.1)


def test_where_nothing_is_said() -> None:
    arrivals, steps = job(slow(1))
    assert late_in_exchanges({}, steps) is None
    assert late_in_exchanges({0: arrivals[0]}, steps) is None
    assert late_in_exchanges(arrivals, []) is None
    assert late_in_exchanges(*job(slow(1), steps=MIN_STEPS)) is None  # the first is none of them
    assert late_in_exchanges(*job(slow(1), steps=MIN_STEPS + 1)) is not None
    shifted = {1: [replace(arrivals[1][0], group="1:other")], 0: arrivals[0]}
    assert late_in_exchanges(shifted, steps) is None
    bare = [RankSteps(rank.rank, rank.index, rank.ends_s, {}) for rank in steps]
    assert late_in_exchanges(arrivals, bare) is None


WRITES_S, SAVES = 0.2, 10


def saving(steps: int = 60, bucket: str = "checkpoint") -> tuple[dict[int, list[Arrivals]], list[RankSteps]]:
    """Rank 0 writes a file each tenth step, in which both wait for each other at its end."""
    now, began = T0, ([], [])  # type: ignore[var-annotated]
    body, saved, ends = [], [], []
    for step in range(steps):
        exchange = now + OWN_S
        began[0].append(exchange)
        began[1].append(exchange + 0.0001)
        now = exchange + EXCHANGE_S + AFTER_S
        writes_s = WRITES_S if step % SAVES == SAVES - 1 else 0.0
        if writes_s:
            began[0].append(now + writes_s)
            began[1].append(now + 0.001)
            now += writes_s
        body.append(OWN_S + EXCHANGE_S + AFTER_S)
        saved.append(writes_s)
        ends.append(now)
    arrivals = {
        rank: [
            Arrivals(
                time_s=T0,
                group="0:default",
                base_s=T0,
                sequence=tuple(range(len(times))),
                began_us=tuple(round((at - T0) * 1e6) for at in times),
                took_us=(-1,) * len(times),
                sent_bytes=(1000,) * len(times),
            )
        ]
        for rank, times in enumerate(began)
    }
    return arrivals, [
        RankSteps(rank, range(steps), ends, {"backward": body, bucket: saved}, (), "a") for rank in (0, 1)
    ]


@pytest.mark.parametrize("bucket", ["checkpoint", "logging", "validation"])
def test_late_where_all_wait_in_the_same_bucket(bucket: str) -> None:
    """All ledgers show the same seconds; when each asked for the collective tells whose they are."""
    found = late_in_exchanges(*saving(bucket=bucket))
    assert found is not None
    assert found.apart_s.keys() == {(0, bucket)}
    assert found.apart_s[0, bucket] == pytest.approx(6 * WRITES_S, rel=0.02)
    assert found.spent_s[bucket] == pytest.approx(6 * WRITES_S, rel=0.02)
    assert found.apart_steps == {(0, bucket): 6}


def test_of_a_reading_that_ends_early_the_last_step_does_not_count() -> None:
    """Its checkpoint is in the ledgers, the collective after it in no reading."""
    arrivals, steps = saving()
    columns = ("sequence", "began_us", "took_us", "sent_bytes")
    short = {
        rank: [replace(found[0], **{name: getattr(found[0], name)[:43] for name in columns})]
        for rank, found in arrivals.items()
    }
    assert short[0][0].began_us[-1] < (steps[0].ends_s[39] - T0) * 1e6
    found = late_in_exchanges(short, steps)
    assert found is not None
    assert found.spent_s["checkpoint"] == pytest.approx(3 * WRITES_S)


def test_late_where_one_rank_reads_for_all() -> None:
    """Both wait for the batch, rank 1 for what rank 0 sends it when it has read it."""
    reads_s, steps = 0.03, 60
    ends = [T0 + (step + 1) * (reads_s + OWN_S) for step in range(steps)]
    begins = [end - reads_s - OWN_S for end in ends]
    asked = {0: [b + reads_s - 0.001 for b in begins], 1: [b + 0.001 for b in begins]}
    arrivals = {
        rank: [
            Arrivals(
                time_s=T0,
                group="0:default",
                base_s=T0,
                sequence=tuple(range(steps)),
                began_us=tuple(round((at - T0) * 1e6) for at in times),
                took_us=(-1,) * steps,
                sent_bytes=(1000,) * steps,
            )
        ]
        for rank, times in asked.items()
    }
    seconds = {"data_wait": [reads_s] * steps, "compute": [OWN_S] * steps}
    found = late_in_exchanges(arrivals, [RankSteps(rank, range(steps), ends, seconds, (), "a") for rank in (0, 1)])
    assert found is not None
    assert found.apart_s.keys() == {(0, "data_wait")}
    assert found.apart_s[0, "data_wait"] == pytest.approx(found.lost_s[0])
    assert found.spent_s["data_wait"] == pytest.approx(59 * reads_s, rel=0.02)


def test_a_late_backward_pass_is_in_no_bucket_apart() -> None:
    assert judged(slow(1)).apart_s == {}


def test_readings_that_overlap_or_lack_some() -> None:
    """Each rank's recorder is read at other times, and forgets what is old."""
    arrivals, steps = job(slow(1))

    def part(rank: int, first: int, last: int) -> Arrivals:
        whole = arrivals[rank][0]
        columns = ("sequence", "began_us", "took_us", "sent_bytes")
        return replace(whole, **{name: getattr(whole, name)[first:last] for name in columns})

    found = late_in_exchanges({0: [part(0, 0, 70), part(0, 60, 120)], 1: [part(1, 20, 110)]}, steps)
    assert found is not None
    assert found.lost_s[1] == pytest.approx(45 * 0.03, rel=0.05)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(-(10**6), 10**7), st.integers(-1, 10**6), st.integers(0, 9)),
        max_size=80,
    ),
    st.lists(st.floats(0.0, 1.0), min_size=40, max_size=40),
)
def test_whatever_was_noted(noted: list[tuple[int, int, int, int]], lengths: list[float]) -> None:
    columns = [tuple(column) for column in zip(*noted, strict=True)] or [()] * 4
    ends = [T0 + sum(lengths[: at + 1]) for at in range(40)]
    steps = [RankSteps(rank, range(40), ends, {"compute": lengths}, (), "") for rank in (0, 1)]
    one = Arrivals(
        time_s=T0, group="g", base_s=T0, sequence=columns[0], began_us=columns[1], took_us=columns[2],
        sent_bytes=columns[3],
    )  # fmt: skip
    other = replace(one, began_us=tuple(-b for b in columns[1]))
    found = late_in_exchanges({0: [one], 1: [other]}, steps)
    assert found is None or (found.loss_s >= 0 and (found.exchange_s or 0.0) >= 0)


def test_collectives_in_some_steps_stand_for_the_others_too() -> None:
    """Gradients are accumulated, or parameters are averaged now and then: each four steps there is an exchange."""
    arrivals, ranks = job(slow(1), steps=240)
    noted = {rank: [_without(part, lambda number: number // 2 % 4 == 3)] for rank, (part,) in arrivals.items()}
    whole, some = late_in_exchanges(arrivals, ranks), late_in_exchanges(noted, ranks)
    assert whole is not None
    assert some is not None
    assert some.total_s == pytest.approx(whole.total_s, rel=0.02)
    assert some.lost_s[1] == pytest.approx(whole.lost_s[1] / 4, rel=0.05)
    assert some.per_step == pytest.approx(whole.per_step / 4, rel=0.05)
    assert steps_apart(noted[0], ranks[0]) == 4
    assert steps_apart(arrivals[0], ranks[0]) == 1
    assert steps_apart((), ranks[0]) == 1


def _without(part: Arrivals, keep: Callable[[int], bool]) -> Arrivals:
    at = [i for i, number in enumerate(part.sequence) if keep(number)]
    names = ("sequence", "began_us", "took_us", "sent_bytes")
    return replace(part, **{name: tuple(getattr(part, name)[i] for i in at) for name in names})


def test_late_between_two_epochs() -> None:
    """One is late there, and the others stand in a collective that belongs to no step."""
    arrivals, ranks = job(lambda step, rank: 0.0)
    gap_s, at = 0.5, 40
    later = [
        replace(
            rank,
            ends_s=[end + gap_s * (i >= at) for i, end in enumerate(rank.ends_s)],
            starts=[0, at],
        )
        for rank in ranks
    ]
    barrier_us = [ranks[0].ends_s[at - 1] - T0 + 0.002 + late for late in (0.0, gap_s - 0.01)]
    found = {}
    for rank, (part,) in arrivals.items():
        began = [
            us + round(gap_s * 1e6) * (number >= 2 * at)
            for number, us in zip(part.sequence, part.began_us, strict=True)
        ]
        began.insert(2 * at, round(barrier_us[rank] * 1e6))
        count = len(began)
        found[rank] = [
            replace(
                part,
                sequence=tuple(range(count)),
                began_us=tuple(began),
                took_us=(-1,) * count,
                sent_bytes=(1,) * count,
            )
        ]
    seen = late_in_exchanges(found, later)
    assert seen is not None
    assert seen.between_s[1] == pytest.approx(gap_s - 0.01, rel=0.02)
    assert seen.between_s.get(0, 0.0) < 0.01
    assert (seen.between_times, seen.gaps) == ({1: 1}, 1)
    assert seen.loss_s < 0.05
