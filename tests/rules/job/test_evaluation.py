"""The job's verdict: which rank, which rule, how much."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stallmeter.ranks.arrivals import Exchanges
from stallmeter.ranks.job import CPU_WAIT, RankView, assemble
from stallmeter.ranks.steps import PHASES, RankSteps
from stallmeter.records.diagnosis import Abstention, Advice, Severity, WorkerAdvice
from stallmeter.rules import ALL_RULES
from stallmeter.rules.job import JOB_RULES
from stallmeter.rules.job.evaluation import alone, judge

from .jobs import START_S, Known, Made, compute_bound, diagnosis, header_of, in_turn, job, late, ledger_of, verdict_of

VICTIM = Known([compute_bound()])


def primary_of(made):
    primary = judge(made).verdict.primary
    assert primary is not None
    return primary


# -- a late rank


@pytest.mark.parametrize(
    ("rule", "bucket", "rank"),
    [
        ("fetch-stall", "data_wait", 1),
        ("no-workers", "data_wait", 0),
        ("slow-callback", "callbacks", 0),
        ("slow-logging", "logging", 0),
        ("checkpoint-stall", "checkpoint", 0),
        ("validation-heavy", "validation", 0),
        ("unpinned-memory", "h2d", 1),
        ("gc-pauses", "forward", 1),
        ("gpu-throttled", "backward", 1),
    ],
)
@pytest.mark.parametrize("ranks", [2, 5])
def test_a_rule_of_the_late_rank_is_the_jobs(rule, bucket, rank, ranks):
    """With its rank, and with what the others waited instead of what it spent."""
    own = diagnosis(rule, 4.4)
    known = dict.fromkeys(range(ranks), VICTIM) | {rank: Known([own])}
    made = job(late(rank, bucket, 0.02), ranks=ranks, meet="loop", known=known)
    judged = judge(made)
    primary = judged.verdict.primary
    assert (primary.rule, primary.ranks) == (rule, (rank,))
    assert primary.severity is Severity.CRITICAL
    assert primary.time_lost_s == pytest.approx(4.0, rel=0.05)
    assert primary.summary.endswith(f": 50 % of the training time. {own.summary}")
    assert primary.evidence[0].value == pytest.approx(50.0, rel=0.05)
    assert [d.rule for d in judged.verdict.diagnoses] == [rule]
    assert judged.lost_s == pytest.approx(primary.time_lost_s)
    assert judged.slowdown == pytest.approx(2.0, rel=0.05)


def test_an_evaluation_in_the_midst_of_the_late_ranks_steps():
    """A loop that tells nobody of it has it in its body: the ledger knows no validation, and the looks do."""
    own = diagnosis("validation-heavy", 3.0)
    made = job(late(0, "compute", 0.02), known={0: Known([own]), 1: VICTIM})
    assert (primary_of(made).rule, primary_of(made).ranks) == ("validation-heavy", (0,))
    other = job(late(0, "compute", 0.02), known={0: Known([diagnosis("slow-callback", 3.0)]), 1: VICTIM})
    assert (primary_of(other).rule, primary_of(other).ranks) == ("straggler", (0,))


def test_the_most_expensive_rule_of_the_bucket_is_told():
    """Two callbacks: the worse one."""
    own = [diagnosis("gc-pauses", 3.0), diagnosis("recompiles", 3.9)]
    made = job(late(1, "forward", 0.02), known={0: VICTIM, 1: Known(own)})
    assert primary_of(made).rule == "recompiles"


def test_a_rule_that_explains_little_of_it_is_not_the_cause():
    """Half of what the others waited at the least; else the rank is late for a reason that no rule knows."""
    made = job(late(1, "forward", 0.02), known={0: VICTIM, 1: Known([diagnosis("gc-pauses", 1.0)])})
    assert (primary_of(made).rule, primary_of(made).ranks) == ("straggler", (1,))


def test_a_rule_of_another_bucket_is_not_the_cause():
    """The callback takes time beside what the rank is late with, and not enough ranks have it."""
    made = job(late(1, "data_wait", 0.02), ranks=3, known={1: Known([diagnosis("slow-callback", 3.0)])})
    judged = judge(made)
    assert [(d.rule, d.ranks) for d in judged.verdict.diagnoses] == [("straggler", (1,))]
    assert judged.verdict.primary.title == "Late with its data, and the other ranks wait"


def test_no_seconds_are_told_twice():
    """A loss is told by the late rank's rule or as a straggler, not as both."""
    made = job(late(1, "forward", 0.02), known={0: VICTIM, 1: Known([diagnosis("gc-pauses", 3.9)])})
    assert [d.rule for d in judge(made).verdict.diagnoses] == ["gc-pauses"]


def test_two_kinds_of_work_of_one_rank_are_one_straggler():
    """Neither is worth a word alone, and nobody knows more about them."""

    def work(rank, step):
        return {"data_wait": 0.0006, "forward": 0.0008} if rank == 1 else {}

    (said,) = judge(job(work)).verdict.diagnoses
    assert (said.rule, said.ranks) == ("straggler", (1,))
    assert said.time_lost_s == pytest.approx(200 * 0.0014, rel=0.1)


def test_two_ranks_with_a_cause_each():
    """Both are told, the worse one first."""

    def work(rank, step):
        return {0: {"logging": 0.03 * (step % 2)}, 1: {"data_wait": 0.02 * (step % 2)}}[rank]

    known = {0: Known([diagnosis("slow-logging", 3.0)]), 1: Known([diagnosis("fetch-stall", 2.0)])}
    judged = judge(job(work, known=known))
    assert [(d.rule, d.ranks) for d in judged.verdict.diagnoses] == [("slow-logging", (0,)), ("fetch-stall", (1,))]
    assert judged.verdict.runner_up == judged.verdict.diagnoses[1]
    assert judged.lost_s == pytest.approx(sum(d.time_lost_s for d in judged.verdict.diagnoses))


# -- what its advice gains


def test_a_gain_is_no_more_than_what_the_others_waited():
    """Alone the rank would be twenty times as fast; then the other one sets the pace."""
    advice = Advice.of("Set num_workers=4.", expect="Steps of 2 ms instead of 40 ms.", limit="CPUs.", gain_pct=1900.0)
    cache = Advice.of("Cache it.", gain_pct=1000.0)
    own = diagnosis("no-workers", 4.4, advice=(advice, Advice.of("Make it cheaper."), cache))
    first, second, third = primary_of(job(late(1, "data_wait", 0.02), known={0: VICTIM, 1: Known([own])})).advice
    assert first.predicted_gain_pct == pytest.approx(100.0, rel=0.05)
    least, most = first.gain_interval_pct
    assert least < first.predicted_gain_pct < most
    assert first.fix.do == "Set num_workers=4."
    assert first.fix.expect == "The other ranks no longer wait for rank 1."
    assert first.fix.limit == "CPUs."
    assert second.text == "Make it cheaper."
    assert third.predicted_gain_pct == pytest.approx(first.predicted_gain_pct)


def test_an_advice_that_cures_a_part_gains_that_part():
    """Half as many checkpoints take half of the time."""
    half = diagnosis("checkpoint-stall", 4.0, advice=(Advice.of("Save less.", expect="Half of it.", gain_pct=33.3),))
    made = job(late(0, "checkpoint", 0.02), known={0: Known([half]), 1: VICTIM})
    (advice,) = primary_of(made).advice
    assert advice.predicted_gain_pct == pytest.approx(33.3, rel=0.05)
    assert advice.fix.expect == "Half of it."


def test_a_rule_without_advice():
    """What a rank of a large job has posted has lost advice, evidence and words."""
    bare = diagnosis("fetch-stall", 4.0, advice=(), summary="")
    primary = primary_of(job(late(1, "data_wait", 0.02), known={1: Known([bare])}))
    assert primary.advice == ()
    assert primary.summary.endswith(" % of the training time.")
    assert primary.time_lost_s == pytest.approx(4.0, rel=0.05)


# -- all ranks


def test_all_wait_for_data():
    """What all ranks lose alike is nobody's."""
    both = Known([diagnosis("no-workers", 4.0)])
    judged = judge(job(lambda rank, step: {"data_wait": 0.02}, known={0: both, 1: both}))
    (said,) = judged.verdict.diagnoses
    assert (said.rule, said.ranks) == ("no-workers", ())
    assert said.time_lost_s == pytest.approx(4.0, rel=0.06)
    assert judged.lost_s == said.time_lost_s


def test_all_wait_for_data_and_differ_a_little():
    """Waits never come to all at the same moment: the rest of them is no imbalance."""
    both = Known([diagnosis("fetch-stall", 4.4)])
    made = job(lambda rank, step: {"data_wait": 0.02 + 0.006 * ((step * 7) % 2 == rank)}, known={0: both, 1: both})
    (said,) = judge(made).verdict.diagnoses
    assert (said.rule, said.ranks) == ("fetch-stall", ())
    assert said.time_lost_s == pytest.approx(4.4, rel=0.1)


def test_ranks_name_other_rules_for_the_same_waits():
    """One says that workers wait for storage, the other that they compute: all wait for data."""
    known = {0: Known([diagnosis("prep-stall", 4.0)]), 1: Known([diagnosis("fetch-stall", 4.1)])}
    (said,) = judge(job(lambda rank, step: {"data_wait": 0.02}, known=known)).verdict.diagnoses
    assert said.rule in ("prep-stall", "fetch-stall")
    assert said.ranks == ()


def test_all_wait_and_one_waits_longer():
    """Both are told: what all lose, and what is lost to one."""
    known = {0: Known([diagnosis("no-workers", 4.0)]), 1: Known([diagnosis("no-workers", 6.0)])}
    made = job(lambda rank, step: {"data_wait": 0.02 + 0.01 * rank}, known=known)
    judged = judge(made)
    assert {(d.rule, d.ranks) for d in judged.verdict.diagnoses} == {("no-workers", ()), ("no-workers", (1,))}
    assert judged.lost_s == pytest.approx(6.0, rel=0.06)


def test_a_callback_that_waits_inside_a_barrier_is_a_victims():
    """Rank 0 logs, the others wait for it in a barrier of their callbacks, and say that these are slow."""
    victims = Known([diagnosis("slow-callback", 4.0)])
    known = {0: Known([diagnosis("slow-logging", 4.0)])} | dict.fromkeys(range(1, 8), victims)
    # Callbacks come before logging in a step: the barrier is in those of the next one.
    judged = judge(job(late(0, "logging", 0.02), ranks=8, meet="callbacks", known=known))
    assert [(d.rule, d.ranks) for d in judged.verdict.diagnoses] == [("slow-logging", (0,))]


def test_in_turn():
    """Each rank says that it waits for data, in half of the steps: together they wait in all of them."""
    both = Known([diagnosis("no-workers", 2.0)])
    judged = judge(job(in_turn(2, "data_wait", 0.02), known={0: both, 1: both}))
    assert [(d.rule, d.ranks) for d in judged.verdict.diagnoses] == [("rank-imbalance", ())]
    assert judged.lost_s == pytest.approx(4.0, rel=0.1)


def test_waits_of_all_ranks_that_meet_now_and_then_are_one_wait():
    """Each rank waits for data in every other step or so, whatever the other does: neither is waited for by turns."""

    def by_chance(rank: int, step: int) -> dict[str, float]:
        return {"data_wait": 0.02} if (step >> rank) % 2 else {}

    both = Known([diagnosis("no-workers", 2.0)])
    judged = judge(job(by_chance, known={0: both, 1: both}))
    assert [(d.rule, d.ranks) for d in judged.verdict.diagnoses] == [("no-workers", ())]
    one = judge(job(by_chance, known={0: both, 1: VICTIM}))
    assert [(d.rule, d.ranks) for d in one.verdict.diagnoses] != [("no-workers", ())]


def test_each_advice_promises_no_more_than_the_job_can_win():
    """What a rank would win alone, the job wins only as far as all ranks lose it."""
    advice = tuple(
        Advice.of(f"Make {name} cheaper.", gain_pct=pct, interval_pct=(pct - 5.0, pct + 5.0))
        for name, pct in (("this", 6.0), ("that", 900.0))
    )
    said = Known([diagnosis("prep-stall", 12.0, advice=(*advice, Advice("Look.")))])
    work = {"data_wait": 0.03}
    made = job(lambda r, step: work, known={0: said, 1: said})
    primary = primary_of(made)
    assert primary.rule == "prep-stall"
    assert primary.time_lost_s < 12.0
    first, second, third = (one.predicted_gain_pct for one in primary.advice)
    assert first == pytest.approx(6.0, rel=0.02)
    assert second == pytest.approx(100.0 * primary.time_lost_s / (made.training_s - primary.time_lost_s))
    assert third is None


def test_what_is_uncertain_on_a_rank_is_so_for_the_job():
    wide = Advice.of("Make this cheaper.", gain_pct=900.0, interval_pct=(90.0, 7200.0))
    said = Known([diagnosis("prep-stall", 12.0, advice=(wide,))])
    work = {"data_wait": 0.03}
    (advice,) = primary_of(job(lambda r, step: work, known={0: said, 1: said})).advice
    assert advice.predicted_gain_pct < 900.0
    part = advice.predicted_gain_pct / 900.0
    assert advice.gain_interval_pct == pytest.approx((90.0 * part, 7200.0 * part))


def test_waits_within_a_function_may_go_with_it():
    """A score is gathered from all ranks in the function that computes it."""
    advice = Advice.of("Make this cheaper.", gain_pct=60.0, interval_pct=(36.0, 84.0))
    said = Known([diagnosis("slow-function", 6.0, advice=(advice,))])
    judged = judge(job(in_turn(2, "forward", 0.03), known={0: said, 1: said}))
    (told,) = [d for d in judged.verdict.diagnoses if d.rule == "slow-function"]
    assert told.time_lost_s < 3.0
    assert told.advice[0].predicted_gain_pct < 36.0
    assert told.advice[0].gain_interval_pct[1] == 84.0


def test_what_costs_no_time_is_told_with_its_rank():
    """Memory that grows on rank 3 will end the job all the same."""
    grows = diagnosis("host-memory-growth", 0.0, severity=Severity.CRITICAL)
    known = dict.fromkeys(range(4), VICTIM) | {3: Known([grows, compute_bound()])}
    primary = primary_of(job(ranks=4, known=known))
    assert (primary.rule, primary.ranks) == ("host-memory-growth", (3,))
    assert primary_of(job(ranks=2, known=dict.fromkeys(range(2), Known([grows])))).ranks == ()


def test_what_costs_no_time_comes_after_what_does():
    """The loss is the primary cause."""
    known = {0: Known([diagnosis("host-memory-growth")]), 1: Known([diagnosis("fetch-stall", 4.0)])}
    judged = judge(job(late(1, "data_wait", 0.02), known=known))
    assert [(d.rule, d.ranks) for d in judged.verdict.diagnoses] == [
        ("fetch-stall", (1,)),
        ("host-memory-growth", (0,)),
    ]


def test_rules_that_nobody_here_knows():
    """The user's own: told where most ranks say it, less what they waited for others."""
    own = Known([diagnosis("my-rule", 3.0)])
    assert primary_of(job(known={0: own, 1: own})).rule == "my-rule"
    assert judge(job(known={0: own, 1: VICTIM})).verdict.primary.rule == "compute-bound"
    waits = job(late(1, "data_wait", 0.02), ranks=3, known={0: own, 2: own, 1: Known([diagnosis("fetch-stall", 4.0)])})
    assert [d.rule for d in judge(waits).verdict.diagnoses] == ["fetch-stall"]


def test_what_is_no_number_is_passed_over():
    """A recording is a file, and files get edited."""
    odd = Known([diagnosis("no-workers", float("nan")), diagnosis("slow-logging", float("inf"))])
    judged = judge(job(late(1, "data_wait", 0.02), known={0: odd, 1: odd}))
    assert [d.rule for d in judged.verdict.diagnoses] == ["straggler"]


def test_before_the_first_step():
    """A slow start is lost to all, and is no part of the training that others wait in."""
    slow = Known([diagnosis("slow-start", 0.8)])
    judged = judge(job(known={0: slow, 1: slow}))
    assert judged.verdict.primary.rule == "slow-start"
    assert judged.lost_s == pytest.approx(0.8)
    assert judged.slowdown == 1.0


def test_long_steps_of_a_late_rank_are_lost_once():
    """All ranks have the long steps, and all but one because they wait in them."""
    rare = Known([diagnosis("step-outliers", 1.9)])
    for bucket in ("data_wait", "forward"):
        made = job(late(1, bucket, 0.2, every=20), ranks=2, known={0: rare, 1: rare})
        judged = judge(made)
        assert "step-outliers" not in [d.rule for d in judged.verdict.diagnoses]
        assert judged.lost_s == pytest.approx(2.0, rel=0.1)


def test_a_checkpoint_that_all_wait_for_is_told_once_for_who_writes_it():
    """Both say checkpoint-stall of their own; the job's is rank 0's, and the rest that both share is too little."""

    def work(rank, step):
        return {"checkpoint": 0.2} if step % 10 == 9 else {}

    stall = Known([diagnosis("checkpoint-stall", 4.0)])
    made = job(work, known={0: stall, 1: stall})
    exchanges = Exchanges(
        steps=frozenset(range(50, 150)),
        total_s=4.0,
        lost_s={0: 1.95},
        late_steps={0: 10},
        exchange_s=None,
        is_measured=False,
        bytes_per_step=1e6,
        per_step=1.0,
        apart_s={(0, "checkpoint"): 1.95},
        spent_s={"checkpoint": 2.0},
        apart_steps={(0, "checkpoint"): 10},
    )
    assert [d.ranks for d in judge(made).verdict.diagnoses] == [()]
    judged = judge(replace(made, exchanges=exchanges))
    assert [(d.rule, d.ranks) for d in judged.verdict.diagnoses] == [("checkpoint-stall", (0,))]
    assert judged.verdict.primary.time_lost_s == pytest.approx(3.9, rel=0.02)


def test_the_primary_cause_is_what_wins_most():
    """Half of a long exchange is less than all of a shorter wait."""
    made = job(late(1, "forward", 0.010), ranks=2)
    exchanges = Exchanges(
        steps=frozenset(range(200)),
        total_s=6.0,
        lost_s={},
        late_steps={},
        exchange_s=0.36 * 6.0,
        is_measured=True,
        bytes_per_step=1e6,
        per_step=1.0,
    )
    judged = judge(replace(made, exchanges=exchanges))
    assert [d.rule for d in judged.verdict.diagnoses] == ["straggler", "communication-bound"]


@pytest.mark.parametrize("rule", ["noisy-neighbour", "too-many-threads"])
def test_ranks_that_wait_for_cpus_in_turn(rule):
    """The system has counted that: it is no wait for another rank, and what they are late by follows from it."""
    busy = Known([diagnosis(rule, 2.0)], facts={CPU_WAIT: 60.0})
    judged = judge(job(in_turn(2, "backward", 0.02), meet="loop", known={0: busy, 1: busy}))
    assert [d.rule for d in judged.verdict.diagnoses] == [rule]
    assert judged.verdict.primary.time_lost_s == pytest.approx(2.0)


# -- nothing is wrong, or nothing is known


@pytest.mark.parametrize("ranks", [2, 8])
def test_healthy(ranks):
    """Nothing warns, and the rank whose steps are its own tells what sets the pace."""
    judged = judge(job(ranks=ranks, known=dict.fromkeys(range(ranks), VICTIM)))
    assert judged.verdict.primary == compute_bound()
    assert judged.verdict.diagnoses == (compute_bound(),)
    assert (judged.lost_s, judged.lost_rank_s, judged.lost_gpu_s, judged.slowdown) == (0.0, 0.0, None, 1.0)
    assert judged.why_not == ""


def test_the_rank_that_waits_least_tells_what_sets_the_pace():
    """A loss too small for a warning: the victim's steps are partly waits."""
    known = {
        0: Known([diagnosis("launch-bound", severity=Severity.INFO)]),
        1: Known([diagnosis("compute-bound", severity=Severity.INFO)]),
    }
    assert primary_of(job(late(1, "forward", 0.0008), known=known)).rule == "compute-bound"


def test_a_victim_is_never_the_verdict():
    """Beside a late rank nobody says compute-bound."""
    known = {0: VICTIM, 1: VICTIM, 2: VICTIM}
    judged = judge(job(late(2, "backward", 0.02), ranks=3, meet="loop", known=known))
    assert [d.rule for d in judged.verdict.diagnoses] == ["straggler"]


def test_one_rank_is_known():
    """It says so, tells its own problems as its own, and does not say that nothing is wrong."""
    judged = judge(job(ranks=2, only=(0,), known={0: VICTIM}))
    assert judged.why_not == "only rank 0 of 2 is known"
    assert judged.verdict.primary is None
    abstained = {a.rule: a.missing for a in judged.verdict.abstained}
    assert abstained["compute-bound"] == ("the other ranks",)
    assert abstained["straggler"] == abstained["rank-imbalance"] == ("steps in which the ranks meet",)
    told = primary_of(job(ranks=2, only=(1,), known={1: Known([diagnosis("fetch-stall", 3.0)])}))
    assert (told.rule, told.ranks, told.time_lost_s) == ("fetch-stall", (1,), 3.0)


def test_a_missing_rank_may_be_the_one_that_is_waited_for():
    """Seven of eight are alike and wait: that is not healthy."""
    judged = judge(job(ranks=8, only=range(7), known=dict.fromkeys(range(7), VICTIM)))
    assert judged.verdict.primary is None
    assert any(a.rule == "compute-bound" for a in judged.verdict.abstained)


def test_ranks_that_do_not_meet():
    """Each for itself: what most of them say holds, and nobody waits for anybody."""
    waits = Known([diagnosis("no-workers", 2.0)])
    judged = judge(job(late(1, "forward", 0.02), wait=False, known={0: waits, 1: waits}))
    assert "drift apart" in judged.why_not
    assert [(d.rule, d.ranks) for d in judged.verdict.diagnoses] == [("no-workers", ())]
    assert {a.rule for a in judged.verdict.abstained} == {rule.id for rule in JOB_RULES}


def test_one_of_two_ranks_that_do_not_meet():
    """What one of them loses is told with its name: nothing else would be, and the report would be empty."""
    known = {0: Known([diagnosis("fetch-stall", 2.0)]), 1: Known()}
    judged = judge(job(late(0, "data_wait", 0.02), wait=False, known=known))
    assert "drift apart" in judged.why_not
    assert [(d.rule, d.ranks) for d in judged.verdict.diagnoses] == [("fetch-stall", (0,))]


def test_a_rank_that_died_early_does_not_hide_the_others():
    """It leaves no steps that all have: who waits for whom is told among those that went on."""
    known = {0: VICTIM, 1: Known([diagnosis("fetch-stall", 4.0)]), 2: Known(ended=None)}
    made = job(late(1, "data_wait", 0.02), ranks=3, known=known, cut={2: 5})
    assert (primary_of(made).rule, primary_of(made).ranks) == ("fetch-stall", (1,))


def test_ranks_that_were_not_judged_have_no_vote():
    """Of a large job few ranks have a verdict; most of these is enough."""
    waits = Known([diagnosis("no-workers", 4.0)])
    known = dict.fromkeys(range(8), Known(judged=False)) | {0: waits, 1: waits}
    made = job(lambda rank, step: {"data_wait": 0.02}, ranks=8, known=known)
    assert (primary_of(made).rule, primary_of(made).ranks) == ("no-workers", ())


def test_abstentions():
    """What no rank could judge was not judged; what one could was."""
    known = {
        0: Known(abstained=[Abstention("low-utilization", ("gpu",)), Abstention("slow-start", ("steps",))]),
        1: Known(abstained=[Abstention("low-utilization", ("gpu",))]),
    }
    abstained = {a.rule: a.missing for a in judge(job(known=known)).verdict.abstained}
    assert abstained == {
        "communication-bound": ("collectives that all ranks recorded",),
        "low-utilization": ("gpu",),
        "sent-buffers": ("looks at the steps of each rank",),
        "unsharded-data": ("gradients that DistributedDataParallel exchanges among all ranks",),
    }


# -- seconds


def test_seconds_of_all_ranks():
    """Each rank stands while one is waited for: rank-seconds, and GPU-seconds where there are GPUs."""
    judged = judge(job(late(1, "forward", 0.02), ranks=4))
    assert judged.lost_s == pytest.approx(4.0, rel=0.05)
    assert judged.lost_rank_s == pytest.approx(4 * judged.lost_s)
    assert judged.lost_gpu_s is None
    busy = Known(facts={"GPU busy, %": 90.0})
    with_gpus = judge(job(late(1, "forward", 0.02), ranks=4, known=dict.fromkeys(range(4), busy)))
    assert with_gpus.lost_gpu_s == with_gpus.lost_rank_s


def test_ranks_that_are_not_known_stand_as_well():
    """The job's ranks count, not the recordings."""
    judged = judge(job(late(1, "forward", 0.02), ranks=8, only=range(6)))
    assert judged.lost_rank_s == pytest.approx(8 * judged.lost_s)


def test_what_overlaps_is_counted_once():
    """Long steps are long for the reasons that other rules give."""
    both = Known([diagnosis("step-outliers", 2.0), diagnosis("step-time-drift", 1.5), diagnosis("no-workers", 4.0)])
    judged = judge(job(lambda rank, step: {"data_wait": 0.02}, known={0: both, 1: both}))
    data_s = next(d.time_lost_s for d in judged.verdict.diagnoses if d.rule == "no-workers")
    assert judged.lost_s == pytest.approx(data_s + 2.0)


def test_more_than_everything_is_not_lost():
    """Rules of several ranks may claim more than there is."""
    both = Known([diagnosis("slow-callback", 1e6), diagnosis("my-rule", 1e6)])
    made = job(lambda rank, step: {"callbacks": 0.1}, known={0: both, 1: both})
    judged = judge(made)
    assert judged.lost_s <= made.training_s
    assert judged.slowdown == pytest.approx(100.0)


# -- num_workers


def test_the_number_of_workers_of_the_late_rank():
    """Where data make one rank late its number counts."""

    def advice(recommended: int) -> WorkerAdvice:
        return WorkerAdvice(
            current=1,
            recommended=recommended,
            predicted_step_time_s=None,
            predicted_gain_pct=None,
            limited_by="compute",
            reason="",
            confidence=0.8,
        )

    known = {
        0: Known([compute_bound()], workers=advice(1)),
        1: Known([diagnosis("too-few-workers", 4.0)], workers=advice(4)),
    }
    workers = judge(job(late(1, "data_wait", 0.02), known=known)).verdict.num_workers
    assert workers is not None
    assert workers.recommended == 4
    assert judge(job()).verdict.num_workers is None


# -- a rank that knows of no other


def test_alone():
    """It keeps what it has found, and cannot say that nothing is wrong."""
    healthy = verdict_of(VICTIM)
    assert alone(healthy, 1) == healthy
    assert alone(healthy, 2).primary is None
    slow = verdict_of(Known([diagnosis("no-workers", 4.0)]))
    assert alone(slow, 2) == slow


# -- any job


SECONDS = st.one_of(st.sampled_from([0.0, 1e-9, 1e-3, 0.1, 1e4]), st.floats(0.0, 10.0))
RULES = st.sampled_from([*(rule.id for rule in ALL_RULES), "my-rule", ""])
DIAGNOSES = st.builds(
    lambda rule, lost_s, severity, gain_pct: diagnosis(
        rule, lost_s, severity=severity, advice=(Advice.of("Do less.", gain_pct=gain_pct),)
    ),
    RULES,
    st.one_of(SECONDS, st.sampled_from([float("nan"), float("inf")])),
    st.sampled_from(Severity),
    st.one_of(st.none(), st.floats(-200.0, 1e6)),
)


@st.composite
def views(draw: st.DrawFn, rank: int, world_size: int, count: int) -> RankView:
    """A rank of any job: steps of any length, some of them missing, and any diagnoses."""
    kept = sorted(draw(st.sets(st.integers(0, count - 1), max_size=count)))
    names = draw(st.lists(st.sampled_from(PHASES), max_size=4, unique=True))
    seconds = {name: draw(st.lists(SECONDS, min_size=len(kept), max_size=len(kept))) for name in names}
    ends_s = [START_S + draw(SECONDS) for _ in kept]
    known = Known(
        draw(st.lists(DIAGNOSES, max_size=3)),
        facts=draw(st.dictionaries(st.sampled_from(["SM clock, MHz", "x"]), SECONDS, max_size=2)),
        ended=draw(st.sampled_from([None, "end", "exception: RuntimeError"])),
        judged=draw(st.booleans()),
    )
    made = Made(len(kept), {rank: {name: seconds.get(name, []) for name in PHASES}}, {rank: ends_s})
    return RankView(
        rank=rank,
        header=header_of(rank, world_size, draw(st.sampled_from(["", "node1", "node2"]))),
        steps=RankSteps(rank, kept, ends_s, seconds, [i + 1 for i in kept], draw(st.sampled_from(["", "node1"]))),
        ledger=ledger_of(made, rank) if draw(st.booleans()) else None,
        verdict=verdict_of(known) if known.judged else None,
        facts=known.facts,
        ended=known.ended,
    )


@st.composite
def jobs(draw: st.DrawFn) -> list[RankView]:
    """Some ranks of a job."""
    world_size, count = draw(st.integers(1, 5)), draw(st.integers(1, 12))
    ranks = sorted(draw(st.sets(st.integers(0, world_size - 1))))
    return [draw(views(rank, world_size, count)) for rank in ranks]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(known=jobs())
def test_any_job_is_judged(known):
    """It never fails, loses no more than there was, and names ranks that are known."""
    made = assemble(known)
    judged = judge(made)
    assert 0.0 <= judged.lost_s <= made.wall_s
    assert sum(loss.share for loss in judged.losses) <= 1.0 + 1e-6 or made.exchanges is not None
    assert judged.slowdown is None or judged.slowdown >= 1.0
    for said in judged.verdict.diagnoses:
        assert set(said.ranks) <= {view.rank for view in made.ranks}
        assert said.time_lost_s <= max(
            made.wall_s, *(d.time_lost_s for v in known if v.verdict for d in v.verdict.diagnoses), 0.0
        )
    order = [said.severity is Severity.INFO for said in judged.verdict.diagnoses]
    assert order == sorted(order)
