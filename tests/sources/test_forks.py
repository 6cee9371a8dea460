"""Forks are timed with what other packages do around them."""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest

from stallmeter.records import Fork
from stallmeter.sources.forks import ForkSource

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
_delay = {"s": 0.0}


def _hold() -> None:
    time.sleep(_delay["s"])


os.register_at_fork(before=_hold)


def test_a_fork_that_waits_is_seen_waiting() -> None:
    source = ForkSource()
    _delay["s"] = 0.2
    try:
        process = multiprocessing.get_context("fork").Process(target=time.time)
        process.start()
        process.join()
    finally:
        _delay["s"] = 0.0
    (fork,) = source.sample(0.0)
    assert isinstance(fork, Fork)
    assert fork.wall_s >= 0.2
    assert source.sample(0.0) == []


def test_a_closed_source_hears_nothing() -> None:
    source = ForkSource()
    source.close()
    process = multiprocessing.get_context("fork").Process(target=time.time)
    process.start()
    process.join()
    assert source.sample(0.0) == []


def test_handlers_that_came_after_another_source_are_seen_too() -> None:
    """The client of a second run in the same process registers its own after the first run's source."""
    first, delay = ForkSource(), {"s": 0.2}
    os.register_at_fork(before=lambda: time.sleep(delay["s"]))
    second = ForkSource()
    try:
        process = multiprocessing.get_context("fork").Process(target=time.time)
        process.start()
        process.join()
    finally:
        delay["s"] = 0.0
    (short,), (whole,) = first.sample(0.0), second.sample(0.0)
    assert isinstance(short, Fork)
    assert isinstance(whole, Fork)
    assert whole.wall_s >= 0.2 > short.wall_s
