"""The shape of one training run. Every fault is a deviation from the plain, healthy default."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass

JITTER = 0.15
"""A seed varies every cost and size by up to this share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a run does. Seconds are sleeps unless the name says ``cpu``."""

    device_s: float = 0.015
    """Compute of the accelerator, in each step."""
    epochs: int = 1
    steps: int = 200
    """Batches an epoch."""
    batch_size: int = 8
    accumulate: int = 1

    workers: int = 0
    start_method: str | None = None
    persistent: bool = False
    iterable: bool = False
    item_cpu_s: float = 0.0
    """CPU time to make one item."""
    item_wait_s: float = 0.0
    """Wait for storage for one item."""
    slow_every: int = 0
    """Each so-many-th item is slow."""
    slow_item_s: float = 0.0
    slow_item_cpu_s: float = 0.0
    tensors: int = 0
    """Above 0, a batch is made whole, as a dict of so many small tensors."""
    worker_init_s: float = 0.0
    fork_wait_s: float = 0.0
    """What a handler that runs before every fork waits."""
    item_bytes: int = 0
    """Above 0, items of this size come from a store over HTTP."""
    store_bytes_per_s: float = 0.0
    """What that store can deliver to all its readers together."""

    callback_s: float = 0.0
    """In a callback, each batch."""
    hook_cpu_s: float = 0.0
    """In the module's own ``on_train_batch_end``, each batch."""
    logger_s: float = 0.0
    """In the logger, each time it is written to."""
    log_every: int = 50
    save_every: int = 0
    """Steps between checkpoints; 0 writes none."""
    save_s: float = 0.0
    """What the storage takes for a checkpoint, besides writing it."""
    weights_bytes: int = 0
    """Weights that every checkpoint holds."""
    validate_every: int = 0
    """Steps between validations; 0 validates never."""
    validate_steps: int = 10
    validate_s: float = 0.01
    """Device time of a validation step."""
    setup_s: float = 0.0
    """In the module's ``setup``."""
    prepare_s: float = 0.0
    """In ``train_dataloader``, which makes the loader."""

    leak_bytes: int = 0
    """Kept for ever, each step."""
    leak_item_bytes: int = 0
    """Kept for ever by the dataset, each item."""
    pause_every: int = 0
    """Each so-many-th step pauses."""
    pause_s: float = 0.0
    neighbours: int = 0
    """Processes outside the job that each keep a CPU busy."""

    @property
    def costs(self) -> tuple[str, ...]:
        """Names of the fields that a seed varies."""
        return tuple(f.name for f in dataclasses.fields(self) if f.name.endswith(("_s", "_bytes")))

    def varied(self, seed: int) -> Shape:
        """Return the same shape with every cost and size a little different."""
        draw = random.Random(seed)
        changed = {}
        for name in self.costs:
            value = getattr(self, name)
            factor = draw.uniform(1 - JITTER, 1 + JITTER)
            changed[name] = int(value * factor) if isinstance(value, int) else value * factor
        return dataclasses.replace(self, **changed)
