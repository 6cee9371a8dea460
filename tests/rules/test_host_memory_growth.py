"""host-memory-growth: the job's memory keeps growing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from stallmeter.records.diagnosis import Severity
from stallmeter.rules.host_memory_growth import HostMemoryGrowth
from stallmeter.window import Window

from .windows import fires, hosts, missing, run, silent

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

    return run(*hosts(count, sample))


def test_fires():
    """A steady rise is told with its pace, and nothing is claimed to be lost."""
    found = fires(HostMemoryGrowth(), grown(lambda i: 4.0 * i))
    assert found.culprit == "training process"
    assert found.summary == (
        "The resident memory of the job grew by 356 MB, 240.0 MB a minute, most of it in the training process."
    )
    assert (found.time_lost_s, found.severity) == (0.0, Severity.WARNING)
    assert "detach" in found.advice[0].text


def test_workers():
    """Growth in the workers is advised on as copy-on-write."""
    found = fires(HostMemoryGrowth(), grown(lambda i: 4.0 * i, main=0.1))
    assert found.culprit == "workers"
    assert "numpy" in found.advice[0].text


def test_pages_that_become_copies():
    """Workers whose shared pages become copies do not grow in resident memory, but in private memory."""
    found = fires(HostMemoryGrowth(), grown(lambda i: 0.0, uss_mb=lambda i: 4.0 * i))
    assert found.culprit == "workers"
    assert found.summary.startswith("The private memory of the job grew by")


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
    assert silent(HostMemoryGrowth(min_growth_pct=20.0), grown(lambda i: 2.0 * i))
    assert fires(HostMemoryGrowth(min_growth_pct=5.0), grown(lambda i: 2.0 * i))


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
    assert missing(HostMemoryGrowth(), grown(lambda i: 50.0 * i, count=14)) == ("host.rss_trend",)
    assert fires(HostMemoryGrowth(), grown(lambda i: 50.0 * i, count=15))


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(HostMemoryGrowth(min_growth_mb=400.0), grown(lambda i: 4.0 * i))
