"""A fork is made while no thread of ours imports: its child could not import the same module."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallmeter.machine.forking import LONGEST_S, let_imports_end

SLOW = "import builtins\nbuiltins.began_to_import.set()\nbuiltins.may_end_import.wait(60)\n"


@pytest.fixture
def importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A thread of ours is importing a module until the event is set."""
    import builtins

    began, may_end = threading.Event(), threading.Event()
    monkeypatch.setattr(builtins, "began_to_import", began, raising=False)
    monkeypatch.setattr(builtins, "may_end_import", may_end, raising=False)
    (tmp_path / "imported_slowly.py").write_text(SLOW)
    monkeypatch.syspath_prepend(str(tmp_path))
    thread = threading.Thread(target=__import__, args=("imported_slowly",), name="stallmeter-test", daemon=True)
    thread.start()
    assert began.wait(60)
    yield may_end
    may_end.set()
    thread.join()
    del sys.modules["imported_slowly"]


def test_it_waits_until_the_import_has_ended(importing: threading.Event) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            importing.set()
        threading.Event().wait(seconds)

    let_imports_end(sleep=sleep)
    assert len(slept) >= 3
    assert importing.is_set()


def test_an_import_that_hangs_is_not_waited_for(importing: threading.Event) -> None:
    now_s = [0.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    let_imports_end(clock=lambda: now_s[0], sleep=sleep)
    assert now_s[0] == pytest.approx(LONGEST_S, rel=0.01)
    assert not importing.is_set()


def test_who_waits_for_another_threads_import_is_not_waited_for(importing: threading.Event) -> None:
    """That other thread may be the one that forks."""
    waiting = threading.Thread(target=__import__, args=("imported_slowly",), name="stallmeter-waits", daemon=True)
    for thread in threading.enumerate():
        if thread.name == "stallmeter-test":
            thread.name = "somebody"
    waiting.start()
    let_imports_end(sleep=lambda _: importing.wait(0.01), longest_s=0.2)  # until it has come to the lock
    let_imports_end(sleep=lambda _: pytest.fail("it waited"))
    importing.set()
    waiting.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_process_can_import_the_same_module(importing: threading.Event) -> None:
    """The handler is registered with the sampler's thread; without it the child waits for ever."""
    import stallmeter.engine.sampler  # noqa: F401

    threading.Timer(0.2, importing.set).start()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        try:
            import imported_slowly  # noqa: F401
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
