"""How a monitor behaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..delivery.points import BASE_PERIOD_S
from ..errors import SettingError

CLOSE_BUDGET_S = 10.0
"""Most seconds that the end of a run is delayed by trackers that have not got everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a monitor behaves; the defaults are what you get when you say nothing."""

    directory: Path = Path("stallmeter")
    """Where recordings go; each run makes a folder of its own below it."""
    interval_s: float = 1.0
    """Time between two samples of the hardware."""
    period_s: float = BASE_PERIOD_S
    """Time between two points on a tracker; grows with the run."""
    close_budget_s: float = CLOSE_BUDGET_S
    """Most seconds that the end of a run may be delayed to deliver what is left."""
    framework: str = "loop"
    loop_bucket: Literal["loop", "compute"] = "compute"
    """Bucket of the time outside every span."""
    rank: int = 0
    world_size: int = 1
    console: bool = True
    """Whether the verdict is written to stderr when the run ends."""
    sync_probe_steps: int = 2
    """Steps in which calls that wait for a CUDA device are looked for, once after the warm-up; 0 for none."""
    deep_steps: int = 0
    """Steps of torch.profiler when the cause lies inside the step, once; 0 for none."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Static facts for the report."""

    def __post_init__(self) -> None:
        for name in ("interval_s", "period_s"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0.01 <= value <= 86_400:
                raise SettingError(f"{name} is {value!r}; give a number of seconds between 0.01 and 86400")
        for name in ("sync_probe_steps", "deep_steps"):
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 <= value <= 1000:
                raise SettingError(f"{name} is {value!r}; give a number of steps from 0, for none, to 1000")
        if self.close_budget_s < 0:
            raise SettingError(f"close_budget_s is {self.close_budget_s!r}; give 0 or more seconds")
