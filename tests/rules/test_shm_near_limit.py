"""shm-near-limit: shared memory is too small for the loader's batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stallmeter.records import BatchContent
from stallmeter.records.diagnosis import Severity
from stallmeter.rules.shm_near_limit import ShmNearLimit
from stallmeter.window import Window

from .windows import START_S, fires, hosts, loader, missing, run, silent

MB = 10**6


def shared(
    free_mb: float,
    *,
    most_mb: float | None = None,
    size_mb: float = 64,
    workers: int = 4,
    batch_mb: float | None = None,
) -> Window:
    """A run with so much of /dev/shm free in its fullest moment."""
    records: list[Any] = [replace(loader(workers), prefetch_factor=2)] if workers >= 0 else []
    if batch_mb is not None:
        records.append(BatchContent(time_s=START_S, tensors=2, bytes=int(batch_mb * MB)))
    free = [size_mb if most_mb is None else most_mb, free_mb, free_mb]
    return run(
        *records,
        *hosts(3, lambda i: {"shm_free_bytes": int(free[i] * MB), "shm_size_bytes": int(size_mb * MB)}),
    )


def test_before_it_happens():
    """A container's 64 MB hold no full queue of 4 workers, though it was never full so far."""
    found = fires(ShmNearLimit(), shared(50, batch_mb=19.0))
    assert found.severity is Severity.CRITICAL
    assert "4 workers times 2 batches of 19.0 MB and one in use can take 171.0 MB" in found.summary
    assert "--shm-size=1g" in found.advice[0].text
    assert "Kubernetes" in found.advice[0].text


def test_nearly_full():
    """What was seen counts without a batch being known."""
    found = fires(ShmNearLimit(), shared(5.0))
    assert "Up to 92 % of the 64.0 MB" in found.summary
    assert found.severity is Severity.WARNING
    assert fires(ShmNearLimit(), shared(1.0)).severity is Severity.CRITICAL


def test_threshold():
    """The full queue counts from the threshold on."""
    assert silent(ShmNearLimit(), shared(60, batch_mb=6.3))  # 9 batches: 88.6 %
    assert fires(ShmNearLimit(), shared(60, batch_mb=6.5)).severity is Severity.WARNING
    assert silent(ShmNearLimit(warn_pct=95.0), shared(60, batch_mb=6.5))


def test_what_others_have_taken():
    """The loader may fill what was free, not the whole size."""
    assert silent(ShmNearLimit(), shared(900, size_mb=1000, batch_mb=50))
    assert fires(ShmNearLimit(), shared(400, most_mb=450, size_mb=1000, batch_mb=50))


def test_what_was_free_before_the_run():
    """The queue may be full in the first sample: it is not counted twice then."""
    made = shared(30, most_mb=30, batch_mb=3.7)
    assert fires(ShmNearLimit(), made)
    made.facts["budget"] = {"host_cpus": 8, "affinity_cpus": 8, "shm_free_bytes": 64 * MB}
    assert silent(ShmNearLimit(), made)


def test_ranks_share_it():
    """Each rank on the node has a loader like this one."""
    made = shared(60, batch_mb=3.0)
    assert silent(ShmNearLimit(), made)
    made.facts["budget"] = {"host_cpus": 8, "affinity_cpus": 8, "ranks_on_node": 4}
    assert fires(ShmNearLimit(), made)


def test_plenty():
    """Half of a host's memory is enough for any loader."""
    assert silent(ShmNearLimit(), shared(24_000, size_mb=25_000, batch_mb=150, workers=12))


def test_no_workers():
    """Without workers the loader takes none, whoever fills it."""
    assert silent(ShmNearLimit(), shared(1.0, workers=0))


def test_abstains():
    """No /dev/shm, or no loader."""
    assert set(missing(ShmNearLimit(), run(loader()))) == {
        "host.memory.shm.least_free_bytes",
        "host.memory.shm.most_free_bytes",
        "host.memory.shm.size_bytes",
    }
    assert missing(ShmNearLimit(), shared(1.0, workers=-1)) == ("loader.num_workers",)
