"""After an exception or a signal the emergency checkpoint comes first, and the end of our run after it."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from stallmeter.report.model import read_history

from ..servers import FaultServer
from ..warm import NO_PICTURES, Forks

pytestmark = pytest.mark.long

pytest.importorskip("lightning.pytorch")

PROGRAM = """
    import importlib, json, os, signal, sys
    from pathlib import Path

    import torch
    from torch.utils.data import DataLoader
    from stallmeter.delivery.trackers.mlflow import MlflowTracker

    namespace, module, address, what = sys.argv[1:]
    pl = importlib.import_module(namespace)
    ours = importlib.import_module(f"stallmeter.lightning.{module}").StallMonitor(
        directory="rec", interval_s=0.05, trackers=MlflowTracker(address, "0" * 32), close_budget_s=2
    )

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, batch_idx):
            if self.global_step == 3:
                if what == "SIGTERM":
                    os.kill(os.getpid(), signal.SIGTERM)
                else:
                    raise ValueError("no")
            return self.layer(batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Checkpoint(pl.callbacks.OnExceptionCheckpoint):
        def on_exception(self, trainer, *args, **kwargs):
            super().on_exception(trainer, *args, **kwargs)
            (folder,) = Path("rec").iterdir()
            recorded = "".join(f.read_text() for f in folder.glob("*.jsonl"))
            seen = {"end": '"name":"end"' in recorded, "steps": recorded.count('["step"')}
            seen["reports"] = [f.name for f in folder.iterdir() if f.suffix in (".md", ".html", ".csv")]
            Path("seen.json").write_text(json.dumps(seen))

    quiet = dict.fromkeys(("enable_progress_bar", "enable_model_summary", "logger", "enable_checkpointing"), False)
    quiet.pop("enable_checkpointing")  # the emergency checkpoint is one
    trainer = pl.Trainer(accelerator="cpu", max_epochs=1, callbacks=[Checkpoint("."), ours], **quiet)
    trainer.fit(Model(), DataLoader(torch.ones(32, 4), batch_size=4))
"""


@pytest.mark.parametrize("what", ["ValueError", "SIGTERM"])
def test_the_emergency_checkpoint_comes_before_reports_and_trackers(forks: Forks, tmp_path: Path, what: str) -> None:
    """A tracker that never answers does not hold it up; the recording is complete by then, and nothing else is made."""
    with FaultServer(500, silent=True) as faulty:
        arguments = ("lightning.pytorch", "unified", f"http://{faulty.address}", what)
        done = forks.run(NO_PICTURES + textwrap.dedent(PROGRAM), *arguments, cwd=tmp_path)
    assert (tmp_path / "on_exception.ckpt").is_file(), done.stderr
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert (seen["end"], seen["reports"]) == (True, [])
    assert seen["steps"] >= 3
    (folder,) = (tmp_path / "rec").iterdir()
    ended = "SIGTERMException" if what == "SIGTERM" else "ValueError"
    assert read_history(folder).report().ended == f"exception: {ended}"
    assert (folder / "report.md").exists() is (what == "ValueError")
    assert not json.loads((folder / "cursor-mlflow.json").read_text())["complete"]
