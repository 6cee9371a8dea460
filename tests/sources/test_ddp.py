"""DDP's own times: which iterations are read, of which module, and how often."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from stallmeter.sources import ddp
from stallmeter.sources.ddp import DdpSource


class FakeDdp:
    """A module that has timed one iteration."""

    logger: Any = object()

    def __init__(self, iteration: int = 100, size: int = 4000) -> None:
        self.reads = 0
        self.module = torch.nn.Sequential(torch.nn.BatchNorm1d(1000), torch.nn.Linear(2, 2))
        self.data: dict[str, Any] = {
            "iteration": iteration,
            "backward_compute_time": 2_000_000,
            "backward_comm_time": 31_000_000,
            "backward_compute_comm_overlap_time": 1_000_000,
            "total_parameter_size_bytes": size,
            "bucket_sizes": "4000",
            "rebuilt_bucket_sizes": "3000, 1000",
        }

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        self.reads += 1
        return self.data


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def source_of(module: object, clock: Clock | None = None) -> DdpSource:
    return DdpSource(lambda: 130, lambda: True, lambda: module, clock=clock or Clock(), sleep=lambda _: None)


def test_units_and_fields() -> None:
    (found,) = source_of(FakeDdp()).sample(5.0)
    assert (found.time_s, found.iteration, found.step) == (5.0, 100, 130)
    assert (found.backward_s, found.exchange_s, found.overlap_s) == (0.002, 0.031, 0.001)
    assert found.exposed_s == pytest.approx(0.030)
    assert (found.sent_bytes, found.buckets) == (4000, 2)
    assert found.buffers_bytes == 2 * 4000 + 8, "running means and variances, and how many batches there were"
    assert (found.largest_buffer, found.largest_buffer_bytes) == ("0.running_mean", 4000)


def test_a_module_without_buffers_sends_none() -> None:
    module = FakeDdp()
    module.module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    (found,) = source_of(module).sample(5.0)
    assert (found.buffers_bytes, found.largest_buffer, found.largest_buffer_bytes) == (0, "", 0)


def test_the_largest_gradient_is_named() -> None:
    """And whether it is a table's, of which each step uses some rows."""
    module = FakeDdp()

    def told(*layers: torch.nn.Module) -> tuple[str, int, bool]:
        module.module = torch.nn.Sequential(*layers)
        (found,) = source_of(module).sample(5.0)
        return found.largest_gradient, found.largest_gradient_bytes, found.is_of_a_table

    linear = torch.nn.Linear(10, 10)
    assert told(linear) == ("0.weight", 400, False)
    assert told(linear, torch.nn.Embedding(100, 4)) == ("1.weight", 1600, True)
    assert told(linear, torch.nn.Embedding(100, 4, sparse=True)) == ("1.weight", 1600, False)
    assert told(linear, torch.nn.Embedding(100, 4).requires_grad_(False)) == ("0.weight", 400, False)
    assert told(torch.nn.ReLU()) == ("", 0, False)


def test_an_iteration_is_read_once() -> None:
    module = FakeDdp()
    source = source_of(module)
    assert len(source.sample(1.0)) == 1
    assert source.sample(2.0) == ()
    module.data["iteration"] = 200
    assert [t.iteration for t in source.sample(3.0)] == [200]


@pytest.mark.parametrize(
    "change",
    [{"iteration": 1}, {"iteration": 0}, {"backward_comm_time": 0}, {"backward_comm_time": -1}, {"has_error": 1}],
)
def test_what_is_no_measurement_is_left_out(change: dict[str, int]) -> None:
    module = FakeDdp()
    module.data |= change
    assert source_of(module).sample(1.0) == ()


def test_a_module_of_another_kind_is_never_asked() -> None:
    assert source_of(object()).sample(1.0) == ()
    assert source_of(None).sample(1.0) == ()
    python_reducer = FakeDdp()
    python_reducer.logger = None
    assert source_of(python_reducer).sample(1.0) == ()
    assert python_reducer.reads == 0


def test_it_is_read_the_more_rarely_the_longer_the_run() -> None:
    module, clock = FakeDdp(), Clock()
    source = source_of(module, clock)
    for second in range(4 * 3600):
        clock.now_s = float(second)
        source.sample(clock.now_s)
    late = module.reads
    for second in range(4 * 3600, 5 * 3600):
        clock.now_s = float(second)
        source.sample(clock.now_s)
    assert late <= 1100
    assert module.reads - late == pytest.approx(3600 / ddp.LONGEST_S, abs=1)


def test_without_an_adapter_the_module_in_its_forward_pass_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    class DistributedDataParallel:
        _active_ddp_module: object | None = None

    class Distributed:
        pass

    package = Distributed()
    package.DistributedDataParallel = DistributedDataParallel  # type: ignore[attr-defined]
    monkeypatch.setitem(ddp.sys.modules, "torch.nn.parallel.distributed", package)
    outside = [False]
    source = DdpSource(lambda: 130, lambda: outside[-1], clock=Clock(), sleep=lambda _: None)
    assert source.sample(1.0) == ()
    small, large = FakeDdp(size=10), FakeDdp(size=4000)
    DistributedDataParallel._active_ddp_module = small
    assert [t.sent_bytes for t in source.sample(2.0)] == [10]
    DistributedDataParallel._active_ddp_module = large
    large.data["iteration"] = 200
    assert [t.sent_bytes for t in source.sample(3.0)] == [4000]
    DistributedDataParallel._active_ddp_module = None
    large.data["iteration"] = 300
    reads = large.reads
    assert source.sample(3.5) == ()
    assert large.reads == reads, "the exchange may be under way"
    outside.append(True)
    assert [t.iteration for t in source.sample(4.0)] == [300]
    # It keeps no module alive.
    del small, large
    gc.collect()
    assert source.sample(5.0) == ()


def test_no_torch_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ddp.sys.modules, "torch.nn.parallel.distributed", raising=False)
    assert DdpSource(lambda: 1, lambda: True, clock=Clock(), sleep=lambda _: None).sample(1.0) == ()


def test_it_waits_for_a_forward_pass_but_not_for_long_and_not_for_ever() -> None:
    """A poll nearly always meets a backward pass that takes most of the step."""
    slept: list[float] = []
    module = FakeDdp()

    def is_outside() -> bool:
        return len(slept) == 12

    source = DdpSource(lambda: 130, is_outside, lambda: module, clock=Clock(), sleep=slept.append)
    assert [t.iteration for t in source.sample(1.0)] == [100]
    assert slept == [ddp.LOOKS_S] * 12
    module.data["iteration"] = 200
    slept.append(0.0)
    assert source.sample(2.0) == ()
    assert 0 < sum(slept[12:]) <= ddp.WAITS_S


def test_where_there_is_no_module_it_soon_waits_no_longer() -> None:
    slept: list[float] = []
    source = DdpSource(lambda: 130, lambda: False, lambda: None, clock=Clock(), sleep=slept.append)
    for second in range(3 * ddp.MOST_WAITS):
        assert source.sample(float(second)) == ()
    assert sum(slept) <= ddp.MOST_WAITS * ddp.WAITS_S
