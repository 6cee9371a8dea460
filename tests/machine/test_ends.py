"""When strangers' processes ended, and how."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stallmeter.machine.ends import Watched, can_watch, read_wait_status

pytestmark = pytest.mark.skipif(not can_watch(), reason="the system does not tell of strangers' processes")


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"])


def test_what_ended_each_of_them_and_in_which_order() -> None:
    watched: Watched[str] = Watched()
    first, second = sleeper(), sleeper()
    third = subprocess.Popen(["/bin/sh", "-c", "read line; exit 3"], stdin=subprocess.PIPE)
    for name, process in (("first", first), ("second", second), ("third", third)):
        watched.add(name, process.pid)
    assert not watched.wait(0.0)
    second.send_signal(signal.SIGKILL)
    assert watched.wait(None)
    first.send_signal(signal.SIGTERM)
    assert watched.wait(30.0)
    third.communicate(b"\n")  # its parent asks for its status: it may have been taken away before we read it
    while len(watched.ended) < 3:
        watched.wait(30.0)
    assert list(watched.ended) == ["second", "first", "third"]
    assert watched.names == set(watched.ended)
    statuses = [seen.wait_status for seen in watched.ended.values()]
    assert statuses[:2] == [signal.SIGKILL, signal.SIGTERM]
    assert statuses[2] in (None, 3 << 8)
    times = [seen.time_s for seen in watched.ended.values()]
    assert times == sorted(times)
    assert abs(times[0] - time.time()) < 600
    for process in (first, second):
        process.wait()


def test_one_that_is_gone_has_ended() -> None:
    process = sleeper()
    process.kill()
    process.wait()
    watched: Watched[int] = Watched()
    watched.add(0, process.pid)
    assert watched.ended[0].wait_status is None


def test_nobody_is_waited_for_longer_than_asked() -> None:
    watched: Watched[int] = Watched()
    watched.add(0, os.getpid())
    assert not watched.wait(0.01)
    assert watched.names == {0}


@pytest.mark.parametrize(
    ("stat", "expected"),
    [
        ("7 (py (a) b) Z 1 " + "0 " * 47 + "9", 9),
        ("7 (python) R 1 " + "0 " * 47 + "9", None),  # it runs
        ("7 (python) Z 1 0", None),  # of an old kernel
        (None, None),
    ],
)
def test_how_a_process_ended_is_read_while_its_parent_has_not_asked(
    tmp_path: Path, stat: str | None, expected: int | None
) -> None:
    if stat is not None:
        (tmp_path / "proc/7").mkdir(parents=True)
        (tmp_path / "proc/7/stat").write_text(stat)
    assert read_wait_status(7, tmp_path) == expected


def test_words_are_heard_and_an_end_without_a_word_is_none() -> None:
    reading, writing = os.pipe()
    watched: Watched[int] = Watched(reading)
    watched.add(0, os.getpid())
    assert not watched.wait(0.0)
    for word in (b"a", b"b"):
        os.write(writing, word)
        assert watched.wait(30.0)
    assert watched.heard == b"ab"
    os.close(writing)
    assert watched.wait(30.0)
    assert not watched.wait(0.0)  # not again and again
    assert watched.heard == b"ab"
    os.close(reading)


def test_an_old_kernel_and_a_sandbox_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_watch()

    def refused(_: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refused)
    assert not can_watch()
    monkeypatch.delattr(os, "pidfd_open")
    assert not can_watch()
