"""Each fit has a folder of its own, and all its ranks have the same one, however they were started."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch.distributed as dist

from stallmeter.engine.monitor import Monitor
from stallmeter.ranks import channels
from stallmeter.ranks import run_folder as run_folder_module
from stallmeter.ranks.channels import EXCHANGE_FOLDER, FolderChannel, StoreChannel
from stallmeter.ranks.launcher import job_from_environment, rank_from_environment
from stallmeter.ranks.run_folder import Channel, Channels, RunFolder, new_name
from stallmeter.recording import Reader, ranks
from stallmeter.records import Event, StepRecord

from ..children import our_threads
from ..monitors import bare_monitor
from ..ports import free_port
from ..warm import Forks, Program

PROGRAM = Path(__file__).with_name("plain_ranks.py")
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "GROUP_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PM")


# -- what the launcher says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"RANK": "x"}, (0, 1)),
        ({"RANK": "²", "WORLD_SIZE": "8"}, (0, 1)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, (1, 4)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "2"}, (1, 2)),
        # sbatch and salloc reserve 8 tasks; the program that is started without srun is one process.
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, (0, 1)),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8"}, (0, 1)),
        # mpirun on the nodes of an allocation: its daemons are the tasks of the step.
        (
            {f"OMPI_COMM_WORLD_{k}": v for k, v in {"RANK": "5", "SIZE": "8"}.items()}
            | {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"},
            (5, 8),
        ),
    ],
)
def test_ranks_are_those_of_the_launcher(environ: dict[str, str], expected: tuple[int, int]) -> None:
    assert rank_from_environment(environ) == expected


def test_a_step_of_slurm_is_told_from_all_others() -> None:
    step = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    others = [{**step, "SLURM_STEP_ID": "1"}, {**step, "SLURM_JOB_ID": "8"}, {**step, "SLURM_RESTART_COUNT": "1"}]
    assert len({job_from_environment(environ) for environ in (step, *others)}) == 4
    assert job_from_environment({**step, "SLURM_PROCID": "1"}) == job_from_environment(step)
    assert job_from_environment({}) is None
    assert job_from_environment({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}) is None


# -- questions and answers ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store() -> Any:
    return dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=10), wait_for_workers=False)


def line_makers(kind: str, store: Any, folder: Path) -> Callable[[str], Channel]:
    def make(topic: str) -> Channel:
        if kind == "files":
            return FolderChannel(folder / EXCHANGE_FOLDER / topic.replace("/", "-"))
        if kind == "file store":
            return StoreChannel(dist.FileStore(str(folder / "store"), -1), topic)
        return StoreChannel(
            dist.TCPStore("127.0.0.1", store.port, None, False, wait_for_workers=False), f"{folder}{topic}"
        )

    return make


class Ranks:
    """The identities of some ranks, as if each were a process of its own."""

    def __init__(self, folder: Path, make: Callable[[str], Channel], monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._make, self._monkeypatch = folder, make, monkeypatch
        self._counts: dict[int, Any] = {}

    def begin(self, rank: int, world_size: int = 3, **options: Any) -> RunFolder:
        found = RunFolder(rank, world_size, lambda topic: {"line": partial(self._make, topic)}, **options)
        counts = self._counts.setdefault(rank, type(run_folder_module._fits)())
        with self._monkeypatch.context() as patch:
            patch.setattr(run_folder_module, "_fits", counts)
            found.begin("fit", lambda: new_name(self._folder, time.time()), attempt=lambda name, call: call())
        return found


def known(run_folder: RunFolder) -> str:
    deadline = time.monotonic() + 30
    while (name := run_folder.name()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert name is not None
    return name


@pytest.mark.parametrize("kind", ["store", "file store", "files"])
def test_every_fit_has_one_name_on_all_ranks(
    kind: str, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_ranks = Ranks(tmp_path, line_makers(kind, store, tmp_path), monkeypatch)
    fits = [[all_ranks.begin(rank) for rank in order] for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2))]
    names = [{known(one) for one in fit} for fit in fits]
    assert [len(found) for found in names] == [1, 1, 1]
    assert len(set.union(*names)) == 3
    assert not any(one.why_own_folder for fit in fits for one in fit)
    deadline = time.monotonic() + 30
    while our_threads("stallmeter-run-folder") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not our_threads("stallmeter-run-folder")
    assert not (tmp_path / EXCHANGE_FOLDER).exists()


def test_a_rank_that_has_its_answer_leaves_the_others_theirs(tmp_path: Path) -> None:
    """It removes the folder where it is the last one in it, not while another one waits."""
    rank_0, first, second = (FolderChannel(tmp_path / "exchange" / "fit") for _ in range(3))
    first.ask("a")
    second.ask("b")
    assert sorted(rank_0.questions()) == ["a", "b"]
    rank_0.answer("b", "name")
    assert second.take_answer("b") == "name"
    second.withdraw("b")
    rank_0.answer("a", "name")
    assert first.take_answer("a") == "name"
    assert rank_0.questions() == []
    first.withdraw("a")
    assert not (tmp_path / "exchange").exists()


@pytest.mark.parametrize("kind", ["store", "file store", "files"])
def test_a_post_is_taken_once(kind: str, store: Any, tmp_path: Path) -> None:
    make = line_makers(kind, store, tmp_path)
    first, second, another = make("posts/a"), make("posts/a"), make("posts/b")
    for channel in (first, another):
        channel.expect_posts()
    assert first.take_post(1) is None
    assert not second.is_posted(1)
    assert second.post(1, "old")
    assert second.post(1, "new")
    assert second.is_posted(1)
    assert another.take_post(1) is None
    assert first.take_post(2) is None
    assert first.take_post(1) == "new"
    assert first.take_post(1) is None
    assert not second.is_posted(1)
    assert second.post(1, "last")
    assert second.is_posted(1)  # torch 2.2's store sets without an answer: another client may be served first
    for channel in (first, another):
        channel.end_posts([1])
    assert not second.is_posted(1)
    assert not (tmp_path / EXCHANGE_FOLDER).exists()


@pytest.mark.parametrize("kind", ["store", "file store"])
def test_a_post_that_comes_while_one_is_taken_is_taken_next(
    kind: str, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = line_makers(kind, store, tmp_path)
    first, second = make("posts/a"), make("posts/a")
    second.post(1, "old")
    assert second.is_posted(1)  # as above
    get = first._get  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(first, "_get", lambda key: (get(key), second.post(1, "new"))[0])
        assert first.take_post(1) == "old"
    assert first.take_post(1) == "new"
    assert first.take_post(1) is None


@pytest.mark.parametrize("kind", ["store", "files"])
def test_what_an_earlier_start_left_in_a_store_is_no_answer(
    kind: str, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = line_makers(kind, store, tmp_path)
    dead = make("fit/1")
    dead.ask("of-a-rank-that-died")
    dead.answer("of-another", "20200101-000000-abcdef")
    dead.ask("of-a-third")
    all_ranks = Ranks(tmp_path, make, monkeypatch)
    second = all_ranks.begin(1, world_size=2)
    time.sleep(0.1)
    assert second.name() is None
    first = all_ranks.begin(0, world_size=2)
    assert first.name() == known(second)


def test_a_rank_that_gets_no_answer_records_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    all_ranks = Ranks(tmp_path, line_makers("files", None, tmp_path), monkeypatch)
    alone = all_ranks.begin(1, timeout_s=0.2)
    assert alone.name() is None
    assert known(alone)
    assert "did not answer" in alone.why_own_folder
    late = all_ranks.begin(0)
    assert late.name() != alone.name()
    late.shorten_wait()


@pytest.fixture(scope="session")
def hanging_server() -> socket.socket:
    """Takes connections and says nothing until this process ends: torch's client would write what it thinks of that."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(8)
    os.dup(server.fileno())  # for good
    return server


def monitor_of(rank: int, folder: Path, environ: Mapping[str, str], **options: Any) -> Monitor:
    lines = partial(channels.find_channels, directory=folder, environ=environ)
    run_folder = RunFolder(rank, 2, lines, **options)
    return bare_monitor(folder, rank=rank, world_size=2, interval_s=0.05, run_folder=run_folder)


@pytest.mark.parametrize("there", ["hangs", "refuses", "is not there"])
def test_a_store_that_does_not_answer_costs_the_common_folder_alone(
    there: str,
    hanging_server: socket.socket,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1"}
    hanging, closed = str(hanging_server.getsockname()[1]), str(free_port())
    environ = {
        "hangs": {**agent, "MASTER_PORT": hanging},
        "refuses": {**agent, "MASTER_PORT": closed},
        "is not there": {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": hanging},
    }[there]
    monitors = [monitor_of(rank, tmp_path, environ) for rank in (0, 1)]
    for monitor in monitors:
        for _ in monitor.watch(range(4)):
            time.sleep(0.02)
    assert monitors[1].folder is None
    for monitor in monitors:
        monitor.close()
    folders = [monitor.folder for monitor in monitors]
    assert None not in folders
    assert folders[0] != folders[1]
    records = [r for r, _ in Reader(folders[1], 1)]  # type: ignore[arg-type]
    assert [r.index for r in records if isinstance(r, StepRecord)] == [0, 1, 2, 3]
    [event] = [r for r in records if isinstance(r, Event) and r.name == "a folder of its own"]
    assert "rank 0 did not answer" in event.detail
    assert "apart from rank 0" in caplog.text
    assert "frame #" not in capfd.readouterr().err  # of a client of torch's that was refused


def test_what_came_before_the_name_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder_module, "_fits", Counter())  # each rank is a process of its own
    environ = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3"}
    second = monitor_of(1, tmp_path, environ)
    for _ in second.watch(range(4)):
        time.sleep(0.02)
    assert second.folder is None
    monkeypatch.setattr(run_folder_module, "_fits", Counter())
    first = monitor_of(0, tmp_path, environ)
    for monitor in (second, first):
        for _ in monitor.watch(range(4)):
            time.sleep(0.02)
        monitor.close()
    assert first.folder == second.folder is not None
    assert ranks(second.folder) == (0, 1)
    header = Reader(second.folder, 1).header()
    assert header.run_id == Reader(second.folder, 0).header().run_id == second.folder.name[-6:]
    assert [r.index for r, _ in Reader(second.folder, 1) if isinstance(r, StepRecord)] == list(range(8))
    assert [f.name for f in tmp_path.iterdir()] == [second.folder.name]


def test_two_processes_of_one_rank_do_not_write_one_file(tmp_path: Path) -> None:
    class Told:
        """Rank 0's answer is there at once."""

        def take_answer(self, nonce: str) -> str:
            return "20260101-120000-abcdef"

        def ask(self, nonce: str) -> None: ...

        def withdraw(self, nonce: str) -> None: ...

    lines = cast(Channels, lambda topic: {"line": Told})
    made = {"rank": 1, "world_size": 2, "interval_s": 0.05}
    monitors = [bare_monitor(tmp_path, run_folder=RunFolder(1, 2, lines), **made) for _ in range(2)]
    for monitor in monitors:
        monitor.close()
        assert monitor.folder is not None
        [event] = [r for r, _ in Reader(monitor.folder, 1) if isinstance(r, Event) and r.name != "end"] or [None]
        assert (event is None) == (monitor.folder.name == "20260101-120000-abcdef")
    assert len({monitor.folder for monitor in monitors}) == 2


@pytest.mark.long
def test_nobody_talks_any_more_when_the_interpreter_ends(tmp_path: Path) -> None:
    """A thread that came back out of a call of torch's then would abort the process."""
    program = """
import atexit, threading
atexit.register(lambda: print([t.name for t in threading.enumerate()]))  # the first to register is the last to run
import stallmeter
with stallmeter.Monitor(trackers=None, console=False, hardware=False, workers=False) as monitor:
    print(*(t.name for t in threading.enumerate()))
"""
    environ = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3"}
    said = run_all([[sys.executable, "-c", program]], [clean_environment(STALLMETER_DIR=str(tmp_path), **environ)])
    assert "stallmeter-run-folder" in said.splitlines()[0]
    assert said.splitlines()[1:] == ["['MainThread']"]


# -- real processes ----------------------------------------------------------------------------------------------------


def clean_environment(**more: str) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_VARIABLES)} | more


def run_all(commands: list[list[Any]], environs: list[dict[str, str]]) -> str:
    """Run programs at the same time; returns what they said."""
    return wait_for_all(
        [
            subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for command, environ in zip(commands, environs, strict=True)
        ]
    )


def wait_for_all(programs: Sequence[subprocess.Popen[str] | Program]) -> str:
    """Return what they said; all have to end well."""
    try:
        said = [program.communicate(timeout=200)[0] for program in programs]
        codes = [program.returncode for program in programs]
        assert codes == [0] * len(codes), [text[-3000:] for text in said]  # who fails first makes the others fail
    finally:
        for program in programs:
            program.kill()
    return "".join(said)


def assert_common(directory: Path, fits: int) -> None:
    """Each fit has a folder, with one file of each of two ranks and the steps of one fit."""
    found = sorted(directory.iterdir())
    assert len(found) == fits, found
    for folder in found:
        assert [f.name for f in sorted(folder.glob("rank*.jsonl"))] == ["rank0.0000.jsonl", "rank1.0000.jsonl"]
        for rank in (0, 1):
            assert Reader(folder, rank).header().world_size == 2
            assert [r.index for r, _ in Reader(folder, rank) if isinstance(r, StepRecord)] in ([0, 1, 2], [])


TORCHRUN = "from torch.distributed.run import main; main()"


@pytest.mark.long
def test_two_nodes_and_two_starts_of_torchrun_on_one_port(forks: Forks, tmp_path: Path) -> None:
    """The launchers are forks; the ranks that they start are interpreters of their own."""
    where = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", free_port()]
    for _ in range(2):
        environ = clean_environment(OMP_NUM_THREADS="1")
        wait_for_all(
            [
                forks.start(
                    TORCHRUN,
                    *(*where, "--node-rank", node, PROGRAM, tmp_path, "gloo"),
                    cwd=tmp_path,
                    env=environ,
                    together=True,
                )
                for node in ("0", "1")
            ]
        )
    assert_common(tmp_path / "gloo", fits=4)
    assert_common(tmp_path / "gloo-early", fits=2)


@pytest.mark.long
def test_launchers_without_a_store_of_their_own(forks: Forks, tmp_path: Path) -> None:
    """Ranks in variables or in arguments, the group's store on one port twice, and in a file: six starts of a loop."""
    program = forks.start(PROGRAM, tmp_path, free_port(), cwd=tmp_path, env=clean_environment(), together=True)
    said = wait_for_all([program])
    assert "frame #" not in said
    for name in ("first", "second", "by-file"):
        assert_common(tmp_path / name, fits=2)
    for name in ("first", "second"):  # begun before there was a process group
        assert_common(tmp_path / f"{name}-early", fits=1)
    # 2 runs of 3 steps with one all_reduce each: nothing of ours is among what the process group was asked for.
    assert {path.read_text() for path in tmp_path.glob("*.asked")} == {"6"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("job", "rank", "size"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8"}, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        ({"PMIX_NAMESPACE": "prterun-node1-4711@1"}, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ],
)
def test_ranks_without_torch(job: dict[str, str], rank: str, size: str, tmp_path: Path) -> None:
    """Two steps of one allocation at the same time, of two ranks with two fits each."""
    steps = [{"SLURM_STEP_ID": step} if "SLURM_JOB_ID" in job else {} for step in "01"]
    environs = [
        clean_environment(**job, **step, **{rank: one, size: "2"})
        for step in steps[: 1 + bool(steps[0])]
        for one in "01"
    ]
    run_all([[sys.executable, PROGRAM, tmp_path, "loop"]] * len(environs), environs)
    assert_common(tmp_path / "loop", fits=len(environs))
