"""Two ranks in processes that are spawned, forked or launched: the same weights, one recording for each fit of both."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stallmeter.recording import Reader, ranks
from stallmeter.records import HostSample, StepRecord
from stallmeter.report.json import to_json
from stallmeter.report.model import read_history

from ..ports import free_port
from ..warm import Forks

pytestmark = pytest.mark.long

HERE = Path(__file__).parent


CASES = {
    "lightning.pytorch": ["without/ddp_fork", "with/ddp_fork", "fabric/ddp_fork", "with/ddp_spawn", "with/ddp"],
    "pytorch_lightning": ["with/ddp_fork", "with/ddp"],
}


@pytest.fixture(scope="module")
def trained(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each case left, below a folder for each package: both train at the same time."""
    folder = tmp_path_factory.mktemp("ranks")
    programs = {
        namespace: forks.start(
            HERE / "ranks.py",
            *(namespace, folder / namespace, *cases),
            cwd=folder,
            env={**os.environ, "PORTS": " ".join(str(free_port()) for _ in cases)},
            together=True,
        )
        for namespace, cases in CASES.items()
    }
    try:
        for program in programs.values():
            said, _ = program.communicate(timeout=200)
            assert program.returncode == 0, said[-3000:]
    finally:
        for program in programs.values():
            program.kill()
    return folder


INPUT_RULES = {"input-bound", "no-workers", "prep-stall", "fetch-stall", "slow-batches", "too-few-workers"}
STEPS = 32
PLANTED_S = 2 * STEPS * 0.04
FITS = {"with/ddp_fork": 2, "with/ddp_spawn": 1, "with/ddp": 3}


def weights(folder: Path) -> list[str]:
    """Return those of both ranks."""
    return [(folder / f"weights-{rank}.json").read_text() for rank in (0, 1)]


@pytest.mark.parametrize(
    ("namespace", "case"),
    [(namespace, case) for namespace, cases in CASES.items() for case in cases if case.startswith("with/")],
)
def test_two_ranks(trained: Path, namespace: str, case: str) -> None:
    assert weights(trained / namespace / case) == weights(trained / "lightning.pytorch" / "without/ddp_fork")
    recordings = sorted((trained / namespace / case / "rec").iterdir())
    assert len(recordings) == FITS[case]
    recordings.sort(key=lambda recording: Reader(recording).header().started_s)
    for recording in recordings:
        assert_recorded(recording)
    assert_counted(recordings[0])
    assert_named(recordings[-1])


def test_two_ranks_of_fabric(trained: Path) -> None:
    [recording] = (trained / "lightning.pytorch" / "fabric" / "ddp_fork" / "rec").iterdir()
    assert_named(recording)


def assert_named(recording: Path) -> None:
    """What rank 0 said at its end, when rank 1 had been slow with its data: what it was told by then."""
    whole = json.loads((recording / "ranks.json").read_text())
    assert [row["ended"] for row in whole["ranks"]] == ["end", "end"]
    assert whole["job"]["silent"] == []
    assert whole["job"]["steps"] == STEPS
    said = json.loads((recording / "diagnosis.json").read_text())["primary"]
    assert said["rule"] != "compute-bound"
    # On a machine that is busy with other things rank 0 is late, too, and the worker has time to make batches.
    if whole["ranks"][1]["data_wait_s"] > 0.8 * PLANTED_S:
        assert (said["ranks"], said["rule"] in INPUT_RULES) == ([1], True), said


def assert_recorded(recording: Path) -> None:
    """Both ranks recorded one fit."""
    assert ranks(recording) == (0, 1)
    assert len(list(recording.glob("rank*.jsonl"))) == 2
    for rank in (0, 1):
        steps = [r for r, _ in Reader(recording, rank) if isinstance(r, StepRecord)]
        assert [step.index for step in steps] == list(range(STEPS))
        report = read_history(recording, rank).report()
        assert report.ended == "end"
        assert report.header is not None
        assert (report.header.rank, report.header.world_size) == (rank, 2)
        assert report.loader is not None
        assert report.loader.probed
        json.dumps(to_json(report), allow_nan=False)


def assert_counted(recording: Path) -> None:
    """Of the program's first fit: beside a later one the pages of those before it may still be drawn."""
    for rank in (0, 1):
        processes = [r.job_processes or 0 for r, _ in Reader(recording, rank) if isinstance(r, HostSample)]
        assert min(processes) == 1, "a worker comes and goes; the other rank is none of this one's processes"
