"""The host and this rank's own processes, through psutil, /proc and the cgroup files."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..machine.budget import Budget, CgroupFiles, cpu_affinity, read_budget, read_shm
from ..machine.own_threads import Crowd
from ..machine.processes import SYSTEM, UNREADABLE, JobTree, open_files, open_files_limit, unique_bytes
from ..machine.procfs import read_numbers, thread_times_ns
from ..records import HostSample, NetworkSample
from ..records.stats import percent

_MIN_PERIOD_S = 0.1
"""Below this, CPU times (counted in ticks of 10 ms) make rates of noise."""
_USS_PERIOD_S = 30.0
_USS_SHARE = 0.001
"""While the kernel walks a process's pages, that process can map no memory: this share of the time at most."""
_USS_MAX_PROCESSES = 64
_FILES_SHARE = 0.001
_FILES_AT_ONCE = 30
"""Counting open files takes this share of the time at most, but for the first times: a short run has no others."""
_LINK_PERIOD_S = 30.0
"""Link speeds take several system calls an interface and hardly change."""
_MAX_INTERFACES = 8
"""A container host has hundreds of virtual interfaces; the busiest tell the story."""

_Fields = dict[str, Any]
"""Part of a HostSample, by field name."""


class HostSource:
    """Samples the host and the processes of one rank, told from those of the job's other ranks and of strangers.

    The first sample has gauges only; rates and shares need two. Each group of fields fails alone: what cannot be read
    is None.
    """

    name = "host"

    def __init__(
        self,
        pid: int | None = None,
        *,
        budget: Budget | None = None,
        affinity: frozenset[int] | None = None,
        root: Path = Path("/"),
        system: Any = SYSTEM,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Find what to read; nothing is sampled yet. The calling thread is taken for the one that trains.

        Args:
            pid: The training process; the calling process by default.
            budget: What the job may use; read from the system by default.
            affinity: Ids of the CPUs that the job may use; asked of the system by default.
            root: Folder that holds ``proc``, ``sys`` and ``dev``.
            system: psutil, or what stands in for it.
            clock: Monotonic seconds.

        Raises:
            psutil.NoSuchProcess: There is no process ``pid``.
        """
        self._system = system
        self._root = root
        self._clock = clock
        self._affinity = cpu_affinity() if affinity is None else affinity
        self._budget = read_budget(root, affinity=self._affinity) if budget is None else budget
        self._cgroup = CgroupFiles.find(root)
        self._rates = _Rates()
        self._thread = threading.get_native_id()
        self._crowd = Crowd(threading.get_ident(), self._thread_ran_ns, clock)
        self._job = JobTree(system.Process(os.getpid() if pid is None else pid), system, self._affinity)
        self._groups: tuple[Callable[[], _Fields], ...] = (
            self._read_cpu,
            self._read_job,
            self._read_thread,
            self._read_threads,
            self._read_ranks,
            self._read_rss,
            self._read_uss,
            self._read_open_files,
            self._read_memory,
            self._read_swap,
            self._read_disks,
            self._read_network,
            self._read_pressure,
            self._read_throttling,
            self._read_shm,
        )
        self._disks: dict[str, bool] = {}
        self._links: dict[str, Any] = {}
        self._links_due_s = float("-inf")
        self._uss_due_s = self._files_due_s = float("-inf")
        self._files_counted = 0
        self.pids: tuple[int, ...] = (self._job.main.pid,)
        """This rank's own processes as last seen, the one that trains first. Replaced whole: other threads read it."""

    def sample(self, time_s: float) -> Sequence[HostSample]:
        """Return one HostSample over the time since the last call.

        Args:
            time_s: Unix time, only a stamp: rates are over the monotonic clock.
        """
        started_s = time.thread_time()
        fields: _Fields = {"host_cpus": self._budget.host_cpus, "usable_cpus": self._budget.usable_cpus}
        for group in self._groups:
            with suppress(*UNREADABLE):
                fields.update(group())
        usable_busy, job = fields.pop("usable_busy_cpus", None), fields.get("job_cpus")
        if usable_busy is not None and job is not None:
            fields["others_cpus"] = max(0.0, usable_busy - job - (fields.get("ranks_cpus") or 0.0))
        return (HostSample(time_s=time_s, cost_s=time.thread_time() - started_s, **fields),)

    def close(self) -> None:
        """Nothing is held open between samples."""

    def _read_cpu(self) -> _Fields:
        cores = self._system.cpu_times(percpu=True)
        now_s = self._clock()
        # CPUs can be switched on and off; rates must not mix what was counted over different sets of them.
        count = len(cores)

        def rate(kind: Hashable, value: float) -> float | None:
            return self._rates.per_s(("cpu", count, kind), value, now_s)

        busy = [_sum(core, "user", "nice", "system", "irq", "softirq") for core in cores]
        total = [own + _sum(core, "idle", "iowait", "steal") for own, core in zip(busy, cores, strict=True)]
        shares = [
            percent(rate(("busy", core), own), rate(("total", core), whole))
            for core, (own, whole) in enumerate(zip(busy, total, strict=True))
        ]
        all_cpus = rate("total", sum(total))
        usable = self._usable_cores(count)
        fields: _Fields = {
            "cpu_user_pct": percent(rate("user", sum(_sum(core, "user", "nice") for core in cores)), all_cpus),
            "cpu_system_pct": percent(
                rate("system", sum(_sum(core, "system", "irq", "softirq") for core in cores)), all_cpus
            ),
            "cpu_max_core_pct": max((share for share in shares if share is not None), default=None),
            "host_busy_cpus": rate("busy", sum(busy)),
            "usable_busy_cpus": None if usable is None else rate("usable", sum(busy[core] for core in usable)),
        }
        for kind in ("iowait", "steal"):
            if all(hasattr(core, kind) for core in cores):
                fields[f"cpu_{kind}_pct"] = percent(rate(kind, sum(getattr(core, kind) for core in cores)), all_cpus)
        return fields

    def _usable_cores(self, count: int) -> Sequence[int] | None:
        """Return the positions, among ``count`` listed CPUs, of those that the job may use; None when unclear."""
        if self._affinity is None or len(self._affinity) == count:
            return range(count)
        # psutil lists CPUs without their ids: with offline CPUs, or a virtual /proc/stat, positions are not ids.
        return sorted(self._affinity) if max(self._affinity, default=count) < count else None

    def _read_job(self) -> _Fields:
        self._job.refresh(self._clock())
        self.pids = tuple(process.pid for process in self._job.processes)
        main_cpu_s, tree_cpu_s = self._job.read_cpu()
        now_s = self._clock()
        return {
            "main_cpus": self._rates.per_s("main_cpu", main_cpu_s, now_s),
            "job_cpus": self._rates.per_s("job_cpu", tree_cpu_s, now_s),
            "job_processes": len(self._job.processes),
        }

    def _read_thread(self) -> _Fields:
        times_ns = thread_times_ns(self._root, self._job.main.pid, self._thread)
        if times_ns is None:
            return {}
        now_s = self._clock()
        ran, waited = (
            self._rates.per_s(kind, ns / 1e9, now_s) for kind, ns in zip(("ran", "waited"), times_ns, strict=True)
        )
        return {"loop_cpu_pct": _share_pct(ran), "loop_cpu_wait_pct": _share_pct(waited)}

    def _read_threads(self) -> _Fields:
        return {"threads_cpus": self._crowd.cpus()} if self._job.main.pid == os.getpid() else {}

    def _thread_ran_ns(self, thread: int) -> int | None:
        times_ns = thread_times_ns(self._root, self._job.main.pid, thread)
        return None if times_ns is None else times_ns[0]

    def _read_ranks(self) -> _Fields:
        known, expected = self._job.other_ranks, self._budget.ranks_on_node - 1
        if not known or known < expected:
            return {}
        cpu_s = self._job.read_ranks_cpu()
        return {} if cpu_s is None else {"ranks_cpus": self._rates.per_s("ranks_cpu", cpu_s, self._clock())}

    def _read_rss(self) -> _Fields:
        main, children = self._job.main.memory_info().rss, self._job.read_children_rss()
        return {"main_rss_bytes": main, "children_rss_bytes": children, "job_rss_bytes": main + children}

    def _read_open_files(self) -> _Fields:
        if self._clock() < self._files_due_s:
            return {}
        started_s = time.thread_time()
        main, *children = self._job.processes
        known = [count for child in children if (count := open_files(child)) is not None]
        fields: _Fields = {
            "open_files": open_files(main),
            "workers_open_files": max(known, default=None),
            "open_files_limit": open_files_limit(main, self._system),
        }
        self._files_counted += 1
        if self._files_counted > _FILES_AT_ONCE:  # the kernel lists every one of them
            self._files_due_s = self._clock() + (time.thread_time() - started_s) / _FILES_SHARE
        return fields

    def _read_uss(self) -> _Fields:
        processes = self._job.processes
        started_s = self._clock()
        if started_s < self._uss_due_s or len(processes) > _USS_MAX_PROCESSES:
            return {}
        private = [unique_bytes(process) for process in processes]
        cost_s = self._clock() - started_s
        self._uss_due_s = started_s + max(_USS_PERIOD_S, cost_s / _USS_SHARE)
        # A worker that ended meanwhile has no pages; the training process itself must have some.
        return {"job_uss_bytes": sum(size or 0 for size in private)} if private[0] else {}

    def _read_memory(self) -> _Fields:
        memory = self._system.virtual_memory()
        used = memory.total - memory.available
        limit, limit_used = memory.total, used
        group = self._cgroup.read_memory()
        if group is not None and group.limit_bytes < memory.total:
            limit, limit_used = group.limit_bytes, group.used_bytes
        return {
            "memory_used_bytes": used,
            "memory_available_bytes": memory.available,
            "memory_limit_bytes": limit,
            "memory_limit_used_bytes": limit_used,
        }

    def _read_swap(self) -> _Fields:
        if not self._system.LINUX:
            # psutil's traffic is 0 on Windows, and on macOS counts the paging of files.
            return {"swap_used_bytes": self._system.swap_memory().used}
        # Where the kernel does not say, psutil would give 0 and a warning.
        now_s, page_bytes = self._clock(), os.sysconf("SC_PAGE_SIZE")
        traffic = read_numbers(self._root / "proc/vmstat", r"^(pswpin|pswpout) (\d+)$")
        sizes = read_numbers(self._root / "proc/meminfo", r"^(SwapTotal|SwapFree):\s+(\d+) kB$")
        fields: _Fields = {}
        if len(sizes) == 2:
            fields["swap_used_bytes"] = (sizes["SwapTotal"] - sizes["SwapFree"]) * 1024
        if len(traffic) == 2:
            fields["swap_in_bytes_per_s"] = self._rates.per_s("swap_in", traffic["pswpin"] * page_bytes, now_s)
            fields["swap_out_bytes_per_s"] = self._rates.per_s("swap_out", traffic["pswpout"] * page_bytes, now_s)
        return fields

    def _read_disks(self) -> _Fields:
        counters = self._system.disk_io_counters(perdisk=True, nowrap=False) or {}
        now_s = self._clock()
        read, written, busy = [], [], []
        for disk, counter in counters.items():
            if not self._is_disk(disk):
                continue
            read.append(self._rates.per_s(("read", disk), counter.read_bytes, now_s))
            written.append(self._rates.per_s(("write", disk), counter.write_bytes, now_s))
            if hasattr(counter, "busy_time"):
                busy_ms_per_s = self._rates.per_s(("busy", disk), counter.busy_time, now_s)
                busy.append(None if busy_ms_per_s is None else min(100.0, busy_ms_per_s / 10.0))
        return {
            "disk_read_bytes_per_s": _total(read),
            "disk_write_bytes_per_s": _total(written),
            "disk_busy_pct": max((share for share in busy if share is not None), default=None),
        }

    def _is_disk(self, name: str) -> bool:
        """Tell a disk from a partition, a RAM or loop device, or a device made of others, which would count twice."""
        if name not in self._disks:
            device = self._root / "sys/block" / name.replace("/", "!")
            layered = (device / "slaves").is_dir() and any((device / "slaves").iterdir())
            virtual = re.match(r"(loop|ram|zram|sr|fd)\d", name) is not None
            self._disks[name] = not self._system.LINUX or (device.is_dir() and not layered and not virtual)
        return self._disks[name]

    def _read_network(self) -> _Fields:
        counters = self._system.net_io_counters(pernic=True, nowrap=False) or {}
        now_s = self._clock()
        if now_s >= self._links_due_s:
            self._links_due_s = now_s + _LINK_PERIOD_S
            self._links = self._system.net_if_stats()
        samples = []
        for nic, counter in counters.items():
            link = self._links.get(nic)
            quiet = counter.bytes_recv + counter.bytes_sent == 0
            if quiet or re.match(r"lo\d*$|Loopback", nic) or (link is not None and not link.isup):
                continue
            received = self._rates.per_s(("received", nic), counter.bytes_recv, now_s)
            sent = self._rates.per_s(("sent", nic), counter.bytes_sent, now_s)
            if received is not None and sent is not None:
                speed = link.speed * 1e6 / 8 if link is not None and link.speed > 0 else None
                samples.append(
                    NetworkSample(
                        name=nic, received_bytes_per_s=received, sent_bytes_per_s=sent, speed_bytes_per_s=speed
                    )
                )
        samples.sort(key=lambda sample: -(sample.received_bytes_per_s + sample.sent_bytes_per_s))
        return {"network": tuple(samples[:_MAX_INTERFACES])}

    def _read_pressure(self) -> _Fields:
        fields: _Fields = {}
        for kind in ("cpu", "io", "memory"):
            stalled_us = read_numbers(self._root / f"proc/pressure/{kind}", r"^(some) .*\btotal=(\d+)$").get("some")
            if stalled_us is not None:
                share = self._rates.per_s(("pressure", kind), stalled_us / 1e6, self._clock())
                fields[f"pressure_{kind}_pct"] = None if share is None else min(100.0, 100.0 * share)
        return fields

    def _read_throttling(self) -> _Fields:
        throttling = self._cgroup.read_throttling()
        if throttling is None:
            return {}
        now_s = self._clock()
        periods = self._rates.increase("periods", throttling.periods, now_s)
        throttled = self._rates.increase("throttled_periods", throttling.throttled_periods, now_s)
        throttled_ns = self._rates.increase("throttled_ns", throttling.throttled_ns, now_s)
        if periods is None or throttled is None or throttled_ns is None:
            return {}
        # A cgroup that ran in no quota period was not throttled either.
        throttled_pct = min(100.0, 100.0 * throttled[0] / periods[0]) if periods[0] else 0.0
        return {"cpu_throttled_pct": throttled_pct, "cpu_throttled_s": throttled_ns[0] / 1e9}

    def _read_shm(self) -> _Fields:
        shm = read_shm(self._root)
        return {"shm_free_bytes": shm[1], "shm_size_bytes": shm[0]} if shm else {}


class _Rates:
    """Turns counters into rates. None at first sight, too soon after it, and when a counter went backwards."""

    def __init__(self) -> None:
        self._last: dict[Hashable, tuple[float, float]] = {}

    def increase(self, key: Hashable, value: float, now_s: float) -> tuple[float, float] | None:
        """Return how much the counter ``key`` rose, and over how many seconds."""
        last = self._last.get(key)
        if last is not None and 0 <= now_s - last[1] < _MIN_PERIOD_S:
            return None
        self._last[key] = (value, now_s)
        if last is None or value < last[0] or now_s < last[1]:
            return None
        return value - last[0], now_s - last[1]

    def per_s(self, key: Hashable, value: float, now_s: float) -> float | None:
        """Return the rise of the counter ``key`` per second."""
        change = self.increase(key, value, now_s)
        return None if change is None else change[0] / change[1]


def _sum(times: Any, *kinds: str) -> float:
    """Sum the kinds of CPU time that this platform knows."""
    return sum(getattr(times, kind, 0.0) for kind in kinds)


def _share_pct(rate: float | None) -> float | None:
    """Return seconds of one thread per second in percent; the two were not read at one moment."""
    return None if rate is None else min(100.0, 100.0 * rate)


def _total(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None
