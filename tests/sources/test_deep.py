"""A short profile of the real PyTorch on the CPU: made once, on request, and never beside another one."""

from __future__ import annotations

import gzip
import json
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from stallmeter.engine import collector
from stallmeter.engine.monitor import Monitor
from stallmeter.recording import Reader
from stallmeter.records import DeepProfile, Event, Operator
from stallmeter.records.diagnosis import Advice, Diagnosis, Evidence, Severity
from stallmeter.sources import deep
from stallmeter.sources.deep import DeepProfiler, top_operators
from stallmeter.timing.clock import StepClock
from stallmeter.timing.ledger import Ledger

torch = pytest.importorskip("torch")
torch.set_num_threads(1)


@dataclass(frozen=True)
class ComputeBound:
    """Says what asks for a profile, from the first step on."""

    id: ClassVar[str] = "compute-bound"
    title: ClassVar[str] = "The step sets the pace"
    needs: ClassVar[tuple[str, ...]] = ("steps.step_time_s",)

    def check(self, window: Any) -> Diagnosis:
        return Diagnosis(
            rule=self.id,
            severity=Severity.INFO,
            title=self.title,
            summary="100 % of it.",
            time_lost_s=0.0,
            share_pct=0.0,
            confidence=1.0,
            evidence=(Evidence("share", 100.0, "%"),),
            advice=(Advice("Do less."),),
        )


class Bench:
    """A profiler with a clock that is moved by hand."""

    def __init__(self, folder: Path, steps: int = 3, **options: Any) -> None:
        self.clock = StepClock(Ledger())
        self.clock.open = True
        self.calls: list[Any] = []
        self.profiler = DeepProfiler(
            steps, lambda name, call: self.calls.append(call), lambda: folder, lambda: 0.0, **options
        )

    def step(self) -> bool:
        again = bool(self.calls[0](self.clock))
        a = torch.randn(64, 64)
        (a @ a).relu().sum()
        self.clock.index += 1
        return again

    def until_done(self) -> int:
        for count in range(10):
            if not self.step():
                return count
        raise AssertionError("it does not end")


def test_it_profiles_so_many_steps(tmp_path):
    bench = Bench(tmp_path)
    bench.clock.index = 20
    bench.profiler.request("launch-bound", 20)
    assert bench.until_done() == 3
    (record,) = bench.profiler.sample(7.0)
    assert isinstance(record, DeepProfile)
    assert (record.cause, record.first_step, record.steps, record.time_s) == ("launch-bound", 20, 3, 7.0)
    matmul = next(o for o in record.operators if o.name == "aten::mm")
    assert matmul.calls == 3
    assert matmul.host_s > 0
    assert matmul.device_s is None
    assert record.held_s > 0
    assert record.slowdown_s is not None
    assert record.slowdown_s > 0
    assert record.trace == "trace.json.gz"
    path = tmp_path / "trace.json.gz"
    assert record.trace_bytes == path.stat().st_size
    with gzip.open(path) as file:
        assert any(e.get("name") == "aten::mm" for e in json.load(file)["traceEvents"])
    assert json.loads((tmp_path / "operators.json").read_text())["operators"][0]["name"] == record.operators[0].name
    assert bench.profiler.files == {"trace.json.gz": path, "operators.json": tmp_path / "operators.json"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["operators.json", "trace.json.gz"]


def test_it_is_made_once_and_only_where_it_helps(tmp_path):
    bench = Bench(tmp_path)
    bench.profiler.request("no-workers", 100)
    bench.profiler.request("compute-bound", 19)
    assert bench.calls == []
    bench.profiler.request("compute-bound", 20)
    bench.profiler.request("launch-bound", 21)
    assert len(bench.calls) == 1
    bench.until_done()
    bench.profiler.sample(0.0)
    bench.profiler.request("launch-bound", 22)
    assert len(bench.calls) == 1
    assert bench.profiler.sample(0.0) == ()


def test_never_beside_another_profile(tmp_path):
    bench = Bench(tmp_path)
    bench.profiler.request("compute-bound", 20)
    with torch.profiler.profile() as own:
        assert not bench.step()
    assert any(e.key == "aten::mm" for e in own.key_averages())
    assert bench.profiler.sample(3.0) == (Event(time_s=3.0, name="no profile", detail="another profiler is active"),)
    assert bench.profiler.sample(4.0) == ()
    assert list(tmp_path.iterdir()) == []


def test_the_end_of_an_epoch_ends_it(tmp_path):
    """It shows steps, not what lies between epochs."""
    bench = Bench(tmp_path, steps=100)
    bench.profiler.request("compute-bound", 20)
    bench.step()
    bench.step()
    bench.clock.open = False
    assert not bench.step()
    assert bench.profiler.sample(0.0)[0].steps == 2
    assert not torch._C._autograd._profiler_enabled()


def test_it_waits_for_the_loop_to_go_on(tmp_path):
    bench = Bench(tmp_path)
    bench.profiler.request("compute-bound", 20)
    bench.clock.open = False
    assert bench.step()
    assert not torch._C._autograd._profiler_enabled()


def test_closing_ends_what_is_under_way(tmp_path):
    bench = Bench(tmp_path)
    bench.profiler.request("compute-bound", 20)
    bench.step()
    assert torch._C._autograd._profiler_enabled()
    bench.profiler.close()
    assert not torch._C._autograd._profiler_enabled()
    assert bench.profiler.sample(0.0) == ()


def test_a_profile_that_is_still_being_stopped_is_not_taken(tmp_path, monkeypatch):
    """Stopping takes a while, and the sampler's thread may ask in the middle of it."""
    bench = Bench(tmp_path)
    asked: list[Any] = []
    stop = torch.profiler.profile.stop

    def stop_slowly(profile: Any) -> None:
        asked.append(bench.profiler.sample(1.0))
        stop(profile)

    monkeypatch.setattr(torch.profiler.profile, "stop", stop_slowly)
    bench.profiler.request("compute-bound", 20)
    bench.until_done()
    assert asked == [()]
    (record,) = bench.profiler.sample(2.0)
    assert record.steps == 3
    assert (tmp_path / "trace.json.gz").is_file()


def test_a_large_trace_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(deep, "MAX_TRACE_BYTES", 10)
    bench = Bench(tmp_path, suffix="-rank1")
    bench.profiler.request("compute-bound", 20)
    bench.until_done()
    (record,) = bench.profiler.sample(0.0)
    assert (record.trace, record.trace_bytes) == (None, None)
    assert record.operators
    assert [p.name for p in tmp_path.iterdir()] == ["operators-rank1.json"]


def test_a_folder_that_is_gone_costs_the_files_only(tmp_path):
    bench = Bench(tmp_path / "gone")
    bench.profiler.request("compute-bound", 20)
    bench.until_done()
    (record,) = bench.profiler.sample(0.0)
    assert record.trace is None
    assert record.operators
    assert bench.profiler.files == {}


def test_operators_are_ranked_by_the_device_where_there_is_one():
    def event(key: str, host_us: float, **device: float) -> Any:
        return SimpleNamespace(key=key, count=2, self_cpu_time_total=host_us, **device)

    found = top_operators(
        [
            event("a", 10, self_device_time_total=0),
            event("b", 1, self_device_time_total=30),
            event("ProfilerStep#3", 1000, self_device_time_total=1000),
        ]
    )
    assert [o.name for o in found] == ["b", "a"]
    assert found[0] == Operator(name="b", calls=2, host_s=1e-6, device_s=pytest.approx(30e-6))
    older = top_operators([event("a", 10, self_cuda_time_total=5), event("b", 10, self_cuda_time_total=7)])
    assert [o.name for o in older] == ["b", "a"]
    none = top_operators([event("a", 1), event("b", 2)])
    assert [(o.name, o.device_s) for o in none] == [("b", None), ("a", None)]


def test_a_plain_loop(tmp_path, monkeypatch):
    """The monitor asks for it once when the verdict is one it explains, records it and attaches the files."""
    monkeypatch.setattr(collector, "VERDICT_EVERY_S", 0.05)
    monitor = Monitor(
        directory=tmp_path,
        trackers=None,
        rules=(ComputeBound(),),
        hardware=False,
        workers=False,
        console=False,
        interval_s=0.02,
        deep_steps=3,
    )
    layer = torch.nn.Linear(32, 32)
    ends = time.monotonic() + 60
    for batch in monitor.watch([torch.ones(8, 32)] * 1_000_000):
        layer(batch).sum().backward()
        time.sleep(0.001)
        if monitor.window.device.profile is not None or time.monotonic() > ends:
            break
    assert monitor.window.device.profile is not None
    monitor.close()
    assert monitor.folder is not None
    found = [r for r, _ in Reader(monitor.folder) if isinstance(r, DeepProfile)]
    assert [r.steps for r in found] == [3]
    assert found[0].cause == "compute-bound"
    assert any(o.name == "aten::addmm" for o in found[0].operators)
    assert (monitor.folder / "trace.json.gz").is_file()
    assert monitor.run.clock.at_boundary is None
    assert monitor.window.ledger.record is not None
    assert monitor.window.ledger.record.own_s > 0.5 * found[0].held_s


def test_it_is_off_unless_asked_for(tmp_path):
    with Monitor(directory=tmp_path, trackers=None, hardware=False, workers=False, console=False) as monitor:
        assert "profiler" not in monitor.run.collector.sources
