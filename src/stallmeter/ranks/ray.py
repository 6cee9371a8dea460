"""What Ray Train says of one of its workers: its rank, and where results are kept.

Ray starts a worker in a folder of its session on each node, which is temporary: what a program writes to a relative
path is lost with the cluster. Ray is asked only where it has been imported anyway, and by documented functions, but for
the storage, which its developer interface tells.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SettingError

FOLDER = "stallmeter"
"""Of recordings, in the folder of Ray's run."""

_SESSION = "session_"
"""Ray's folder of one start on one node begins so: /tmp/ray/session_2026-05-01_…"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayWorker:
    """One worker of Ray Train."""

    rank: int
    world_size: int
    ranks_on_node: int | None = None
    job: str = ""
    """Names the run, the same on all of its workers."""
    results: str = ""
    """Where Ray keeps the run's results, in its own words; empty where it does not say."""
    storage: Path | None = None
    """The same as a folder; None where it is none that this machine could write to, a bucket for example."""
    temporary: Path | None = None
    """Ray's session on this node."""

    def recordings(self, path: Path, *, is_chosen: bool) -> Path:
        """Return the folder for recordings.

        Args:
            path: What was chosen, else the usual one.
            is_chosen: Whether anybody has chosen it.

        Raises:
            SettingError: It would be lost with the cluster.
        """
        if not is_chosen and self.storage is not None:
            return self.storage / FOLDER
        if self.temporary is None or self.temporary not in (found := path.resolve()).parents:
            return path
        shared = "an absolute path that all nodes share, in directory= or STALLMETER_DIR"
        if not is_chosen:
            raise SettingError(
                f"there is no folder for recordings: Ray Train's results go to {self.results!r}, which is none. Give "
                f"{shared}"
            )
        instead = (
            f"Leave it out, and recordings go to {str(self.storage / FOLDER)!r}, or give" if self.storage else "Give"
        )
        raise SettingError(
            f"directory {str(path)!r} would be {str(found)!r}: Ray Train has moved this worker into its session's "
            f"temporary storage, which is lost with the cluster. {instead} {shared}"
        )


def ray_worker() -> RayWorker | None:
    """Return what Ray Train says of this process; None where it is none of its workers."""
    get_context = getattr(sys.modules.get("ray.train"), "get_context", None)
    if get_context is None:
        return None
    try:
        context = get_context()
        if _warns(context):
            return None
        rank, world_size = context.get_world_rank(), context.get_world_size()
        if rank is None or world_size is None:
            return None
        on_node, name = context.get_local_world_size(), context.get_experiment_name()
        storage = _storage(context)
    except RuntimeError:  # the driver, or Ray's own processes
        return None
    if storage is None:
        return RayWorker(rank=rank, world_size=world_size, ranks_on_node=on_node, job=f"ray|{name}")
    results = _first(storage, "trial_fs_path", "experiment_fs_path")
    system = str(getattr(getattr(storage, "storage_filesystem", None), "type_name", ""))
    return RayWorker(
        rank=rank,
        world_size=world_size,
        ranks_on_node=on_node,
        job=f"ray|{_job_id()}|{results}",
        results=results if system == "local" else f"{system}: {results}",
        storage=Path(results) if system == "local" and results else None,
        temporary=_session_of(_first(storage, "trial_working_directory", "local_working_directory")),
    )


def _warns(context: Any) -> bool:
    """Whether asking would warn: where Ray Train's first version runs, and there is no worker."""
    session = sys.modules.get("ray.train._internal.session")
    get_session = getattr(session, "get_session", None)
    is_second = type(context).__module__.startswith("ray.train.v2")  # which raises instead
    return not is_second and get_session is not None and get_session() is None


def _storage(context: Any) -> Any:
    try:
        return context.get_storage()
    except (AttributeError, NotImplementedError):  # an older version; Ray Train's local mode, which moves nobody
        return None


def _first(storage: Any, *names: str) -> str:
    """Return the first of these that the storage has: a trial's where there are trials, else the experiment's."""
    for name in names:
        with contextlib.suppress(AssertionError, AttributeError, RuntimeError, ValueError):
            return str(getattr(storage, name))
    return ""


def _session_of(working_directory: str) -> Path | None:
    if not working_directory:
        return None
    path = Path(working_directory).resolve()
    return next((parent for parent in path.parents if parent.name.startswith(_SESSION)), path)


def _job_id() -> str:
    try:
        return str(sys.modules["ray"].get_runtime_context().get_job_id())
    except (AttributeError, KeyError, RuntimeError):
        return ""
