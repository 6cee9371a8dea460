"""The judge: one primary cause, one rule of a family, and who abstained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from stallmeter.records.diagnosis import Advice, Diagnosis, Severity
from stallmeter.report.wording import headline
from stallmeter.rules.compute_bound import ComputeBound
from stallmeter.rules.evaluation import evaluate
from stallmeter.window import Window

from .windows import run


@dataclass(frozen=True, kw_only=True)
class Says:
    """A rule that says what it is told to."""

    id: str
    lost_s: float | None = 0.0
    """None says nothing."""
    severity: Severity = Severity.WARNING
    needs: tuple[str, ...] = ()
    family: str | None = None
    cure: str = ""
    rules_out: str = ""
    title: str = "It is said"
    confidence: float = 1.0
    asked: Callable[[], None] = lambda: None

    def check(self, window: Window) -> Diagnosis | None:
        self.asked()
        if self.lost_s is None:
            return None
        return Diagnosis(
            rule=self.id,
            severity=self.severity,
            title=self.title,
            summary="1 s.",
            time_lost_s=self.lost_s,
            share_pct=0.0,
            confidence=self.confidence,
        )


def said(*rules: Says) -> list[str]:
    """Ids of the diagnoses, the primary first."""
    verdict = evaluate(rules, Window())
    assert verdict.primary == (verdict.diagnoses[0] if verdict.diagnoses else None)
    return [d.rule for d in verdict.diagnoses]


def test_the_largest_loss_is_the_primary():
    """Warnings are sorted by the time they cost, whatever the order of the rules."""
    assert said(Says(id="a", lost_s=1), Says(id="b", lost_s=3), Says(id="c", lost_s=2)) == ["b", "c", "a"]


def test_severity_is_no_rank():
    """A critical diagnosis is not before a warning that costs more: a loss is a loss."""
    assert said(Says(id="a", lost_s=1, severity=Severity.CRITICAL), Says(id="b", lost_s=3)) == ["b", "a"]


def test_information_comes_last():
    """What informs of no loss is the primary only where nothing warns; what loses time counts by half."""
    info = Says(id="a", lost_s=0, severity=Severity.INFO)
    assert said(info, Says(id="b", lost_s=0)) == ["b", "a"]
    short = Says(id="a", lost_s=9, severity=Severity.INFO)
    assert said(short, Says(id="b", lost_s=4)) == ["a", "b"]
    assert said(short, Says(id="b", lost_s=5)) == ["b", "a"]
    assert said(info, Says(id="c", lost_s=None)) == ["a"]


def test_what_costs_no_time_is_ordered_by_urgency():
    """What ends the run soon is first, then what is surer: handles that stay open take memory that may be a cache."""
    warns, doubts = Says(id="b"), Says(id="a", confidence=0.5)
    assert said(doubts, warns) == ["b", "a"]
    assert said(doubts, warns, Says(id="c", confidence=0.6, severity=Severity.CRITICAL)) == ["c", "b", "a"]


@pytest.mark.parametrize(("lost_pct", "told"), [(40.0, ["slow"]), (5.0, ["slow", "compute-bound"])])
def test_nobody_is_told_that_the_steps_set_the_pace_beside_a_warning_of_what_does(
    lost_pct: float, told: list[str]
) -> None:
    """Both were told: the function lay in the steps, and so their share was large."""

    @dataclass(frozen=True, kw_only=True)
    class Much(Says):
        def check(self, window: Window) -> Diagnosis | None:
            found = super().check(window)
            return None if found is None else replace(found, share_pct=lost_pct)

    verdict = evaluate([Much(id="slow", lost_s=lost_pct), ComputeBound()], run())
    assert [d.rule for d in verdict.diagnoses] == told


def test_nor_beside_a_function_that_takes_the_steps():
    """It only informs, for the training may need it; but what takes most of a step is not the step itself."""

    @dataclass(frozen=True, kw_only=True)
    class Informs(Says):
        def check(self, window: Window) -> Diagnosis | None:
            found = super().check(window)
            return None if found is None else replace(found, share_pct=57.0, severity=Severity.INFO)

    for rule, told in (("slow-function", ["slow-function"]), ("slow-start", ["slow-start", "compute-bound"])):
        verdict = evaluate([Informs(id=rule, lost_s=57.0), ComputeBound()], run())
        assert [d.rule for d in verdict.diagnoses] == told


def test_ties_are_settled_by_name():
    """The same window leads to the same verdict."""
    assert said(Says(id="b"), Says(id="a")) == ["a", "b"]


def test_nothing_to_say():
    """Without a diagnosis there is no primary."""
    assert evaluate([Says(id="a", lost_s=None)], Window()).primary is None
    assert evaluate([], Window()).primary is None


def test_one_of_a_family():
    """Of the rules that explain the same seconds the first that fires counts; another one may be the runner-up."""
    rules = [
        Says(id="a", lost_s=None, family="input"),
        Says(id="b", lost_s=1, family="input"),
        Says(id="c", lost_s=9, family="input"),
        Says(id="d", lost_s=5, family="other"),
        Says(id="e", lost_s=4),
        Says(id="f", lost_s=3),
    ]
    assert said(*rules) == ["d", "e", "f", "b"]
    verdict = evaluate(rules, Window())
    assert verdict.runner_up is not None
    assert verdict.runner_up.rule == "c"


def test_one_who_abstains_leaves_the_family_open():
    """A rule that cannot judge explains nothing."""
    rules = [Says(id="a", family="input", needs=("ledger.wall_s",)), Says(id="b", family="input")]
    assert said(*rules) == ["b"]


def test_abstentions():
    """Who could not judge is listed with all that was missing, and was not asked."""
    asked = []
    rule = Says(id="a", needs=("ledger.wall_s", "ledger.epochs"), asked=lambda: asked.append("a"))
    verdict = evaluate([rule, Says(id="b", needs=("steps.count",))], Window())
    assert [(a.rule, a.missing) for a in verdict.abstained] == [("a", ("ledger.wall_s", "ledger.epochs"))]
    assert [d.rule for d in verdict.diagnoses] == ["b"]  # 0 s is measured, and not missing
    assert asked == []


def _fail() -> None:
    raise ValueError("a rule with an error")


def test_guard():
    """The guard is told whose call it is, and what it keeps away costs only that rule."""
    calls = []

    def guard(name: str, call: Callable[..., Diagnosis | None], *args: object) -> Diagnosis | None:
        calls.append(name)
        try:
            return call(*args)
        except ValueError:
            return None

    verdict = evaluate([Says(id="a", asked=_fail), Says(id="b", lost_s=1)], Window(), guard)
    assert calls == ["rule a", "rule b", "the num_workers model"]
    assert [d.rule for d in verdict.diagnoses] == ["b"]
    assert verdict.abstained == ()


def test_a_model_that_fails():
    """Where the model of the workers fails, the rules have their say and only its advice is missing."""
    verdict = evaluate([Says(id="a")], Window(), lambda name, call, *args: None if "model" in name else call(*args))
    assert [d.rule for d in verdict.diagnoses] == ["a"]
    assert verdict.num_workers is None


def test_without_a_guard_errors_rise():
    """Whoever judges by hand sees the error of a rule."""
    with pytest.raises(ValueError, match="a rule with an error"):
        evaluate([Says(id="a", asked=_fail)], Window())


def test_of_two_that_contradict_each_other_the_larger_is_told():
    """One advises what makes the other worse."""
    rules = [
        Says(id="a", lost_s=5, cure="more workers"),
        Says(id="b", lost_s=9, rules_out="more workers"),
        Says(id="c", lost_s=1, cure="more workers", rules_out="fewer workers"),
        Says(id="d", lost_s=2),
    ]
    assert said(*rules) == ["b", "d"]
    assert evaluate(rules, Window()).runner_up.rule == "a"


@pytest.mark.parametrize(
    ("gain_pct", "least_pct", "severity"),
    [
        (8.0, -1.0, Severity.INFO),  # it may be nothing
        (8.0, 5.5, Severity.WARNING),  # small, and sure
        (40.0, 0.0, Severity.WARNING),  # too large to be nothing, however unsure
    ],
)
def test_a_small_gain_that_may_be_none_only_informs(gain_pct: float, least_pct: float, severity: Severity) -> None:
    rule = Gains(gain_pct=gain_pct, least_pct=least_pct)
    [found] = evaluate([rule], Window()).diagnoses
    assert found.severity is severity
    [found] = evaluate([Gains(gain_pct=gain_pct, least_pct=least_pct, own_severity=True)], Window()).diagnoses
    assert found.severity is Severity.WARNING


@pytest.mark.parametrize(
    "facts",
    [
        {"world_size": 2, "budget": {"host_cpus": 8}},  # one on each host
        {"world_size": 4, "budget": {"host_cpus": 8, "ranks_on_node": 4}},
        {"budget": {"host_cpus": 8, "ranks_on_node": 4}},
    ],
)
def test_what_costs_one_rank_little_may_cost_the_job_much(facts: dict[str, Any]) -> None:
    made = Window()
    made.facts.update(facts)
    [found] = evaluate([Gains(gain_pct=8.0, least_pct=-1.0)], made).diagnoses
    assert found.severity is Severity.WARNING


@dataclass
class Gains:
    """A rule whose first advice gains so much."""

    gain_pct: float
    least_pct: float
    own_severity: bool = False
    id: str = "gains"
    needs: tuple[str, ...] = ()
    title: str = "It is said"
    confidence: float = 1.0

    def check(self, window: Window) -> Diagnosis:
        fix = Advice.of("Do it.", gain_pct=self.gain_pct, interval_pct=(self.least_pct, 2 * self.gain_pct))
        found = Says(id=self.id, lost_s=9.0).check(window)
        assert found is not None
        return replace(found, advice=(fix,))


@pytest.mark.parametrize(("outside_s", "is_said"), [(46.0, True), (5.0, False)])
def test_time_outside_the_steps_is_said_to_be_unknown_where_nothing_else_is_found(
    outside_s: float, is_said: bool
) -> None:
    """Rollouts between epochs, or plots: no rule looks there."""
    made = run(start=0, data_wait=9, forward=15, backward=15, optimizer=15, loop=46 - outside_s, other=outside_s)
    verdict = evaluate([ComputeBound(step_pct=99.0)], made)
    assert verdict.primary is None
    assert ("the time outside the steps, 46 % of the run" in headline(verdict)) is is_said
    assert bool(verdict.abstained) is is_said


def test_time_outside_the_steps_is_not_told_beside_a_finding() -> None:
    made = run(start=0, data_wait=9, forward=15, backward=15, optimizer=15, loop=0, other=46)
    assert evaluate([ComputeBound(step_pct=99.0), Says(id="a", lost_s=5)], made).abstained == ()
