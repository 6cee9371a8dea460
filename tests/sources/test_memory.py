"""Memory is read several times a second at first, and what counts is what processes hold themselves."""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time

import pytest

from stallmeter.machine.processes import held_memory
from stallmeter.sources.memory import FAST_S, MemorySource

MB = 10**6


class Kernel:
    """Says what processes hold."""

    def __init__(self):
        self.held = {1: (100, 5)}

    def read(self, pid):
        return self.held.get(pid)


def source(kernel, **changes):
    """A source without a thread: it reads when it is told to."""
    return MemorySource(lambda: tuple(kernel.held), lambda: 7, read=kernel.read, **changes)


def test_growth_of_workers_since_each_was_seen():
    """A worker that comes or goes is no growth, and one that is started anew begins at nothing."""
    kernel = Kernel()
    made = source(kernel)
    kernel.held |= {2: (50, 0), 3: (60, 0)}
    first = made.take(1.0)
    assert (first.main_bytes, first.main_shared_bytes, first.step) == (100, 5, 7)
    assert (first.workers, first.workers_bytes, first.workers_grown_bytes) == (2, 110, 0)
    kernel.held |= {2: (80, 0), 3: (55, 0), 4: (500, 0)}
    second = made.take(2.0)
    assert (second.workers, second.workers_bytes, second.workers_grown_bytes) == (3, 635, 30)
    del kernel.held[2]
    assert made.take(3.0).workers_grown_bytes == 0
    kernel.held[2] = (90, 0)
    assert made.take(4.0).workers_grown_bytes == 0


def test_nothing_to_read():
    """Where the kernel does not tell there are no samples and no thread."""
    kernel = Kernel()
    kernel.held = {1: None}
    made = source(kernel)
    assert made.sample(1.0) == ()
    made.close()


def test_the_allocator_is_asked_for_what_it_costs():
    """Two thousandths of the time at most, ever less often, and only of the process that asks."""
    kernel, now, asked = Kernel(), [0.0], []
    kernel.held = {os.getpid(): (100, 5)}

    def free():
        asked.append(now[0])
        return 40

    made = source(kernel, free=free, clock=lambda: now[0], cpu=lambda: 0.003 * len(asked))
    found = []
    for tick in range(2000):
        now[0] = 0.1 * tick
        found.append(made.take(now[0]).main_free_bytes)
    assert found[0] == 40
    assert {40, None} == set(found)
    assert asked[1] == pytest.approx(1.5, abs=0.11), "three milliseconds are two thousandths of so much"
    assert asked[-1] - asked[-2] > 1.7, "one in a hundred of the time since the first"
    kernel.held = {1: (100, 5)}
    assert made.take(1e6).main_free_bytes is None


def test_ever_fewer_readings():
    """Five a second at first, one a second after a hundred seconds: then the sampler's asking is enough."""
    kernel, now, read = Kernel(), [0.0], []

    class Waited:
        """Stands in for the wait between two readings."""

        def wait(self, pause_s):
            now[0] += pause_s
            read.append(now[0])
            return False

    made = source(kernel, clock=lambda: now[0])
    made._ended = Waited()
    made._follow()
    assert sum(t <= 8.0 for t in read) in (39, 40, 41)
    assert 100 <= read[-1] <= 101
    assert len(read) < 300
    taken = made._taken
    assert len(taken) == len(read) - 1


def test_between_two_polls():
    """The thread reads on its own, and ends with the source."""
    kernel = Kernel()
    made = source(kernel)
    try:
        assert len(made.sample(time.time())) >= 1
        give_up_s, found = time.monotonic() + 30, []
        while len(found) < 3 and time.monotonic() < give_up_s:
            time.sleep(FAST_S)
            found += made.sample(time.time())
        assert len(found) >= 3
    finally:
        made.close()
    made._thread.join(30)
    assert not made._thread.is_alive()
    found = made.sample(9.0)
    assert found[-1].time_s == 9.0, "without the thread it reads when it is asked"


def test_a_thread_that_cannot_be_started_is_not_waited_for(monkeypatch):
    """While the interpreter ends there is none to be had, or the run ends before it has started."""

    def refused(_):
        raise RuntimeError("can't start new thread")

    made = source(Kernel())
    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RuntimeError, match="can't start"):
        made.sample(0.0)
    made.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells it on Linux")
def test_pages_of_files_do_not_count(tmp_path):
    """What the kernel can take back is resident and not held."""
    path, size = tmp_path / "data", 64 << 20
    with path.open("wb") as file:
        file.truncate(size)
    before = held_memory(os.getpid())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[i] for i in range(0, size, 4096)) == 0
        during = held_memory(os.getpid())
    assert sum(during) - sum(before) < size / 2
    kept = bytearray(b"x") * size
    after = held_memory(os.getpid())
    assert after[0] - before[0] > size / 2
    assert len(kept) == size
    assert held_memory(2**30) is None
