"""Rules abstain rather than guess: what they read is listed, and where it is missing nothing else is said instead."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import replace
from itertools import chain
from typing import Any
from unittest import mock

import pytest

from stallmeter.records import HostSample, StepRecord, WorkerBatch
from stallmeter.records.diagnosis import Severity, Verdict
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.rule import Rule, alternatives
from stallmeter.rules.weight import HEALTHY
from stallmeter.window import Window
from stallmeter.window.memo import Memo
from stallmeter.window.signals import signals

from .firing import FIRING

BROAD = {"input-bound"}
"""What may be said in place of a cause that cannot be told: where the time went, and not why."""

RULE_MODULES = {type(rule).__module__ for rule in ALL_RULES}
RULES = pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.id)


class Seen:
    """A part of a window, or a window, without some of its signals; keeps which of them rules ask for."""

    def __init__(self, part: Any, without: Collection[str] = (), path: str = "", reads: set[str] | None = None) -> None:
        self._part, self._without, self._path = part, without, path
        self.reads: set[str] = set() if reads is None else reads

    def __getattr__(self, name: str) -> Any:
        path = f"{self._path}{name}"
        by = sys._getframe(1).f_globals["__name__"]
        from_rule = by in RULE_MODULES
        if path in signals():
            if from_rule:
                self.reads.add(path)
            return None if path in self._without else getattr(self._part, name)
        if path in ("present", "remember"):
            return (lambda: self) if name == "present" else lambda key, make: make()
        value = getattr(self._part, name)
        if type(value).__module__.startswith("stallmeter.window.") and not isinstance(value, Memo):
            return Seen(value, self._without, f"{path}.", self.reads)
        assert callable(value) or not from_rule, f"{by} reads {path}, which is no signal"
        return value


def seen(window: Window, without: Collection[str] = ()) -> Any:
    return Seen(window, without)


def optional(rule: Rule) -> tuple[str, ...]:
    return getattr(rule, "optional", ())


def names(verdict: Verdict) -> set[str]:
    return {found.rule for found in verdict.diagnoses}


def test_there_is_a_window_for_every_rule() -> None:
    assert set(FIRING) == {rule.id for rule in ALL_RULES}


@RULES
def test_what_is_read_is_listed(rule: Rule) -> None:
    """With everything there and with each part of it missing: branches read differently."""
    window = FIRING[rule.id]()
    listed = {*rule.needs, *optional(rule), *chain.from_iterable(alternatives(rule))}
    for without in ((), *((name,) for name in optional(rule))):
        shown = seen(window, without)
        evaluate([rule], shown)
        assert shown.reads <= listed, "list it in needs, or in optional where the answer is as true without it"
    assert not set(rule.needs) & set(optional(rule))
    assert evaluate([rule], window).diagnoses


@RULES
def test_without_what_it_needs_it_abstains(rule: Rule) -> None:
    window = FIRING[rule.id]()
    for name in rule.needs:
        verdict = evaluate([rule], seen(window, {name}))
        assert verdict.diagnoses == ()
        assert [a.missing for a in verdict.abstained] == [(name,)]


@RULES
def test_without_what_is_optional_nothing_else_is_said(rule: Rule) -> None:
    """It says the same or nothing, and no other rule says something new: what it superseded is true without it.

    So is what is not said beside a warning, that the steps set the pace.
    """
    window = FIRING[rule.id]()
    verdict = evaluate(ALL_RULES, window)
    before = names(verdict) | {name for found in verdict.diagnoses for name in found.supersedes}
    before |= names(evaluate([one for one in ALL_RULES if one.id == HEALTHY], window))
    for name in optional(rule):
        alone = evaluate([rule], seen(window, {name}))
        assert names(alone) <= {rule.id}
        assert not alone.abstained
        assert names(evaluate(ALL_RULES, seen(window, {name}))) <= before | BROAD, name


@RULES
def test_without_anything_nothing_is_said(rule: Rule) -> None:
    verdict = evaluate(ALL_RULES, seen(FIRING[rule.id](), signals()))
    assert verdict.diagnoses == ()
    assert {a.rule for a in verdict.abstained} == {r.id for r in ALL_RULES}


def as_on_macos(record: Any) -> Any:
    """What is known where there is no /proc: no waiting for a CPU, no storage counters, no state of the queue."""
    match record:
        case WorkerBatch():
            # What a batch waited for a CPU is in its wall time, and nothing tells it from other waiting.
            return replace(record, run_queue_s=None, read_bytes=None)
        case HostSample():
            unknown = dict.fromkeys(
                (
                    "cpu_iowait_pct",
                    "cpu_steal_pct",
                    "cpu_throttled_pct",
                    "cpu_throttled_s",
                    "pressure_cpu_pct",
                    "pressure_io_pct",
                    "pressure_memory_pct",
                    "shm_free_bytes",
                    "disk_busy_pct",
                )
            )
            return replace(record, **unknown)
        case StepRecord():
            return replace(record, ready=None, head_ready=None)
    return record


def rebuilt(rule: Rule) -> tuple[Window, Window]:
    """The rule's window, and the same run as another system would have measured it."""
    taken: list[Any] = []
    append = Window.append

    def keep(window: Window, record: Any) -> None:
        taken.append(record)
        append(window, record)

    with mock.patch.object(Window, "append", keep):
        window = FIRING[rule.id]()
    other = Window(window.facts)
    for record in taken:
        other.append(as_on_macos(record))
    return window, other


@pytest.mark.parametrize("rule", [r for r in ALL_RULES if r.id != "cpu-throttled"], ids=lambda rule: rule.id)
def test_where_there_is_no_proc_nothing_wrong_is_said(rule: Rule) -> None:
    """The same primary cause, a broader one, or what was said for information; quotas of CPU time are Linux's own."""
    window, other = rebuilt(rule)
    before, after = evaluate(ALL_RULES, window), evaluate(ALL_RULES, other)
    assert names(after) <= names(before) | BROAD
    assert before.primary is not None
    if after.primary is not None and after.primary.severity is not Severity.INFO:
        assert after.primary.rule in {before.primary.rule, *BROAD}
