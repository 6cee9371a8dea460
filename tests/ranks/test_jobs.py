"""Real jobs of two ranks: what rank 0 says of them at their end, and what their recordings say afterwards."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stallmeter.cli import main
from stallmeter.recording import Reader, ranks
from stallmeter.records import Event

from ..ports import free_port
from ..warm import Forks
from .test_run_folder import TORCHRUN, clean_environment

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).with_name("job_ranks.py")
DIES_AT = 45


def run_ranks(
    forks: Forks, folder: Path, case: str, *arguments: str, environs: list[dict[str, str]] | None = None
) -> list[tuple[int, str, str]]:
    """Start both ranks; return the status of each, and what it wrote to stdout and stderr."""
    port = str(free_port())
    environs = environs or [
        {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} for rank in "01"
    ]
    programs = [
        forks.start(PROGRAM, case, folder, *arguments, cwd=folder.parent, env=clean_environment(**environ))
        for environ in environs
    ]
    try:
        said = [program.communicate(timeout=120) for program in programs]
        return [(program.wait(), *text) for program, text in zip(programs, said, strict=True)]
    finally:
        for program in programs:
            program.kill()


def primary_of(folder: Path) -> tuple[str, list[int]]:
    primary = json.loads((folder / "diagnosis.json").read_text())["primary"]
    return primary["rule"], primary.get("ranks", [])


def reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    assert main(["report", str(folder), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


@dataclass(frozen=True)
class Apart:
    """A job whose ranks recorded into a folder each, as without a shared disk."""

    said: list[tuple[int, str, str]]
    uri: str
    first: Path
    second: Path


@pytest.fixture(scope="module")
def apart(forks: Forks, tmp_path_factory: pytest.TempPathFactory, new_database: Callable[[Path], str]) -> Apart:
    folder = tmp_path_factory.mktemp("apart")
    uri = new_database(folder / "mlflow.db")
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environs = [{"RANK": rank, "MLFLOW_TRACKING_URI": uri, **where} for rank in "01"]
    said = run_ranks(forks, folder / "rec", "apart", "mlflow", environs=environs)
    assert [status for status, _, _ in said] == [0, 0], said
    [first], [second] = (list((folder / "rec" / rank).iterdir()) for rank in "01")
    return Apart(said, uri, first, second)


def test_ranks_apart_tell_rank_0_over_the_store(apart: Apart) -> None:
    assert primary_of(apart.first) == ("no-workers", [1])
    whole = json.loads((apart.first / "ranks.json").read_text())
    assert [(row["rank"], row["ended"]) for row in whole["ranks"]] == [(0, "end"), (1, "end")]
    assert whole["job"]["missing"] == whole["job"]["silent"] == []
    assert not (apart.second / "ranks.json").exists()


def test_rank_0_alone_tells_the_jobs_cause_on_the_console(apart: Apart) -> None:
    first, second = (stderr for _, _, stderr in apart.said)
    assert re.search(r"^stallmeter: (Probably: )?Rank 1: ", first, re.MULTILINE)
    assert "stallmeter:" not in second
    assert "frame #" not in first + second


def test_mlflow_has_the_jobs_verdict(apart: Apart) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(apart.uri)
    [run] = client.search_runs(["0"])
    assert run.data.tags["stallmeter.primary"] == "no-workers"
    note = run.data.tags["mlflow.note.content"]
    assert "Rank 1" in note
    assert "**Ranks**" in note
    assert "stallmeter/ranks.json" in {file.path for file in client.list_artifacts(run.info.run_id, "stallmeter")}


def test_what_was_recorded_apart_is_one_job_once_merged(
    apart: Apart, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = reported(apart.first, capsys)
    assert alone["job"]["missing"] == [1]
    assert main(["merge", str(apart.second.parent), str(apart.first.parent), "--output", str(tmp_path / "job")]) == 0
    assert "2 of 2 ranks" in capsys.readouterr().out
    merged = reported(tmp_path / "job", capsys)
    assert (merged["primary"]["rule"], merged["primary"]["ranks"]) == ("no-workers", [1])
    assert merged["job"]["missing"] == []


def test_a_rank_that_is_killed_is_named_at_the_end_of_rank_0(
    forks: Forks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 fails in its next collective; the reports are there before its process has ended."""
    first, second = run_ranks(forks, tmp_path / "rec", "dies")
    assert second[0] == -signal.SIGKILL
    assert first[0] == 1, first
    assert "Rank 1 died, while others went on. Last known step: " in first[2]
    [folder] = (tmp_path / "rec").iterdir()
    whole = json.loads((folder / "ranks.json").read_text())
    assert [(row["rank"], row["died"]) for row in whole["ranks"]] == [(0, False), (1, True)]
    [line] = whole["job"]["silent"]
    last = int(line.rpartition(" ")[2].rstrip("."))
    assert DIES_AT - 40 <= last <= DIES_AT  # what it had recorded by then, a quarter of a second old at the most
    assert line in (folder / "report.md").read_text()
    assert [r.detail for r, _ in Reader(folder) if isinstance(r, Event) and r.name == "end"] == [
        "exception: RuntimeError"
    ]
    assert [row["died"] for row in reported(folder, capsys)["ranks"]] == [False, True]


def test_ranks_of_slurm_leave_nothing_but_their_recording(forks: Forks, tmp_path: Path) -> None:
    """Without a launcher's store: the group's is a file, and before there is one they find each other by files."""
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    said = run_ranks(forks, tmp_path / "rec", "together", environs=[{**step, "SLURM_PROCID": rank} for rank in "01"])
    assert [status for status, _, _ in said] == [0, 0], said
    [folder] = (tmp_path / "rec").iterdir()
    assert ranks(folder) == (0, 1)
    assert primary_of(folder) == ("no-workers", [1])


def torchrun_fails(forks: Forks, tmp_path: Path, case: str, last_words: str = "") -> tuple[str, Path]:
    """Run both ranks under torchrun, of which one fails; return what was said, and the recording's folder.

    What outlives rank 0 may outlive torchrun, too, by as long as a busy machine takes: its words are waited for.
    """
    program = forks.start(
        TORCHRUN,
        *("--standalone", "--nproc-per-node", "2", PROGRAM, case, tmp_path / "rec"),
        cwd=tmp_path,
        env=clean_environment(OMP_NUM_THREADS="1"),
        together=True,
    )
    assert program.wait(200) == 1, program.read("stdout")
    deadline_s = time.monotonic() + 60
    while not re.search(last_words, said := program.read("stdout"), re.MULTILINE):
        assert time.monotonic() < deadline_s, said
        time.sleep(0.05)
    [folder] = (tmp_path / "rec").iterdir()
    return said, folder


def test_a_job_that_fails_over_its_own_mistake_has_no_dead(
    forks: Forks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """torchrun's agent ends rank 0 for rank 1's mistake. Both tell each other over the agent's store."""
    _, folder = torchrun_fails(forks, tmp_path, "fails")
    rows = reported(folder, capsys)["ranks"]
    assert rows[1]["ended"] == "exception: ValueError"
    assert not any(row["died"] for row in rows)


def test_a_launcher_that_ends_all_for_one_leaves_who_it_was(
    forks: Forks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """torchrun ends rank 0 a tenth of a second after rank 1 was killed, which may be before its own last words."""
    who = r"^stallmeter: Rank 1 (died, while others went on|was ended by SIGKILL)"
    _, folder = torchrun_fails(forks, tmp_path, "dies", who)
    assert [row["died"] for row in json.loads((folder / "ranks.json").read_text())["ranks"]] == [False, True]
    assert [row["died"] for row in reported(folder, capsys)["ranks"]] == [False, True]
