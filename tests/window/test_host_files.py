"""Open files: newest counts and trends."""

from __future__ import annotations

import pytest

from stallmeter.window import Window

from ..rules.windows import hosts, run


def test_open_files():
    """Samples in which nobody counted are passed over."""

    def sample(i: int) -> dict[str, int]:
        return {"open_files": 10 + i, "workers_open_files": 5, "open_files_limit": 1024} if i % 2 == 0 else {}

    files = run(*hosts(24, sample)).host.files
    assert (files.main, files.workers, files.limit) == (32, 5, 1024)
    assert files.main_trend is not None
    assert files.main_trend.per_s == pytest.approx(1.0)
    assert files.workers_trend is not None
    assert files.workers_trend.per_s == 0
    nothing = Window().host.files
    assert (nothing.main, nothing.workers, nothing.limit, nothing.main_trend) == (None,) * 4
