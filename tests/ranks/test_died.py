"""Which ranks died, from what they left: none that still runs, and none of a job that was stopped as a whole."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stallmeter.machine.procfs import process_space
from stallmeter.ranks.job import APART_S, LOST_S, read_job
from stallmeter.recording import Header, Recorder
from stallmeter.recording.ends import ProcessEnd, write_ends
from stallmeter.records import Event, LedgerRecord
from stallmeter.report.job.endings import broken_lines, unheard_lines


@pytest.fixture(scope="module")
def gone() -> int:
    """A process that has ended."""
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return child


def write(
    folder: Path, rank: int, pid: int, *, ago_s: float = 10.0, ended: str | None = None, events: int = 0, **about: Any
) -> None:
    now_s = time.time()
    about = {"host": socket.gethostname(), "process_space": process_space(), "started_s": now_s, **about}
    recorder = Recorder(folder, Header(run_id="abcdef", rank=rank, world_size=2, pid=pid, **about))
    recorder.write(LedgerRecord(time_s=now_s - ago_s, wall_s=400.0, steps=70 + rank, epochs=1, buckets={}))
    if ended is not None:
        recorder.write(Event(time_s=now_s - ago_s, name="end", detail=ended))
    for number in range(events):
        recorder.write(Event(time_s=now_s - ago_s, name=f"something {number}"))
    recorder.close()


def died(folder: Path) -> list[int]:
    return [view.rank for view in read_job(folder).died]


@pytest.mark.parametrize(
    ("ended", "later_s", "expected"),
    [
        ("exception: RuntimeError", 0.5, [1]),  # gloo: the collective fails at once
        ("exception: DistBackendError", 0.5, [1]),
        (None, APART_S + 5, [1]),  # NCCL: it hangs for minutes, and then its watchdog ends the process
        ("end", APART_S + 5, [1]),
        (None, 0.5, []),  # the whole job was killed
        ("end", 0.5, []),  # it left by os._exit once it was done
        ("exception: ValueError", 0.5, []),  # the launcher ends the others
        ("exception: KeyboardInterrupt", 0.5, []),
    ],
)
def test_a_rank_that_is_gone(tmp_path: Path, gone: int, ended: str | None, later_s: float, expected: list[int]) -> None:
    write(tmp_path, 0, gone, ended=ended, ago_s=10.0)
    write(tmp_path, 1, gone, ago_s=10.0 + later_s)
    assert died(tmp_path) == expected


def test_a_rank_that_runs_is_never_dead(tmp_path: Path, gone: int) -> None:
    write(tmp_path, 0, gone, ended="exception: RuntimeError")
    write(tmp_path, 1, os.getpid(), ago_s=400.0)
    assert died(tmp_path) == []
    job = read_job(tmp_path)
    assert list(broken_lines(job)) == ["Rank 0 ended by an exception. Last known step: 70."]
    assert list(unheard_lines(job)) == [
        "Rank 1 sent no last word: slower to end, or out of reach. Last known step: 71.",
    ]


@pytest.mark.parametrize("elsewhere", [{"host": "another"}, {"process_space": "another"}, {"process_space": ""}])
@pytest.mark.parametrize(("ago_s", "expected"), [(LOST_S - 20, []), (LOST_S + 20, [1])])
def test_where_nobody_can_be_asked_it_must_have_been_silent_for_long(
    tmp_path: Path, gone: int, elsewhere: dict[str, Any], ago_s: float, expected: list[int]
) -> None:
    write(tmp_path, 0, gone, ended="exception: RuntimeError", ago_s=ago_s)
    write(tmp_path, 1, gone, ago_s=ago_s, **elsewhere)
    assert died(tmp_path) == expected


def test_an_end_among_many_events_is_one(tmp_path: Path, gone: int) -> None:
    write(tmp_path, 0, gone, ended="exception: RuntimeError")
    write(tmp_path, 1, gone, ended="exception: RuntimeError", events=200, ago_s=400.0)
    assert died(tmp_path) == []


def test_who_died_is_said_with_the_last_step(tmp_path: Path, gone: int) -> None:
    write(tmp_path, 0, gone, ended="exception: RuntimeError")
    write(tmp_path, 1, gone)
    assert list(broken_lines(read_job(tmp_path))) == ["Rank 1 died, while others went on. Last known step: 71."]


TERM, KILL, SEGV = (ProcessEnd(time_s=50.0, signal=int(getattr(signal, f"SIG{n}"))) for n in ("TERM", "KILL", "SEGV"))
STATUS_3 = ProcessEnd(time_s=50.0, status=3)


@pytest.mark.parametrize(
    ("ends", "ended", "expected"),
    [
        ([TERM, KILL], None, [1]),  # by a launcher that ends the others
        ([KILL, TERM], None, [0]),
        ([TERM, STATUS_3], None, [1]),
        ([TERM, TERM], None, []),  # the job was stopped
        ([KILL, KILL], None, []),
        ([KILL, replace(KILL, time_s=49.5)], None, []),  # all at once, and one had more memory to give back
        ([KILL, replace(KILL, time_s=47.3)], None, [1]),  # by a launcher that looks every few seconds, and kills
        ([replace(KILL, time_s=47.3), KILL], None, [0]),
        ([SEGV, replace(KILL, time_s=49.5)], None, [1]),  # the other's watchdog
        ([replace(SEGV, time_s=49.5), KILL], None, [0]),
        ([TERM, KILL], "exception: RuntimeError", [1]),
        ([TERM, TERM], "exception: ValueError", []),
        ([ProcessEnd(time_s=50.1), ProcessEnd(time_s=50.0)], None, []),  # nobody could tell how
    ],
)
def test_how_each_ended_tells_who_was_first(
    tmp_path: Path, gone: int, ends: list[ProcessEnd], ended: str | None, expected: list[int]
) -> None:
    write(tmp_path, 0, gone, ended=ended)
    write(tmp_path, 1, gone)
    write_ends(tmp_path, dict(enumerate(ends)))
    assert died(tmp_path) == expected


@pytest.mark.parametrize(
    ("earlier_s", "first"),
    [(0.5, ", rank 1 0.5 s before the next"), (0.0, ""), (-0.25, ", rank 0 0.25 s before the next")],
)
def test_of_ranks_that_were_killed_together_the_first_is_told(
    tmp_path: Path, gone: int, earlier_s: float, first: str
) -> None:
    for rank in (0, 1):
        write(tmp_path, rank, gone)
    write_ends(tmp_path, {0: KILL, 1: replace(KILL, time_s=50.0 - earlier_s)})
    how = "SIGKILL (the kernel sends it where memory runs out)"
    expected = f"Ranks 0 and 1 were ended by {how}{first}. Last known steps: 70, 71."
    assert list(broken_lines(read_job(tmp_path))) == [expected]


def test_a_rank_that_is_gone_while_another_goes_on_has_died(tmp_path: Path, gone: int) -> None:
    write(tmp_path, 0, os.getpid(), ago_s=0.1)
    write(tmp_path, 1, gone, ago_s=0.5)
    assert list(broken_lines(read_job(tmp_path))) == ["Rank 1 died, while others went on. Last known step: 71."]


def test_a_third_rank_that_was_ended_with_the_others_has_not_died(tmp_path: Path, gone: int) -> None:
    write(tmp_path, 0, gone, ended="exception: RuntimeError")
    for rank in (1, 2):
        write(tmp_path, rank, gone)
    write_ends(tmp_path, {0: TERM, 1: replace(KILL, time_s=49.9), 2: TERM})
    assert died(tmp_path) == [1]


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (KILL, "was ended by SIGKILL (the kernel sends it where memory runs out)"),
        (SEGV, "was ended by SIGSEGV"),
        (ProcessEnd(time_s=50.0, signal=99), "was ended by signal 99"),
        (STATUS_3, "left the program with status 3 and no exception"),
    ],
)
def test_how_one_died_is_said(tmp_path: Path, gone: int, end: ProcessEnd, expected: str) -> None:
    for rank in (0, 1):
        write(tmp_path, rank, gone)
    write_ends(tmp_path, {0: TERM, 1: end})
    assert list(broken_lines(read_job(tmp_path))) == [
        f"Rank 1 {expected}, and the others could not go on without it. Last known step: 71."
    ]


def test_a_job_that_ends_as_it_should_has_nothing_to_say(tmp_path: Path, gone: int) -> None:
    for rank in (0, 1):
        write(tmp_path, rank, gone, ended="end")
    job = read_job(tmp_path)
    assert [*broken_lines(job), *unheard_lines(job)] == []


def test_a_job_that_goes_on_has_nothing_to_say(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path, rank, os.getpid(), ago_s=0.0)
    assert list(broken_lines(read_job(tmp_path))) == []
