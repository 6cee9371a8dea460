"""host-memory-growth: the job's memory keeps growing."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from stallmeter.records import MemorySample
from stallmeter.records.diagnosis import Severity
from stallmeter.rules.host_memory_growth import HostMemoryGrowth
from stallmeter.window import Window

from .windows import START_S, fires, hosts, ledger, loader, missing, run, silent, step, window

MB = 10**6


def grown(
    rss_mb: Callable[[int], float],
    *,
    main: float = 1.0,
    count: int = 120,
    left_mb: Callable[[int], float] | None = None,
    uss_mb: Callable[[int], float] | None = None,
) -> Window:
    """A run whose job has 1 GB and so many MB more at each second; ``main`` is the training process's share."""

    def sample(i: int) -> dict[str, Any]:
        rss = 1000 * MB + int(rss_mb(i) * MB)
        part = 500 * MB + int(main * rss_mb(i) * MB)
        known: dict[str, Any] = {"job_rss_bytes": rss, "main_rss_bytes": part, "children_rss_bytes": rss - part}
        if left_mb is not None:
            known |= {"memory_limit_bytes": 8000 * MB, "memory_limit_used_bytes": int((8000 - left_mb(i)) * MB)}
        if uss_mb is not None and i % 5 == 0:
            known["job_uss_bytes"] = 500 * MB + int(uss_mb(i) * MB)
        return known

    return run(loader(2), *hosts(count, sample))


def test_fires():
    """A steady rise is told with its pace, and nothing is claimed to be lost."""
    found = fires(HostMemoryGrowth(), grown(lambda i: 4.0 * i))
    assert found.culprit == "training process"
    assert found.summary == ("The memory of the training process grew by 356 MB, 240.0 MB a minute.")
    assert (found.time_lost_s, found.severity) == (0.0, Severity.WARNING)
    assert "detach" in found.advice[0].text


def test_workers():
    """Growth in the workers is advised on as copy-on-write."""
    found = fires(HostMemoryGrowth(), grown(lambda i: 4.0 * i, main=0.1))
    assert found.culprit == "workers"
    assert any("numpy" in advice.text for advice in found.advice)


def test_pages_that_become_copies():
    """Workers whose shared pages become copies do not grow in resident memory, but in private memory."""
    found = fires(HostMemoryGrowth(), grown(lambda i: 0.0, uss_mb=lambda i: 4.0 * i))
    assert found.culprit == "workers"
    assert found.summary.startswith("The memory of the workers grew by")


def test_time_to_the_limit():
    """The limit within the hour is critical; far away it is not."""
    near = fires(HostMemoryGrowth(), grown(lambda i: 4.0 * i, left_mb=lambda i: 5000 - 4.0 * i))
    assert near.severity is Severity.CRITICAL
    assert "the limit is met in 19 min" in near.summary  # (5000 - 476) MB at 4 MB/s
    far = fires(HostMemoryGrowth(), grown(lambda i: 1.2 * i, left_mb=lambda i: 7000 - 1.2 * i))
    assert far.severity is Severity.WARNING


def test_threshold():
    """The growth after the warm-up counts from the threshold on."""
    span = 89.0
    assert fires(HostMemoryGrowth(min_growth_pct=0), grown(lambda i: 100.1 / span * i))
    assert silent(HostMemoryGrowth(min_growth_pct=0), grown(lambda i: 99.9 / span * i))


def test_small_against_its_size():
    """A large job may grow by a little."""
    assert silent(HostMemoryGrowth(min_growth_pct=40.0), grown(lambda i: 2.0 * i))
    assert fires(HostMemoryGrowth(min_growth_pct=30.0), grown(lambda i: 2.0 * i))
    near = grown(lambda i: 2.0 * i, left_mb=lambda i: 1000 - 2.0 * i)
    assert fires(HostMemoryGrowth(min_growth_pct=40.0), near), "however large: it will be killed within the hour"


def test_a_cache_that_fills_up():
    """What rises at first and then stays level is a cache."""
    assert silent(HostMemoryGrowth(), grown(lambda i: min(400.0, 8.0 * i)))


def test_warm_up():
    """What grows only in the first quarter does not count."""
    assert silent(HostMemoryGrowth(), grown(lambda i: min(2000.0, 80.0 * i)))


@pytest.mark.parametrize("seed", range(5))
def test_noise(seed):
    """Memory that goes up and down has no trend, however large the swings."""
    draw = random.Random(seed)
    assert silent(HostMemoryGrowth(), grown(lambda i: draw.uniform(0, 800)))


@pytest.mark.parametrize("seed", range(5))
def test_growth_within_noise(seed):
    """A trend is found in noise."""
    draw = random.Random(seed)
    assert fires(HostMemoryGrowth(), grown(lambda i: 8.0 * i + draw.uniform(0, 150)))


def test_workers_of_each_epoch():
    """Workers that start anew in each epoch grow and vanish: no trend."""
    assert silent(HostMemoryGrowth(), grown(lambda i: 20.0 * (i % 30), main=0.0))


def test_pages_of_a_mapped_file():
    """Resident pages of a file cost nothing under the limit."""
    assert silent(HostMemoryGrowth(), grown(lambda i: 4.0 * i, left_mb=lambda i: 5000.0))


def test_abstains():
    """Too few samples have no trend."""
    assert missing(HostMemoryGrowth(), grown(lambda i: 50.0 * i, count=8)) == ("host.memory.main_trend",)
    assert fires(HostMemoryGrowth(), grown(lambda i: 50.0 * i, count=9))


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(HostMemoryGrowth(min_growth_mb=400.0), grown(lambda i: 4.0 * i))


# -- read several times a second ---------------------------------------------------------------------------------------


def held(
    main_mb: Callable[[float], float],
    *more: Any,
    span_s: float = 10.0,
    workers_mb: Callable[[float], float] = lambda t: 0.0,
    shared_mb: Callable[[float], float] = lambda t: 0.0,
    free_mb: Callable[[float], float | None] = lambda t: None,
    epochs: Callable[[float], int] = lambda t: 0,
    workers: int = 2,
) -> Window:
    """A short run whose memory was read five times a second; 20 steps a second."""
    samples = [
        MemorySample(
            time_s=START_S + 1 + t,
            main_bytes=int((1000 + main_mb(t)) * MB),
            main_shared_bytes=int(shared_mb(t) * MB),
            main_free_bytes=None if (free := free_mb(t)) is None else int(free * MB),
            workers=workers,
            workers_bytes=int((400 * workers + workers_mb(t)) * MB),
            workers_grown_bytes=int(workers_mb(t) * MB),
            step=int(20 * t),
        )
        for t in (0.2 * i for i in range(int(5 * span_s)))
    ]
    steps = [
        step(i, time_s=START_S + 1 + 0.05 * i, epoch=epochs(0.05 * i), epoch_start=i == 0)
        for i in range(int(20 * span_s))
    ]
    return window(*steps, *samples, *more, ledger(wall_s=span_s))


def test_a_leak_in_a_short_run():
    """Ten seconds are enough for 8 MB a step; it is told by the step, too."""
    found = fires(HostMemoryGrowth(), held(lambda t: 160.0 * t))
    assert found.culprit == "training process"
    assert "9,600.0 MB a minute, 8 MB a step" in found.summary


@pytest.mark.parametrize("seed", range(5))
def test_gaps_in_the_heap(seed):
    """Batches of uneven length leave gaps: what the process holds grows and what it uses does not. A leak uses more."""
    draw = random.Random(seed)

    def now_and_then(of: Callable[[float], float]) -> Callable[[float], float | None]:
        return lambda t: of(t) + draw.uniform(0, 20) if round(5 * t) % 6 == 0 else None

    def told(free: Callable[[float], float], span_s: float = 16.0) -> Window:
        return held(lambda t: 17.0 * t + draw.uniform(0, 10), span_s=span_s, free_mb=now_and_then(free))

    assert silent(HostMemoryGrowth(), told(lambda t: 300 + 17.0 * t))
    assert fires(HostMemoryGrowth(), told(lambda t: 300.0))
    assert fires(HostMemoryGrowth(), told(lambda t: 500 - 5.0 * t)), "a leak that fills the gaps"
    both = fires(HostMemoryGrowth(), told(lambda t: 300 + 11.0 * t, span_s=60.0))
    growth = next(e.value for e in both.evidence if e.name == "growth")
    assert growth == pytest.approx(6.0 * 45, rel=0.15), "of the memory in use alone"


def test_private_memory():
    """What the training process holds alone was judged as its own; without children nothing of it is a copy in one."""
    private = hosts(60, lambda i: {"job_uss_bytes": (500 + 17 * i) * MB} if i % 5 == 0 else {})

    def told(main_mb: float, *more: Any, workers: int = 2) -> Window:
        kept_mb = 300.0
        free = {"free_mb": lambda t: kept_mb + main_mb * t, "workers": workers}
        return held(lambda t: main_mb * t, *private, *more, span_s=60.0, **free)

    assert fires(HostMemoryGrowth(), told(0.0, loader(2))).culprit == "workers"
    assert fires(HostMemoryGrowth(), told(0.0)).culprit == "child processes"
    assert silent(HostMemoryGrowth(), told(0.0, workers=0)), "there is nobody who could copy"
    assert silent(HostMemoryGrowth(), told(17.0, workers=0)), "freed, and kept by its allocator"
    assert silent(HostMemoryGrowth(), told(17.0, loader(2))), "the same beside workers"


@pytest.mark.parametrize("seed", range(5))
def test_a_mild_leak_in_a_minute(seed):
    """One of 3 MB a second takes a minute, among the ups and downs of an allocator."""
    draw = random.Random(seed)
    assert fires(HostMemoryGrowth(), held(lambda t: 3.0 * t + draw.uniform(0, 15), span_s=60.0))
    assert silent(HostMemoryGrowth(), held(lambda t: 3.0 * t + draw.uniform(0, 15), span_s=10.0))


def test_leaking_workers():
    """What the workers have taken since they began is judged apart from the training process."""
    found = fires(HostMemoryGrowth(), held(lambda t: 0.0, loader(2), workers_mb=lambda t: 100.0 * t))
    assert found.culprit == "workers"


def test_a_program_without_workers():
    """Other child processes are called what they are."""
    assert fires(HostMemoryGrowth(), held(lambda t: 0.0, workers_mb=lambda t: 100.0 * t)).culprit == "child processes"


def test_a_long_validation():
    """While no step begins nothing leaks, and a run may end like this."""
    made = held(lambda t: 160.0 * min(t, 10.0), span_s=16.0)
    stood = window(
        *(step(i, time_s=START_S + 1 + 0.05 * i, epoch_start=i == 0) for i in range(200)),
        *(
            MemorySample(
                time_s=START_S + 1 + t, main_bytes=int((1000 + 160 * min(t, 10.0)) * MB), step=int(20 * min(t, 10))
            )
            for t in (0.2 * i for i in range(80))
        ),
        ledger(wall_s=17.0),
    )
    assert silent(HostMemoryGrowth(), made), "the steps went on, and the memory did not"
    assert fires(HostMemoryGrowth(), stood)


def test_kept_batches():
    """Batches from workers that are kept lie in shared memory."""
    found = fires(HostMemoryGrowth(), held(lambda t: 0.0, loader(2), shared_mb=lambda t: 100.0 * t))
    assert found.culprit == "training process"


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    "shape",
    [
        lambda t, u: min(1000.0, 400.0 * t),  # allocated in the warm-up
        lambda t, u: min(1000.0, 150.0 * t),  # a cache that is full after two thirds
        lambda t, u: 800.0 * (t % 2.5) / 2.5,  # an allocator that gives back now and then
        lambda t, u: 600.0 if t % 3 > 2.4 else 0.0,  # an evaluation that allocates and frees
        lambda t, u: 300.0 if t > 5 else 0.0,  # workers that grow once
        lambda t, u: 1500.0 * (1 - math.exp(-t / 2)),  # a cache that is met ever more often
        lambda t, u: 400.0 * u,
    ],
)
def test_healthy_shapes(shape, seed):
    """Not one of these goes on."""
    draw = random.Random(seed)

    def noisy(t: float) -> float:
        return float(shape(t, draw.random())) + draw.uniform(0, 10)

    assert silent(HostMemoryGrowth(), held(noisy))
    assert silent(HostMemoryGrowth(), held(lambda t: 0.0, workers_mb=noisy))


def test_a_random_walk():
    """Memory that wanders looks like a trend now and then: once in a hundred times."""
    found = 0
    for seed in range(100):
        draw, at = random.Random(seed), [0.0]
        for _ in range(60):
            at.append(max(0.0, at[-1] + draw.gauss(0, 40)))
        made = held(lambda t, at=at: at[int(5 * t)])  # type: ignore[misc]
        found += not silent(HostMemoryGrowth(), made)
    assert found <= 2


def test_a_cache_of_the_first_epoch():
    """In the process that loads the data growth may be a cache, until a later epoch adds to it."""
    first = fires(HostMemoryGrowth(), held(lambda t: 160.0 * t, loader(0)))
    assert "It may be a cache" in first.summary
    assert first.confidence < 0.6
    later = fires(HostMemoryGrowth(), held(lambda t: 160.0 * t, loader(0), epochs=lambda t: int(t / 3)))
    assert "It may be a cache" not in later.summary
    assert later.confidence > 0.8
    elsewhere = fires(HostMemoryGrowth(), held(lambda t: 160.0 * t, loader(2)))
    assert "It may be a cache" not in elsewhere.summary, "workers load the data, the training process grows"
    filled = held(lambda t: min(480.0, 160.0 * t), loader(0), epochs=lambda t: int(t / 3))
    assert silent(HostMemoryGrowth(), filled)
