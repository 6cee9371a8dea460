"""A program that trains on two ranks.

python ranks.py NAMESPACE STRATEGY FOLDER with|without
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from stallmeter.report import files

files.write_extras = lambda *_: None  # pictures take most of a short run's time
torch.set_num_threads(1)
NAMESPACE, STRATEGY, FOLDER, OURS = sys.argv[1:5]
pl = importlib.import_module(NAMESPACE)


class Rows(Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), index / 16)


class Model(pl.LightningModule):  # type: ignore[name-defined, misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch).pow(2).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-2)

    def on_train_end(self) -> None:
        weights = [p.tolist() for p in self.parameters()]
        Path(FOLDER, f"weights-{self.global_rank}.json").write_text(json.dumps(weights))


def main() -> None:
    module = importlib.import_module(f"stallmeter.lightning.{'unified' if NAMESPACE[0] == 'l' else 'legacy'}")
    torch.manual_seed(7)
    ours = [module.StallMonitor(directory=Path(FOLDER, "rec"), interval_s=0.05)] if OURS == "with" else []
    quiet = dict.fromkeys(("enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger"), False)
    trainer = pl.Trainer(accelerator="cpu", devices=2, strategy=STRATEGY, max_epochs=2, callbacks=ours, **quiet)
    workers = int(STRATEGY != "ddp_spawn")  # they would be spawned, too: seconds of imports for each
    trainer.fit(Model(), DataLoader(Rows(), batch_size=2, num_workers=workers, shuffle=True))


if __name__ == "__main__":
    main()
