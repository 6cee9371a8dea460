"""What a program's end waits for, and what becomes of it when its user waits no longer."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable

import pytest

from stallmeter.engine import program_end


class Ends:
    """A run whose end takes until a deadline; Ctrl-C is pressed while the first one is waited for."""

    close_budget_s = 10.0

    def __init__(self, *, interrupted: bool = False) -> None:
        self.interrupted = interrupted
        self.left_s: list[float] = []

    def exit(self) -> Callable[[float], None]:
        return self.wait

    def wait(self, deadline_s: float) -> None:
        self.left_s.append(deadline_s - time.monotonic())
        if self.interrupted and len(self.left_s) == 1:
            raise KeyboardInterrupt


def test_ctrl_c_cuts_the_wait_of_all_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each says what is left, and no traceback of ours is printed."""
    first, second = Ends(interrupted=True), Ends()
    monkeypatch.setattr(program_end, "_open", {1: first, 2: second})
    monkeypatch.setattr(program_end, "_watched_pid", os.getpid())

    program_end._end()

    assert len(first.left_s) == 2
    assert first.left_s[1] <= 0
    assert len(second.left_s) == 1
    assert second.left_s[0] <= 0


@pytest.mark.parametrize("on", [True, False])
def test_no_garbage_of_the_programs_is_collected_by_our_threads(monkeypatch: pytest.MonkeyPatch, on: bool) -> None:
    """The program's thread waits here, so that any thread that collects it then is one of ours."""
    seen: list[bool] = []

    class Asks(Ends):
        def exit(self) -> Callable[[float], None]:
            seen.append(gc.isenabled())
            return lambda _: seen.append(gc.isenabled())

    monkeypatch.setattr(program_end, "_open", {1: Asks()})
    monkeypatch.setattr(program_end, "_watched_pid", os.getpid())
    was_on = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        program_end._end()
        assert seen == [False, False]
        assert gc.isenabled() is on
    finally:
        (gc.enable if was_on else gc.disable)()
