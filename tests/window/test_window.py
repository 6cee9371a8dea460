"""The window: bounded, robust, and honest about what was not measured."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.records import Event, GpuSample, LoaderInfo, UserMetrics, WindowRecord
from stallmeter.records.stats import Reservoir, percentile, stats
from stallmeter.window import Window
from stallmeter.window.gpu_samples import idleness

from ..rules.windows import batches, gpus, hosts, run, step, window


@given(count=st.integers(0, 3000), size=st.integers(1, 50))
def test_a_sample_is_bounded_and_even(count, size):
    """However much is added, at most ``size`` items stay, evenly spread from the first one on."""
    sample: Reservoir[int] = Reservoir(size)
    for i in range(count):
        sample.add(i)
    assert len(sample) == count
    assert len(sample.items) <= size
    assert sample.items == list(range(0, count, sample.stride))
    assert not count or len(sample.items) > size // 2 or sample.stride == 1


def test_a_window_is_bounded():
    """No kind of record grows without an end."""
    made = Window(steps=64, samples=32, batches=16)
    for i in range(5000):
        made.append(step(i, epoch_start=i % 10 == 0))
    for record in (*hosts(5000, lambda i: {}), *gpus(5000, lambda i: {}), *batches(5000)):
        made.append(record)
    for i in range(5000):
        made.append(Event(time_s=i, name="x"))
    assert len(made.steps.steady) <= 64
    assert len(made.host.samples.items) <= 32
    assert len(made.workers.batches.items) <= 16
    assert len(made.gpu.samples[0].items) <= 32
    assert len(made.events) <= 256


def test_records_without_a_signal_are_ignored():
    """Records that no signal needs may be appended, as when a recording is read back."""
    made = window(
        WindowRecord(time_s=0, tracker_step=0, duration_s=1), UserMetrics(time_s=0, tracker_step=0, metrics={})
    )
    assert made.ledger.wall_s is None


def test_stats():
    """Every number of a series, by hand."""
    found = stats([4.0, 1.0, 2.0, 3.0, 100.0, 2.0, 3.0, 2.0, 3.0, 0.0])
    assert found is not None
    assert (found.count, found.median, found.max) == (10, 2.5, 100.0)
    assert found.mean == 12.0
    assert found.trimmed_mean == 2.5
    assert found.p95 == pytest.approx(4.0 + 0.55 * 96.0)
    assert stats([]) is None


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        (range(1, 21), 0.95, 19.05),
        (range(1, 21), 0.5, 10.5),
        (range(1, 21), 0.0, 1.0),
        (range(1, 21), 1.0, 20.0),
        ([7.0], 0.95, 7.0),
        ([1.0, 2.0], 0.25, 1.25),
    ],
)
def test_percentile(values, share, expected):
    """As numpy's default: the largest of twenty values is not their 95th percentile."""
    assert percentile(list(values), share) == pytest.approx(expected)


def test_one_percentile_everywhere():
    """In steps, in samples of a GPU and in the curves of the report."""
    known = stats(range(1, 21))
    assert known is not None
    assert known.p95 == pytest.approx(19.05)
    idle = idleness([GpuSample(time_s=float(v), index=0, utilization_pct=float(v)) for v in range(1, 21)])
    assert idle is not None
    assert idle.p95_pct == known.p95


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.randoms())
def test_the_order_of_a_series_is_irrelevant(values, draw):
    """A shuffled series is described alike, and all numbers lie within it."""
    found = stats(values)
    assert found is not None
    assert found.median == statistics.median(values)
    assert min(values) <= found.median <= found.p95 <= found.max == max(values) or len(values) < 3
    draw.shuffle(values)
    assert stats(values) == found


@given(spike=st.integers(0, 199))
def test_a_peak_is_never_thinned_out(spike):
    """Memory that was full for one sample only stands in the peak, whichever samples are kept."""
    made = Window(samples=16)
    for i in range(200):
        full = 95 if i == spike else 20
        for record in (
            *hosts(1, lambda _: {"memory_limit_bytes": 100, "memory_limit_used_bytes": full}),  # noqa: B023
            *gpus(1, lambda _: {"memory_total_bytes": 100, "memory_used_bytes": full}),  # noqa: B023
        ):
            made.append(record)
    assert made.host.memory.peak_pct == 95.0
    assert made.gpu.memory.peak is not None
    assert made.gpu.memory.peak.needed_pct == 95.0


def test_signals_follow_new_records():
    """A signal that was read is computed anew when something was appended."""
    made = run()
    assert made.steps.body_s is not None
    before = made.steps.body_s.max
    made.append(step(200, forward_s=7.0, total_s=7.1))
    assert made.steps.body_s.max > before
    made.append(LoaderInfo(time_s=0.0, kind="DataLoader", num_workers=3))
    assert made.loader.num_workers == 3


def test_what_is_remembered():
    """Something made of several parts is made again when a record came to any of them."""
    made = run()
    count = iter(range(100))
    ask = lambda: made.remember("count", lambda: next(count))  # noqa: E731
    assert (ask(), ask()) == (0, 0)
    for number, record in enumerate((step(500), *hosts(1, lambda i: {}), *batches(1), *gpus(1, lambda i: {})), 1):
        made.append(record)
        assert (ask(), ask()) == (number, number)
