"""How much later a short fit and its program end with stallmeter than without, and what memory that takes.

Each contender is a program of its own that fits three times, two seconds each; the programs alternate. Quoted are
medians over the rounds, and the differences to the program without stallmeter in the same round.

    python benchmarks/overhead/ending.py [--rounds 5] [--seconds 2]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FITS = 3
WORK_S = 0.01
CONTENDERS = ("no stallmeter", "no tracker", "MLflow on sqlite")
ROWS = ("first fit ends, s", "later fits end, s", "program ends, s", "peak memory, MB")


def child(contender: str, seconds: float, folder: Path) -> None:
    """Fit and print what was measured."""
    import resource

    import torch
    from lightning.pytorch import Callback, LightningModule, Trainer
    from torch.utils.data import DataLoader

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            time.sleep(WORK_S)
            return self.layer(batch).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class LastStep(Callback):
        at_s = 0.0

        def on_train_batch_end(self, *_: Any) -> None:
            self.at_s = time.perf_counter()

    torch.set_num_threads(1)
    ends = []
    for number in range(FITS):
        last = LastStep()
        callbacks: list[Any] = [last]
        if contender != "no stallmeter":
            from stallmeter.lightning import StallMonitor

            trackers = None if contender == "no tracker" else tracker(folder, number)
            callbacks.append(StallMonitor(directory=folder / "rec", trackers=trackers, console=False))
        quiet = dict.fromkeys(("enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger"), False)
        trainer = Trainer(accelerator="cpu", max_epochs=1, callbacks=callbacks, **quiet)
        trainer.fit(Model(), DataLoader(torch.ones(4 * int(seconds / WORK_S), 4), batch_size=4))
        ends.append(time.perf_counter() - last.at_s)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(json.dumps({"ends": ends, "peak_mb": peak_mb, "at_s": time.time()}), flush=True)


def tracker(folder: Path, number: int) -> Any:
    """Return a run of its own in a database."""
    from stallmeter.delivery.trackers.mlflow import MlflowTracker

    return MlflowTracker.create_run(f"sqlite:///{folder}/mlflow.db", run_name=str(number))


def measure(contender: str, seconds: float, folder: Path) -> dict[str, float]:
    """Run one contender in a program of its own."""
    command = [sys.executable, __file__, "--child", contender, "--seconds", str(seconds), "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    ended_s = time.time()
    found = json.loads(done.stdout.splitlines()[-1])
    values = (
        found["ends"][0],
        statistics.median(found["ends"][1:]),
        ended_s - found["at_s"],
        found["peak_mb"],
    )
    return dict(zip(ROWS, values, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--child")
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.seconds, arguments.folder)
        return
    found: dict[str, list[dict[str, float]]] = {contender: [] for contender in CONTENDERS}
    for _ in range(arguments.rounds):
        for contender in CONTENDERS:
            with tempfile.TemporaryDirectory() as folder:
                found[contender].append(measure(contender, arguments.seconds, Path(folder)))
    print(f"{'':20s}" + "".join(f"{row:>26s}" for row in ROWS))
    for contender in CONTENDERS:
        print(f"{contender:20s}" + "".join(f"{cell(found, contender, row):>26s}" for row in ROWS))


def cell(found: dict[str, list[dict[str, float]]], contender: str, row: str) -> str:
    """Return the median, and the median difference to the first contender."""
    values = [one[row] for one in found[contender]]
    base = [one[row] for one in found[CONTENDERS[0]]]
    more = statistics.median(a - b for a, b in zip(values, base, strict=True))
    digits = 0 if row.endswith("MB") else 2
    return f"{statistics.median(values):.{digits}f} ({more:+.{digits}f})"


if __name__ == "__main__":
    main()
