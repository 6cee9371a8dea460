"""What can be measured on this machine, what cannot, and what to do about it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Protocol

from .budget import Budget, read_budget
from .procfs import RUN_QUEUE, counts_run_queue, read_text

_SMALL_SHM_BYTES = 1 << 30
"""Docker's default of 64 MiB holds a batch or two of images; workers then die with a bus error."""

_PERMISSION = "the driver keeps it from ordinary users here: ask the administrator, or go without"

_NEEDED = ("psutil", "nvidia-ml-py")
_OPTIONAL = (
    "torch",
    "lightning",
    "pytorch-lightning",
    "mlflow",
    "neptune",
    "neptune-scale",
    "transformers",
    "pytorch-ignite",
    "keras",
    "ray",
    "rich",
    "plotly",
    "jinja2",
    "matplotlib",
)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's report."""

    name: str
    ok: bool | None
    """True: works. False: something to fix. None: not there, and that may be all right."""
    value: str
    """What was found, with units."""
    fix: str = ""
    """What to do; empty when there is nothing to do."""


class CheckedSource(Protocol):
    """A source that knows whether it can measure."""

    name: str
    reason: str | None
    """Why it measures nothing; None when it measures."""
    fix: str
    """What to do about ``reason``."""
    note: str | None
    """What may be wrong although it measures."""

    @property
    def summary(self) -> str:
        """What it measures."""
        ...

    @property
    def not_measured(self) -> Mapping[str, str]:
        """What it cannot measure here, with the reason."""
        ...


def check_machine(
    sources: Sequence[CheckedSource] = (),
    *,
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
    budget: Budget | None = None,
    version: Callable[[str], str] = metadata.version,
) -> tuple[Check, ...]:
    """Check what stallmeter can measure here. Imports and starts nothing.

    Args:
        sources: Opened sources that can say why they measure nothing, for example ``NvmlSource``.
        root: Folder that holds ``proc``, ``sys`` and ``dev``.
        environ: Environment of the launcher; the process's own by default.
        budget: What the job may use; read from ``root`` and ``environ`` by default.
        version: From the name of a distribution to its version; raises PackageNotFoundError.
    """
    budget = read_budget(root, environ) if budget is None else budget
    return (
        _check_cpus(budget),
        _check_memory(budget),
        _check_shm(budget),
        _check_cgroup(budget),
        *_check_proc(root),
        *(check for source in sources for check in _check_source(source)),
        _check_start_method(),
        *_check_versions(version),
    )


def _check_cpus(budget: Budget) -> Check:
    affinity = "unknown" if budget.affinity_cpus is None else budget.affinity_cpus
    quota = "none" if budget.quota_cpus is None else f"{budget.quota_cpus:g}"
    value = f"{budget.usable_cpus:g} usable of {budget.host_cpus} on the host (affinity {affinity}, quota {quota})"
    if budget.ranks_on_node > 1:
        value += f"; {budget.ranks_on_node} ranks on this node: {budget.cpus_per_rank:.3g} each"
    if budget.cpus_per_rank > 1:
        return Check("CPUs", True, value)
    return Check("CPUs", False, value, "ask for more CPUs: a rank with one CPU has none left for DataLoader workers")


def _check_memory(budget: Budget) -> Check:
    if budget.memory_limit_bytes is None:
        return Check("memory limit", None, "unknown")
    return Check("memory limit", True, _gib(budget.memory_limit_bytes))


def _check_shm(budget: Budget) -> Check:
    if budget.shm_bytes is None or budget.shm_free_bytes is None:
        return Check("shared memory", None, "no /dev/shm")
    value = f"{_gib(budget.shm_free_bytes)} free of {_gib(budget.shm_bytes)} in /dev/shm"
    if budget.shm_free_bytes >= _SMALL_SHM_BYTES:
        return Check("shared memory", True, value)
    fix = "DataLoader workers hand batches over through it: docker run --shm-size=8g or --ipc=host; in Kubernetes an "
    return Check("shared memory", False, value, fix + "emptyDir with medium Memory at /dev/shm")


def _check_cgroup(budget: Budget) -> Check:
    if budget.cgroup_version is None:
        return Check("cgroup", None, "none: quota, throttling and memory limit cannot be read")
    return Check("cgroup", True, f"version {budget.cgroup_version}")


def _check_proc(root: Path) -> Iterator[Check]:
    yield _measured(
        "run-queue wait",
        f"/{RUN_QUEUE}",
        counts_run_queue(read_text(root / RUN_QUEUE)),
        "time that workers wait for a CPU is not told from waiting for storage; needs a Linux kernel with "
        "CONFIG_SCHED_INFO, outside sandboxes such as gVisor",
    )
    yield _measured(
        "pressure (PSI)",
        "/proc/pressure",
        "total=" in read_text(root / "proc/pressure/cpu"),
        "needs Linux 4.20 or later; where it is compiled in but off, boot with psi=1",
    )
    yield _measured(
        "bytes read",
        "/proc/self/io",
        "read_bytes:" in read_text(root / "proc/self/io"),
        "bytes that workers read from disk are not counted; needs Linux with CONFIG_TASK_IO_ACCOUNTING",
    )


def _measured(name: str, path: str, ok: bool, fix: str) -> Check:
    return Check(name, True, path) if ok else Check(name, None, f"{path} says nothing", fix)


def _check_source(source: CheckedSource) -> Iterator[Check]:
    if source.reason is not None:
        yield Check(source.name, None, source.reason, source.fix)
        return
    yield Check(source.name, source.note is None, source.summary, source.note or "")
    for why in sorted(set(source.not_measured.values())):
        names = [name for name, reason in source.not_measured.items() if reason == why]
        yield Check(f"{source.name}, {why}", None, ", ".join(names), _PERMISSION if why == "not permitted" else "")


def _check_start_method() -> Check:
    # get_start_method() would also fix the default for the rest of the process.
    chosen = multiprocessing.get_start_method(allow_none=True)
    if chosen:
        return Check("start method", True, chosen)
    return Check("start method", True, f"{multiprocessing.get_all_start_methods()[0]} (default)")


def _check_versions(version: Callable[[str], str]) -> Iterator[Check]:
    for package in (*_NEEDED, *_OPTIONAL):
        found = _version_of(package, version)
        needed = package in _NEEDED
        if found is not None:
            yield Check(package, True, found)
        else:
            yield Check(package, False if needed else None, "not installed", f"pip install {package}" if needed else "")


def _version_of(package: str, version: Callable[[str], str]) -> str | None:
    try:
        return version(package)
    except metadata.PackageNotFoundError:
        return None


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.3g} GiB"
