"""What the adapters for Ignite and for Keras add to a step: the framework's own engine, or its list of callbacks.

The step does nothing but wait until a time has come; a pause before it leaves nothing of ours in the CPU's caches, as a
real step does. Rounds with and without take turns; the figure is the median of the differences between neighbours.

    KERAS_BACKEND=torch python benchmarks/overhead/adapters.py [--rounds 40] [--steps 200]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import intervals
import torch

os.environ.setdefault("KERAS_BACKEND", "torch")
PAUSE_S = 0.0005
BATCH = [torch.zeros(8, 16), torch.zeros(8)]
now = time.perf_counter_ns
Round = Callable[[int, bool], list[int]]


class Batches:
    """A loader without workers of torch's: what that costs is measured elsewhere."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Any:
        return iter([BATCH] * self.count)


def times_between(marks: list[int]) -> list[int]:
    return [after - before for before, after in pairwise(marks[5:])]


def ignite_rounds(folder: str) -> Round:
    from ignite.engine import Engine, Events

    from stallmeter.ignite import StallHandler

    def one(steps: int, measured: bool) -> list[int]:
        marks: list[int] = []

        def step(*_: Any) -> None:
            marks.append(now())
            time.sleep(PAUSE_S)

        engine = Engine(step)
        engine.add_event_handler(Events.ITERATION_COMPLETED, lambda: None)
        handler = StallHandler(directory=folder, trackers=None, console=False).attach(engine) if measured else None
        if handler is not None:
            _without_reports(handler)
        engine.run(Batches(steps), max_epochs=1)
        return times_between(marks)

    return one


def keras_rounds(folder: str) -> Round:
    import keras

    from stallmeter.keras import StallCallback

    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    def one(steps: int, measured: bool) -> list[int]:
        callback = StallCallback(directory=folder, trackers=None, console=False)
        if measured:
            _without_reports(callback)
        given = [keras.callbacks.LambdaCallback(), *([callback] if measured else [])]
        callbacks = keras.callbacks.CallbackList(given, model=model, epochs=1, steps=steps)
        marks: list[int] = []
        model.train_function = lambda data: time.sleep(PAUSE_S)
        callbacks.on_train_begin()
        callbacks.on_epoch_begin(0)
        for index, batch in enumerate(Batches(steps)):
            marks.append(now())
            callbacks.on_train_batch_begin(index)
            model.train_function([batch])
            callbacks.on_train_batch_end(index, {})
        callbacks.on_epoch_end(0)
        callbacks.on_train_end()
        return times_between(marks)

    return one


def _without_reports(adapter: Any) -> None:
    assemble = adapter._assemble

    def silent(*arguments: Any) -> Any:
        run = assemble(*arguments)
        run.ending.skip_reports()
        return run

    adapter._assemble = silent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, make in (("ignite", ignite_rounds), ("keras", keras_rounds)):
            one = make(folder)
            one(20, True)
            pairs = [(one(arguments.steps, False), one(arguments.steps, True)) for _ in range(arguments.rounds)]
            found = intervals.median([(statistics.median(b) - statistics.median(a)) / 1e3 for a, b in pairs])
            bare = statistics.median([statistics.median(a) for a, _ in pairs]) / 1e3 - PAUSE_S * 1e6
            print(
                f"{name}: {found.value:+.1f} µs a step ({found.low:+.1f} … {found.high:+.1f}), framework {bare:.0f} µs"
            )


if __name__ == "__main__":
    main()
