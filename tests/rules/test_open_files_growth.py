"""open-files-growth: ever more files are open."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from stallmeter.records.diagnosis import Severity
from stallmeter.rules.open_files_growth import OpenFilesGrowth
from stallmeter.window import Window

from .windows import fires, hosts, missing, run, silent


def opened(
    main: Callable[[int], float], workers: Callable[[int], float] = lambda i: 12, *, limit: int = 1024, count: int = 12
) -> Window:
    """A run whose processes have so many files open at each second."""
    return run(
        *hosts(
            count,
            lambda i: {
                "open_files": int(main(i)),
                "workers_open_files": int(workers(i)),
                "open_files_limit": limit,
            },
        )
    )


def test_a_leak():
    """A steady rise meets the limit."""
    found = fires(OpenFilesGrowth(), opened(lambda i: 60 + 10 * i))
    assert found.culprit == "training process"
    assert found.severity is Severity.CRITICAL
    assert found.summary == (
        "The training process has 170 files open, 600 more a minute, 17 % of the 1,024 that are allowed; "
        "at this pace the limit is met in 1 min."
    )


def test_workers():
    """A dataset that closes nothing."""
    found = fires(OpenFilesGrowth(), opened(lambda i: 60, lambda i: 12 + 8 * i))
    assert found.culprit == "workers"
    assert found.advice[0].text.startswith("Close")


def test_a_high_limit():
    """The slower it comes, the less it matters; in months not at all."""
    assert fires(OpenFilesGrowth(), opened(lambda i: 60 + 10 * i, limit=500_000)).severity is Severity.WARNING
    assert silent(OpenFilesGrowth(), opened(lambda i: 60 + 10 * i, limit=2**30))


def test_nearly_used_up():
    """Many files are enough, without a trend."""
    found = fires(OpenFilesGrowth(), opened(lambda i: 850, count=3))
    assert found.severity is Severity.WARNING
    assert "83 %" in found.summary
    assert fires(OpenFilesGrowth(), opened(lambda i: 1000, count=3)).severity is Severity.CRITICAL
    assert silent(OpenFilesGrowth(), opened(lambda i: 800, count=3))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "shape",
    [
        lambda i, u: 60 + 100 * u,  # files that come and go
        lambda i, u: 60 + min(200, 60 * i),  # shards that are opened once each
        lambda i, u: 60 + 30 * (i % 4),  # closed with each epoch
        lambda i, u: 60 + 2 * i,  # few
        lambda i, u: 60,
    ],
)
def test_healthy(shape, seed):
    """Not one of these goes on, or it is little."""
    draw = random.Random(seed)
    assert silent(OpenFilesGrowth(), opened(lambda i: shape(i, draw.random()), lambda i: shape(i, draw.random())))


def test_abstains():
    """Without a limit nothing is met."""
    assert missing(OpenFilesGrowth(), run(*hosts(12, lambda i: {"open_files": 60 + 10 * i}))) == ("host.files.limit",)
