"""What a thread waits in, from the kernel's own words."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import threading
import time
from pathlib import Path

import pytest

from stallmeter.machine.blocked import Wait, interpreter_memory, is_known_here, parse, thread_waits_in, waits_in

TAIL = "0x0 0x7fff1ac29c48 0x7f2b426ed503"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("running", "running"),
        (f"202 0x7f2b42de0000 0x109 0x0 0x0 0x0 {TAIL}", "lock"),  # sem_wait of a multiprocessing.Lock
        (f"202 0x55b93a458f10 0x189 0x0 0x0 0x0 {TAIL}", "threads"),  # threading.Lock: marked as private
        (f"202 0x55b93a458f10 0x81 0x1 0x0 0x0 {TAIL}", "other"),  # it wakes somebody up
        (f"73 0x11 0x2 0x0 0x0 0x0 {TAIL}", "lock"),  # flock
        (f"72 0x13 0x7 0x7fff1ac29c30 0x0 0x0 {TAIL}", "lock"),  # fcntl, F_SETLKW
        (f"72 0x13 0x3 0x0 0x0 0x0 {TAIL}", "file"),  # fcntl, F_GETFL
        (f"220 0x4 0x7fff1ac29c30 0x1 0x0 0x0 {TAIL}", "lock"),  # semtimedop
        (f"230 0x1 0x1 0x7fff1ac29c60 0x0 0x0 {TAIL}", "sleep"),
        (f"270 0x0 0x0 0x0 0x0 0x7fff1ac29c60 {TAIL}", "sleep"),  # time.sleep of Python 3.10
        (f"270 0x9 0x7fff1ac29c60 0x0 0x0 0x0 {TAIL}", "socket"),
        (f"7 0x7f2b4246c7f0 0x1 0x1388 0x1 0x0 {TAIL}", "socket"),
        (f"257 0xffffff9c 0x7f2b4246c7f0 0x0 0x0 0x0 {TAIL}", "file"),
        ("-1 0x7fff1ac29c48 0x7f2b426ed503", "file"),  # a page of a mapped file
        (f"61 0x11 0x0 0x0 0x0 0x0 {TAIL}", "other"),  # for a child process
    ],
)
def test_the_call_that_a_thread_is_in_says_what_it_waits_for(text: str, kind: str) -> None:
    wait = parse(text, "x86_64")

    assert wait is not None
    assert wait.kind == kind


def test_numbers_of_calls_belong_to_an_architecture() -> None:
    on_arm, unknown = parse(f"98 0x1000 0x109 0x0 0x0 0x0 {TAIL}", "aarch64"), parse(f"98 0x1 {TAIL} 0x0 0x0", "s390x")

    assert on_arm == Wait("lock", "futex 0x1000")
    assert unknown is None or unknown.kind == "other"


@pytest.mark.parametrize("text", ["", "nonsense", "202 0x1", "-1 0x0 0x0"])
def test_what_says_nothing_is_none(text: str) -> None:
    assert parse(text, "x86_64") is None


def put(proc: Path, pid: int, texts: dict[int, str]) -> None:
    for tid, text in texts.items():
        path = proc / str(pid) / "task" / str(tid)
        path.mkdir(parents=True)
        (path / "syscall").write_text(text)


PRIVATE = f"202 0x55b93a458f10 0x189 0x0 0x0 0x0 {TAIL}"
SLEEP = f"230 0x1 0x1 0x7fff1ac29c60 0x0 0x0 {TAIL}"


@pytest.mark.parametrize(
    ("others", "kind"),
    [
        ([PRIVATE, SLEEP, SLEEP], "sleep"),  # a pool, one of whose threads is idle
        ([SLEEP, "running"], "running"),  # the interpreter's lock: another thread computes
        ([SLEEP, f"7 0x7f2b4246c7f0 0x1 0x1388 0x1 0x0 {TAIL}"], "threads"),
        ([SLEEP, f"288 0x1b 0x7f2b4246c7f0 0x1 0x0 0x0 0x0 {TAIL}"], "sleep"),  # one that serves others
        ([PRIVATE], "threads"),
        ([], "threads"),
    ],
)
def test_who_waits_for_its_threads_waits_for_what_they_wait_for(tmp_path: Path, others: list[str], kind: str) -> None:
    put(tmp_path, 7, {7: PRIVATE, **{8 + i: text for i, text in enumerate(others)}})

    wait = waits_in(7, proc=str(tmp_path), machine="x86_64")

    assert wait is not None
    assert wait.kind == kind


@pytest.mark.parametrize(
    ("name", "kind"), [("socket:[5]", "socket"), ("/data/train.bin", "file"), ("pipe:[7]", "other"), (None, "other")]
)
def test_a_read_waits_for_what_its_descriptor_is(tmp_path: Path, name: str | None, kind: str) -> None:
    put(tmp_path, 7, {7: f"0 0xd 0x7f2b42022c30 0x1 0x0 0x0 {TAIL}"})
    (tmp_path / "7" / "fd").mkdir()
    if name is not None:
        (tmp_path / "7" / "fd" / "13").symlink_to(name)

    wait = waits_in(7, proc=str(tmp_path), machine="x86_64")

    assert wait is not None
    assert wait.kind == kind


def test_locks_on_two_files_are_two_locks(tmp_path: Path) -> None:
    for pid, name in ((7, "/data/a"), (8, "/data/b")):
        put(tmp_path, pid, {pid: f"73 0x11 0x2 0x0 0x0 0x0 {TAIL}"})
        (tmp_path / str(pid) / "fd").mkdir()
        (tmp_path / str(pid) / "fd" / "17").symlink_to(name)

    waits = [waits_in(pid, proc=str(tmp_path), machine="x86_64") for pid in (7, 8)]

    assert waits == [Wait("lock", "file /data/a"), Wait("lock", "file /data/b")]


def test_a_process_that_is_gone_is_none(tmp_path: Path) -> None:
    assert waits_in(7, proc=str(tmp_path), machine="x86_64") is None


def hold(lock: object, path: str, kind: str) -> None:
    if kind == "semaphore":
        lock.acquire()  # type: ignore[attr-defined]
    else:
        with Path(path).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)


@pytest.mark.skipif(not is_known_here(), reason="only Linux shows what a process waits in")
@pytest.mark.parametrize("kind", ["semaphore", "flock"])
def test_a_child_that_waits_for_a_lock_is_seen(tmp_path: Path, kind: str) -> None:
    context = multiprocessing.get_context("fork")
    lock, path = context.Lock(), tmp_path / "lock"
    lock.acquire()
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        child = context.Process(target=hold, args=(lock, os.fspath(path), kind))
        child.start()
        assert child.pid is not None
        try:
            seen = watch(child.pid)
        finally:
            child.kill()
            child.join()

    if seen == "forbidden":
        pytest.skip("this system does not let a parent look")
    assert seen == "lock"


def watch(pid: int) -> str:
    """Look until it waits for a lock, as it will."""
    last = ""
    for _ in range(2000):
        try:
            wait = waits_in(pid)
        except PermissionError:
            return "forbidden"
        if wait is None and not Path(f"/proc/{pid}/syscall").exists():
            return "forbidden"
        last = wait.kind if wait is not None else ""
        if last == "lock":
            return last
        time.sleep(0.005)
    return last


def test_a_wait_for_the_interpreters_lock_is_told_by_where_the_lock_lies() -> None:
    text = f"202 0x7ff3a394e6f0 0x189 0x0 0x7f0011223344 0x0 {TAIL}"
    there, elsewhere = range(0x7FF3A3844000, 0x7FF3A39BA000), range(0x1000, 0x2000)

    assert parse(text, "x86_64", there) == Wait("interpreter")
    assert parse(text, "x86_64", elsewhere) == Wait("threads")


@pytest.mark.skipif(not is_known_here(), reason="the numbers of this machine's system calls are not known")
def test_threads_that_compute_in_python_are_found_waiting_for_its_lock() -> None:
    ended = threading.Event()

    def compute() -> None:
        while not ended.is_set():
            sum(range(1000))

    lock, threads = interpreter_memory(), [threading.Thread(target=compute, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        deadline_s, kinds = time.monotonic() + 30, set[str]()
        while "interpreter" not in kinds and time.monotonic() < deadline_s:
            looks = (thread_waits_in(os.getpid(), t.native_id, interpreter=lock) for t in threads if t.native_id)
            kinds |= {wait.kind for wait in looks if wait is not None}
    finally:
        ended.set()
        for thread in threads:
            thread.join()

    assert lock
    assert "interpreter" in kinds
    assert kinds <= {"interpreter", "running"}
