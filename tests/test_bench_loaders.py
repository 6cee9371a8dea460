"""The benchmark of loaders without torch's workers draws and judges as it says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.loaders.__main__ import FINE, Measured, right, table, with_more
from benchmarks.loaders.draws import IN_LOOP, MECHANISMS, WORKS, Draw, draw

DRAWS = [draw(seed) for seed in range(45)]


def one(mechanism: str, work: str) -> Draw:
    return next(each for each in DRAWS if (each.mechanism, each.work) == (mechanism, work))


def measured(*, gain_pct: float, more_pct: float = 0.0) -> Measured:
    return Measured(step_s=1.0, free_s=1 / (1 + gain_pct / 100), more_s=1 / (1 + more_pct / 100))


def test_each_mechanism_does_each_work_once() -> None:
    assert {(each.mechanism, each.work) for each in DRAWS} == {(m, w) for m in MECHANISMS for w in WORKS}
    assert [draw(seed) for seed in range(45)] == DRAWS


def test_what_is_planted_is_slower_than_the_loop_and_what_is_healthy_is_not() -> None:
    for each in DRAWS:
        ratio = each.batch_s / each.step_s
        if each.work in ("sleep", "socket"):
            ratio /= each.producers
        assert ratio < 0.31 if each.work == "healthy" else 1.3 <= ratio <= 3.0 * each.producers


@pytest.mark.parametrize(
    ("mechanism", "work", "gain_pct", "more_pct", "expected"),
    [
        ("executor", "sleep", 80, 70, {"fetch-stall"}),
        ("generator", "socket", 80, 70, {"fetch-stall", "no-workers"}),
        ("generator", "python", 80, 70, {"no-workers"}),
        ("generator", "python", 80, 1, {"prep-stall"}),
        ("threads and a queue", "python", 80, 70, {"lock-contention"}),
        ("threads and a queue", "c", 80, 70, {"too-few-workers"}),
        ("threads and a queue", "c", 80, 5, {"too-few-workers", "prep-stall"}),
        ("pool of processes", "python", 80, 2, {"prep-stall"}),
        ("grain", "healthy", 1, 0, FINE),
        ("grain", "sleep", 3, 0, FINE),
    ],
)
def test_the_truth_is_what_the_removal_measured(
    mechanism: str, work: str, gain_pct: float, more_pct: float, expected: set[str]
) -> None:
    assert right(one(mechanism, work), measured(gain_pct=gain_pct, more_pct=more_pct)) == expected


def test_more_who_make_batches_are_processes_for_python_code() -> None:
    for each in DRAWS:
        more = with_more(each)
        assert (more is None) == (each.work == "healthy")
        if more is not None and each.work == "python":
            assert more.mechanism == "pool of processes"
        if more is not None:
            assert more.mechanism not in IN_LOOP
            assert more.batch_s == each.batch_s


def test_the_table_counts_what_is_right() -> None:
    row = {
        "seed": 3,
        "mechanism": "executor",
        "work": "sleep",
        "producers": 2,
        "gain_pct": 80.0,
        "more_pct": 60.0,
        "right": ["fetch-stall"],
        "said": "fetch-stall",
        "state": "right",
    }

    text = table([row, row | {"seed": 4, "said": "input-bound", "state": "abstained"}])

    assert "| 3 | executor (2) | sleep | +80 % | +60 % | fetch-stall | right |" in text
    assert "abstained; fetch-stall" in text
    assert text.endswith("1 of 2 right, 1 abstained.")
