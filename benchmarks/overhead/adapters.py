"""What the adapters for Ignite and for Keras add to a step: the framework's own engine, or its list of callbacks.

Beside them the cheapest that anyone could add there: two handlers that do nothing at the events that an adapter needs,
a callback with two methods that do nothing.

The step does nothing but wait until a time has come; a pause before it leaves nothing of ours in the CPU's caches, as a
real step does. Rounds of all three take turns; the figure is the median of the differences between neighbours.

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
BARE, NO_OP, OURS = "nothing", "no-op handlers", "stallmeter"
BATCH = [torch.zeros(8, 16), torch.zeros(8)]
now = time.perf_counter_ns
Round = Callable[[int, str], list[int]]


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

    def one(steps: int, how: str) -> list[int]:
        marks: list[int] = []

        def step(*_: Any) -> None:
            marks.append(now())
            time.sleep(PAUSE_S)

        engine = Engine(step)
        engine.add_event_handler(Events.ITERATION_COMPLETED, lambda: None)
        if how == NO_OP:
            for event in (Events.GET_BATCH_STARTED, Events.GET_BATCH_COMPLETED):
                engine.add_event_handler(event, lambda: None)
        handler = StallHandler(directory=folder, trackers=None, console=False).attach(engine) if how == OURS else None
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

    class Nothing(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None: ...

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None: ...

    def one(steps: int, how: str) -> list[int]:
        callback = StallCallback(directory=folder, trackers=None, console=False)
        if how == OURS:
            _without_reports(callback)
        added = {BARE: [], NO_OP: [Nothing()], OURS: [callback]}[how]
        given = [keras.callbacks.LambdaCallback(), *added]
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
            one(20, OURS)
            rounds = [
                {how: statistics.median(one(arguments.steps, how)) / 1e3 for how in (BARE, NO_OP, OURS)}
                for _ in range(arguments.rounds)
            ]
            print(f"{name}: framework {statistics.median(r[BARE] for r in rounds) - PAUSE_S * 1e6:.0f} µs a step")
            for how, over in ((NO_OP, BARE), (OURS, BARE), (OURS, NO_OP)):
                found = intervals.median([r[how] - r[over] for r in rounds])
                print(f"  {how} over {over}: {found.value:+.1f} µs a step ({found.low:+.1f} … {found.high:+.1f})")


if __name__ == "__main__":
    main()
