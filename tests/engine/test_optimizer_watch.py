"""In a watched loop torch's hooks tell of its optimizers: their time, their steps, and how the first is set up."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stallmeter.engine.monitor import Monitor
from stallmeter.engine.optimizer_watch import OptimizerWatch
from stallmeter.recording import Reader
from stallmeter.records import LedgerRecord, OptimizerInfo, StepRecord

from ..conftest import FakeTime
from ..monitors import bare_monitor


class Optimizer(torch.optim.SGD):
    """Takes two seconds for each step."""

    def __init__(self, parameters: Any, time: FakeTime) -> None:
        super().__init__(parameters, lr=0.1)
        self._time = time

    def step(self, closure: Any = None) -> Any:
        self._time.sleep(2)
        return super().step(closure)


@pytest.fixture
def monitor(tmp_path: Path, fake_time: FakeTime) -> Iterator[Monitor]:
    made = bare_monitor(tmp_path, now=fake_time, interval_s=3600)
    made._optimizers = OptimizerWatch(made.run, made._turns.has)
    yield made
    made.close()


@pytest.fixture
def optimizer(fake_time: FakeTime) -> Optimizer:
    weight = torch.zeros(3, requires_grad=True)
    weight.grad = torch.ones(3)
    return Optimizer([weight], fake_time)


def found(monitor: Monitor) -> tuple[list[StepRecord], dict[str, float], list[OptimizerInfo]]:
    monitor.close()
    monitor.finish()
    assert monitor.folder is not None
    records = [x for x, _ in Reader(monitor.folder)]
    return (
        [x for x in records if isinstance(x, StepRecord)],
        dict([x for x in records if isinstance(x, LedgerRecord)][-1].buckets),
        [x for x in records if isinstance(x, OptimizerInfo)],
    )


def test_its_time_and_its_steps_are_the_optimizers(monitor: Monitor, optimizer: Optimizer, fake_time: FakeTime) -> None:
    for _ in range(2):
        for index, _ in enumerate(monitor.watch(range(4))):
            fake_time.sleep(1)
            if index % 2:  # gradients are accumulated
                optimizer.step()
    steps, buckets, infos = found(monitor)
    assert [buckets[name] for name in ("optimizer", "compute")] == pytest.approx([8, 8])
    assert [step.optimizer_step for step in steps] == [None, 1, 1, 2, 2, 3, 3, 4]
    assert steps[0].optimizer_s is None
    assert steps[1].optimizer_s == pytest.approx(2)
    assert [(info.kind, info.tensors) for info in infos] == [("Optimizer", 1)]


def test_a_span_of_the_programs_own_holds(monitor: Monitor, optimizer: Optimizer, fake_time: FakeTime) -> None:
    for _ in monitor.watch(range(3)):
        with monitor.span("optimizer"):
            optimizer.step()
            fake_time.sleep(1)
    steps, buckets, infos = found(monitor)
    assert buckets["optimizer"] == pytest.approx(9)
    assert steps[-1].optimizer_step == 3
    assert len(infos) == 1


def test_the_optimizer_of_another_thread_is_not_the_loops(
    monitor: Monitor, optimizer: Optimizer, fake_time: FakeTime
) -> None:
    for _ in monitor.watch(range(3)):
        thread = threading.Thread(target=optimizer.step)
        thread.start()
        thread.join()
        fake_time.sleep(1)
    steps, buckets, infos = found(monitor)
    assert "optimizer" not in buckets or not buckets["optimizer"]
    assert {step.optimizer_step for step in steps} == {None}
    assert not infos


def test_nothing_is_left_of_it(monitor: Monitor, optimizer: Optimizer) -> None:
    optimizers: Any = sys.modules["torch.optim.optimizer"]
    hooks = optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks
    before = [len(known) for known in hooks]
    for _ in monitor.watch(range(2)):
        optimizer.step()
        assert [len(known) for known in hooks] == [count + 1 for count in before]
    monitor.close()
    assert [len(known) for known in hooks] == before
    optimizer.step()


def test_a_monitor_of_ones_own_hears_of_optimizers_and_that_of_an_adapter_does_not(tmp_path: Path) -> None:
    adapters = bare_monitor(tmp_path)
    assert adapters._optimizers is None
    adapters.close()
    own = Monitor(directory=tmp_path, hardware=False, trackers=None, console=False)
    assert own._optimizers is not None
    own.close()
