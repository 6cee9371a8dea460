"""Which CPUs the process may use where a runtime ties its threads to CPUs."""

from __future__ import annotations

import os
from typing import Any

import pytest

from stallmeter.machine import binding, budget


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, None),
        ({"OMP_PROC_BIND": "TRUE"}, "OMP_PROC_BIND"),
        ({"OMP_PROC_BIND": "spread,close"}, "OMP_PROC_BIND"),
        ({"OMP_PROC_BIND": "false", "OMP_PLACES": "cores"}, None),
        ({"OMP_PLACES": "cores"}, "OMP_PLACES"),
        ({"GOMP_CPU_AFFINITY": "0-3"}, "GOMP_CPU_AFFINITY"),
        ({"KMP_AFFINITY": "granularity=fine,compact,1,0"}, "KMP_AFFINITY"),
        ({"KMP_AFFINITY": "disabled"}, None),
        ({"KMP_AFFINITY": "verbose,none"}, None),
    ],
)
def test_which_variable_binds(environ: dict[str, str], name: str | None) -> None:
    assert binding.binds(environ) == name


def _asked(known: dict[int, set[int] | None]) -> dict[str, Any]:
    def affinity(thread: int) -> frozenset[int] | None:
        found = known.get(thread)
        return None if found is None else frozenset(found)

    return {"affinity": affinity, "threads": lambda: tuple(known)}


def test_the_process_has_the_cpus_of_all_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "_at_start", frozenset({0, 1, 2, 3}))
    known = {os.getpid(): {0}, 71: {1}, 72: None}
    assert binding.process_cpus({}, **_asked(known)) == frozenset({0, 1})
    assert binding.process_cpus({"OMP_PROC_BIND": "true"}, **_asked(known)) == frozenset({0, 1, 2, 3})
    assert binding.process_cpus({}, **_asked({})) is None


def test_a_bound_main_thread_does_not_make_the_budget_one_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: {0} if thread == os.getpid() else {1}, raising=False)
    monkeypatch.setattr(binding, "_threads", lambda: (os.getpid(), 71))
    monkeypatch.setattr(binding, "_at_start", frozenset())
    monkeypatch.delenv("OMP_PLACES", raising=False)
    monkeypatch.delenv("GOMP_CPU_AFFINITY", raising=False)
    monkeypatch.setenv("OMP_PROC_BIND", "false")
    assert budget.cpu_affinity() == frozenset({0})
    monkeypatch.setenv("OMP_PROC_BIND", "close")
    assert budget.cpu_affinity() == frozenset({0, 1})
    assert binding.shared_cpus([os.getpid(), 71]) == 2
    assert binding.shared_cpus([]) is None


def test_a_process_that_has_ended_is_not_guessed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(thread: int) -> set[int]:
        raise ProcessLookupError(thread)

    monkeypatch.setattr(os, "sched_getaffinity", gone, raising=False)
    assert binding.shared_cpus([71]) is None


def test_how_many_the_process_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "_at_start", frozenset())
    assert binding.cpus_at_start() is None
    monkeypatch.setattr(binding, "affinity_of", lambda thread: frozenset({0, 1, 4}))
    binding.keep()
    assert binding.cpus_at_start() == 3
