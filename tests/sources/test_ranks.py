"""Other ranks are found by what they record."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallmeter.machine import processes
from stallmeter.recording import Header, Recorder
from stallmeter.sources.ranks import LONGEST_S, RankSource

from ..warm import NO_PICTURES


@pytest.fixture(autouse=True)
def strangers_all() -> Iterator[None]:
    yield
    processes.set_known_ranks({})


def begin(folder: Path, rank: int, host: str = "here") -> None:
    recorder = Recorder(folder, Header(run_id="x", rank=rank, world_size=4, started_s=5.0, host=host, pid=100 + rank))
    recorder.flush()
    recorder.close()


def test_ranks_of_this_host(tmp_path: Path) -> None:
    """Each as soon as it records; those of other hosts are none here."""
    source = RankSource(lambda: tmp_path, 1, 2, "here")
    assert source.sample(1000.0) == ()
    begin(tmp_path, 1)
    begin(tmp_path, 0)
    begin(tmp_path, 2, "there")
    (tmp_path / "rank3.0000.jsonl").touch()  # it has no header yet
    source.sample(1000.5)
    assert processes.known_ranks == {}
    source.sample(1001.0)
    assert processes.known_ranks == {100: 5.0}
    (tmp_path / "rank3.0000.jsonl").unlink()
    begin(tmp_path, 3)
    source.sample(1004.0)
    assert processes.known_ranks == {100: 5.0, 103: 5.0}
    source.close()
    assert processes.known_ranks == {}


def test_the_folder_is_looked_at_rarely_and_not_when_all_are_known(tmp_path: Path) -> None:
    source = RankSource(lambda: tmp_path, 0, 1, "here")
    for second in range(200):
        source.sample(1000.0 + second)
    begin(tmp_path, 0)
    begin(tmp_path, 1)
    source.sample(1200.0)
    assert processes.known_ranks == {}
    source.sample(1200.0 + LONGEST_S)
    assert processes.known_ranks == {101: 5.0}
    (tmp_path / "rank1.0000.jsonl").unlink()
    source.sample(1e6)
    assert processes.known_ranks == {101: 5.0}


def test_before_there_is_a_folder_nothing_is_looked_for() -> None:
    assert RankSource(lambda: None, 0, 1).sample(0.0) == ()


TWO_RANKS = """
import os, sys, time
import stallmeter
os.environ |= {"PMIX_NAMESPACE": "a job", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
child = os.fork()
os.environ["OMPI_COMM_WORLD_RANK"] = "0" if child else "1"
deadline = time.monotonic() + 60
with stallmeter.Monitor(directory="runs", trackers=None, interval_s=0.1, console=False) as monitor:
    for _ in monitor.watch(iter(int, 1)):
        time.sleep(0.01 if child else 0.0)
        last = monitor.window.host.samples.items[-1:]
        known = last and last[0].ranks_cpus is not None and last[0].job_cpus is not None
        if time.monotonic() > deadline or (os.path.exists("done") if not child else known):
            break
    if child:
        print(last[0].job_processes, last[0].ranks_cpus > last[0].job_cpus, flush=True)
        open("done", "w").close()
        os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks")
def test_a_rank_that_was_forked_and_computes(tmp_path: Path) -> None:
    """Seen by its parent, which is the other rank and sleeps: no process of its own, and no stranger."""
    done = subprocess.run(
        [sys.executable, "-c", NO_PICTURES + TWO_RANKS],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("1 True\n", 0), done.stderr
