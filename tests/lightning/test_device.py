"""The device's timeline through a real Trainer: which spans mark it, and what the report makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.records import DeviceStep
from stallmeter.timing.device import DeviceTimeline

from ..simulated_gpu import SimulatedGpu
from .conftest import Bench, both_namespaces


def fit(bench: Bench, model: Any, gpu: SimulatedGpu, items: int = 40, **options: Any) -> tuple[Any, list[DeviceStep]]:
    """Fit with a device in the ledger; returns the monitor and what the device did."""
    timeline = DeviceTimeline(gpu)

    def attach(*_: Any) -> None:
        ours.monitor.run.clock.ledger.device = timeline

    ours = bench.monitor(trackers=None)
    hook = type("Attach", (bench.pl.Callback,), {"on_train_start": attach})()
    loaders = [bench.loader(items, cost_s=0.005)]
    if options.get("val_check_interval"):
        loaders.append(bench.loader(8, cost_s=0.1))
    bench.trainer(ours, hook, **options).fit(model, *loaders)
    gpu.synchronize()
    steps = timeline.resolve()
    assert timeline.unused == timeline.events
    return ours.monitor, steps


def working(bench: Bench, gpu: SimulatedGpu, forward_ms: float, backward_ms: float) -> Any:
    """A module that queues work on the device and takes no host time for it."""
    base = type(bench.model(training_step=0.001, backward=0.001, h2d=0.0005))

    class Model(base):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            gpu.launch(forward_ms)
            return super().training_step(batch, batch_idx)

        def backward(self, loss: Any) -> None:
            gpu.launch(backward_ms)
            super().backward(loss)

        def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
            gpu.launch(0.5)
            return super().transfer_batch_to_device(batch, device, dataloader_idx)

    return Model()


def test_a_wait_that_the_device_hides(bench: Bench) -> None:
    """Four items at 5 ms make a batch; 30 ms of work a step hide them all but in the first step."""
    gpu = SimulatedGpu(bench.time)
    _, steps = fit(bench, working(bench, gpu, 10.0, 20.0), gpu)
    assert [s.index for s in steps] == list(range(10))
    for s in steps[1:]:
        assert s.host_wait_s == pytest.approx(0.02)
        assert s.exposed_wait_s == pytest.approx(0.0, abs=1e-9)
        assert s.h2d_s == pytest.approx(0.0005)
        assert s.forward_s == pytest.approx(0.010)
        assert s.backward_s == pytest.approx(0.020)


@both_namespaces
def test_a_wait_that_costs(bench: Bench) -> None:
    """The device is done after 3.5 ms and idles for the rest."""
    gpu = SimulatedGpu(bench.time)
    _, steps = fit(bench, working(bench, gpu, 1.0, 2.0), gpu)
    for s in steps[1:]:
        # Backward is launched 1.5 ms after the copy and takes 2 ms, 1 ms of it beside the host.
        assert s.exposed_wait_s == pytest.approx(0.019)
        assert s.total_s == pytest.approx(0.0225)


def test_few_events_a_step(bench: Bench) -> None:
    """Every event costs the training thread 1 to 2 µs."""
    gpu = SimulatedGpu(bench.time)
    fit(bench, working(bench, gpu, 1.0, 2.0), gpu)
    assert gpu.records / 10 <= 11


@pytest.mark.parametrize(
    "options",
    [{"accumulate_grad_batches": 4}, {"val_check_interval": 2}, {"max_epochs": 3}, {"gradient_clip_val": 1.0}],
    ids=lambda options: next(iter(options)),
)
def test_kinds_of_loops(unified: Bench, options: dict[str, Any]) -> None:
    """Each step is timed once, and validation inside it is no part of its time."""
    gpu = SimulatedGpu(unified.time)
    epochs = options.get("max_epochs", 1)
    _, steps = fit(unified, working(unified, gpu, 1.0, 2.0), gpu, **options)
    assert [s.index for s in steps] == list(range(10 * epochs))
    assert [s.epoch_start for s in steps].count(True) == epochs
    assert all(s.total_s is not None and s.total_s < 0.04 for s in steps)


def test_an_exception_in_a_step(unified: Bench) -> None:
    """The run ends, the events come back."""
    gpu = SimulatedGpu(unified.time)
    base = type(working(unified, gpu, 1.0, 1.0))

    class Failing(base):  # type: ignore[misc, valid-type]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 4:
                raise KeyError("planted")
            return super().training_step(batch, batch_idx)

    timeline = DeviceTimeline(gpu)
    ours = unified.monitor(trackers=None)
    hook = type(
        "Attach",
        (unified.pl.Callback,),
        {"on_train_start": lambda *_: setattr(ours.monitor.run.clock.ledger, "device", timeline)},
    )()
    with pytest.raises(KeyError, match="planted"):
        unified.trainer(ours, hook).fit(Failing(), unified.loader(40))
    gpu.synchronize()
    assert [s.index for s in timeline.resolve()] == [0, 1, 2, 3]
    assert timeline.unused == timeline.events


def test_what_the_header_says_of_the_model(unified: Bench) -> None:
    ours = unified.monitor(trackers=None)
    unified.trainer(ours).fit(unified.model(), unified.loader(4))
    facts = ours.monitor.window.facts
    assert facts["model"] == {"parameters": 5, "parameter_dtypes": {"float32": 5}, "compiled": "no"}
    assert "non_blocking" not in facts  # on the CPU nothing is copied


def test_a_profile_of_a_fit(unified: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """``deep_steps`` reaches a real Trainer, except beside its own PyTorchProfiler."""
    for profiler, made in ((None, True), ("pytorch", False), ("simple", True)):
        ours = unified.monitor(trackers=None, deep_steps=2)
        asked: list[int] = []

        def ask(trainer: Any, *_: Any, ours: Any = ours, asked: list[int] = asked) -> None:
            profiler = ours.monitor.run.collector.sources.get("profiler")
            if profiler is not None:
                profiler.request("compute-bound", 20)
                asked.append(1)

        hook = type("Ask", (unified.pl.Callback,), {"on_train_start": ask})()
        unified.trainer(ours, hook, profiler=profiler).fit(unified.model(), unified.loader(40))
        profile = ours.monitor.window.device.profile
        assert bool(asked) is made
        assert (profile is not None) is made
        if profile is not None:
            assert profile.steps == 2
            assert any("addmm" in o.name for o in profile.operators)
            assert (ours.monitor.folder / "trace.json.gz").is_file()
