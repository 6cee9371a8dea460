"""A job of two ranks that is drawn by seed: what is planted where, how large, and who launches it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

FAULTS = (
    "data",
    "forward",
    "backward",
    "hook",
    "logging",
    "checkpoint",
    "rotating",
    "communication",
    "both-data",
    "healthy",
)
LAUNCHERS = ("plain", "lightning")

INPUT_RULES = frozenset(
    {
        "batch-handoff",
        "fetch-stall",
        "input-bound",
        "no-workers",
        "prep-stall",
        "slow-batches",
        "too-few-workers",
        "too-many-workers",
    }
)


@dataclass(frozen=True, slots=True)
class Draw:
    """One job."""

    name: str
    fault: str
    launcher: str
    seed: int
    rank: int
    """Who has the fault, where it is one rank's."""
    extra_s: float
    """What is planted a step; where it comes in some steps only, in each of these."""
    every: int
    """The fault comes in each so-many-th step."""
    step_s: float
    """Of a healthy step's own work."""
    steps: int
    workers: int
    batch: int
    features: int
    """Width of the model: its square is what the ranks exchange."""
    spins: bool
    """Whether planted work keeps a CPU busy; else it waits."""

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is planted."""
        return self.fault == "healthy"

    @property
    def right_rules(self) -> frozenset[str]:
        """Rules that are right."""
        in_lightning = self.launcher == "lightning"
        return {
            "data": INPUT_RULES,
            "both-data": INPUT_RULES,
            "forward": frozenset({"straggler"}),
            "backward": frozenset({"straggler"}),
            # A plain loop's body is one piece.
            "hook": frozenset({"slow-callback"}) if in_lightning else frozenset({"straggler"}),
            "logging": frozenset({"slow-logging"}),
            "checkpoint": frozenset({"checkpoint-stall"}),
            "rotating": frozenset({"rank-imbalance"}),
            "communication": frozenset({"communication-bound"}),
            "healthy": frozenset(),
        }[self.fault]

    @property
    def right_ranks(self) -> tuple[int, ...]:
        """Ranks that are right; none where it holds for all."""
        return () if self.fault in ("rotating", "communication", "both-data", "healthy") else (self.rank,)


def draw(fault: str, launcher: str, seed: int) -> Draw:
    """Draw sizes.

    Args:
        fault: One of `FAULTS`.
        launcher: One of `LAUNCHERS`.
        seed: Of this fault under this launcher.
    """
    random = Random(f"{fault} {launcher} {seed}")
    step_s = random.uniform(0.008, 0.030)
    every = random.choice((8, 16)) if fault == "checkpoint" else random.choice((1, 1, 2)) if fault == "logging" else 1
    extra_s = random.uniform(0.6, 2.0) * step_s * every
    steps = round(min(400.0, 5.0 / (step_s + extra_s / every)))
    return Draw(
        name=f"{fault}-{launcher}-{seed}",
        fault=fault,
        launcher=launcher,
        seed=seed,
        rank=0 if fault in ("logging", "checkpoint") else random.choice((0, 1)),
        extra_s=extra_s,
        every=every,
        step_s=step_s,
        steps=max(60, steps),
        workers=random.choice((0, 1)) if fault != "rotating" else 0,
        batch=random.choice((2, 4, 8)),
        features=random.choice((2500, 3500)) if fault == "communication" else random.choice((64, 128, 256)),
        spins=fault not in ("both-data", "rotating") and random.random() < 0.3,
    )
