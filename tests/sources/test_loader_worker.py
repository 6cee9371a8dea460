"""What a worker writes down about its batches, its memory, and what happens where something is missing."""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from stallmeter.machine import procfs
from stallmeter.records import WorkerBatch, WorkerMemory
from stallmeter.sources.loader import LoaderProbe, loop, ring, worker
from stallmeter.sources.loader.memory import MemoryLooks

from . import loader_datasets as data

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads procfs")


@pytest.fixture
def probe() -> Any:
    probe = LoaderProbe()
    yield probe
    probe.close()


def batches(probe: LoaderProbe) -> list[WorkerBatch]:
    return [record for record in probe.sample(0.0) if isinstance(record, WorkerBatch)]


def run(probe: LoaderProbe, dataset: Any, **options: Any) -> list[WorkerBatch]:
    options = {"batch_size": 2, "num_workers": 1, **options}
    loader = DataLoader(dataset, **options)
    assert probe.attach(loader).probed
    count = sum(1 for _ in loader)
    records = batches(probe)
    assert len(records) == count
    return records


def test_a_fetch_that_computes(probe: LoaderProbe) -> None:
    records = run(probe, data.Burning(8, 0.015))
    assert all(record.cpu_s >= 0.030 for record in records)
    assert all(record.wall_s >= record.cpu_s for record in records)
    assert all((record.process_cpu_s or 0) >= 0.030 for record in records)
    if records[0].run_queue_s is not None:
        # However busy the machine: what is not computing was queued for a CPU.
        assert statistics.median((record.blocked_s or 0) / record.wall_s for record in records) < 0.5


def test_what_the_users_own_start_takes_is_told_with_a_workers_first_batch(probe: LoaderProbe) -> None:
    records = run(probe, data.Sleeping(8, 0.001), num_workers=2, worker_init_fn=lambda _: time.sleep(0.03))
    first = [record for record in records if record.idle_s is None]
    assert len(first) == 2
    assert all((record.init_s or 0) >= 0.03 for record in first)
    assert all(record.wall_s < 0.03 for record in first)
    assert {record.init_s for record in records if record not in first} == {None}


def _start(worker: int, seconds: float = 0.0) -> None:
    time.sleep(seconds)


class _Starts:
    def __call__(self, worker: int) -> None:
        _start(worker)

    def start(self, worker: int) -> None:
        _start(worker)


class _Collates:
    def __call__(self, items: list[Any]) -> list[Any]:
        return items


@pytest.mark.parametrize(
    ("own", "name"),
    [
        (_Collates(), "_Collates.__call__"),
        (partial(_Collates.__call__, _Collates()), "_Collates.__call__"),
        (None, ""),
        (torch.utils.data.default_collate, ""),
    ],
)
def test_where_the_users_own_collate_function_is_defined_is_told(probe: LoaderProbe, own: Any, name: str) -> None:
    info = probe.attach(DataLoader(data.Sleeping(8, 0.0), collate_fn=own))
    assert info.collate_function == name
    assert info.collate_file.endswith("test_loader_worker.py") is bool(name)
    assert (info.collate_line > 0) is bool(name)


@pytest.mark.parametrize(
    ("own", "name"),
    [
        (_start, "_start"),
        (partial(partial(_start), seconds=0.0), "_start"),
        (_Starts(), "_Starts.__call__"),
        (_Starts().start, "_Starts.start"),
        (None, ""),
        (print, ""),
    ],
)
def test_where_the_users_own_start_is_defined_is_told(probe: LoaderProbe, own: Any, name: str) -> None:
    loader = DataLoader(data.Sleeping(8, 0.0), num_workers=1, worker_init_fn=own)
    for _ in range(2):  # then it is ours that stands there
        info = probe.attach(loader)
        assert info.init_function == name
        assert info.init_file.endswith("test_loader_worker.py") is bool(name)
        assert (info.init_line > 0) is bool(name)


def test_a_fetch_that_waits(probe: LoaderProbe) -> None:
    records = run(probe, data.Sleeping(8, 0.015))
    assert all(record.wall_s >= 0.030 for record in records)
    assert statistics.median(record.cpu_s for record in records) < 0.015
    if records[0].run_queue_s is not None:
        assert statistics.median(record.blocked_s or 0 for record in records) > 0.020


@linux
def test_waiting_for_a_cpu_is_told_apart(probe: LoaderProbe) -> None:
    if procfs.open_run_queue() is None:
        pytest.skip("this kernel keeps no scheduler statistics")
    cpu = max(os.sched_getaffinity(0))

    # Three workers share one CPU: each computes a third of the time and is queued for the rest.
    def pin(worker_id: int) -> None:
        os.sched_setaffinity(0, {cpu})

    loader = DataLoader(
        data.Burning(18, 0.020), batch_size=1, num_workers=3, worker_init_fn=pin, multiprocessing_context="fork"
    )
    probe.attach(loader)
    assert sum(1 for _ in loader) == 18
    records = batches(probe)
    assert sum(record.run_queue_s or 0 for record in records) > 0.5 * sum(record.cpu_s for record in records)


def test_collating_is_timed_apart(probe: LoaderProbe) -> None:
    records = run(probe, data.Sleeping(6, 0.005), collate_fn=data.slow_collate)
    assert all(0.020 <= (record.collate_s or 0) <= record.wall_s - 0.010 for record in records)
    assert [record.items for record in records] == [2, 2, 2]


def test_batches_are_dated_in_unix_time(probe: LoaderProbe) -> None:
    before = time.time()
    records = run(probe, data.Sleeping(6, 0.001))
    assert all(before - 0.1 <= record.time_s <= time.time() + 0.1 for record in records)
    assert [record.time_s for record in records] == sorted(record.time_s for record in records)


@linux
def test_reads_from_a_device_are_counted(probe: LoaderProbe, tmp_path: Path) -> None:
    size = 4 * 2**20
    cold = data.ColdFile(tmp_path / "file", size)
    before = procfs.process_read_bytes()
    cold[0]
    if not procfs.COUNTS_READS or procfs.process_read_bytes() - before < size:
        pytest.skip("nothing here counts what this file system reads")
    assert all((record.read_bytes or 0) >= size for record in run(probe, cold, batch_size=1))


def test_what_the_kernel_does_not_say_is_none(probe: LoaderProbe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "open_run_queue", lambda: None)
    monkeypatch.setattr(worker, "COUNTS_READS", False)
    records = run(probe, data.Numbers(), multiprocessing_context="fork")
    assert {(record.run_queue_s, record.blocked_s, record.read_bytes) for record in records} == {(None, None, None)}
    assert all(record.wall_s > 0 for record in records)


@pytest.mark.parametrize("raised", [OSError("no descriptors left"), AttributeError("renamed"), ValueError("closed")])
def test_a_worker_that_cannot_be_timed_lives_on(
    probe: LoaderProbe, monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    def fail() -> int | None:
        raise raised

    monkeypatch.setattr(worker, "open_run_queue", fail)
    make = partial(DataLoader, data.Numbers(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    expected = data.batches(make(), 1)
    probed = make()
    probe.attach(probed)
    assert all(torch.equal(a, b) for a, b in zip(data.batches(probed, 1), expected, strict=True))
    assert batches(probe) == []


@linux
def test_a_descriptor_closed_by_somebody_else(probe: LoaderProbe) -> None:
    if procfs.open_run_queue() is None:
        pytest.skip("this kernel keeps no scheduler statistics")
    assert {record.run_queue_s for record in run(probe, data.ClosingFiles())} == {None}


def test_more_batches_than_there_is_room_for(probe: LoaderProbe) -> None:
    total = ring.CAPACITY + 60
    loader = DataLoader(data.Sleeping(total, 0.0), batch_size=1, num_workers=1)
    probe.attach(loader)
    assert sum(1 for _ in loader) == total
    recorded = len(batches(probe))
    assert recorded >= ring.CAPACITY - 1
    assert recorded + probe.lost == total
    probe.detach()
    assert recorded + probe.lost == total


@linux
def test_memory_of_the_workers(probe: LoaderProbe) -> None:
    def memory(time_s: float) -> WorkerMemory | None:
        found = [record for record in probe.sample(time_s) if isinstance(record, WorkerMemory)]
        return found[0] if found else None

    loader = DataLoader(data.Numbers(), batch_size=4, num_workers=2, persistent_workers=True)
    probe.attach(loader)
    assert memory(1000) is None
    data.batches(loader, 1)
    first = memory(1001)
    assert first is not None
    assert (first.time_s, first.workers) == (1001, 2)
    assert first.rss_bytes > 2 * 10**6
    assert first.uss_bytes is not None
    assert 0 < first.uss_bytes < first.rss_bytes
    assert first.cpus == first.process_cpus == len(os.sched_getaffinity(0))
    assert memory(1003) is None
    second = memory(1007)
    assert second is not None
    assert second.uss_bytes is None
    third = memory(1070)
    assert third is not None
    assert third.uss_bytes is not None
    iterator = loader._iterator
    assert iterator is not None
    iterator._shutdown_workers()
    assert memory(2000) is None


def test_a_process_is_known_by_its_start_too() -> None:
    """A later process with the number of a worker is none."""
    now_s = time.time()
    assert MemoryLooks().sample(0.0, [ring.Worker(os.getpid(), now_s - 10 * 86400 - time.monotonic())]) is None
    assert MemoryLooks().sample(0.0, [ring.Worker(2**22 + 1, now_s)]) is None
    found = MemoryLooks().sample(0.0, [ring.Worker(os.getpid(), now_s), ring.Worker(os.getpid(), now_s)])
    assert found is not None
    assert found.workers == 1


def test_run_queue_readings() -> None:
    assert procfs.run_queue_ns(b"10 20 3\n", b"90 45 5\n") == 25
    assert procfs.run_queue_ns(b"", b"90 45 5\n") is None
    assert procfs.run_queue_ns(b"10 20 3\n", b"not numbers") is None
    assert procfs.run_queue_ns(b"10 20 3\n", b"90 4 5\n") is None


# -- without workers --------------------------------------------------------------------------------------------------


def loop_over(probe: LoaderProbe, loader: Any) -> int:
    iterator, count = iter(loader), 0
    while True:
        probe.loop_before()
        try:
            next(iterator)
        except StopIteration:
            return count
        probe.loop_after()
        count += 1


def test_without_workers_the_loop_thread_is_timed(probe: LoaderProbe) -> None:
    loader = DataLoader(data.Burning(6, 0.010), batch_size=2)
    assert probe.attach(loader).probed
    assert loop_over(probe, loader) == 3
    records = batches(probe)
    assert [record.worker for record in records] == [-1, -1, -1]
    assert all(0.020 <= record.cpu_s <= record.wall_s for record in records)
    assert {(record.collate_s, record.items) for record in records} == {(None, None)}
    assert all((record.process_cpu_s or 0.0) >= record.cpu_s for record in records)

    probe.attach(DataLoader(data.Sleeping(6, 0.010), batch_size=2))
    loop_over(probe, DataLoader(data.Sleeping(6, 0.010), batch_size=2))
    records = batches(probe)
    assert statistics.median(record.cpu_s for record in records) < 0.010
    if records[0].blocked_s is not None:
        assert statistics.median(record.blocked_s or 0 for record in records) > 0.015


def test_with_workers_the_loop_thread_is_not_timed(probe: LoaderProbe) -> None:
    with_workers = DataLoader(data.Numbers(), num_workers=1)
    probe.attach(with_workers)
    probe.attach(DataLoader(data.Numbers()))
    assert not probe.in_loop
    loop_over(probe, DataLoader(data.Numbers()))
    assert batches(probe) == []
    probe.attach([1, 2, 3])
    assert not probe.in_loop


def test_a_batch_that_was_not_asked_for_is_ignored(probe: LoaderProbe) -> None:
    probe.in_loop = True
    probe.loop_after()
    probe.loop_before()
    probe.loop_before()
    probe.loop_after()
    probe.loop_after()
    assert len(batches(probe)) == 1


def test_batches_nobody_drained_are_counted(probe: LoaderProbe) -> None:
    probe.in_loop = True
    for _ in range(loop.CAPACITY + 5):
        probe.loop_before()
        probe.loop_after()
    assert probe.lost == 5
    assert len(batches(probe)) == loop.CAPACITY


@linux
def test_the_thread_that_runs_the_loop_is_the_one_read() -> None:
    if procfs.open_run_queue() is None:
        pytest.skip("this kernel keeps no scheduler statistics")
    timer = loop.LoopTimer()

    def reads() -> tuple[str, ...]:
        timer.before()
        timer.after()
        return Path(f"/proc/self/fd/{timer._fd}").readlink().parts[-4:]

    def expected() -> tuple[str, ...]:
        return (str(os.getpid()), "task", str(threading.get_native_id()), "schedstat")

    assert reads() == expected()
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(reads() == expected()))
    thread.start()
    thread.join()
    assert seen == [True]
    reads()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if reads() == expected() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert reads() == expected()
    timer.close()
    timer.close()
    assert reads() == expected()
    timer.close()


def test_the_loop_times_all_threads_of_its_process() -> None:
    timer = loop.LoopTimer()
    timer.before()
    began_s = time.thread_time()
    thread = threading.Thread(target=_compute, args=(0.05,))
    thread.start()
    thread.join()
    own_s = time.thread_time() - began_s
    timer.after()
    (fetch,) = timer.drain()
    timer.close()
    assert fetch.process_cpu_ns / 1e9 - own_s >= 0.05
    assert fetch.cpu_ns < fetch.process_cpu_ns


def _compute(for_s: float) -> None:
    until_s = time.thread_time() + for_s
    while time.thread_time() < until_s:
        pass


@pytest.mark.parametrize(("clone", "spare"), [(False, 2 * 3 * (40 * 40 - 10 * 10)), (True, 0)])
def test_some_batches_tell_what_is_sent_with_them(probe: LoaderProbe, clone: bool, spare: int) -> None:
    records = run(probe, data.Crops(160, clone=clone), collate_fn=list)
    looked_at = [index for index, record in enumerate(records, start=1) if record.spare_bytes is not None]
    assert looked_at == [2, 4, 8, 16, 32, 64]
    assert {records[index - 1].spare_bytes for index in looked_at} == {spare}
