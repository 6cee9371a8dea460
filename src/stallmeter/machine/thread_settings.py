"""What the environment asks of the threads that compute torch's operations, and for how many cores they would do."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from . import binding
from .procfs import read_text

NUMBERS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")
"""Say how many threads an operation has. torch asks MKL first, where it was built with it."""

MOST_LETTERS = 64
"""Of a value that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadSettings:
    """What is known of threads as a run begins."""

    cores: int | None = None
    """Cores behind the CPUs that this process may use: two CPUs of one core compute hardly more than one of them.

    None where the system does not say.
    """
    variables: Mapping[str, str] = field(default_factory=dict)
    """Those of `NUMBERS` and of `binding.VARIABLES` that are set."""
    cpus_at_start: int | None = None
    """CPUs that the process might run on as its interpreter started; None where nobody kept that."""

    @property
    def binds(self) -> str | None:
        """Variable that has threads tied to CPUs; None without one."""
        return binding.binds(self.variables)

    def sets(self, threads: int) -> str | None:
        """Return the variable that asks for so many threads; None where the program itself must have done it.

        Args:
            threads: That torch's operations have.
        """
        # "4,2" is 4 threads, and 2 in what these start.
        said = {name: value.partition(",")[0].strip() for name, value in self.variables.items()}
        return next((name for name in NUMBERS if said.get(name) == str(threads)), None)


def read_thread_settings(
    cpus: Collection[int] | None, root: Path = Path("/"), environ: Mapping[str, str] | None = None
) -> ThreadSettings:
    """Read what is known of threads.

    Args:
        cpus: Ids of those that the process may use; None where the system does not say.
        root: Folder that holds ``sys``.
        environ: The process's own by default.
    """
    environ = os.environ if environ is None else environ
    return ThreadSettings(
        cores=None if cpus is None else _cores(cpus, root),
        variables={name: environ[name][:MOST_LETTERS] for name in (*NUMBERS, *binding.VARIABLES) if environ.get(name)},
        cpus_at_start=binding.cpus_at_start(),
    )


def _cores(cpus: Collection[int], root: Path) -> int | None:
    """Count groups of CPUs that share a core."""
    folder = root / "sys/devices/system/cpu"
    siblings = {read_text(folder / f"cpu{cpu}/topology/thread_siblings_list").strip() for cpu in cpus}
    return len(siblings) if siblings and "" not in siblings else None
