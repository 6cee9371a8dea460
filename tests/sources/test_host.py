"""The host and the job's process tree, through a fake psutil and a fake /proc; and once for real."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from stallmeter.machine import processes
from stallmeter.machine.budget import Budget
from stallmeter.sources import host
from stallmeter.sources.host import HostSource

DATA = Path(__file__).parent.parent / "data"
MIB = 1 << 20


class FakeProcess:
    """One process of a FakeSystem; CPU seconds are set by the test."""

    def __init__(self, system, pid, parent):
        self.system = system
        self.pid = pid
        self.parent = parent
        self.user_s = 0.0
        self.reaped_s = 0.0
        self.rss = 100 * MIB
        self.uss = 4 * 1024
        self.fds = 42
        self.denied = False
        self.env = {}
        self.cpus = {0, 1, 2, 3}

    def _check(self):
        if self.pid not in self.system.processes:
            raise psutil.NoSuchProcess(self.pid)
        if self.denied:
            raise psutil.AccessDenied(self.pid)

    def ppid(self):
        self._check()
        return self.parent

    def cpu_times(self):
        self._check()
        self.system.on_read()
        return SimpleNamespace(user=self.user_s, system=0.0, children_user=self.reaped_s, children_system=0.0)

    def memory_info(self):
        self._check()
        return SimpleNamespace(rss=self.rss)

    def memory_full_info(self):
        self._check()
        return SimpleNamespace(uss=self.uss)

    def environ(self):
        self._check()
        return self.env

    def create_time(self):
        self._check()
        return 1.7e9

    def status(self):
        self._check()
        return psutil.STATUS_SLEEPING

    def is_running(self):
        return self.pid in self.system.processes

    def cpu_affinity(self):
        self._check()
        return sorted(self.cpus)

    def num_fds(self):
        self._check()
        return self.fds

    def rlimit(self, which):
        assert which == FakeSystem.RLIMIT_NOFILE
        return 1024, 4096

    def children(self, recursive):
        assert recursive
        tree, found = {self.pid}, []
        for process in self.system.processes.values():
            if process.parent in tree:
                tree.add(process.pid)
                found.append(process)
        return found


class FakeSystem:
    """Stands in for psutil."""

    LINUX = True
    RLIMIT_NOFILE = 7

    def __init__(self):
        self.processes = {}
        self.opened = []
        self.cores = [core() for _ in range(4)]
        self.disks = {}
        self.nics = {}
        self.links = {}
        self.link_reads = 0
        self.broken = {}
        self.on_read = lambda: None
        self.start(1, 0)
        self.main = self.start(100, 1)

    def start(self, pid, parent):
        self.processes[pid] = FakeProcess(self, pid, parent)
        return self.processes[pid]

    def end(self, pid, reaped=True):
        """End a process; its CPU time goes to its parent if that waits for it."""
        process = self.processes.pop(pid)
        if reaped:
            self.processes[process.parent].reaped_s += process.user_s + process.reaped_s

    def pids(self):
        return list(self.processes)

    def Process(self, pid):
        self.opened.append(pid)
        if pid not in self.processes:
            raise psutil.NoSuchProcess(pid)
        return self.processes[pid]

    def _answer(self, name, value):
        if name in self.broken:
            raise self.broken[name]
        return value

    def cpu_times(self, percpu):
        return self._answer("cpu_times", self.cores)

    def virtual_memory(self):
        return self._answer("virtual_memory", SimpleNamespace(total=64 << 30, available=48 << 30))

    def swap_memory(self):
        return SimpleNamespace(used=7 * MIB, sin=1, sout=1)

    def disk_io_counters(self, perdisk, nowrap):
        return self._answer("disk_io_counters", self.disks)

    def net_io_counters(self, pernic, nowrap):
        return self._answer("net_io_counters", self.nics)

    def net_if_stats(self):
        self.link_reads += 1
        return self.links


def core(user=0.0, nice=0.0, system=0.0, idle=0.0, iowait=0.0, irq=0.0, softirq=0.0, steal=0.0):
    return SimpleNamespace(
        user=user, nice=nice, system=system, idle=idle, iowait=iowait, irq=irq, softirq=softirq, steal=steal
    )


def disk(read=0, write=0, busy_ms=0):
    return SimpleNamespace(read_bytes=read, write_bytes=write, busy_time=busy_ms)


def nic(received=0, sent=0):
    return SimpleNamespace(bytes_recv=received, bytes_sent=sent)


def link(speed_mbit=0, up=True):
    return SimpleNamespace(isup=up, speed=speed_mbit)


class Bench:
    """A HostSource on a fake machine whose clock the test moves."""

    def __init__(self, root, affinity=frozenset(range(4)), ranks=1, **kwargs):
        self.root = root
        self.now_s = 1000.0
        self.system = FakeSystem()
        budget = Budget(host_cpus=4, affinity_cpus=len(affinity or range(4)), ranks_on_node=ranks)
        self.source = HostSource(
            100, budget=budget, affinity=affinity, root=root, system=self.system, clock=lambda: self.now_s, **kwargs
        )

    def write(self, path, text):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def sample(self, after_s=0.0):
        self.now_s += after_s
        (sample,) = self.source.sample(time_s=1.7e9)
        return sample


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


RATES = [
    "cpu_user_pct",
    "cpu_system_pct",
    "cpu_iowait_pct",
    "cpu_steal_pct",
    "cpu_max_core_pct",
    "host_busy_cpus",
    "job_cpus",
    "main_cpus",
    "loop_cpu_pct",
    "loop_cpu_wait_pct",
    "others_cpus",
    "swap_in_bytes_per_s",
    "swap_out_bytes_per_s",
    "disk_read_bytes_per_s",
    "disk_write_bytes_per_s",
    "disk_busy_pct",
    "pressure_cpu_pct",
    "pressure_io_pct",
    "pressure_memory_pct",
    "cpu_throttled_pct",
    "cpu_throttled_s",
]


def full_machine(tmp_path):
    """A machine on which every group can be measured."""
    bench = Bench(shutil.copytree(DATA / "cgroup2_namespaced", tmp_path / "root"))
    for kind in ("cpu", "io", "memory"):
        bench.write(f"proc/pressure/{kind}", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    bench.write("proc/vmstat", "nr_free_pages 1\npswpin 0\npswpout 0\n")
    bench.write("sys/block/sda/size", "1")
    bench.write("dev/shm/x", "")
    bench.write(f"proc/100/task/{threading.get_native_id()}/schedstat", "1000 1000 1\n")
    bench.system.disks["sda"] = disk()
    bench.system.nics["eth0"] = nic(1, 1)
    return bench


def tick_cores(bench, **spent):
    for times in bench.system.cores:
        for kind, seconds in spent.items():
            setattr(times, kind, getattr(times, kind) + seconds)


def test_first_sample_has_gauges_and_no_rates(tmp_path):
    sample = full_machine(tmp_path).sample()
    assert {name: getattr(sample, name) for name in RATES} == dict.fromkeys(RATES)
    assert sample.network == ()
    assert (sample.time_s, sample.host_cpus, sample.usable_cpus) == (1.7e9, 4, 4.0)
    assert (sample.job_processes, sample.open_files) == (1, 42)
    assert sample.job_uss_bytes == 4096


def test_open_files_of_workers(bench):
    """The most that one has; one that may not be looked at costs nothing else."""
    assert (bench.sample().workers_open_files, bench.source.pids) == (None, (100,))
    for pid, fds in ((101, 7), (102, 900), (103, 1000)):
        bench.system.start(pid, 100).fds = fds
    bench.system.processes[103].denied = True
    sample = bench.sample(after_s=1.0)
    assert (sample.open_files, sample.workers_open_files, sample.open_files_limit) == (42, 900, 1024)
    assert bench.source.pids[0] == 100
    assert {101, 102} <= set(bench.source.pids)


def test_open_files_are_counted_less_often_where_that_takes_long(bench, monkeypatch):
    """The first times it is done at any cost: a short run has no others."""
    spent = [0.0]

    def slow():
        spent[0] += 0.01
        return spent[0]

    monkeypatch.setattr(host.time, "thread_time", slow)
    counted = [bench.sample(after_s=1.0).open_files for _ in range(60)]
    assert None not in counted[:30]
    assert counted[30:].count(None) > 20


def test_second_sample_has_all_rates(tmp_path):
    bench = full_machine(tmp_path)
    bench.sample()
    tick_cores(bench, idle=1.0)
    sample = bench.sample(after_s=1.0)
    assert [name for name in RATES if getattr(sample, name) is None] == []
    assert {sample.cpu_user_pct, sample.job_cpus, sample.disk_busy_pct, sample.pressure_io_pct} == {0.0}
    assert [row.name for row in sample.network] == ["eth0"]


@pytest.mark.parametrize("error", [psutil.AccessDenied(1), PermissionError("no"), NotImplementedError(), ValueError()])
@pytest.mark.parametrize(
    ("call", "lost"),
    [
        (
            "cpu_times",
            {name for name in RATES if name.startswith("cpu_") and "throttled" not in name}
            | {"host_busy_cpus", "others_cpus"},
        ),
        ("disk_io_counters", {"disk_read_bytes_per_s", "disk_write_bytes_per_s", "disk_busy_pct"}),
        ("virtual_memory", set()),
        ("net_io_counters", set()),
    ],
)
def test_each_group_fails_alone(tmp_path, call, lost, error):
    bench = full_machine(tmp_path)
    bench.system.broken[call] = error
    bench.sample()
    tick_cores(bench, idle=1.0)
    sample = bench.sample(after_s=1.0)
    assert {name for name in RATES if getattr(sample, name) is None} == lost
    assert (sample.memory_used_bytes is None) == (call == "virtual_memory")
    assert (sample.network == ()) == (call == "net_io_counters")


def test_a_missing_proc_costs_only_what_it_said(bench):
    bench.sample()
    tick_cores(bench, user=0.5, idle=0.5)
    sample = bench.sample(after_s=1.0)
    absent = (
        "pressure_cpu_pct",
        "swap_used_bytes",
        "swap_in_bytes_per_s",
        "shm_free_bytes",
        "job_uss_bytes",
        "cpu_throttled_pct",
        "disk_busy_pct",
    )
    assert [name for name in absent if getattr(sample, name) is not None] == []
    assert sample.cpu_user_pct == 50.0


def test_cpu_shares_of_all_cpus(bench):
    bench.sample()
    bench.system.cores[0] = core(user=1.0, nice=0.5, system=0.25, irq=0.125, softirq=0.125)
    bench.system.cores[1] = core(idle=1.0, iowait=1.0)
    bench.system.cores[2] = core(idle=1.5, steal=0.5)
    bench.system.cores[3] = core(idle=2.0)
    sample = bench.sample(after_s=2.0)
    assert sample.cpu_user_pct == pytest.approx(100 * 1.5 / 8)
    assert sample.cpu_system_pct == pytest.approx(100 * 0.5 / 8)
    assert sample.cpu_iowait_pct == pytest.approx(100 * 1.0 / 8)
    assert sample.cpu_steal_pct == pytest.approx(100 * 0.5 / 8)
    assert sample.cpu_max_core_pct == 100.0
    assert sample.host_busy_cpus == pytest.approx(1.0)


def test_kinds_of_cpu_time_that_a_platform_lacks_are_not_zero(bench):
    bench.system.cores = [SimpleNamespace(user=0.0, nice=0.0, system=0.0, idle=0.0) for _ in range(4)]
    bench.sample()
    tick_cores(bench, user=0.25, idle=0.75)
    sample = bench.sample(after_s=1.0)
    assert (sample.cpu_iowait_pct, sample.cpu_steal_pct, sample.cpu_user_pct) == (None, None, 25.0)


def test_counters_that_go_backwards_give_nothing(bench):
    tick_cores(bench, idle=10.0, iowait=1.0)
    bench.sample()
    tick_cores(bench, idle=1.0, iowait=-0.5)
    assert bench.sample(after_s=1.0).cpu_iowait_pct is None
    tick_cores(bench, idle=0.5, iowait=0.5)
    assert bench.sample(after_s=1.0).cpu_iowait_pct == 50.0


def test_a_changed_number_of_cpus_starts_anew(bench):
    bench.sample()
    bench.system.cores = [core(user=50.0) for _ in range(6)]
    assert bench.sample(after_s=1.0).host_busy_cpus is None


def test_too_short_a_period_is_joined_to_the_next(bench):
    bench.sample()
    tick_cores(bench, user=0.01, idle=0.01)
    assert bench.sample(after_s=0.02).cpu_user_pct is None
    tick_cores(bench, user=0.49, idle=0.49)
    sample = bench.sample(after_s=0.98)
    assert sample.host_busy_cpus == pytest.approx(4 * 0.5)


def test_a_clock_that_steps_back_starts_anew(bench):
    bench.sample()
    tick_cores(bench, user=1.0)
    assert bench.sample(after_s=-5.0).host_busy_cpus is None
    tick_cores(bench, user=1.0)
    assert bench.sample(after_s=1.0).host_busy_cpus == 4.0


def test_job_is_the_training_process_and_its_descendants(bench):
    worker = bench.system.start(101, 100)
    grandchild = bench.system.start(102, 101)
    stranger = bench.system.start(200, 1)
    bench.sample()
    for process, seconds in ((bench.system.main, 0.5), (worker, 1.0), (grandchild, 0.25), (stranger, 1.5)):
        process.user_s += seconds
    tick_cores(bench, user=1.0, idle=1.0)
    sample = bench.sample(after_s=2.0)
    assert (sample.main_cpus, sample.job_cpus, sample.job_processes) == (0.25, 0.875, 3)
    assert sample.others_cpus == pytest.approx(2.0 - 0.875)
    assert (sample.main_rss_bytes, sample.children_rss_bytes) == (100 * MIB, 200 * MIB)
    assert sample.job_rss_bytes == 300 * MIB


def test_the_training_thread_on_a_cpu_and_waiting_for_one(bench):
    schedstat = f"proc/100/task/{threading.get_native_id()}/schedstat"
    bench.write(schedstat, "1000000000 500000000 7\n")
    assert bench.sample().loop_cpu_wait_pct is None
    bench.write(schedstat, "1500000000 1000000000 9\n")
    sample = bench.sample(after_s=2.0)
    assert (sample.loop_cpu_pct, sample.loop_cpu_wait_pct) == (25.0, 25.0)


@pytest.mark.parametrize("text", ["", "0 0 0\n", "not numbers at all\n"])
def test_a_kernel_that_counts_no_waits_for_a_cpu(bench, text):
    bench.write(f"proc/100/task/{threading.get_native_id()}/schedstat", text)
    bench.sample()
    assert bench.sample(after_s=2.0).loop_cpu_wait_pct is None


def test_workers_started_between_samples_count_from_their_birth(bench):
    bench.sample()
    bench.system.start(103, 102)
    bench.system.start(102, 100)
    bench.system.processes[103].user_s = 0.75
    sample = bench.sample(after_s=1.0)
    assert (sample.job_cpus, sample.job_processes) == (0.75, 3)


def test_an_ended_worker_counts_up_to_its_end(bench):
    worker = bench.system.start(101, 100)
    worker.user_s = 500.0
    bench.sample()
    worker.user_s = 500.5
    bench.system.end(101)
    sample = bench.sample(after_s=1.0)
    assert (sample.job_cpus, sample.job_processes, sample.children_rss_bytes) == (0.5, 1, 0)
    assert bench.sample(after_s=1.0).job_cpus == 0.0


def test_a_worker_that_ends_between_the_reading_of_its_parent_and_its_own_is_counted_once(bench):
    worker = bench.system.start(101, 100)
    worker.user_s = 500.0
    bench.sample()

    def end_just_now():
        bench.system.end(101)
        raise psutil.NoSuchProcess(101)

    worker.cpu_times = end_just_now
    assert bench.sample(after_s=1.0).job_cpus == 0.0
    assert bench.sample(after_s=1.0).job_cpus == 0.0


def test_a_worker_that_nobody_waits_for_never_makes_the_job_negative(bench):
    worker = bench.system.start(101, 100)
    worker.user_s = 500.0
    bench.sample()
    bench.system.end(101, reaped=False)
    bench.system.main.user_s += 0.5
    assert bench.sample(after_s=1.0).job_cpus == 0.5


def test_a_child_that_may_not_be_read_keeps_its_last_reading(bench):
    child = bench.system.start(101, 100)
    child.user_s = 500.0
    bench.sample()
    child.denied = True
    sample = bench.sample(after_s=1.0)
    assert (sample.job_cpus, sample.children_rss_bytes) == (0.0, 0)
    child.denied, child.user_s = False, 500.5
    assert bench.sample(after_s=1.0).job_cpus == 0.5


def test_an_ended_training_process_costs_the_job_only(bench):
    bench.sample()
    bench.system.end(100)
    tick_cores(bench, idle=1.0)
    sample = bench.sample(after_s=1.0)
    assert (sample.job_cpus, sample.main_rss_bytes, sample.others_cpus) == (None, None, None)
    assert sample.host_busy_cpus == 0.0


def test_strangers_are_looked_at_once(bench):
    bench.sample()
    bench.system.start(300, 1)
    for _ in range(3):
        bench.sample(after_s=1.0)
    assert bench.system.opened.count(300) == 1
    assert bench.system.opened.count(1) == 0


def test_a_costly_look_for_processes_is_not_repeated_at_once(bench, monkeypatch):
    spent_s = [0.0]
    monkeypatch.setattr("stallmeter.sources.host.time.thread_time", lambda: spent_s[0])
    list_pids = bench.system.pids

    def slow_pids():
        spent_s[0] += 0.05
        return list_pids()

    bench.system.pids = slow_pids
    assert bench.sample().cost_s == pytest.approx(0.05)
    bench.system.start(101, 100)
    assert bench.sample(after_s=4.9).job_processes == 1
    assert bench.sample(after_s=0.2).job_processes == 2


def test_others_are_those_on_the_cpus_that_the_job_may_use(tmp_path):
    bench = Bench(tmp_path, affinity=frozenset({1, 3}))
    bench.sample()
    for index, busy_s in enumerate((1.0, 0.75, 1.0, 0.5)):
        bench.system.cores[index] = core(user=busy_s, idle=1.0 - busy_s)
    bench.system.main.user_s = 0.25
    assert bench.sample(after_s=1.0).others_cpus == pytest.approx(1.0)


def test_others_are_never_negative_and_unknown_when_cpus_cannot_be_matched(tmp_path):
    bench = Bench(tmp_path)
    bench.sample()
    tick_cores(bench, user=0.1, idle=0.9)
    bench.system.main.user_s = 1.0
    assert bench.sample(after_s=1.0).others_cpus == 0.0
    offline = Bench(tmp_path, affinity=frozenset({0, 7}))
    offline.sample()
    tick_cores(offline, idle=1.0)
    assert offline.sample(after_s=1.0).others_cpus is None


@pytest.fixture
def met():
    """Takes processes for ranks that record, until the test ends."""
    yield lambda *pids: processes.set_known_ranks(dict.fromkeys(pids, 1.7e9))
    processes.set_known_ranks({})


def test_other_ranks_are_neither_the_jobs_own_nor_strangers(tmp_path, met):
    """Rank 1 was started by this one, rank 2 beside it; each has a worker."""
    bench = Bench(tmp_path, ranks=3)
    bench.system.start(101, 100)
    bench.system.start(110, 100).env = {"LOCAL_RANK": "1"}
    bench.system.start(111, 110)
    first = bench.sample()
    assert (first.job_processes, first.job_rss_bytes, first.ranks_cpus) == (2, 200 * MIB, None)
    bench.system.start(120, 1).user_s = 1000.0
    bench.system.start(121, 120)
    met(120)
    assert bench.sample(after_s=1.0).job_processes == 2
    for pid, cpu_s in ((101, 0.5), (110, 0.25), (111, 0.5), (120, 0.25), (121, 1.0), (1, 0.25)):
        bench.system.processes[pid].user_s += cpu_s
    tick_cores(bench, user=0.6875, idle=0.3125)
    sample = bench.sample(after_s=1.0)
    assert (sample.job_cpus, sample.ranks_cpus, sample.others_cpus) == pytest.approx((0.5, 2.0, 0.25))


def test_until_all_ranks_are_known_they_count_as_others(tmp_path, met):
    bench = Bench(tmp_path, ranks=3)
    bench.system.start(110, 1)
    bench.system.start(120, 1)
    met(110)
    bench.sample()
    bench.system.processes[110].user_s = 0.5
    tick_cores(bench, user=0.25, idle=0.75)
    sample = bench.sample(after_s=1.0)
    assert (sample.ranks_cpus, sample.others_cpus) == (None, 1.0)


def test_a_rank_on_cpus_of_its_own_takes_none(tmp_path, met):
    bench = Bench(tmp_path, affinity=frozenset({0, 1}), ranks=2)
    bench.system.start(110, 1).cpus = {2, 3}
    met(110)
    bench.sample()
    bench.system.processes[110].user_s = 2.0
    tick_cores(bench, user=0.5, idle=0.5)
    sample = bench.sample(after_s=1.0)
    assert (sample.ranks_cpus, sample.others_cpus) == (0.0, 1.0)


@pytest.mark.parametrize("when", ["before the scan", "after the scan"])
def test_a_rank_that_ends_leaves_its_life_to_nobody(bench, when):
    """Its parent waits for it and then has its time in ``children_*``: the job did not keep 500 CPUs busy."""
    bench.system.start(101, 100)
    rank = bench.system.start(110, 100)
    rank.env = {"LOCAL_RANK": "1"}
    bench.sample()
    rank.user_s = 500.0
    if when == "before the scan":
        bench.system.end(110)
    else:
        bench.system.on_read = lambda: 110 in bench.system.processes and bench.system.end(110)
    bench.system.processes[101].user_s = 0.5
    assert bench.sample(after_s=1.0).job_cpus == pytest.approx(0.5)
    bench.system.processes[101].user_s = 0.75
    assert bench.sample(after_s=1.0).job_cpus == pytest.approx(0.25)


def test_a_started_rank_shows_its_own_environment_only_after_exec(bench):
    rank = bench.system.start(110, 100)
    assert bench.sample().job_processes == 2
    rank.env = {"LOCAL_RANK": "1"}
    assert bench.sample(after_s=1.0).job_processes == 1


def test_uss_is_read_rarely(bench):
    bench.system.start(101, 100)
    assert bench.sample().job_uss_bytes == 8 * 1024
    assert bench.sample(after_s=29.0).job_uss_bytes is None
    assert bench.sample(after_s=1.0).job_uss_bytes == 8 * 1024


def test_uss_is_not_read_of_many_processes(bench):
    for pid in range(101, 165):
        bench.system.start(pid, 100)
    assert bench.sample().job_uss_bytes is None


def test_memory_under_the_hosts_or_the_cgroups_limit(tmp_path, bench):
    free = bench.sample()
    assert (free.memory_limit_bytes, free.memory_limit_used_bytes) == (64 << 30, 16 << 30)
    limited = full_machine(tmp_path).sample()
    assert (limited.memory_limit_bytes, limited.memory_limit_used_bytes) == (1 << 30, 0)
    assert (limited.memory_used_bytes, limited.memory_available_bytes) == (16 << 30, 48 << 30)


def test_throttling_in_the_period(tmp_path):
    bench = full_machine(tmp_path)
    bench.sample()
    bench.write("sys/fs/cgroup/cpu.stat", "nr_periods 60\nnr_throttled 44\nthrottled_usec 2400000\n")
    sample = bench.sample(after_s=2.0)
    assert (sample.cpu_throttled_pct, sample.cpu_throttled_s) == (25.0, pytest.approx(0.5))


def test_swap_traffic_and_use(tmp_path):
    bench = full_machine(tmp_path)
    bench.sample()
    bench.write("proc/vmstat", "pswpin 10\npswpout 4\n")
    sample = bench.sample(after_s=2.0)
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    assert (sample.swap_in_bytes_per_s, sample.swap_out_bytes_per_s) == (5 * page_bytes, 2 * page_bytes)
    assert sample.swap_used_bytes == (8388604 - 8126460) * 1024


def test_where_there_is_no_proc_swap_traffic_is_unknown(bench):
    bench.system.LINUX = False
    bench.sample()
    sample = bench.sample(after_s=1.0)
    assert (sample.swap_used_bytes, sample.swap_in_bytes_per_s) == (7 * MIB, None)


def test_pressure_is_the_share_of_the_period(tmp_path):
    bench = full_machine(tmp_path)
    bench.sample()
    bench.write("proc/pressure/cpu", "some avg10=1.00 avg60=0.00 avg300=0.00 total=500000\n")
    bench.write("proc/pressure/io", "some avg10=1.00 total=9000000\nfull avg10=0.00 total=77\n")
    (bench.root / "proc/pressure/memory").unlink()
    sample = bench.sample(after_s=2.0)
    assert (sample.pressure_cpu_pct, sample.pressure_io_pct, sample.pressure_memory_pct) == (25.0, 100.0, None)


def test_disks_count_once(bench):
    bench.write("sys/block/nvme0n1/size", "1")
    bench.write("sys/block/cciss!c0d0/size", "1")
    bench.write("sys/block/md0/slaves/nvme0n1/size", "1")
    bench.write("sys/block/loop0/size", "1")
    bench.write("sys/block/zram0/size", "1")
    names = ("nvme0n1", "nvme0n1p1", "cciss/c0d0", "md0", "loop0", "zram0")
    bench.system.disks = {name: disk() for name in names}
    bench.sample()
    bench.system.disks = {name: disk(4 * MIB, MIB, 500) for name in names}
    bench.system.disks["cciss/c0d0"].busy_time = 1900
    sample = bench.sample(after_s=2.0)
    assert (sample.disk_read_bytes_per_s, sample.disk_write_bytes_per_s) == (4 * MIB, MIB)
    assert sample.disk_busy_pct == 95.0


def test_disks_without_busy_time(bench):
    bench.system.LINUX = False
    bench.system.disks = {"disk0": SimpleNamespace(read_bytes=0, write_bytes=0)}
    bench.sample()
    bench.system.disks = {"disk0": SimpleNamespace(read_bytes=10, write_bytes=20)}
    sample = bench.sample(after_s=1.0)
    assert (sample.disk_read_bytes_per_s, sample.disk_write_bytes_per_s, sample.disk_busy_pct) == (10, 20, None)


def test_network_by_interface_with_link_speed(bench):
    bench.system.links = {"eth0": link(10_000), "ib0": link(0), "down0": link(up=False), "quiet0": link()}
    names = ("lo", "eth0", "ib0", "down0", "unknown0")
    bench.system.nics = {name: nic(1000, 1000) for name in names} | {"quiet0": nic()}
    bench.sample()
    bench.system.nics = {name: nic(1000, 1000) for name in names} | {"quiet0": nic()}
    bench.system.nics["eth0"] = nic(3000, 1500)
    rows = bench.sample(after_s=2.0).network
    assert [row.name for row in rows] == ["eth0", "ib0", "unknown0"]
    assert (rows[0].received_bytes_per_s, rows[0].sent_bytes_per_s, rows[0].speed_bytes_per_s) == (1000, 250, 1.25e9)
    assert (rows[1].received_bytes_per_s, rows[1].speed_bytes_per_s) == (0.0, None)


def test_only_the_busiest_interfaces_are_kept(bench):
    bench.system.nics = {f"veth{number}": nic(1) for number in range(100)}
    bench.sample()
    bench.system.nics = {f"veth{number}": nic(1 + number) for number in range(100)}
    rows = bench.sample(after_s=1.0).network
    assert [row.name for row in rows] == [f"veth{number}" for number in range(99, 91, -1)]


def test_link_speeds_are_asked_rarely(bench):
    for _ in range(60):
        bench.sample(after_s=1.0)
    assert bench.system.link_reads == 2


def test_no_such_process_is_said_at_once():
    system = FakeSystem()
    with pytest.raises(psutil.NoSuchProcess):
        HostSource(999, system=system)


@pytest.mark.skipif(not psutil.LINUX, reason="only Linux tells the CPU time of ended children")
def test_a_real_worker_counts_while_it_lives_and_after_its_end():
    burn = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); sys.stdin.read()"
    now_s = [0.0]
    source = HostSource(clock=lambda: now_s[0])
    source.sample(0.0)
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        now_s[0] += 10.0
        (living,) = source.sample(1.0)
    now_s[0] += 10.0
    (ended,) = source.sample(2.0)
    assert living.job_cpus - living.main_cpus > 0.02
    assert living.job_processes == ended.job_processes + 1
    assert ended.job_cpus - ended.main_cpus < 0.02


def test_this_machine():
    source = HostSource()
    (sample,) = source.sample(1.0)
    source.close()
    assert sample.main_rss_bytes is not None
    assert sample.main_rss_bytes > MIB
    assert sample.cost_s is not None
    assert sample.cost_s > 0
