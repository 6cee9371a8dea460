"""What an exception of the program's shows of us."""

from __future__ import annotations

import sys
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stallmeter.timing.tracebacks import let_out

from ..monitors import bare_monitor

OURS = """
from stallmeter.timing.tracebacks import let_out

def outer(call):
    try:
        return inner(call)
    except BaseException as exc:
        let_out(exc)
        raise

def inner(call):
    return call()
"""

LEFT = [] if sys.version_info >= (3, 11) else ["outer"]
"""Before, a bare ``raise`` takes the traceback that was caught."""


@pytest.fixture
def outer() -> Callable[[Callable[[], Any]], Any]:
    module = types.ModuleType("stallmeter.made_for_a_test")
    exec(compile(OURS, "made for a test", "exec"), vars(module))
    return vars(module)["outer"]  # type: ignore[no-any-return]


def names(exc: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(exc.__traceback__)]


def fails() -> None:
    raise KeyError("the program's")


def test_our_frames_are_gone_and_the_programs_are_there(outer: Callable[[Callable[[], Any]], Any]) -> None:
    with pytest.raises(KeyError) as caught:
        outer(fails)
    assert names(caught.value)[1:] == [*LEFT, "fails"]
    assert caught.value.__context__ is None


def test_what_is_raised_again_keeps_what_it_has_come_through(outer: Callable[[Callable[[], Any]], Any]) -> None:
    once = KeyError("raised twice")

    def again() -> None:
        raise once

    for times in (1, 2):
        with pytest.raises(KeyError):
            outer(again)
        assert names(once).count("again") == times
        assert names(once).count("outer") == times * len(LEFT)


def test_an_error_of_ours_shows_where(outer: Callable[[Callable[[], Any]], Any]) -> None:
    with pytest.raises(TypeError) as caught:
        outer(None)  # type: ignore[arg-type]
    assert names(caught.value)[1:] == [*LEFT, "inner"]


def test_one_that_was_never_raised_is_left_as_it_is() -> None:
    exc = KeyError()
    let_out(exc)
    assert exc.__traceback__ is None


def test_a_watched_loader(tmp_path: Path) -> None:
    def batches() -> Iterator[int]:
        yield 1
        yield 2
        fails()

    with bare_monitor(tmp_path) as monitor, pytest.raises(KeyError) as caught:
        for _ in monitor.watch(batches()):
            pass
    assert names(caught.value)[1:] == [*(["__next__"] * len(LEFT)), "batches", "fails"]
