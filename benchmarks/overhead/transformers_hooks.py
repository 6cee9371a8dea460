"""What `StallCallback` adds to an update of the weights: the Trainer's calls without the Trainer.

A stand-in makes the calls that the Trainer makes in one update, and does nothing in them. What is measured is what
stands around them and the callback's events, with the sampler thread at work. The Trainer itself takes half a
millisecond and more for an update: against that, differences of microseconds drown. A pause between two updates leaves
nothing of ours in the CPU's caches, as a real step does.

    python benchmarks/overhead/transformers_hooks.py [--updates 3000]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from stallmeter.engine.context import RunContext
from stallmeter.engine.options import Options
from stallmeter.engine.wiring import assemble
from stallmeter.transformers.training import Training

PAUSE_S = 0.0002
BATCH = {"input_ids": torch.zeros(8, 128, dtype=torch.int64), "labels": torch.zeros(8, dtype=torch.int64)}
now = time.perf_counter_ns


class Accelerator:
    def backward(self, loss: int) -> None: ...


class Trainer:
    """The methods that are called in each update; the others are asked for alone."""

    def __init__(self) -> None:
        self.accelerator = Accelerator()
        self.callback_handler = SimpleNamespace(callbacks=[])

    def log(self, logs: Any) -> None: ...

    def evaluate(self) -> None: ...

    def compute_loss(self, model: Any, inputs: Any) -> int:
        return 1

    def training_step(self, model: Any, inputs: Any, count: Any = None) -> int:
        loss = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        return loss

    def get_batch_samples(self, iterator: Iterator[Any], count: int, device: Any) -> tuple[list[Any], None]:
        return [next(iterator) for _ in range(count)], None


def batches() -> Iterator[Any]:
    while True:
        yield BATCH


def median_us(updates: int, training: Training | None, trainer: Trainer) -> float:
    """Median time of an update, microseconds."""
    iterator, times = iter(batches()), []
    for update in range(updates):
        began = now()
        (batch,), _ = trainer.get_batch_samples(iterator, 1, None)
        trainer.training_step(None, batch)
        if training is not None:
            training.optimizer.__enter__()
            training.optimizer.__exit__()
            training.end_step(update + 1)
        times.append(now() - began)
        time.sleep(PAUSE_S)
    return statistics.median(times) / 1e3


def with_callback(updates: int, *, workers: int) -> float:
    options = Options(directory=tempfile.mkdtemp(), trackers=None, console=False)
    run = assemble(options, RunContext(recordings=options.recordings, framework="transformers"))
    training, trainer = Training(run), Trainer()
    training.listen(trainer, int)
    run.start()
    dataset = torch.utils.data.TensorDataset(torch.ones(8, 2))
    training.begin_epoch(torch.utils.data.DataLoader(dataset, num_workers=workers), 0, 1)
    try:
        return median_us(updates, training, trainer)
    finally:
        training.end_epoch()
        training.close("end")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=3000)
    updates = parser.parse_args().updates
    plain = median_us(updates, None, Trainer())
    for workers in (1, 0):
        added = with_callback(updates, workers=workers) - plain
        print(f"num_workers={workers}: {added:.1f} µs added to an update of {plain:.1f} µs")
