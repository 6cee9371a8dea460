"""What stallmeter does to the outside: files in the run's folder with the user's umask, and nothing else."""

from __future__ import annotations

import json
import os
import pickle
import stat
from pathlib import Path
from typing import Any

import pytest

from stallmeter.recording import Header, Recorder
from stallmeter.records import LedgerRecord
from stallmeter.report.model import read_history

from .warm import Forks

AUDITED = """
import json, os, sys

seen = []
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT

def ours():
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__", "").split(".")[0] == "stallmeter":
            return True
        frame = frame.f_back
    return False

def hook(event, args):
    if event == "open" and (args[2] or 0) & WRITES and ours():
        seen.append(["write", os.fspath(args[0]) if not isinstance(args[0], int) else ""])
    elif event in ("os.mkdir", "os.remove", "os.rename", "os.chmod", "os.putenv", "os.unsetenv") and ours():
        seen.append([event, os.fsdecode(args[0])])
    elif event in ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto") and ours():
        seen.append([event, repr(args[1:])])
    elif event in ("subprocess.Popen", "os.system", "os.fork", "os.exec", "pickle.find_class") and ours():
        seen.append([event, repr(args[:2])])

sys.addaudithook(hook)
"""

PROGRAM = (
    AUDITED
    + """
import time
os.umask(0o027)
import torch
from lightning.pytorch import LightningModule, Trainer
from stallmeter.lightning import StallMonitor

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)

trainer = Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                  enable_progress_bar=False, enable_model_summary=False,
                  callbacks=[StallMonitor(directory="runs", console=False, interval_s=0.05)])
trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(64, 4), batch_size=4, num_workers=2))
json.dump(seen, open("seen.json", "w"))
"""
)


@pytest.fixture(scope="module")
def trained(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a program that trained with everything on, its effects on the system in ``seen.json``."""
    folder = tmp_path_factory.mktemp("audited")
    (folder / "train.py").write_text(PROGRAM)
    # matplotlib keeps a list of fonts in a folder of its own; it is told to keep it here.
    environment = {**os.environ, "MPLCONFIGDIR": str(folder / "runs")}
    done = forks.run(folder / "train.py", cwd=folder, env=environment, timeout=180)
    assert done.returncode == 0, done.stderr
    return folder


def events(folder: Path) -> list[list[Any]]:
    found: list[list[Any]] = json.loads((folder / "seen.json").read_text())
    return found


def test_it_writes_into_the_runs_folder_alone(trained: Path) -> None:
    written = [
        Path(path) for event, path in events(trained) if event in ("write", "os.mkdir", "os.remove", "os.rename")
    ]
    assert written
    # Workers hand their timings over through shared memory, which is gone when the run is.
    outside = [p for p in written if not (trained / p).is_relative_to(trained / "runs") and not str(p).startswith("/")]
    shared = [p for p in written if p.is_absolute() and not p.is_relative_to(trained)]
    assert outside == []
    assert [p for p in shared if p != Path(os.devnull) and not p.is_relative_to("/dev/shm")] == []
    assert not [p for p in shared if p != Path(os.devnull) and p.exists()]


def test_it_calls_nobody_starts_nothing_and_leaves_the_environment_alone(trained: Path) -> None:
    started = [e for e in events(trained) if e[0].startswith(("socket", "subprocess", "os.system", "os.exec"))]
    # The one child draws the page, from the recording, and may begin when the program is about to end.
    assert [e[0] for e in started] in ([], ["subprocess.Popen"])
    assert all("from stallmeter.report.drawing import main" in e[1] for e in started)
    assert [e for e in events(trained) if e[0] in ("os.putenv", "os.unsetenv", "os.chmod", "pickle.find_class")] == []


def test_files_have_the_users_umask(trained: Path) -> None:
    [run] = [path for path in (trained / "runs").iterdir() if (path / "diagnosis.json").is_file()]
    assert stat.S_IMODE(run.stat().st_mode) == 0o750
    for path in run.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o640, path.name


def test_a_recording_is_data_never_code(tmp_path: Path) -> None:
    """Lines that would run something if they were evaluated or unpickled are damaged lines."""

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(tmp_path / "ran"),))

    recorder = Recorder(tmp_path / "run", Header(run_id="x", started_s=0.0))
    recorder.write(LedgerRecord(time_s=1.0, wall_s=1.0, steps=1, epochs=1, buckets={"compute": 1.0}))
    recorder.close()
    [part] = (tmp_path / "run").glob("*.jsonl")
    with part.open("ab") as file:
        file.write(f"__import__('os').mkdir({str(tmp_path / 'ran')!r})\n".encode())
        file.write(pickle.dumps(Bomb()) + b"\n")
        file.write(b'["step",{"__class__":"os.system","args":["true"]}]\n')
    report = read_history(tmp_path / "run").report()
    assert report.skipped_lines >= 2
    assert not (tmp_path / "ran").exists()
