"""Trainings of other projects' libraries, unchanged: recorded by one command, and the same to the last bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stallmeter.timing.ledger import Ledger

from . import closing

HERE = Path(__file__).parent
NEIGHBOURS = {"noisy-neighbour", "cpu-saturated"}
"""What other work on the machine may add; it is no fault of the library's."""


def run(command: list[str], folder: Path) -> dict[str, Any]:
    """Train in a process of its own; what `closing.close` printed."""
    folder.mkdir()
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("STALLMETER", "MLFLOW", "NEPTUNE"))}
    done = subprocess.run(
        command,
        env={**clean, "STALLMETER_DIR": str(folder / "rec"), "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith('{"weights"')]
    return json.loads(line)


@pytest.mark.ecosystem
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("library", "namespace", "steps", "plausible"),
    [
        # Two workers and short epochs on few CPUs: their start, their pace or the steps may come first.
        (
            "pytorch_forecasting",
            "lightning",
            198,
            {"compute-bound", "worker-startup", "prep-stall", "too-many-workers", "validation-heavy", *NEIGHBOURS},
        ),
        # Batches made in the loop in under a millisecond: only the steps can set the pace.
        ("neuralforecast", "pytorch_lightning", 300, {"compute-bound"}),
        ("scvi", "lightning", 180, {"compute-bound"}),
    ],
)
def test_a_library_trains_as_before(
    library: str, namespace: str, steps: int, plausible: set[str], tmp_path: Path
) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed; make test-ecosystem installs it")
    program = [sys.executable, str(HERE / f"train_{library}.py")]
    without = run(program, tmp_path / "without")
    with_it = run([sys.executable, "-m", "stallmeter", "run", "--", *program], tmp_path / "with")
    assert with_it == {"weights": without["weights"], "left": []}
    assert not (tmp_path / "without" / "rec").exists()
    (folder,) = (tmp_path / "with" / "rec").iterdir()
    shown = subprocess.run(
        [sys.executable, "-m", "stallmeter", "report", str(folder), "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    report = json.loads(shown.stdout)
    assert report["run"]["framework"].split()[0] == namespace
    judge(report, steps, plausible)


def judge(report: dict[str, Any], steps: int, plausible: set[str]) -> None:
    """Check that a verdict is complete, plausible and free of contradiction."""
    primary = report["primary"]
    told = {one["rule"]: one for one in report["diagnoses"]}
    print(f"steps {report['steps']}, coverage {report['coverage_pct']} %, said {list(told)}, {report['num_workers']}")
    assert report["steps"] == steps
    assert report["coverage_pct"] >= 95.0
    assert sum(report["ledger"].values()) == pytest.approx(report["wall_s"], rel=1e-3)
    assert primary is not None
    assert primary["rule"] in plausible
    assert not {"no-workers", "too-few-workers"} & told.keys() or "too-many-workers" not in told
    if primary["rule"] == "compute-bound":
        assert not [rule for rule, one in told.items() if one["severity"] == "warning"]
    assert sum(one["time_lost_s"] for one in told.values()) <= report["wall_s"]
    workers = report["num_workers"]
    assert workers is None or workers["recommended"] == workers["current"] or workers["predicted_gain_pct"] > 0


@pytest.mark.long
def test_what_is_left_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of the programs above is one that can fail."""

    class Foreign:
        patched: Any = None

    before = closing.leftovers()
    monkeypatch.setattr(Foreign, "patched", Ledger.enter)
    found = set(closing.leftovers()) - set(before)
    assert [name.rpartition(".")[2] for name in found] == ["patched"]
