"""What a run is, as its adapter finds it: no choice of the program's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Where and how one process takes part in a run."""

    recordings: Path
    """Folder of all recordings; the run makes one of its own below it."""
    framework: str = "loop"
    """Name and version of what trains."""
    loop_bucket: Literal["loop", "compute"] = "compute"
    """Bucket of the time outside every span: ``loop`` where the framework brackets what computes."""
    rank: int = 0
    world_size: int = 1
    ranks_on_node: int | None = None
    """How many ranks share this machine; None lets the launcher's environment say."""
    is_killed: bool = False
    """Whether the process is killed once its part of the program has returned: nothing is left to the program's end."""
    began_ns: int | None = None
    """When the training began, in ns of the run's clock, where that was before the run was put together."""
    ddp_module: Callable[[], object] | None = None
    """Returns the module that exchanges gradients, where the adapter knows it; called from the sampler thread."""
