"""Lightning: one callback is the whole change.

Run it with ``python examples/lightning_callback.py``; it needs ``pip install 'stallmeter[demo]'`` and takes about 15 s.
Without any change to your program, ``stallmeter run -- python train.py`` does the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

import lightning.pytorch as pl
from torch.utils.data import DataLoader

from stallmeter.demo.crops import Crops, write_crops
from stallmeter.demo.training import Network
from stallmeter.lightning import StallMonitor


def main(epochs: int = 3, num_workers: int = 0, count: int = 1500) -> None:
    files = write_crops(Path("demo-output/crops") if count == 1500 else Path(f"demo-output/crops-{count}"), count)
    training = Crops(files, augment=True)
    loader = DataLoader(training, batch_size=32, shuffle=True, num_workers=num_workers)
    trainer = pl.Trainer(
        max_epochs=epochs,
        callbacks=[StallMonitor()],  # the only line that stallmeter needs
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(Network(len(training.labels)), loader)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
