"""The window: bounded, robust, and honest about what was not measured."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.records import Event, GpuSample, LoaderInfo, NetworkSample, UserMetrics, WindowRecord
from stallmeter.records.stats import Reservoir, percentile, stats
from stallmeter.window import Window
from stallmeter.window.gpu_samples import idleness
from stallmeter.window.store import MIN_STEADY_STEPS, OPENERS, SETTLED_STEPS, WARMUP_STEPS
from stallmeter.window.trends import trend

from ..rules.windows import START_S, batches, gpus, hosts, ledger, loader, run, step, traffic, window

# -- samples ----------------------------------------------------------------------------------------------------------


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
    assert len(made.steady) <= 64
    assert len(made.host.items) <= 32
    assert len(made.batches.items) <= 16
    assert len(made.gpus[0].items) <= 32
    assert len(made.events) <= 256
    assert len(made._first_waits) <= 64
    assert len(made._openers.items) <= OPENERS


def test_records_without_a_signal_are_ignored():
    """Records that no signal needs may be appended, as when a recording is read back."""
    made = window(
        WindowRecord(time_s=0, tracker_step=0, duration_s=1), UserMetrics(time_s=0, tracker_step=0, metrics={})
    )
    assert made.wall_s is None


# -- robust numbers ---------------------------------------------------------------------------------------------------


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


def test_the_warm_up_is_apart():
    """First steps and the first of each epoch say nothing about a steady step."""
    slow = [step(i, total_s=9.0) for i in range(1, WARMUP_STEPS)]
    made = window(step(0, total_s=9.0, epoch_start=True), *slow, *(step(i) for i in range(3, 30)))
    made.append(step(30, total_s=9.0, epoch_start=True))
    assert made.step_time_s is not None
    assert made.step_time_s.max == pytest.approx(0.1)


def test_a_very_short_run_has_nothing_but_warm_up():
    """Where there are no other steps, those of the warm-up are better than none."""
    made = window(step(0, epoch_start=True), step(1), step(2))
    assert made.step_time_s is not None
    assert made.step_time_s.count == 2


@pytest.mark.parametrize(("num_workers", "count"), [(0, 40 - WARMUP_STEPS), (2, None), (None, None)])
def test_epochs_of_one_step(num_workers, count):
    """Their steps are judged where nothing starts with an epoch; workers would start in each of them."""
    made = epochs(40, first_wait_s=0.05, num_workers=num_workers, steps=1)
    assert (made.step_time_s and made.step_time_s.count) == count
    assert (made.data_wait_s and made.data_wait_s.median) == (0.05 if count else None)


def test_validation_is_no_part_of_a_step():
    """A step in which validation ran took as long as the others."""
    made = window(*(step(i) for i in range(20)), step(20, total_s=5.1, validation_s=5.0))
    assert made.step_time_s is not None
    assert made.step_time_s.max == pytest.approx(0.1)


# -- shares -----------------------------------------------------------------------------------------------------------


def test_nothing_measured():
    """Every signal of an empty window is None, or 0 where it counts."""
    made = Window()
    for name in dir(Window):
        if isinstance(getattr(Window, name), property) and not name.startswith("_"):
            assert getattr(made, name) in (None, 0.0, []), name


def test_shares():
    """Shares of training leave the start out; coverage is what is not `other`."""
    made = run(start=20.0, data_wait=8.0, other=4.0, forward=50.0, backward=17.0, optimizer=0.0)
    assert made.training_s == 80.0
    assert made.data_wait_share_pct == 10.0
    assert made.share_pct(10.0) == 10.0
    assert made.training_share_pct(10.0) == 12.5
    assert made.coverage_pct == 96.0
    assert (made.steps_per_s, made.samples_per_s) == (12.5, 400.0)


def test_a_run_that_only_started():
    """Before any training there is no share of it."""
    made = window(ledger(wall_s=2.0, start=2.0, data_wait=0, forward=0, backward=0, optimizer=0, loop=0))
    assert made.data_wait_share_pct is None
    assert made.training_share_pct(1.0) is None
    assert made.steps_per_s is None
    assert made.step_share_pct is None


# -- worker start-up --------------------------------------------------------------------------------------------------


def epochs(count: int, first_wait_s: float, *, num_workers: int | None = 2, steps: int = 20) -> Window:
    """Epochs whose first wait is long and whose other waits are 2 ms."""
    made = Window()
    if num_workers is not None:
        made.append(loader(num_workers))
    for epoch in range(count):
        for i in range(steps):
            wait = first_wait_s if i == 0 else 0.002
            made.append(step(epoch * steps + i, epoch=epoch, epoch_start=i == 0, data_wait_s=wait))
    return made


def test_start_up_is_what_exceeds_the_steady_wait():
    """The first wait of each epoch, less an ordinary one."""
    assert epochs(3, 0.5).startup_excess_s == pytest.approx(3 * 0.498)


def test_start_up_is_not_known_before_a_steady_wait_is():
    """With too few steady steps there is nothing to compare with."""
    assert epochs(1, 0.5, steps=WARMUP_STEPS + MIN_STEADY_STEPS - 1).startup_excess_s == 0.0
    assert epochs(1, 0.5, steps=WARMUP_STEPS + MIN_STEADY_STEPS).startup_excess_s > 0.0


def test_without_workers_nothing_starts_up():
    """The first wait in the loop's own thread is an ordinary one."""
    assert epochs(3, 0.5, num_workers=0).startup_excess_s == 0.0


def test_a_short_first_wait_is_no_negative_start_up():
    """An epoch whose first batch was already there takes nothing back."""
    assert epochs(3, 0.0).startup_excess_s == 0.0


def test_start_up_is_never_forgotten():
    """Hundreds of epochs count in full, although only some first waits are kept."""
    assert epochs(300, 0.1, steps=10).startup_excess_s == pytest.approx(300 * 0.098)


def test_the_only_epochs_start_up_is_settled_once(monkeypatch):
    """It is known from then on, and reading it does not look at the steps any more."""
    made = epochs(1, 0.5, steps=WARMUP_STEPS + SETTLED_STEPS)
    assert not made._first_waits
    monkeypatch.setattr(Window, "data_wait_s", property(lambda self: pytest.fail("looked at the steps")))
    assert made.startup_excess_s == pytest.approx(0.498)


# -- the wait ---------------------------------------------------------------------------------------------------------


def test_shares_of_the_wait():
    """Waits for ready batches and for late ones, weighed by their seconds."""
    waits = [{"ready": 1, "head_ready": True, "data_wait_s": 0.01}] * 10
    waits += [{"ready": 2, "head_ready": False, "data_wait_s": 0.03}] * 10
    made = window(*(step(3 + i, **known) for i, known in enumerate(waits)))
    assert made.ready_wait_share == pytest.approx(0.25)
    assert made.blocked_wait_share == pytest.approx(0.75)
    assert made.handover_s == pytest.approx(0.01)


def test_mostly_unknown_waits():
    """A share is not told when less than half of the wait is known."""
    made = window(*(step(3 + i, head_ready=True if i < 4 else None) for i in range(10)))
    assert made.ready_wait_share is None


# -- signals of the hardware ------------------------------------------------------------------------------------------


def test_cpus_never_exceed_the_budget():
    """Load of others beyond the job's CPUs is not its own."""
    made = run(*hosts(9, lambda i: {"usable_cpus": 2.0, "job_cpus": 1.0, "others_cpus": 30.0}))
    assert made.cpu_busy_pct == 100.0


def test_a_link():
    """Load and thirds of the traffic, by interface."""
    made = run(*traffic([5e7] * 30, [1e6] * 10 + [2e6] * 10 + [3e6] * 10), *traffic([1.0], [1.0], name="eth1"))
    links = made.links
    assert links is not None
    assert links["eth0"].load_pct == 50.0
    assert links["eth0"].sent_bytes_per_s == (1e6, 2e6, 3e6)
    assert links["eth1"].load_pct is None
    assert links["eth1"].sent_bytes_per_s is None


def test_an_interface_without_speed():
    """A link whose speed the kernel does not tell has no load."""
    made = run(*hosts(9, lambda i: {"network": (NetworkSample(name="x", received_bytes_per_s=1, sent_bytes_per_s=1),)}))
    assert made.links is not None
    assert made.links["x"].load_pct is None


def test_gpu_signals():
    """The busiest GPU while steps ran, the number of GPUs and any trace of use."""
    before = gpus(5, lambda i: {"utilization_pct": 100.0, "time_s": START_S - 10 + i})
    made = run(
        *before,
        *gpus(10, lambda i: {"utilization_pct": 40.0, "memory_used_bytes": 7, "memory_total_bytes": 10}),
        *gpus(10, lambda i: {"utilization_pct": 60.0}, index=1),
        *gpus(2, lambda i: {"utilization_pct": 90.0}, index=2),
    )
    assert made.busiest_gpu_pct == 60.0
    assert made.gpu_count == 3
    assert made.gpu_trace_pct == 100.0


def test_the_accelerator():
    """What the framework chose, when it said so."""
    assert run(facts={"accelerator": "CPUAccelerator"}).accelerator == "CPUAccelerator"
    assert run(facts={"accelerator": None}).accelerator is None
    assert run().accelerator is None


def test_memory_left():
    """The newest sample that knows the limit counts."""
    made = run(
        *hosts(3, lambda i: {"memory_limit_bytes": 100, "memory_limit_used_bytes": 10 * i}),
        *hosts(1, lambda i: {}, first_s=9.0),
    )
    assert made.memory_left_bytes == 80
    assert made.memory_peak_pct == 20.0


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
    assert made.memory_peak_pct == 95.0
    assert made.gpu_memory is not None
    assert made.gpu_memory.needed_pct == 95.0


# -- trends -----------------------------------------------------------------------------------------------------------


@given(
    count=st.integers(16, 400),
    slope=st.floats(-1e3, 1e3),
    start=st.floats(0, 1e6),
    wild=st.integers(0, 3),
)
def test_a_line_is_found(count, slope, start, wild):
    """A straight line is found exactly, a few wild values or not."""
    points = [(float(i), start + slope * i) for i in range(count)]
    for i in range(wild):
        points[(i + 1) * count // 5] = (points[(i + 1) * count // 5][0], 1e12)
    found = trend(points)
    assert found is not None
    tolerance = 1e-6 * max(1.0, abs(start)) if not wild else 0.5 * abs(slope) + 1e-3
    assert found.per_s == pytest.approx(slope, abs=tolerance)


def test_a_trend_leaves_the_warm_up_out():
    """The first quarter does not count: neither for the slope nor for the growth."""
    found = trend([(float(i), 1e9 if i < 25 else 2.0 * i) for i in range(100)])
    assert found is not None
    assert found.per_s == pytest.approx(2.0)
    assert found.growth == pytest.approx(2.0 * 74)
    assert found.start == pytest.approx(50.0)
    assert found.noise == pytest.approx(0.0, abs=1e-9)
    assert found.lasts


def test_noise_of_a_trend():
    """The scatter around the line is about its standard deviation."""
    draw = random.Random(1)
    found = trend([(float(i), 3.0 * i + draw.gauss(0, 10)) for i in range(60)])
    assert found is not None
    assert 5 < found.noise < 15


def test_a_trend_that_ends():
    """What has stopped to rise does not last, nor does what falls."""
    levelled = trend([(float(i), float(min(i, 60))) for i in range(100)])
    assert levelled is not None
    assert not levelled.lasts
    falling = trend([(float(i), -float(i)) for i in range(100)])
    assert falling is not None
    assert not falling.lasts


def test_no_trend():
    """Too few points, or all at one time, have none."""
    assert trend([(float(i), 1.0) for i in range(14)]) is None
    assert trend([(5.0, float(i)) for i in range(100)]) is None


# -- how steps are scaled ---------------------------------------------------------------------------------------------


def test_saves():
    """Only steps with a checkpoint in them tell what one costs."""
    made = run(step(100, checkpoint_s=0.0), step(101, checkpoint_s=2.0, total_s=2.1))
    assert made.save_s is not None
    assert (made.save_s.count, made.save_s.median) == (1, 2.0)


def test_signals_follow_new_records():
    """A signal that was read is computed anew when something was appended."""
    made = run()
    assert made.body_s is not None
    before = made.body_s.max
    made.append(step(200, forward_s=7.0, total_s=7.1))
    assert made.body_s.max > before
    made.append(LoaderInfo(time_s=0.0, kind="DataLoader", num_workers=3))
    assert made.num_workers == 3


def test_slow_steps_are_the_slowest_of_all_steady_ones():
    """They survive the thinning of the sample; first steps of an epoch and the warm-up are none."""
    made = Window(steps=16)
    for i in range(1000):
        made.append(step(i, total_s=9.0 if i == 2 else i / 1000, epoch_start=i % 500 == 499))
    assert [s.index for s in made.slow_steps] == [998, 997, 996, 995, 994, 993, 992, 991, 990, 989]
    made.append(step(1000, total_s=0.9975, validation_s=0.9))
    assert 1000 not in {s.index for s in made.slow_steps}
    made.append(step(1001, total_s=2.0))
    made.append(step(1001, total_s=2.0))
    assert [s.index for s in made.slow_steps][:3] == [1001, 1001, 998]
