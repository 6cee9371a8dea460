"""Two ranks in processes that are spawned, forked or launched: the same weights, one recording for both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stallmeter.recording import Reader, ranks
from stallmeter.records import StepRecord
from stallmeter.report.json import to_json
from stallmeter.report.model import build_report

HERE = Path(__file__).parent


def run(folder: Path, namespace: str, strategy: str, ours: str) -> list[str]:
    """Return the weights of both ranks."""
    folder.mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, HERE / "ranks.py", namespace, strategy, folder, ours],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [(folder / f"weights-{rank}.json").read_text() for rank in (0, 1)]


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return run(tmp_path_factory.mktemp("ranks") / "without", "lightning.pytorch", "ddp_fork", "without")


@pytest.mark.parametrize(
    ("namespace", "strategy"),
    [
        ("lightning.pytorch", "ddp_fork"),
        ("lightning.pytorch", "ddp_spawn"),
        ("lightning.pytorch", "ddp"),
        ("pytorch_lightning", "ddp_fork"),
        ("pytorch_lightning", "ddp"),
    ],
)
def test_two_ranks(tmp_path: Path, without: list[str], namespace: str, strategy: str) -> None:
    assert run(tmp_path / "with", namespace, strategy, "with") == without
    [recording] = (tmp_path / "with" / "rec").iterdir()
    assert ranks(recording) == (0, 1)
    for rank in (0, 1):
        steps = [r for r, _ in Reader(recording, rank) if isinstance(r, StepRecord)]
        assert [step.index for step in steps] == list(range(8))
        report = build_report(recording, rank)
        assert report.ended == "end"
        assert report.header is not None
        assert (report.header.rank, report.header.world_size) == (rank, 2)
        assert report.loader is not None
        assert report.loader.probed
        json.dumps(to_json(report), allow_nan=False)
