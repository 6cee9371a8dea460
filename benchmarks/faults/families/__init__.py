"""The families that draws come from: each plants one cause in a plain program, or makes a healthy one."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TypeAlias

from ..cause import Planted
from ..program import Program
from . import beside, healthy, loading, run, workers

Family: TypeAlias = Callable[[random.Random, Program], Planted]

FAMILIES: Mapping[str, tuple[Family, int]] = {
    "no-workers": (loading.no_workers, 3),
    "too-few-workers": (loading.too_few_workers, 4),
    "prep-stall": (loading.prep_stall, 3),
    "fetch-stall": (loading.fetch_stall, 3),
    "shared-store": (loading.shared_store, 2),
    "slow-batches": (workers.slow_batches, 2),
    "batch-handoff": (workers.batch_handoff, 2),
    "too-many-workers": (workers.too_many_workers, 1),
    "worker-startup": (workers.worker_startup, 2),
    "idle-workers": (workers.idle_workers, 1),
    "noisy-neighbour": (workers.noisy_neighbour, 2),
    "cpu-throttled": (workers.cpu_throttled, 1),
    "slow-callback": (beside.slow_callback, 2),
    "slow-logging": (beside.slow_logging, 1),
    "checkpoint-stall": (beside.checkpoint_stall, 1),
    "validation-heavy": (beside.validation_heavy, 1),
    "step-outliers": (beside.step_outliers, 1),
    "step-time-drift": (beside.step_time_drift, 1),
    "gc-pauses": (beside.gc_pauses, 1),
    "recompiles": (beside.recompiles, 1),
    "slow-start": (run.slow_start, 1),
    "long-first-steps": (run.long_first_steps, 1),
    "cold-cache": (run.cold_cache, 1),
    "host-memory-growth": (run.host_memory_growth, 1),
    "open-files-growth": (run.open_files_growth, 1),
    "shm-near-limit": (run.shm_near_limit, 1),
    "healthy-no-workers": (healthy.tiny_items, 3),
    "healthy-enough-workers": (healthy.enough_workers, 5),
    "healthy-many-workers": (healthy.many_workers, 2),
    "healthy-extras": (healthy.extras, 3),
    "healthy-epochs": (healthy.long_epochs, 2),
}
"""Each with the number of its cards in the deck."""

SECOND = (
    "slow-callback",
    "slow-logging",
    "checkpoint-stall",
    "validation-heavy",
    "step-outliers",
    "host-memory-growth",
)
"""What may be planted beside something else."""
