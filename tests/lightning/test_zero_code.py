"""An unchanged program is recorded when ``STALLMETER=1`` is set, by one process or by several."""

from __future__ import annotations

import json
import os
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stallmeter import cli
from stallmeter.lightning import entry_points
from stallmeter.recording import Reader, ranks
from stallmeter.records import Event, LedgerRecord, StepRecord

from ..warm import Forks, Program

PROGRAM = textwrap.dedent(
    """
    import sys
    import {namespace} as pl
    from {namespace}.demos.boring_classes import BoringModel

    if __name__ == "__main__":
        pl.seed_everything(3)
        model = BoringModel()
        trainer = pl.Trainer(
            max_epochs=1, limit_train_batches=6, limit_val_batches=2, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", {options}
        )
        trainer.fit(model)
        print("callbacks:", sorted(type(c).__name__ for c in trainer.callbacks))
        print("weights:", float(sum(p.double().sum() for p in model.parameters())))
    """
)


DDP = "devices=2, strategy='ddp'"
PROGRAMS = {
    "lightning.pytorch off": ("lightning.pytorch", "", {}),
    "lightning.pytorch on": ("lightning.pytorch", "", {"STALLMETER": "1"}),
    "lightning.pytorch ddp": ("lightning.pytorch", DDP, {"STALLMETER": "1"}),
    "pytorch_lightning off": ("pytorch_lightning", "", {}),
    "pytorch_lightning on": ("pytorch_lightning", "", {"STALLMETER": "1"}),
}


@dataclass(frozen=True)
class Done:
    """What a program said, and where it may have recorded."""

    stdout: str
    recordings: Path


def start(forks: Forks, folder: Path, namespace: str, options: str, env: dict[str, str]) -> Program:
    folder.mkdir()
    program = folder / "train.py"
    program.write_text(PROGRAM.format(namespace=namespace, options=options))
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STALLMETER")}
    env = {**clean, "STALLMETER_DIR": str(folder / "rec"), "OMP_NUM_THREADS": "1", **env}
    return forks.start(program, cwd=folder, env=env)


@pytest.fixture(scope="module")
def done(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """All programs run at the same time. Lightning starts a second rank as an interpreter of its own."""
    folder = tmp_path_factory.mktemp("programs")
    running = {name: start(forks, folder / name, *options) for name, options in PROGRAMS.items()}
    found = {}
    try:
        for name, program in running.items():
            stdout, stderr = program.communicate(timeout=240)
            assert program.returncode == 0, stderr
            found[name] = Done(stdout, folder / name / "rec")
    finally:
        for program in running.values():
            program.kill()
    return found


@pytest.mark.long
@pytest.mark.parametrize("namespace", ["lightning.pytorch", "pytorch_lightning"])
def test_an_unchanged_program(done: dict[str, Done], namespace: str) -> None:
    off, on = done[f"{namespace} off"], done[f"{namespace} on"]
    assert "StallMonitor" not in off.stdout
    assert not off.recordings.exists()
    assert "StallMonitor" in on.stdout
    assert off.stdout.splitlines()[-1] == on.stdout.splitlines()[-1]
    (folder,) = on.recordings.iterdir()
    assert sum(isinstance(x, StepRecord) for x, _ in Reader(folder)) == 6


@pytest.mark.long
def test_each_rank_records_and_the_ranks_meet_in_one_folder(
    done: dict[str, Done], capsys: pytest.CaptureFixture[str]
) -> None:
    recordings = done["lightning.pytorch ddp"].recordings
    folders = list(recordings.iterdir())
    assert len(folders) == 1
    assert ranks(folders[0]) == (0, 1)
    for rank in (0, 1):
        reader = Reader(folders[0], rank)
        assert (reader.header().rank, reader.header().world_size) == (rank, 2)
        found = [x for x, _ in reader]
        assert sum(isinstance(x, StepRecord) for x in found) == 6
        assert [x.name for x in found if isinstance(x, Event)][-1] == "end"
        ledger = [x for x in found if isinstance(x, LedgerRecord)][-1]
        assert sum(ledger.buckets.values()) == pytest.approx(ledger.wall_s, abs=1e-5)
    assert cli.main(["report", str(recordings), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 6


def test_nothing_happens_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, "", "0", "no", "something"):
        monkeypatch.delenv("STALLMETER", raising=False)
        if value is not None:
            monkeypatch.setenv("STALLMETER", value)
        assert entry_points.lightning_callbacks() == []
        assert entry_points.pytorch_lightning_callbacks() == []


def test_a_factory_that_cannot_make_the_callback_returns_an_empty_list(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("STALLMETER", "1")
    monkeypatch.setenv("STALLMETER_DIR", str(tmp_path / "file"))
    assert entry_points.lightning_callbacks() == []
    assert "is a file" in caplog.text


def test_an_explicit_callback_wins(unified: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLMETER", "1")
    mine = unified.monitor()
    trainer = unified.trainer(mine)
    assert sum(type(c).__name__ in ("StallMonitor", "Timed") for c in trainer.callbacks) == 2
    trainer.fit(unified.model(), unified.loader())
    assert mine.monitor is not None
    assert all(c is mine or c.monitor is None for c in trainer.callbacks if hasattr(c, "monitor"))
