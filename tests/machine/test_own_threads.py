"""How much the program's threads compute beside the one that trains, as the kernel counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stallmeter.machine.own_threads import Crowd


@contextmanager
def thread_of(name: str) -> Iterator[int | None]:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, name=name, daemon=True)
    thread.start()
    yield thread.native_id
    ended.set()
    thread.join()


def test_how_much_other_threads_compute_is_asked_of_the_kernel() -> None:
    """The thread that asks for the training's is left out; of the first call nothing is known."""
    ran_ns, now_s = iter((0, 700_000_000)), iter((0.0, 1.0, 2.0))
    with thread_of("renderer") as native:
        crowd = Crowd(threading.get_ident(), lambda one: next(ran_ns) if one == native else None, lambda: next(now_s))
        assert crowd.cpus() is None
        assert crowd.cpus() == pytest.approx(0.7)


def test_a_thread_that_is_new_has_computed_since_the_last_call() -> None:
    """Some loops start one in each epoch. What Python did not start may have computed before it was known."""
    ran_ns = {"loads": 600_000_000, "library": 90_000_000_000}
    for name, cpus in (("loads", 0.6), ("library", 1.0)):
        now_s = iter((0.0, 1.0, 2.0))
        known: dict[int, int] = {}
        crowd = Crowd(threading.get_ident(), known.get, lambda now_s=now_s: next(now_s))  # type: ignore[misc]
        crowd.cpus()
        with thread_of(name) as native:
            assert native is not None
            known[native] = ran_ns[name]
            assert crowd.cpus() == pytest.approx(cpus)


def test_a_number_that_is_given_again_is_another_thread() -> None:
    ran_ns, now_s = iter((5_000_000_000, 400_000_000)), iter((0.0, 1.0, 2.0))
    with thread_of("renderer") as native:
        crowd = Crowd(threading.get_ident(), lambda one: next(ran_ns) if one == native else None, lambda: next(now_s))
        crowd.cpus()
        assert crowd.cpus() == pytest.approx(0.4)


def test_our_own_threads_are_no_crowd() -> None:
    asked: list[int] = []
    with thread_of("stallmeter-looker") as native:
        Crowd(threading.get_ident(), lambda thread: asked.append(thread) or 0).cpus()
        assert native not in asked
        assert threading.get_native_id() not in asked


def test_where_nobody_counts_nothing_is_known() -> None:
    crowd = Crowd(threading.get_ident(), lambda _: None)
    with thread_of("renderer"):
        assert (crowd.cpus(), crowd.cpus()) == (None, None)
