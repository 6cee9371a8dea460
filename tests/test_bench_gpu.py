"""The GPU benchmark's code runs without a GPU, at sizes that prove nothing."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))
torch = pytest.importorskip("torch")
pytest.importorskip("lightning")

from benchmarks.gpu.__main__ import main, run, table  # noqa: E402
from benchmarks.gpu.cases import CASES, SMOKE, Records  # noqa: E402
from benchmarks.gpu.pace import suited, usable_workers  # noqa: E402

from stallmeter.rules import ALL_RULES  # noqa: E402


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_runs(case):
    row = run(case, replace(SMOKE, side=8, steps=3, batch=2), accelerator="cpu", seconds=60.0, keep=None)
    assert row.samples_per_s
    assert row.gpu_pct is None
    assert row.right is None
    assert f"| {case.name} | {case.planted} | {case.article} |" in table([row])


def test_recordings_are_kept(tmp_path):
    run(CASES[0], replace(SMOKE, side=8, steps=3, batch=2), accelerator="cpu", seconds=None, keep=str(tmp_path))
    assert len(list(tmp_path.glob("*/rank0.0000.jsonl"))) == 1


def test_sizes_suit_the_machine():
    """A record comes in time for a step of this machine, and what is planted outlasts it."""
    shape = suited(replace(SMOKE, side=8, batch=2, workers=2), "cpu")
    assert shape.fetch_s > 0
    assert shape.passes >= 1
    assert shape.images >= 1
    assert (shape.side, shape.batch, shape.workers) == (8, 2, 2)
    assert usable_workers() >= 1


def test_expected_causes_are_rules():
    known = {rule.id for rule in ALL_RULES}
    assert all(set(case.expected) <= known and case.expected for case in CASES)


def test_what_is_planted_is_in_the_data():
    tiled = next(case for case in CASES if case.tiles == 10)
    frame, mask = Records(tiled, SMOKE, 4)[1]
    assert frame.shape == (30, SMOKE.side, SMOKE.side)
    assert mask.shape == (SMOKE.side, SMOKE.side)


def test_without_a_device_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu"])
    assert main() == 1
    assert "needs one (--cpu-smoke" in capsys.readouterr().err
