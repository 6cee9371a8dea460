"""What a step costs besides its compute and its data."""

from __future__ import annotations

import random

from ..cause import Cause, Lever, Planted, gone
from ..program import Program


def slow_callback(rng: random.Random, program: Program) -> Planted:
    """Have a callback that takes its time in each batch."""
    how = rng.choice(("sleep", "cpu", "hook") if program.loop == "lightning" else ("sleep", "cpu"))
    cost = program.device_s * rng.choice((0.02, 0.2, 0.4, 0.8, 1.5))
    return Planted(
        fields={"callback": how, "callback_s": cost}, causes=(gone("slow-callback", how, {"callback_s": 0.0}),)
    )


def slow_logging(rng: random.Random, program: Program) -> Planted:
    """Have a logger that answers slowly and is written to often."""
    every = rng.choice((1, 2, 5, 10))
    cost = program.device_s * every * rng.choice((0.02, 0.2, 0.4, 0.8))
    fields = {"logger_s": cost, "log_every": every}
    return Planted(fields=fields, causes=(gone("slow-logging", f"every {every}", {"logger_s": 0.0}),))


def checkpoint_stall(rng: random.Random, program: Program) -> Planted:
    """Save often, to a storage that takes its time."""
    every = rng.choice((15, 25, 40))
    fields = {
        "save_every": every,
        "save_s": program.device_s * every * rng.choice((0.02, 0.25, 0.5, 1.0)),
        "weights_bytes": rng.choice((1, 4, 12)) * 1_000_000,
    }
    return Planted(fields=fields, causes=(gone("checkpoint-stall", "slow storage", {"save_every": 0}, whole=True),))


def validation_heavy(rng: random.Random, program: Program) -> Planted:
    """Validate often, or long."""
    every = rng.choice((30, 50, 80))
    steps = max(2, round(every * rng.choice((0.03, 0.3, 0.6, 1.2))))
    fields = {
        "validate_every": every,
        "validate_steps": steps,
        "validate_s": program.device_s,
        "validate_workers": rng.choice((0, 0, 1)),
    }
    cured = {"validate_every": 0}
    return Planted(fields=fields, causes=(gone("validation-heavy", f"every {every}", cured, whole=True),))


def step_outliers(rng: random.Random, program: Program) -> Planted:
    """Pause rarely, and long."""
    every = rng.choice((40, 60, 90))
    fields = {"pause_every": every, "pause_s": program.device_s * every * rng.choice((0.03, 0.3, 0.6, 1.2))}
    return Planted(fields=fields, causes=(gone("step-outliers", "rare pauses", {"pause_every": 0}, whole=True),))


def step_time_drift(rng: random.Random, program: Program) -> Planted:
    """Make each step a little longer than the one before."""
    how = rng.choice(("sleep", "python", "callback"))
    fields = {"drift": how, "drift_s": program.device_s * rng.uniform(0.8, 3.0), "epochs": 1}
    # Where a callback gets slower, one that does less wins the same time back.
    rules = ("step-time-drift", "slow-callback") if how == "callback" else ("step-time-drift",)
    no_drift = Lever(name="no drift", rules=rules, changes=({"drift_s": 0.0},), whole=True)
    return Planted(fields=fields, causes=(Cause(rule="step-time-drift", mechanism=how, levers=(no_drift,)),))


def gc_pauses(rng: random.Random, program: Program) -> Planted:
    """Hold many objects while the collector looks at all of them again and again."""
    every = rng.choice((0, 10, 25))
    fields = {"garbage": rng.choice((400_000, 800_000)), "garbage_every": every}
    how = f"gc.collect() every {every}" if every else "a buffer of objects that come and go"
    return Planted(fields=fields, causes=(gone("gc-pauses", how, {"gc_off": True}, whole=True),))


def recompiles(rng: random.Random, program: Program) -> Planted:
    """Compile the model anew for each length of a batch."""
    shapes = rng.choice((12, 30, 60, 100))
    return Planted(
        fields={"shapes": shapes}, causes=(gone("recompiles", f"{shapes} lengths", {"shapes": 1}, whole=True),)
    )
