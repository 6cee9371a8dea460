"""Processes of this host: which still run, and which are this rank's own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from stallmeter.machine import processes
from stallmeter.machine.processes import (
    JobTree,
    find,
    find_readable,
    is_another_rank,
    is_own,
    is_running,
    rss_bytes,
    unique_bytes,
)

SLEEP = "import time; time.sleep(60)"
FAMILY = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
child.wait()
"""
posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks")


@pytest.fixture(autouse=True)
def strangers_all() -> Iterator[None]:
    yield
    processes.set_known_ranks({})


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a program and ends it with the test."""
    started = []

    def begin(program: str = SLEEP, **environ: str) -> subprocess.Popen[str]:
        made = subprocess.Popen(
            [sys.executable, "-S", "-c", program], env=os.environ | environ, stdout=subprocess.PIPE, text=True
        )
        started.append(made)
        return made

    yield begin
    for process in started:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
            child.kill()
        process.kill()
        process.communicate()


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def long_ago() -> float:
    """Before this machine was started."""
    return time.time() - 10 * 86400 - time.monotonic()


def test_a_later_process_with_the_same_number_is_another_one() -> None:
    assert is_running(os.getpid(), time.time())
    assert not is_running(os.getpid(), long_ago())
    assert not is_running(dead_pid(), time.time())
    assert not is_running(0, time.time())
    assert find(2**22 + 1, time.time()) is None


def test_a_process_that_waits_to_be_buried_is_dead(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start()
    assert is_running(process.pid, time.time())
    known = psutil.Process(process.pid)
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not is_running(process.pid, time.time())
    process.wait()
    assert (rss_bytes(known), unique_bytes(known)) == (None, None)


def test_a_process_that_may_not_be_looked_at_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is somebody else's; it is there."""

    def refuse(pid: int) -> None:
        raise psutil.AccessDenied(pid)

    monkeypatch.setattr(psutil, "Process", refuse)
    assert is_running(77, time.time())
    assert not is_own(77)
    assert find_readable(77, time.time()) is None


def test_memory_that_a_system_does_not_tell_is_none() -> None:
    own = psutil.Process()
    total, unique = rss_bytes(own), unique_bytes(own)
    assert total is not None
    assert unique is not None
    assert total > unique > 10**6
    elsewhere: Any = SimpleNamespace(memory_info=own.memory_info, memory_full_info=lambda: own.memory_info()._asdict())
    assert unique_bytes(elsewhere) is None


@pytest.mark.parametrize(
    ("theirs", "now", "at_start", "another"),
    [
        ({"LOCAL_RANK": "1"}, {"LOCAL_RANK": "0"}, {}, True),  # what Lightning starts
        ({"LOCAL_RANK": "0"}, {"LOCAL_RANK": "0"}, {}, False),  # a worker that it spawned
        ({}, {"LOCAL_RANK": "0"}, {}, False),  # a worker that it forked
        ({"RANK": "1", "LOCAL_RANK": "0"}, {"RANK": "5", "LOCAL_RANK": "0"}, {"RANK": "1"}, False),
        ({"RANK": "3", "LOCAL_RANK": "1"}, {"RANK": "3", "LOCAL_RANK": "0"}, {"RANK": "3"}, True),
        ({"RANK": "0"}, {}, {}, True),  # the training starts a launcher of its own
        ({"SLURM_PROCID": "2"}, {"SLURM_PROCID": "0"}, {"SLURM_PROCID": "0"}, True),
    ],
)
def test_a_rank_that_was_launched_is_known_by_its_environment(
    theirs: Mapping[str, str], now: Mapping[str, str], at_start: Mapping[str, str], another: bool
) -> None:
    """A process that set its rank itself forks workers that show the environment at its own start."""
    assert is_another_rank(SimpleNamespace(environ=lambda: theirs), (now, at_start)) is another


def test_own_processes(start: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A child's child counts; a stranger, another rank with all that it started, and what has ended do not."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    worker, rank = start(FAMILY), start(FAMILY, LOCAL_RANK="1")
    assert worker.stdout is not None
    assert rank.stdout is not None
    of_worker, of_rank = int(worker.stdout.readline()), int(rank.stdout.readline())
    own = [is_own(pid) for pid in (os.getpid(), worker.pid, of_worker, rank.pid, of_rank, os.getppid(), 0, 2**22 + 1)]
    assert own == [True, True, True, False, False, False, False, False]
    tree = JobTree(psutil.Process())
    tree.refresh(0.0)
    assert {worker.pid, of_worker} <= {process.pid for process in tree.processes}
    assert not {rank.pid, of_rank} & {process.pid for process in tree.processes}
    assert tree.other_ranks == 1
    processes.set_known_ranks({worker.pid: time.time()})
    assert [is_own(pid) for pid in (worker.pid, of_worker)] == [False, False]
    tree.refresh(1e9)
    assert not {worker.pid, of_worker} & {process.pid for process in tree.processes}
    assert tree.other_ranks == 2


@posix
def test_a_rank_that_was_forked_is_known_once_it_records(tmp_path: Path) -> None:
    """Its environment is that of its parent; a later process with the number in its header is no rank."""
    child = os.fork()
    if child == 0:
        os.environ["RANK"] = "1"
        time.sleep(60)
        os._exit(0)
    try:
        tree = JobTree(psutil.Process())
        tree.refresh(0.0)
        assert child in [process.pid for process in tree.processes]
        processes.set_known_ranks({child: long_ago(), os.getpid(): time.time()})
        tree.refresh(1e9)
        assert (child in [process.pid for process in tree.processes], tree.other_ranks) == (True, 0)
        assert is_own(child)
        processes.set_known_ranks({child: time.time(), os.getpid(): time.time()})
        tree.refresh(2e9)
        assert (child in [process.pid for process in tree.processes], tree.other_ranks) == (False, 1)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_rank_that_started_this_one(start: Callable[..., subprocess.Popen[str]]) -> None:
    """Seen from rank 1, rank 0 is its parent: what belongs to the one does not belong to the other."""
    rank0 = start(FAMILY)
    assert rank0.stdout is not None
    rank1 = int(rank0.stdout.readline())
    processes.set_known_ranks({rank0.pid: time.time()})
    tree = JobTree(psutil.Process(rank1))
    tree.refresh(0.0)
    assert ([process.pid for process in tree.processes], tree.other_ranks) == ([rank1], 1)
    tree.read_ranks_cpu()
    assert (tree.read_ranks_cpu() or 0.0) >= 0.0


@pytest.mark.parametrize("is_rank", [False, True])
def test_the_program_that_started_this_process(monkeypatch: pytest.MonkeyPatch, is_rank: bool) -> None:
    """Its CPU time is the program's, its processes are not this one's; unless it is another rank."""
    above = psutil.Process(os.getppid())
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: above)
    processes.set_known_ranks({above.pid: time.time()} if is_rank else {})
    tree = JobTree(psutil.Process())
    tree.refresh(0.0)
    own = [process.pid for process in tree.processes]
    assert own[0] == os.getpid()
    assert above.pid not in own
    read: list[int] = []

    def one_second_more(pid: int, process: object) -> tuple[float, float]:
        read.append(pid)
        return float(read.count(pid)), float(read.count(pid))

    monkeypatch.setattr(tree, "_read_one", one_second_more)
    tree.read_cpu()
    assert (above.pid in read) is not is_rank
    assert set(own) <= set(read)
    assert tree.read_cpu()[1] == len(set(read))


def test_how_many_files_a_process_may_open() -> None:
    """No limit is None, and so is what a system does not tell."""

    class Process:
        pid = 2**30

        def __init__(self, soft: int) -> None:
            self._soft = soft

        def rlimit(self, which: int) -> tuple[int, int]:
            return self._soft, which

    class System:
        RLIMIT_NOFILE = 7

    assert processes.open_files_limit(Process(1024), System) == 1024
    assert processes.open_files_limit(Process(-1), System) is None
    assert processes.open_files_limit(Process(2**63 - 1), System) is None
    assert processes.open_files_limit(Process(1024), object()) is None, "another process on a system that tells of none"
    assert processes.open_files(Process(1024)) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no such limit here")
def test_open_files_for_real(tmp_path: Path) -> None:
    """A file more is one more."""
    own = psutil.Process()
    before = processes.open_files(own)
    with (tmp_path / "file").open("w"):
        assert processes.open_files(own) == (before or 0) + 1
    limit = processes.open_files_limit(own)
    assert limit is None or limit > 0
    if limit is not None:

        class Mac:
            """psutil tells of no limits there."""

            pid = os.getpid()

        assert processes.open_files_limit(Mac(), object()) == limit
