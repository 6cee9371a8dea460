"""Added time per step of traceml-ai and gpuprof beside ours: a process per run, in turn, on one small Lightning model.

Both patch torch or the loop for as long as a process lives, so that they cannot be switched on and off within a fit.
The medians of whole processes differ by a few percent on a shared machine; the costs here are larger than that.

    python -m venv /tmp/rivals && /tmp/rivals/bin/pip install traceml-ai==0.5.0 gpuprof==0.7.1 lightning psutil
    python benchmarks/overhead/rivals.py --python /tmp/rivals/bin/python [--rounds 5] [--submodules 10 1000]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CONTENDERS = ("no-op callback", "stallmeter", "traceml", "gpuprof")
STEPS = 3000
ROOT = Path(__file__).resolve().parents[2]


def train(name: str, submodules: int, folder: Path) -> None:
    """Train under one tool and print the median step time in µs."""
    import logging
    import time
    import warnings

    import lightning.pytorch as L
    import torch

    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)

    class Model(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
            self.rest = torch.nn.Sequential(*(torch.nn.Identity() for _ in range(submodules)))

        def training_step(self, batch, batch_idx):
            return self.rest(self.layer(batch)).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    class Outside(L.Callback):
        def __init__(self) -> None:
            self.marks: list[int] = []

        def on_train_batch_start(self, *_):
            self.marks.append(time.perf_counter_ns())

    if name == "stallmeter":
        from stallmeter.lightning import StallMonitor

        tools = [StallMonitor(directory=folder, trackers=None, console=False)]
    elif name == "no-op callback":
        tools = [L.Callback()]
    else:
        sys.path.insert(0, str(ROOT))
        from benchmarks.faults.rivals import open_rival

        tools = open_rival(name, folder).callbacks
    outside = Outside()
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", callbacks=[outside, *tools], logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(STEPS, 4), batch_size=1))
    gaps = [b - a for a, b in zip(outside.marks[200:], outside.marks[201:], strict=False)]
    print("median_us", statistics.median(gaps) / 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the rivals")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--submodules", type=int, nargs="*", default=[10, 1000])
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train, arguments.submodules[0], arguments.folder)
        return
    for submodules in arguments.submodules:
        found: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        for _ in range(arguments.rounds):
            for name in random.sample(CONTENDERS, len(CONTENDERS)):
                found[name].append(measure(name, submodules, arguments.python))
        base = found["no-op callback"]
        print(f"\n{submodules} submodules, {arguments.rounds} processes each, {STEPS} steps")
        print(f"{'':16s} {'median µs':>10s} {'over no-op µs':>14s} {'lowest to highest':>19s}")
        for name, times in found.items():
            over = sorted(a - b for a, b in zip(times, base, strict=True))
            print(
                f"{name:16s} {statistics.median(times):10.1f} {statistics.median(over):+14.1f} "
                f"{over[0]:+9.1f} to {over[-1]:+6.1f}",
                flush=True,
            )


def measure(name: str, submodules: int, python: str) -> float:
    """Run one process and return its median step time in µs; nan when the tool did not get through."""
    with tempfile.TemporaryDirectory() as folder:
        script = str(Path(__file__).resolve())
        own = ["--train", name, "--submodules", str(submodules), "--folder", folder]
        command = [python, script, *own]
        if name == "traceml":  # its launcher starts the aggregator that the callback reports to
            launcher = str(Path(python).with_name("traceml"))
            command = [launcher, "run", "--logs-dir", folder, "--run-name", "cost", script, "--args", *own]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, check=False,
        )  # fmt: skip
    for line in done.stdout.splitlines():
        if "median_us" in line:
            return float(line.rpartition("median_us")[2])
    print(f"{name} failed: {json.dumps((done.stdout + done.stderr)[-300:])}", file=sys.stderr)
    return float("nan")


if __name__ == "__main__":
    main()
