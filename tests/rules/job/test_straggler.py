"""One rank comes late with its own work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.ranks.between import BETWEEN
from stallmeter.records.diagnosis import Diagnosis, Location, Severity, Verdict
from stallmeter.rules.job.losses import Loss, losses
from stallmeter.rules.job.straggler import Straggler

from ..windows import check_fix
from .jobs import Known, compute_bound, job, late

RULE = Straggler()


def found(made):
    return RULE.check(made, losses(made))


def test_a_slow_rank():
    """It is named with its work, the seconds and what the job gains."""
    made = job(late(1, "forward", 0.02), ranks=4)
    (said,) = found(made)
    assert said.ranks == (1,)
    assert said.severity is Severity.CRITICAL
    assert said.title == "Late with its forward pass, and the other ranks wait"
    assert said.culprit == "its forward pass"
    assert said.time_lost_s == pytest.approx(4.0, rel=0.05)
    assert said.share_pct == pytest.approx(100 * said.time_lost_s / made.wall_s)
    gain_pct = said.advice[0].predicted_gain_pct
    assert gain_pct == pytest.approx(100.0, rel=0.1)
    least, most = said.advice[0].gain_interval_pct or (0.0, 0.0)
    assert least < 60.0 < gain_pct < most  # 60: what it has too much is shared out among the four
    for advice in said.advice:
        check_fix(advice.fix)
    assert "machine" not in said.advice[0].text


def test_a_little_later_is_no_straggler():
    """Below 5 % of the time."""
    assert found(job(late(1, "forward", 0.0007))) == []


def test_two_ranks_are_named():
    """In the plural."""
    made = job(lambda rank, step: {"forward": 0.02} if rank == (2, 5)[step % 2] else {}, ranks=8)
    (said,) = found(made)
    assert said.ranks == (2, 5)
    assert said.title == "Late with their forward pass, and the other ranks wait"
    assert said.advice[0].fix.do == "Find the work that only ranks 2 and 5 must do, or that is slower there."


def test_many_ranks_are_not_listed_in_an_advice():
    """An advice is one short line."""
    slow = (1, 4, 9, 20, 33, 40, 41)
    made = job(lambda rank, step: {"data_wait": 0.02} if rank == slow[step % 7] else {}, ranks=64)
    (said,) = found(made)
    assert said.ranks == slow
    assert said.advice[0].fix.do == "Compare what these ranks must read with the others: shards, storage, workers."
    for advice in said.advice:
        check_fix(advice.fix)


HOT = {
    "SM clock, MHz": 1200.0,
    "GPU temperature, °C": 91.0,
    "clocks held down, % of samples": 80.0,
    "GPU power, W": 300.0,
    "CPU time stolen by the hypervisor, %": 0.1,
}
COOL = {
    "SM clock, MHz": 1980.0,
    "GPU temperature, °C": 60.0,
    "clocks held down, % of samples": 0.0,
    "GPU power, W": 690.0,
    "CPU time stolen by the hypervisor, %": 0.0,
}


def test_what_differs_about_its_machine():
    """Clocks, throttling and heat stand beside the others'; what is alike is left out."""
    cool = Known(facts=COOL)
    (said,) = found(job(late(1, "forward", 0.02), ranks=3, known={0: cool, 1: Known(facts=HOT), 2: cool}))
    told = {evidence.name: (evidence.value, evidence.unit) for evidence in said.evidence}
    assert told["SM clock, others: 1980"] == (1200.0, "MHz")
    assert told["GPU temperature, others: 60"] == (91.0, "°C")
    assert told["clocks held down, others: 0"] == (80.0, "% of samples")
    assert told["GPU power, others: 690"] == (300.0, "W")
    assert not any("stolen" in name for name in told)
    assert said.advice[0].fix.do == "Compare the machine of rank 1 with the others: clocks, heat, neighbours."
    check_fix(said.advice[0].fix)


@pytest.mark.parametrize(
    ("fact", "theirs", "usual"),
    [
        ("CPUs kept busy by others", 3.0, 0.1),
        ("CPU time stolen by the hypervisor, %", 20.0, 0.0),
        ("training thread waits for a CPU, %", 30.0, 1.0),
        ("quota periods throttled, %", 50.0, 0.0),
        ("GPU memory of other processes, bytes", 2e10, 1e8),
    ],
)
def test_each_thing_that_makes_a_machine_slower(fact, theirs, usual):
    """It is told where the late rank has more of it, and not where the others have."""
    work = late(1, "forward", 0.02)
    (said,) = found(job(work, known={0: Known(facts={fact: usual}), 1: Known(facts={fact: theirs})}))
    assert len(said.evidence) == 4
    assert "machine" in said.advice[0].text
    (other,) = found(job(work, known={0: Known(facts={fact: theirs}), 1: Known(facts={fact: usual})}))
    assert len(other.evidence) == 3
    assert "machine" not in other.advice[0].text


def test_where_all_ranks_wait_for_a_cpu():
    """What one does less of, the others get: less is promised, or nothing. A wait of the late one alone explains it."""
    known = {"training thread waits for a CPU, %": 17.0}
    facts = {rank: Known(facts=known) for rank in range(2)}
    (free,) = found(job(late(1, "forward", 0.002), ranks=2))
    (crowded,) = found(job(late(1, "forward", 0.002), ranks=2, known=facts))
    (alone,) = found(job(late(1, "forward", 0.002), ranks=2, known={1: Known(facts=known), 0: Known(facts={"x": 0.0})}))
    before, after = free.advice[0], crowded.advice[0]
    assert before.predicted_gain_pct == pytest.approx(alone.advice[0].predicted_gain_pct)
    assert before.gain_interval_pct is not None
    assert after.gain_interval_pct is not None
    assert after.predicted_gain_pct == pytest.approx((before.predicted_gain_pct or 0.0) / 2, rel=0.1)
    assert after.gain_interval_pct[0] == 0.0
    assert after.gain_interval_pct[1] == pytest.approx(before.gain_interval_pct[1])
    told = {e.name: e.value for e in crowded.evidence}
    assert told["all ranks' training threads wait for a CPU"] == 17.0
    (large,) = found(job(late(1, "forward", 0.02), ranks=2, known=facts))
    assert large.advice[0].predicted_gain_pct == pytest.approx(100.0, rel=0.1), "more is lost than they wait"


def test_what_is_not_known_of_the_others_is_not_compared():
    """A number alone says nothing."""
    (said,) = found(job(late(1, "forward", 0.02), known={1: Known(facts=HOT)}))
    assert len(said.evidence) == 3


def test_a_host_of_its_own_is_named():
    """A machine that no other rank is on is worth a word; one that others are on is none."""
    hosts = {0: Known(host="node1"), 1: Known(host="node7"), 2: Known(host="node1")}
    (said,) = found(job(late(1, "forward", 0.02), ranks=3, known=hosts))
    assert said.summary.endswith("No other rank is on node7.")
    (said,) = found(job(late(0, "forward", 0.02), ranks=3, known=hosts))
    assert "node1" not in said.summary


def test_without_meetings_it_abstains():
    """It says for want of what."""
    assert RULE.lacks(job(only=(0,))) == ("steps in which the ranks meet",)
    assert RULE.lacks(job(late(1, "forward", 0.02), wait=False)) == ("steps in which the ranks meet",)
    assert RULE.lacks(job()) == ()


def test_the_late_rank_says_itself_where_in_the_code_its_work_is():
    place = Location("train.py", 12, "step", 60.0)
    made = job(late(1, "forward", 0.02), ranks=4)
    own = Verdict(primary=None, diagnoses=(replace(compute_bound(), location=place),))
    views = tuple(replace(view, verdict=own if view.rank == 1 else None) for view in made.ranks)
    (said,) = found(replace(made, ranks=views))
    assert said.location == place
    (unplaced,) = found(made)
    assert unplaced.location is None


WATCH = Location("watch.py", 23, "Watch.look", 40.0, "torch.linalg.svdvals")
MODEL = Location("net.py", 45, "Net.forward", 50.0)


def looked_at(*places: tuple[Location, ...]):
    """A rank 1 that is late by 20 ms of its 35, and what looks have seen of each rank."""
    made = job(late(1, "forward", 0.02), ranks=len(places))
    return replace(made, ranks=tuple(replace(v, places=p) for v, p in zip(made.ranks, places, strict=True)))


def test_the_place_is_what_the_late_rank_does_beyond_the_others():
    """Most of its time is in the model, and so is theirs."""
    others = (replace(MODEL, share_pct=60.0),)
    (said,) = found(looked_at(others, (MODEL, WATCH), others))
    assert said.location == WATCH
    [only] = said.advice
    assert only.fix.do.startswith(f"Split {WATCH.function} over the ranks, or call it less often")
    check_fix(only.fix)


def test_a_rank_that_is_slower_everywhere_is_slow_where_most_is_done():
    (said,) = found(looked_at((replace(MODEL, share_pct=40.0),), (replace(MODEL, share_pct=90.0),)))
    assert said.location is not None
    assert said.location.function == "Net.forward"
    assert [one.fix.do.split()[0] for one in said.advice] == ["Split", "Move"]
    assert said.advice[0].fix.expect.startswith("A step takes rank 1 35.1 ms in Net.forward, the others 15.6 ms.")
    for one in said.advice:
        check_fix(one.fix)


def test_what_all_ranks_do_alike_is_no_place():
    alike = (replace(MODEL, share_pct=90.0),)
    (said,) = found(looked_at(alike, alike))
    assert said.location is None


def test_who_calls_the_model_once_more_tells_why_and_not_the_model():
    """Rank 1 evaluates: the model takes 86 % there and 43 % elsewhere, and all the difference is the evaluation."""
    score = Location("train.py", 66, "Session.score", 43.0)
    for evaluated, named in ((43.0, score.function), (20.0, MODEL.function)):
        mine = (replace(MODEL, share_pct=86.0), replace(score, share_pct=evaluated))
        (said,) = found(looked_at((replace(MODEL, share_pct=43.0),), mine))
        assert said.location is not None
        assert said.location.function == named


def test_more_of_what_all_ranks_do_is_shared_out():
    """One rank's texts are longer: dealt out anew both take the mean. What it alone does, or a hot machine, can go."""
    model, more = (replace(MODEL, share_pct=40.0),), (replace(MODEL, share_pct=90.0),)
    (longer,) = found(looked_at(model, more))
    (alone,) = found(looked_at((), (WATCH,)))
    slow = looked_at(model, more)
    facts = ({"CPUs kept busy by others": 0.0}, {"CPUs kept busy by others": 1.5})
    (hot,) = found(replace(slow, ranks=tuple(replace(v, facts=f) for v, f in zip(slow.ranks, facts, strict=True))))
    gains = [said.advice[0].predicted_gain_pct for said in (longer, alone, hot)]
    assert gains == [pytest.approx(33.3, rel=0.1), pytest.approx(100.0, rel=0.1), pytest.approx(100.0, rel=0.1)]
    assert longer.advice[0].gain_interval_pct is not None
    assert longer.advice[0].gain_interval_pct[1] > 95.0, "it may be waste all the same"


def test_work_that_nobody_is_seen_to_do_alone_is_shared_out():
    """The others wait in the call in which the late rank computes: all spend their time in the same functions."""
    backward, forward = Location("train.py", 102, "train_step", 82.0), Location("train.py", 92, "Net.forward", 18.0)
    late = (replace(backward, share_pct=66.0), replace(forward, share_pct=34.0))
    (said,) = found(looked_at((backward, forward), late))
    assert said.location is None
    assert said.advice[0].predicted_gain_pct == pytest.approx(33.3, rel=0.1)
    assert said.advice[0].gain_interval_pct is not None
    assert said.advice[0].gain_interval_pct[1] > 95.0
    assert said.advice[0].text.startswith("Split the items evenly over the ranks")
    # Where nobody looked at the others, or a function is its own, that is not known.
    hook = Location("train.py", 7, "Probe.hook", 20.0)
    own = "Split Probe.hook over the ranks"
    for mine, theirs, do in ((late, (), "Find the work"), ((*late, hook), (backward, forward), own)):
        (said,) = found(looked_at(theirs, mine))
        assert said.advice[0].text.startswith(do)
        assert said.advice[0].predicted_gain_pct == pytest.approx(100.0, rel=0.1)


def test_what_one_rank_does_between_epochs_has_its_place():
    """Rank 0 validates after each epoch and the other stands at a barrier; where both are in one function all do it."""
    validates = Location("evaluate.py", 22, "Evaluator.errors", 98.0, "torch.nn.Sequential.forward")
    barrier = Location("train.py", 45, "main", 100.0, "torch.distributed.barrier")
    loss = Loss(
        bucket=BETWEEN,
        ranks=(0,),
        lost_s=0.3,
        share=0.13,
        per_step_s=0.004,
        steps=6,
        of_steps=720,
        parts={BETWEEN: 1.0},
        from_collectives=True,
    )
    made = job(late(0, "forward", 0.0), ranks=2)
    steps = (replace(barrier, line=38, share_pct=90.0),)

    def said(*places: Location | None) -> Diagnosis:
        pairs = zip(made.ranks, places, strict=True)
        views = tuple(replace(view, between=place, places=steps) for view, place in pairs)
        (only,) = Straggler().check(replace(made, ranks=views), [loss])
        return only

    found = said(validates, barrier)
    assert found.location == validates
    assert found.advice[0].fix.do.startswith("Split Evaluator.errors over the ranks")
    check_fix(found.advice[0].fix)
    in_the_loop = said(replace(barrier, line=43), None)  # and the others wait for it in their next step
    assert in_the_loop.location == replace(barrier, line=43)
    assert in_the_loop.advice[0].fix.do.startswith("Find the work")
    for places in ((None, barrier), (validates, validates), (replace(validates, share_pct=20.0), barrier)):
        assert said(*places).location is None
        assert said(*places).advice[0].fix.do.startswith("Find the work")
