"""Processes of this host: the one place that reads them, through psutil. What cannot be read is None.

The number of a process alone does not name it, for the system gives numbers again: it is named together with a moment
at which it ran already.

A rank's own processes are it and its descendants, without other ranks among them and theirs: Lightning starts rank 1
and the rest as children of rank 0, and a program may start its ranks from the one that trains, too. Another rank is
known by

- its environment at its start: a launcher's rank (`RANK`, `LOCAL_RANK` …) that is not this process's. A forked process
  shows its parent's environment, whatever was set later, so that this tells ranks that were launched;
- its recording: each rank's header says number, host and time of its process (`known_ranks`). This tells ranks that
  were forked or spawned, once they record.

A rank that was forked by this one and does not record looks like a worker and is counted as one.

Where the program trains in a process that `multiprocessing` has started, the process that started it and its other ones
belong to the program as well: what they take of the CPUs is no stranger's.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .installed import installed
from .procfs import read_numbers

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import psutil
else:
    psutil = installed("psutil", "psutil")

SYSTEM: Any = psutil
"""What is asked of the system, here and in `stallmeter.sources.host`; tests put something else in its place."""

UNREADABLE = (psutil.Error, OSError, ValueError, LookupError, NotImplementedError)
"""What psutil and the files of the system raise where a platform, a sandbox or a permission lacks something."""

RANK_NAMES = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
"""Where launchers say which rank a process is: torchrun, Lightning (`LOCAL_RANK` alone), srun, Open MPI, MPICH and
Intel MPI, MVAPICH."""

_TOLERANCE_S = 5.0
"""A process that seems to have started later than it ran is still the same: start times come from the time of the boot
in whole seconds, and the system clock may be corrected."""
_SCAN_SHARE = 0.01
"""Looking for new processes may take this share of one CPU; it is done less often where there are many."""
_LOOKS = 2
"""How often a new process's environment is looked at: between fork and exec it is still its parent's."""
_DEPTH = 64
"""Most ancestors that are looked at: a process tree has no loops, but it may change while it is read."""
_MAX_MEMBERS = 512
"""Processes of all ranks on this host that are read in each sample, 13 µs each: with more, other ranks are not."""

known_ranks: Mapping[int, float] = {}
"""Processes on this host that record other ranks of the job: number, and Unix time at which each ran already. Replaced
whole, by `set_known_ranks`: who else trains here is one fact for the whole process."""


def set_known_ranks(ranks: Mapping[int, float]) -> None:
    """Take other ranks of this job on this host for what they are.

    Args:
        ranks: Number of the process, and Unix time at which it ran already.
    """
    global known_ranks
    known_ranks = dict(ranks)


def find(pid: int, since_s: float, system: Any = SYSTEM) -> Any | None:
    """Return a running process; None when it has ended, waits to be reaped, or a later one has its number.

    Args:
        pid: Its number.
        since_s: Unix time at which it ran already.
        system: psutil, or what stands in for it.

    Raises:
        psutil.AccessDenied: It is there, and may not be looked at.
    """
    if pid <= 0:
        return None
    try:
        process = system.Process(pid)
        ended = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return None if ended or process.create_time() > since_s + _TOLERANCE_S else process
    except psutil.NoSuchProcess:
        return None


def is_running(pid: int, since_s: float) -> bool:
    """Whether a process of this host still runs, and is not a later one with the same number.

    Args:
        pid: Its number.
        since_s: Unix time at which it ran already.
    """
    try:
        return find(pid, since_s) is not None
    except UNREADABLE:  # it is there; somebody else's, who lets nobody look
        return True


def find_readable(pid: int, since_s: float) -> Any | None:
    """Return a running process that may be looked at, as `find` does; None when it may not be."""
    try:
        return find(pid, since_s)
    except UNREADABLE:
        return None


def rss_bytes(process: Any) -> int | None:
    """Return the resident size of a process of psutil's; None when it has ended or cannot be read."""
    try:
        return int(process.memory_info().rss)
    except UNREADABLE:
        return None


def unique_bytes(process: Any) -> int | None:
    """Return the memory of a process of psutil's that no other shares; None when it has ended or cannot be read.

    The system walks every page for it: 12 ms for a training process of 680 MB. psutil before 5.9.5 takes twice as long,
    as it reads each mapping apart; those who ask do so rarely enough.
    """
    try:
        return int(process.memory_full_info().uss)
    except (*UNREADABLE, AttributeError):  # some systems do not tell
        return None


def held_memory(pid: int) -> tuple[int, int] | None:
    """Return a process's anonymous and shared memory in bytes, without pages of files; None where that is not told.

    Linux tells it since 4.5. Straight from the kernel's file, as it is asked for several times a second: 30 µs.
    """
    sizes = read_numbers(Path(f"/proc/{pid}/status"), r"^(RssAnon|RssShmem):\s+(\d+) kB$")
    return (sizes["RssAnon"] * 1024, sizes["RssShmem"] * 1024) if len(sizes) == 2 else None


def open_files(process: Any) -> int | None:
    """Return how many file descriptors a process of psutil's has open; None when it has ended or cannot be read."""
    try:
        return int(process.num_fds())
    except (*UNREADABLE, AttributeError):  # Windows counts handles, which are not limited like this
        return None


def open_files_limit(process: Any, system: Any = SYSTEM) -> int | None:
    """Return how many files a process of psutil's may have open (soft limit); None without one, or where none is told.

    Args:
        process: psutil's.
        system: psutil, or what stands in for it.
    """
    try:
        soft = int(process.rlimit(system.RLIMIT_NOFILE)[0])
    except (*UNREADABLE, AttributeError):  # psutil asks for it on Linux and FreeBSD alone
        if resource is None or process.pid != os.getpid():
            return None
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return None if soft in (resource.RLIM_INFINITY, -1) else soft
    return soft if 0 < soft < 2**62 else None


def is_own(pid: int, system: Any = SYSTEM) -> bool:
    """Tell whether a process is this one, or descends from it without being another rank or a process of one.

    Args:
        pid: The process.
        system: psutil, or what stands in for it.
    """
    own = os.getpid()
    environs = _own_environs(own, system)
    for _ in range(_DEPTH):
        if pid == own:
            return True
        if pid <= 1:
            return False
        try:
            process = system.Process(pid)
            if _is_known_rank(process) or is_another_rank(process, environs):
                return False
            pid = process.ppid()
        except UNREADABLE:
            return False
    return False


def is_another_rank(process: Any, environs: Iterable[Mapping[str, str]]) -> bool:
    """Tell whether a launcher made a process another rank than those with these environments.

    Args:
        process: psutil's.
        environs: Of this process: now, and at its start, which what it forks still has.
    """
    try:
        theirs = process.environ()
    except UNREADABLE:
        return False
    said = [name for name in RANK_NAMES if name in theirs]
    return any(all(theirs[name] != ours.get(name) for ours in environs) for name in said)


def _is_known_rank(process: Any) -> bool:
    since_s = known_ranks.get(process.pid)
    return since_s is not None and process.pid != os.getpid() and process.create_time() <= since_s + _TOLERANCE_S


def _own_environs(pid: int, system: Any) -> tuple[Mapping[str, str], ...]:
    with suppress(*UNREADABLE):
        return os.environ, system.Process(pid).environ()
    return (os.environ,)


_CpuSeconds = tuple[float, float]
"""A process's own, and those plus its ended children's."""


@dataclass(slots=True)
class _Member:
    """A process of the job on this host."""

    process: Any
    parent: int
    """Number of the process that started it."""
    rank: int
    """Number of the process that is the rank to which it belongs."""
    looks: int = 0
    """How often its environment was looked at."""


class JobTree:
    """One rank's own processes and those of the job's other ranks on this host, read at a bounded cost.

    Args:
        main: The process that trains, psutil's.
        system: psutil, or what stands in for it.
        affinity: CPUs that this rank may use; None when the system does not say.
    """

    def __init__(self, main: Any, system: Any = SYSTEM, affinity: frozenset[int] | None = None) -> None:
        self.main = main
        self._system = system
        self._affinity = affinity
        self._environs = _own_environs(main.pid, system)
        self._members = {main.pid: _Member(main, 0, main.pid)}
        self._ranks: dict[int, bool] = {main.pid: True}
        """The processes that are ranks, and whether they share CPUs with this one."""
        self._seen: set[int] | None = None
        self._scan_due_s = float("-inf")
        self._own = _CpuCounter()
        self._theirs = _CpuCounter()
        self._above: int | None = None
        """The process of the program that started this one."""
        self._reaped = False
        """Whether another rank that this one's processes had started is gone, and its time may be theirs now."""

    @property
    def processes(self) -> list[Any]:
        """This rank's own, the one that trains first and parents before their children."""
        own = self.main.pid
        return [member.process for member in self._members.values() if member.rank == own]

    @property
    def other_ranks(self) -> int:
        """Other ranks on this host that are known."""
        return len(self._ranks) - 1

    def refresh(self, now_s: float) -> None:
        """Look for started and ended processes, unless the last look was too costly to repeat so soon.

        Args:
            now_s: Monotonic seconds.
        """
        if now_s < self._scan_due_s:
            return
        started_s = time.thread_time()
        pids = set(self._system.pids())
        if self._seen is None:
            self._take(self.main.children(recursive=True))
            self._take_program()
        else:
            gone = self._members.keys() - pids - {self.main.pid}
            self._reaped |= not gone.isdisjoint(self._ranks_started_here())
            for pid in gone:
                self._forget(pid)
            # Only numbers that are new are opened: psutil's children() would read every process of the host each time.
            self._take(self._opened(pids - self._seen))
        self._seen = pids
        if self._find_ranks(pids):
            self._reassign()
        self._scan_due_s = now_s + (time.thread_time() - started_s) / _SCAN_SHARE

    def read_cpu(self) -> tuple[float, float]:
        """Return CPU seconds of the process that trains, and of all this rank's own since the first reading.

        Those of the program that started this process count like its own.

        The second never falls: an ended child's time moves into its parent's ``children_*``, and where nobody waited
        for the child its past is kept.

        Raises:
            psutil.Error: The process that trains cannot be read.
        """
        own = self.main.pid
        above = self._above if self._above not in self._ranks else None  # rank 0 may have started this one
        while True:
            cpu_s = self._read_all(lambda rank: rank in (own, above))
            dead = [pid for pid, process in self._ranks_started_here().items() if not process.is_running()]
            if not dead:
                break
            # It was waited for meanwhile: its time may have moved after its parent was read.
            self._reaped = True
            for pid in dead:
                self._forget(pid)
        total_s, self._reaped = self._own.count(cpu_s, self._reaped), False
        return cpu_s[own][0], total_s

    def read_ranks_cpu(self) -> float | None:
        """Return CPU seconds of the other ranks that share this one's CPUs, since they were known; None with too many.

        A rank that was bound to CPUs of its own takes none from this one.
        """
        if len(self._members) > _MAX_MEMBERS:
            return None
        return self._theirs.count(self._read_all(lambda rank: rank != self.main.pid and self._ranks.get(rank, True)))

    def read_children_rss(self) -> int:
        """Return the sum of the resident sizes, in bytes, of this rank's own processes but the one that trains."""
        total = 0
        for process in self.processes[1:]:
            with suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    def _read_all(self, wanted: Callable[[int], bool]) -> dict[int, _CpuSeconds]:
        """Return CPU seconds by number, for the processes of the wanted ranks."""
        while True:
            read = {pid: self._read_one(pid, m.process) for pid, m in self._members.items() if wanted(m.rank)}
            gone = [pid for pid, cpu_s in read.items() if cpu_s is None]
            if not gone:
                return {pid: cpu_s for pid, cpu_s in read.items() if cpu_s is not None}
            # Its time moved to its parent after that was read: without another read the next sample would jump.
            for pid in gone:
                self._forget(pid)

    def _read_one(self, pid: int, process: Any) -> _CpuSeconds | None:
        """Return CPU seconds, the last known ones where they cannot be read now; None when the process is gone."""
        try:
            times = process.cpu_times()
        except psutil.Error as exc:
            if pid == self.main.pid:
                raise
            if isinstance(exc, psutil.NoSuchProcess):
                return None
            return self._own.last.get(pid) or self._theirs.last.get(pid, (0.0, 0.0))
        own = times.user + times.system
        return own, own + times.children_user + times.children_system

    def _ranks_started_here(self) -> dict[int, Any]:
        """Other ranks that this one's processes started: once these wait for them, their time is in ``children_*``."""
        found = {}
        for pid in self._ranks.keys() - {self.main.pid}:
            parent = self._members.get(self._members[pid].parent)
            if parent is not None and parent.rank == self.main.pid:
                found[pid] = self._members[pid].process
        return found

    def _forget(self, pid: int) -> None:
        self._members.pop(pid, None)
        self._ranks.pop(pid, None)

    def _opened(self, pids: set[int]) -> list[Any]:
        found = []
        for pid in pids:
            with suppress(psutil.Error):
                found.append(self._system.Process(pid))
        return found

    def _take(self, processes: Iterable[Any]) -> None:
        """Take those that descend from a member; parents may come after their children."""
        waiting: dict[int, tuple[Any, int]] = {}
        for process in processes:
            with suppress(psutil.Error):
                if process.pid not in self._members:
                    waiting[process.pid] = process, process.ppid()
        while ready := [pid for pid, (_, parent) in waiting.items() if parent in self._members]:
            for pid in ready:
                process, parent = waiting.pop(pid)
                self._members[pid] = _Member(process, parent, self._members[parent].rank)

    def _take_program(self) -> None:
        parent = multiprocessing.parent_process()
        if parent is None or parent.pid is None or self.main.pid != os.getpid():
            return
        with suppress(*UNREADABLE):
            if self.main.ppid() == parent.pid:  # else it has ended
                above = self._system.Process(parent.pid)
                children = above.children(recursive=True)
                self._members[above.pid] = _Member(above, 0, above.pid)
                self._above = above.pid
                self._take(children)

    def _find_ranks(self, pids: set[int]) -> bool:
        """Look for other ranks among the members, and for those that record. Returns whether there are new ones."""
        before = len(self._ranks)
        for pid, since_s in known_ranks.items():
            if pid in pids and pid not in self._ranks:
                with suppress(*UNREADABLE):  # it has just ended, or is somebody else's
                    process = find(pid, since_s, self._system)
                    if process is not None:
                        self._add_rank(process)
        own = self.main.pid
        for pid, member in self._members.items():
            if member.rank == own and pid != own and member.looks < _LOOKS:
                member.looks += 1
                # What a rank has started has its environment.
                if self._rank_of(pid) in (own, None) and is_another_rank(member.process, self._environs):
                    self._ranks[pid] = self._shares_cpus(member.process)
        return len(self._ranks) > before

    def _add_rank(self, process: Any) -> None:
        if process.pid not in self._members:
            self._members[process.pid] = _Member(process, process.ppid(), process.pid)
            self._ranks[process.pid] = self._shares_cpus(process)
            self._take(process.children(recursive=True))
        self._ranks[process.pid] = self._shares_cpus(process)

    def _shares_cpus(self, process: Any) -> bool:
        if self._affinity is None:
            return True
        try:
            return not self._affinity.isdisjoint(process.cpu_affinity())
        except (*UNREADABLE, AttributeError):
            return True

    def _reassign(self) -> None:
        """Give each process to the nearest rank above it. What lost a parent meanwhile stays where it was."""
        for pid, member in self._members.items():
            member.rank = self._rank_of(pid) or member.rank
        self._theirs = _CpuCounter()  # what they did before they were known is no rate

    def _rank_of(self, pid: int) -> int | None:
        """Return the nearest rank above a process, or that itself; None when a process in between has ended."""
        for _ in range(_DEPTH):
            if pid in self._ranks:
                return pid
            above = self._members.get(pid)
            if above is None:
                return None
            pid = above.parent
        return None


class _CpuCounter:
    """Sums the CPU time of processes that come and go. It never falls."""

    def __init__(self) -> None:
        self.last: dict[int, _CpuSeconds] = {}
        self._total_s = 0.0

    def count(self, cpu_s: dict[int, _CpuSeconds], reaped: bool = False) -> float:
        """Return CPU seconds since the first call.

        Args:
            cpu_s: What was read, by the process's number.
            reaped: Whether the time of a process that is not counted may have moved into one that is.
        """
        if self.last:
            change = sum(total for _, total in cpu_s.values()) - sum(total for _, total in self.last.values())
            both = cpu_s.keys() & self.last.keys()
            survivors = sum(max(0.0, cpu_s[pid][0] - self.last[pid][0]) for pid in both)
            # What children have taken cannot be told then from the whole life of the one that was reaped.
            self._total_s += survivors if reaped else max(change, survivors)
        self.last = cpu_s
        return self._total_s
