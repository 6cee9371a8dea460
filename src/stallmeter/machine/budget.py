"""The CPU and memory that this job may use: affinity, cgroup quota and limits (v1 and v2), ranks on the node.

The host's totals are the wrong denominator on a shared machine. What binds is the tightest of the CPU affinity, the
CFS quota and the memory limit of this process's cgroup or of any cgroup above it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from . import binding
from .procfs import read_text

_HOST_ROOT = Path("/")
_NO_LIMIT_BYTES = 1 << 60
"""cgroup v1 writes "no limit" as the largest page-aligned int64."""

_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""Set by torchrun, Open MPI, MVAPICH and Hydra in each rank: more specific than what SLURM says of the whole job."""
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_SLURM_SIZES = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
_SLURM_STEP = ("SLURM_STEP_ID", "SLURM_STEP_TASKS_PER_NODE")
"""Set by srun for what it starts. A program that a batch script starts without it is one process, whatever was asked
for with ``--ntasks``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What the training process and its workers may use. None where the system does not say."""

    host_cpus: int
    """Logical CPUs of the host."""
    affinity_cpus: int | None = None
    """CPUs in the affinity mask of the main thread, which workers inherit; a cpuset is part of it."""
    quota_cpus: float | None = None
    """CFS quota in CPUs, the tightest up the cgroup hierarchy. It caps CPU time, not parallelism."""
    ranks_on_node: int = 1
    """Training processes on this node, which share the quota and, unless bound, the affinity mask."""
    local_rank: int | None = None
    """Number of this rank among those of the node, as the launcher says."""
    bound_per_rank: bool = False
    """True when the launcher gave each rank CPUs of its own, so that ``affinity_cpus`` is not shared."""
    memory_limit_bytes: int | None = None
    """The least of the host's memory and the cgroup limits up the hierarchy."""
    shm_bytes: int | None = None
    """Size of /dev/shm, through which workers hand batches over."""
    shm_free_bytes: int | None = None
    cgroup_version: int | None = None
    """1 or 2: where the CPU controller is (the memory controller's when there is none). None without cgroups."""

    @property
    def _mask_cpus(self) -> float:
        return float(self.host_cpus if self.affinity_cpus is None else self.affinity_cpus)

    @property
    def usable_cpus(self) -> float:
        """CPUs that this process's job may keep busy: the least of affinity and quota."""
        return self._mask_cpus if self.quota_cpus is None else min(self._mask_cpus, self.quota_cpus)

    def in_the_way(self, others_cpus: float) -> float:
        """Return how many of the CPUs that others keep busy the job could use itself.

        A quota leaves CPUs of the mask to others: what they keep busy of those takes nothing from the job.

        Args:
            others_cpus: That processes outside the job keep busy on the CPUs of the mask.
        """
        return max(0.0, others_cpus - (self._mask_cpus - self.usable_cpus))

    @property
    def cpus_per_rank(self) -> float:
        """An equal share of the budget for one rank."""
        affinity = self._mask_cpus if self.bound_per_rank else self._mask_cpus / self.ranks_on_node
        return affinity if self.quota_cpus is None else min(affinity, self.quota_cpus / self.ranks_on_node)


@dataclass(frozen=True, slots=True)
class ThrottleCounters:
    """Counters of the CPU quota since the cgroup was made."""

    periods: int
    """Quota periods in which the cgroup ran."""
    throttled_periods: int
    throttled_ns: int
    """Time stopped by the quota, summed over CPUs."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory under the tightest cgroup limit."""

    limit_bytes: int
    used_bytes: int
    """Without the file cache that the kernel can take back at once: what the out-of-memory killer weighs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupFiles:
    """The cgroup files that bind this process, found once so that a sample costs a read or three.

    Made by `CgroupFiles.find`. A level that gets a limit only later is not noticed.
    """

    version: int | None = None
    """As `Budget.cgroup_version`."""
    quota_cpus: float | None = None
    cpu_stat: Path | None = None
    """None when no level has a quota: then nothing can be throttled."""
    memory_limit: Path | None = None
    """None when no level has a limit."""
    memory_usage: Path | None = None
    memory_stat: Path | None = None
    inactive_key: str = "inactive_file"
    """Key of the reclaimable file cache in ``memory_stat``."""

    @classmethod
    def find(cls, root: Path = _HOST_ROOT) -> CgroupFiles:
        """Walk from this process's cgroups up to their mounts and keep the tightest levels.

        Args:
            root: Folder that holds ``proc`` and ``sys``.
        """
        cpu_version, cpu_levels = _levels(root, "cpu")
        memory_version, memory_levels = _levels(root, "memory")
        quotas = [(quota, level) for level in cpu_levels if (quota := _quota_cpus(level, cpu_version)) is not None]
        # Among equal limits the outermost binds first, for it counts the siblings too; min() keeps the first it sees.
        quota, cpu_level = min(reversed(quotas), key=lambda pair: pair[0], default=(None, None))
        limit_name = "memory.max" if memory_version == 2 else "memory.limit_in_bytes"
        usage_name = "memory.current" if memory_version == 2 else "memory.usage_in_bytes"
        limits = [(limit, lvl) for lvl in memory_levels if (limit := _limit_bytes(lvl / limit_name)) is not None]
        _, memory_level = min(reversed(limits), key=lambda pair: pair[0], default=(None, None))
        return cls(
            version=cpu_version or memory_version,
            quota_cpus=quota,
            cpu_stat=cpu_level / "cpu.stat" if cpu_level else None,
            memory_limit=memory_level / limit_name if memory_level else None,
            memory_usage=memory_level / usage_name if memory_level else None,
            memory_stat=memory_level / "memory.stat" if memory_level else None,
            inactive_key="total_inactive_file" if memory_version == 1 else "inactive_file",
        )

    def read_throttling(self) -> ThrottleCounters | None:
        """Return the counters of the level with the tightest quota; None without a quota or when unreadable."""
        stat = _key_values(self.cpu_stat)
        if "throttled_usec" in stat:
            stat["throttled_time"] = stat["throttled_usec"] * 1000
        try:
            return ThrottleCounters(stat["nr_periods"], stat["nr_throttled"], stat["throttled_time"])
        except KeyError:
            return None

    def read_memory(self) -> MemoryUse | None:
        """Return use and limit of the level with the tightest limit; None without a limit or when unreadable."""
        limit, used = _limit_bytes(self.memory_limit), _limit_bytes(self.memory_usage)
        if limit is None or used is None:
            return None
        return MemoryUse(limit, max(0, used - _key_values(self.memory_stat).get(self.inactive_key, 0)))


def read_budget(
    root: Path = _HOST_ROOT,
    environ: Mapping[str, str] | None = None,
    *,
    host_cpus: int | None = None,
    affinity: Collection[int] | None = None,
    ranks_on_node: int | None = None,
) -> Budget:
    """Read what this process may use.

    Args:
        root: Folder that holds ``proc``, ``sys`` and ``dev``.
        environ: Environment of the launcher; the process's own by default.
        host_cpus: CPUs of the host; asked of the system by default.
        affinity: CPU ids that the job may run on; asked of the system by default.
        ranks_on_node: Training processes on this node, as the framework says. The larger number counts: Lightning
            starts several in an srun step of one task, and Ray several that each know of one device.
    """
    environ = os.environ if environ is None else environ
    affinity = cpu_affinity() if affinity is None else affinity
    ranks = max(ranks_on_node or 1, count_ranks_on_node(environ))
    cgroup = CgroupFiles.find(root)
    memory = cgroup.read_memory()
    limits = [limit for limit in (_host_memory_bytes(root), memory and memory.limit_bytes) if limit]
    shm_bytes, shm_free_bytes = read_shm(root) or (None, None)
    return Budget(
        host_cpus=host_cpus or os.cpu_count() or 1,
        affinity_cpus=None if affinity is None else len(affinity),
        quota_cpus=cgroup.quota_cpus,
        ranks_on_node=ranks,
        local_rank=_local_rank(environ),
        bound_per_rank=_bound_per_rank(environ, ranks),
        memory_limit_bytes=min(limits, default=None),
        shm_bytes=shm_bytes,
        shm_free_bytes=shm_free_bytes,
        cgroup_version=cgroup.version,
    )


def cpu_affinity() -> frozenset[int] | None:
    """Return the ids of the CPUs that the main thread may run on; None where the system has no affinity.

    Where an OpenMP runtime ties threads to CPUs those of all threads: the main one then has a single CPU, as others do.
    """
    if binding.binds(os.environ) is not None:
        return binding.process_cpus()
    return binding.affinity_of(os.getpid())


def read_shm(root: Path = _HOST_ROOT) -> tuple[int, int] | None:
    """Return size and free space of /dev/shm in bytes; None where there is none."""
    if not hasattr(os, "statvfs"):
        return None
    try:
        stat = os.statvfs(root / "dev/shm")
    except OSError:
        return None
    return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize


def count_ranks_on_node(environ: Mapping[str, str]) -> int:
    """Return how many training processes the launcher says it started on this node; 1 when it says nothing."""
    for name in _LOCAL_SIZES:
        value = environ.get(name, "")
        if value.isdecimal() and int(value) > 0:
            return int(value)
    if not _in_srun(environ):
        return 1
    node = environ.get("SLURM_NODEID", "0")
    for name in _SLURM_SIZES:
        if sizes := _slurm_sizes(environ.get(name, "")):
            return sizes[int(node)] if node.isdecimal() and int(node) < len(sizes) else sizes[0]
    return 1


def _local_rank(environ: Mapping[str, str]) -> int | None:
    names = (*_LOCAL_RANKS, "SLURM_LOCALID") if _in_srun(environ) else _LOCAL_RANKS
    return next((int(value) for name in names if (value := environ.get(name, "")).isdecimal()), None)


def _in_srun(environ: Mapping[str, str]) -> bool:
    return any(environ.get(name) for name in _SLURM_STEP)


def _slurm_sizes(text: str) -> list[int]:
    """Expand SLURM's list of tasks by node, for example ``2(x3),1``; empty when malformed."""
    sizes: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", item.strip())
        if match is None or int(match[1]) == 0:
            return []
        sizes += [int(match[1])] * int(match[2] or 1)
    return sizes


def _bound_per_rank(environ: Mapping[str, str], ranks: int) -> bool:
    """Tell whether srun bound each task to CPUs of its own: the list then has a different mask for each."""
    masks = {mask for mask in environ.get("SLURM_CPU_BIND_LIST", "").split(",") if mask}
    return 1 < ranks <= len(masks)


def _levels(root: Path, controller: str) -> tuple[int | None, tuple[Path, ...]]:
    """Return the cgroup version of a controller and its folders, from this process's own up to the mount."""
    paths = _cgroup_paths(root)
    version = 1 if controller in paths else 2
    path = paths.get(controller if version == 1 else "")
    if path is None or ".." in path.split("/"):  # ".." leads out of what this cgroup namespace can see
        return None, ()
    mounts = [
        (mount_root, mount_point)
        for mount_root, mount_point, kind, options in _mounts(root)
        if (kind == "cgroup2" if version == 2 else kind == "cgroup" and controller in options)
    ]
    if not mounts:
        return None, ()
    for mount_root, mount_point in sorted(mounts, key=lambda mount: -len(mount[0])):
        prefix = mount_root.rstrip("/")
        own = mount_point / path[len(prefix) :].lstrip("/")
        if (path + "/").startswith(prefix + "/") and own.is_dir():
            above = own.parts[len(mount_point.parts) :]
            return version, tuple(mount_point.joinpath(*above[:depth]) for depth in range(len(above), -1, -1))
    # A container sees the host's path but only its own cgroup, mounted at the top.
    return version, (mounts[0][1],)


def _cgroup_paths(root: Path) -> dict[str, str]:
    """Return this process's cgroup path by v1 controller, and under "" the v2 path."""
    paths: dict[str, str] = {}
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if separator:
            paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _mounts(root: Path) -> list[tuple[str, Path, str, list[str]]]:
    """Return the cgroup mounts as (root within the hierarchy, mount point under ``root``, type, super options)."""
    mounts = []
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        place, kind = left.split(), right.split()
        if len(place) >= 5 and len(kind) >= 3 and kind[0] in {"cgroup", "cgroup2"}:
            point = root / _unescape(place[4]).lstrip("/")
            mounts.append((_unescape(place[3]), point, kind[0], kind[2].split(",")))
    return mounts


def _unescape(text: str) -> str:
    """Undo mountinfo's octal escapes of blanks and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _quota_cpus(level: Path, version: int | None) -> float | None:
    if version == 2:
        words = read_text(level / "cpu.max").split()
    else:
        words = f"{read_text(level / 'cpu.cfs_quota_us')} {read_text(level / 'cpu.cfs_period_us')}".split()
    if len(words) != 2 or not all(word.isdecimal() for word in words):  # "max" and -1 mean no quota
        return None
    quota_us, period_us = int(words[0]), int(words[1])
    return quota_us / period_us if quota_us and period_us else None


def _limit_bytes(path: Path | None) -> int | None:
    """Read a file with one size in it; None for "max", v1's huge number and whatever cannot be read."""
    text = read_text(path).strip()
    return int(text) if text.isdecimal() and int(text) < _NO_LIMIT_BYTES else None


def _key_values(path: Path | None) -> dict[str, int]:
    words = (line.split() for line in read_text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdecimal()}


def _host_memory_bytes(root: Path) -> int | None:
    match = re.search(r"^MemTotal:\s+(\d+) kB$", read_text(root / "proc/meminfo"), re.MULTILINE)
    if match:
        return int(match[1]) * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf; others may lack the names
        return None
