"""The result in words, as JSON, and every key of it documented."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stallmeter.probing.result import BatchSizeRow, ProbeResult, Rate, WorkersRow, fewest_near_best
from stallmeter.probing.show import headline, render, to_json, to_text
from stallmeter.records.diagnosis import WorkerAdvice

DOC = Path(__file__).parents[2] / "docs" / "reference" / "probe-json.md"


def rate(step_time_s: float, samples: float | None = 32, *, settled: bool = True) -> Rate:
    return Rate(step_time_s=step_time_s, batch_samples=samples, steps=40, settled=settled)


RESULT = ProbeResult(
    framework="lightning 2.6.6",
    device="cuda",
    num_workers=0,
    batch_size=32,
    free_data=rate(0.02),
    free_compute=rate(0.08),
    together=rate(0.1),
    recording=None,
    advice=WorkerAdvice(
        current=0,
        recommended=4,
        predicted_step_time_s=0.022,
        predicted_gain_pct=355.0,
        limited_by="compute",
        reason="22 ms a step instead of 100 ms",
        confidence=0.9,
    ),
    workers=(
        WorkersRow(num_workers=0, predicted_step_time_s=0.1, measured=rate(0.1)),
        WorkersRow(num_workers=2, predicted_step_time_s=0.041, measured=rate(0.04)),
        WorkersRow(num_workers=4, predicted_step_time_s=0.022, measured=rate(0.025)),
        WorkersRow(num_workers=8, predicted_step_time_s=0.022, measured=rate(0.0248)),
        WorkersRow(num_workers=16, predicted_step_time_s=0.022, measured=None, why_not="the time limit was reached"),
    ),
    batch_sizes=(
        BatchSizeRow(
            batch_size=64,
            free_data=rate(0.03, 64),
            predicted_step_time_s=0.19,
            measured=rate(0.2, 64),
            peak_memory_bytes=3_000_000_000,
        ),
        BatchSizeRow(
            batch_size=4096,
            free_data=None,
            predicted_step_time_s=None,
            measured=None,
            peak_memory_bytes=80_000_000_000,
            why_not="out of memory",
        ),
    ),
    restored=("Network",),
    notes=("a note\nof two lines",),
    wall_s=31.4,
)
EMPTY = replace(
    RESULT,
    num_workers=None,
    batch_size=None,
    free_data=None,
    free_compute=None,
    together=None,
    advice=None,
    workers=(),
    batch_sizes=(),
    restored=(),
    notes=(),
)

TEXT = """\
stallmeter 0.1.0 · headspace probe · lightning 2.6.6 · cuda · batch 32 · num_workers 0 · 31.4 s

The run reaches 320 samples/s of the 1,600 samples/s that free data would give:
+400 % at most. num_workers=4 gave +300 %.

Ceilings                     samples/s  a step  steps
free data (no loader)            1,600   20 ms     40
free compute (loader alone)        400   80 ms     40
together, as it is                 320  100 ms     40

num_workers  predicted  measured  error  samples/s    gain
0 now           100 ms    100 ms   +0 %        320    +0 %
2                41 ms     40 ms   +2 %        800  +150 %
4 best           22 ms     25 ms  -12 %      1,280  +300 %
8                22 ms   24.8 ms  -11 %      1,290  +303 %
16               22 ms  the time limit was reached

batch size  free data  predicted  measured  error  samples/s  gain  memory
64              30 ms     190 ms    200 ms   -5 %        320  +0 %    3 GB
4096                -          -  out of memory

ceiling      the loader alone is slower than the training: more workers or
             cheaper batches help; the run reaches 80.0 % of the lower one
num_workers  use 4, +300 % measured: no other number that was measured is more
             than 3 % faster
model        use 4, predicted 4.5\N{MULTIPLICATION SIGN} faster: 22 ms a step instead of 100 ms
restored     Network
note         a note of two lines
"""


def test_text() -> None:
    assert render(RESULT, "text") == TEXT
    assert str(RESULT) + "\n" == TEXT


def test_markdown() -> None:
    """The same cells in tables; foreign text is escaped."""
    shown = render(replace(RESULT, notes=("<b>|x|",)), "markdown")
    assert shown.startswith("**The run reaches 320 samples/s")
    assert "| 4 best | 22 ms | 25 ms | -12 % | 1,280 | +300 % |" in shown
    assert "| 16 | 22 ms | the time limit was reached |  |  |  |" in shown
    assert "<b>" not in shown


def paths(value: Any, prefix: str = "") -> set[str]:
    if isinstance(value, dict):
        found = set()
        for key, item in value.items():
            path = f"{prefix}.{key}" if prefix else key
            found |= {path} | paths(item, path)
        return found
    if isinstance(value, list):
        return set().union(*(paths(item, f"{prefix}[]") for item in value)) if value else set()
    return set()


def documented_as(path: str) -> str:
    """A rate has the same keys wherever it stands."""
    rates = r"(free_data|free_compute|together|measured)"
    return re.sub(rf"^(?:.*\.)?{rates}\.(\w+)$", r"free_data.\2", path)


def test_every_key_is_documented() -> None:
    document = json.loads(render(RESULT, "json"))
    documented = set(re.findall(r"^\| `([^`]+)` \|", DOC.read_text(encoding="utf-8"), re.MULTILINE))
    assert {documented_as(path) for path in paths(document)} == documented


def test_json() -> None:
    document = to_json(RESULT)
    assert document["schema"] == 1
    assert document["headspace_pct"] == pytest.approx(400)
    assert document["reached_pct"] == pytest.approx(80)
    assert document["lower_ceiling"] == "data"
    assert document["recommended_num_workers"] == 4
    assert document["measured_gain_pct"] == pytest.approx(300)
    assert document["together"] == {
        "step_time_s": 0.1,
        "batch_samples": 32,
        "steps": 40,
        "settled": True,
        "samples_per_s": 320.0,
        "steps_per_s": 10.0,
    }
    empty = json.loads(render(EMPTY, "json"))
    assert empty["headspace_pct"] is None
    assert empty["together"] is None
    assert set(empty) == set(document)


def test_nothing_measured() -> None:
    for form in ("text", "markdown", "json"):
        assert render(EMPTY, form)
    assert "too little" in headline(EMPTY)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"together": rate(0.0203)}, "data cost nothing that could be won"),
        ({"workers": ()}, "num_workers=4 is predicted to give +355 %."),
        ({"workers": (), "advice": None}, "+400 % at most."),
        ({"workers": (*RESULT.workers[:1], replace(RESULT.workers[1], measured=rate(0.099)))}, "keep it"),
        ({"free_data": rate(0.02, None), "together": rate(0.1, None)}, "10 batches/s of the 50 batches/s"),
    ],
)
def test_headline(changed: dict[str, Any], words: str) -> None:
    assert words in headline(replace(RESULT, **changed))


@pytest.mark.parametrize(
    ("times_ms", "present", "best"),
    [
        ({0: 118.0, 1: 113.0, 2: 93.1, 4: 87.6}, 0, 4),  # clearly the best
        ({0: 118.0, 1: 113.0, 2: 90.2, 4: 87.6}, 0, 2),  # 3 % slower at most: the fewer workers
        ({0: 118.0, 1: 113.0, 2: 90.2, 4: 87.6}, 4, 4),  # the present number among equals
        ({0: 87.6, 2: 87.6, 4: 87.6}, 2, 2),
        ({0: 90.0, 2: 118.0}, 2, 0),
        ({0: 118.0}, 0, None),
        ({}, None, None),
    ],
)
def test_what_was_measured_decides(times_ms: dict[int, float], present: int | None, best: int | None) -> None:
    assert fewest_near_best(times_ms, present) == best


def test_advice_after_a_sweep_is_the_measured_number() -> None:
    """The model said 4 and the measurement 2: the headline, the table, the JSON and the lines below say 2."""
    rows = (*RESULT.workers[:2], replace(RESULT.workers[2], measured=rate(0.05)))
    result = replace(RESULT, workers=rows)
    shown = " ".join(to_text(result).split())
    assert to_json(result)["recommended_num_workers"] == 2
    assert "num_workers=2 gave +150 %." in shown
    assert "2 best" in shown
    assert "num_workers use 2, +150 % measured" in shown
    assert "model use 4, predicted 4.5\N{MULTIPLICATION SIGN} faster" in shown
    assert "The measurement differs, and counts" in shown


def test_the_smallest_number_near_the_best_is_recommended() -> None:
    """Eight workers are 1 % faster than four: not worth four processes. Within the noise the present number is kept."""
    assert RESULT.recommended_num_workers == 4
    kept = replace(RESULT, num_workers=8)
    assert kept.recommended_num_workers == 8


RECORDED = replace(
    RESULT, together=rate(0.05), recording="a folder", recorded_wait_s=0.01, pause_s=0.02, present=rate(0.06)
)


def test_a_recorded_run_is_measured_by_its_own_wait() -> None:
    """Its step without the wait is what free data would give, and no sweep wins more than that."""
    assert RECORDED.unhindered == rate(0.04)
    assert RECORDED.headspace_pct == pytest.approx(25)
    assert RECORDED.measured_gain_pct == pytest.approx(25)
    assert RECORDED.reached_pct == 100
    text = " ".join(to_text(RECORDED).split())
    assert "640 samples/s of the 800 samples/s that free data would give: +25 % at most" in text
    assert "the same, measured here" in text
    assert "each step with the loader pauses as long here" in text
    assert to_json(RECORDED)["present"]["samples_per_s"] == pytest.approx(32 / 0.06)


def test_a_recorded_run_that_does_not_wait_keeps_its_workers() -> None:
    result = replace(RECORDED, recorded_wait_s=0.0005)
    assert result.recommended_num_workers == 0
    assert "keep 0: the recorded run waits too little" in " ".join(to_text(result).split())


def test_a_recorded_run_without_a_sweep_has_no_gains() -> None:
    result = replace(RECORDED, present=None)
    assert result.measured_gain_pct is None
    assert "the same, measured here" not in to_text(result)
