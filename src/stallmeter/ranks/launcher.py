"""What the program that started this process says about it: its rank, how many ranks there are, and of which job."""

from __future__ import annotations

import os
from collections.abc import Mapping

_LAUNCHERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    # torchrun, Ray Train, Lightning's own, DeepSpeed: these bring a key-value store, which needs no name for the job.
    ("RANK", "WORLD_SIZE", ()),
    # MPI comes before SLURM: `mpirun` starts its daemons, and through them the ranks, with srun.
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("PMIX_NAMESPACE",)),
    ("PMI_RANK", "PMI_SIZE", ("PMI_JOBID",)),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", ("FLUX_JOB_ID",)),
    # Only srun sets SLURM_STEP_NUM_TASKS. SLURM_NTASKS, and in batch scripts SLURM_PROCID=0, are there without it, too.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")),
)
"""Rank, number of ranks, and what tells one start of the ranks from all others."""


def rank_from_environment(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return rank and world size as launchers set them; (0, 1) without a launcher."""
    rank, size, _ = _launched(environ)
    return rank, size


def job_from_environment(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return a name that all ranks of one start share with nobody else; None where the launcher gives none."""
    _, _, names = _launched(environ)
    if not names or not environ.get(names[0]):
        return None
    return "|".join(environ.get(name, "") for name in names)


def _launched(environ: Mapping[str, str]) -> tuple[int, int, tuple[str, ...]]:
    for rank_name, size_name, names in _LAUNCHERS:
        rank, size = environ.get(rank_name, ""), environ.get(size_name, "")
        if rank.isdecimal() and size.isdecimal() and int(rank) < int(size):
            return int(rank), int(size), names
    return 0, 1, ()
