"""Loaders and machines that the tests of the model share."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from stallmeter.workers import Limits, LoaderCosts, OperatingPoint

MEBI = 1 << 20
seconds = st.floats(0, 5, allow_subnormal=False)
profiles = st.lists(st.floats(1e-3, 1, allow_subnormal=False), max_size=12).map(tuple)
costs_ = st.builds(
    LoaderCosts,
    current=st.integers(0, 12),
    work_s=seconds,
    service_s=seconds,
    cpu_s=seconds,
    handover_s=st.none() | st.floats(0, 0.05),
    loop_cpu_s=seconds,
    blocked_s=seconds,
    blocked_first=st.booleans(),
    team=st.none() | st.floats(1, 16),
    neighbour_wait_s=st.floats(0, 0.5),
    own_wait_s=st.floats(0, 0.5),
    shared_memory_s=st.floats(0, 0.1),
    step_time_s=st.none() | seconds,
    profile=profiles,
    batches=st.integers(0, 200),
    iterable=st.booleans(),
    stateful=st.booleans(),
)
limits_ = st.builds(
    Limits,
    available_cpus=st.none() | st.just(0.0) | st.floats(1e-3, 128),
    neighbour_cpus=st.floats(0, 16),
    worker_bytes=st.none() | st.integers(0, 4096 * MEBI),
    free_bytes=st.none() | st.integers(0, 64 * 1024 * MEBI),
    batch_bytes=st.none() | st.integers(0, 512 * MEBI),
    shm_free_bytes=st.none() | st.integers(0, 8 * 1024 * MEBI),
    prefetch_factor=st.integers(0, 8),
    shared_s=st.floats(0, 1),
    max_workers=st.integers(0, 24),
)
points_ = st.none() | st.builds(
    OperatingPoint, workers=st.integers(0, 12), service_s=seconds, cpu_s=seconds, step_time_s=seconds
)


def loader(**changes: float | None) -> LoaderCosts:
    """A worker takes 48 ms, mostly blocked; the loop takes 12 ms."""
    found = LoaderCosts(
        current=0,
        work_s=0.012,
        service_s=0.048,
        cpu_s=0.001,
        handover_s=0.001,
        loop_cpu_s=0.001,
        step_time_s=0.060,
        batches=100,
    )
    return replace(found, **changes)  # type: ignore[arg-type]


ROOMY = Limits(available_cpus=16.0, free_bytes=1 << 40, worker_bytes=100 * MEBI)
THREADED = loader(work_s=0.020, service_s=0.100, cpu_s=0.100, loop_cpu_s=0.040, step_time_s=0.120)
"""A loop that computes with two threads, fed by decoding."""
UNEVEN = (0.4, *(0.04,) * 19)
"""One batch in twenty takes ten times as long: 58 ms on average."""
