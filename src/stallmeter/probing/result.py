"""What a probe found. Not measured is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..records.diagnosis import WorkerAdvice

NEAR = 0.05
"""Ceilings closer to each other than this are not told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How fast something went after its warm-up."""

    step_time_s: float
    """Mean wall time of a step, or of a batch where there was no training."""
    batch_samples: float | None
    """Mean number of items in a batch; None where batches do not say."""
    steps: int
    """Steps behind the mean."""
    settled: bool = True
    """False where the time was up before the warm-up was over: then it is part of the mean."""

    @property
    def samples_per_s(self) -> float | None:
        """Items per second; None where batch sizes are unknown."""
        return None if self.batch_samples is None else self.batch_samples / self.step_time_s

    @property
    def steps_per_s(self) -> float:
        """Batches per second."""
        return 1 / self.step_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersRow:
    """The training with another number of workers."""

    num_workers: int
    predicted_step_time_s: float | None
    """By the model, from what was measured with the present number."""
    measured: Rate | None
    why_not: str | None = None
    """Why it was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeRow:
    """The training with another batch size."""

    batch_size: int
    free_data: Rate | None
    """On one batch of this size, again and again."""
    predicted_step_time_s: float | None
    """By the model: this size's free-data step, with batches that cost as many times more as they are larger."""
    measured: Rate | None
    """With its loader, and the present number of workers."""
    peak_memory_bytes: int | None
    """Most memory that was allocated on the CUDA device; None elsewhere."""
    why_not: str | None = None
    """Why it was not measured, for example ``out of memory``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The ceilings of a training, where it stands below them, and what was tried to raise it."""

    framework: str
    """What ran the steps, for example ``lightning 2.6.6`` or ``loop``."""
    device: str
    """Where they ran, for example ``cpu`` or ``cuda``."""
    num_workers: int | None
    """Of the loader as it was given; None when it is no DataLoader."""
    batch_size: int | None
    free_data: Rate | None
    """The training on one batch, again and again: forward, backward, optimizer and copy to the device, no loader."""
    free_compute: Rate | None
    """The loader alone, emptied as fast as it delivers."""
    together: Rate | None
    """Training and loader together, as the run does it; of a recorded run with all else that its steps hold."""
    recording: str | None
    """The recording that `together` was taken from; None when it was measured here."""
    advice: WorkerAdvice | None
    """The model's recommendation, predicted from `together`."""
    workers: tuple[WorkersRow, ...] = ()
    batch_sizes: tuple[BatchSizeRow, ...] = ()
    recorded_wait_s: float | None = None
    """What a step of the recorded run waited for data; None without a recording."""
    pause_s: float = 0.0
    """Pause in each step of `present` and of the sweeps, for what a recorded step has besides: callbacks, loggers."""
    present: Rate | None = None
    """The setting of the recorded run, measured here: sweeps are compared with it. None without recording or sweep."""
    drift_pct: float | None = None
    """Change of the step time of the present setting from before to after the sweeps; None without a sweep."""
    restored: tuple[str, ...] = ()
    """Classes of what was put back after the steps."""
    notes: tuple[str, ...] = ()
    """What is worth knowing when these numbers are read."""
    wall_s: float = 0.0
    """Time that the probe took."""

    @property
    def unhindered(self) -> Rate | None:
        """The run if data were free: `free_data`; of a recorded run its own steps, without their wait for data."""
        if self.recording is None:
            return self.free_data
        if self.together is None or self.recorded_wait_s is None or self.recorded_wait_s >= self.together.step_time_s:
            return None
        return replace(self.together, step_time_s=self.together.step_time_s - self.recorded_wait_s)

    @property
    def base(self) -> Rate | None:
        """The present setting, measured as the sweeps are: what their gains are taken against."""
        return self.together if self.recording is None else self.present

    @property
    def headspace_pct(self) -> float | None:
        """The best possible rise of throughput if data were free, percent."""
        free = self.unhindered
        return None if not (free and self.together) else max(0.0, gain_pct(self.together, free))

    @property
    def reached_pct(self) -> float | None:
        """Throughput of the run as a share of the lower ceiling, percent."""
        free = self.unhindered
        if not (self.together and free and self.free_compute):
            return None
        lower_s = max(free.step_time_s, self.free_compute.step_time_s)
        return min(100.0, 100.0 * lower_s / self.together.step_time_s)

    @property
    def lower_ceiling(self) -> str | None:
        """``data`` when the loader is slower than the training, ``compute`` when it is faster, else ``both``."""
        free = self.unhindered
        if not (free and self.free_compute):
            return None
        ratio = self.free_compute.step_time_s / free.step_time_s
        return "data" if ratio > 1 + NEAR else "compute" if ratio < 1 - NEAR else "both"

    @property
    def recommended_num_workers(self) -> int | None:
        """The smallest measured number within 3 % of the best; the model's where no other number was measured."""
        best = self._best()
        if best is not None:
            return best.num_workers
        return self.advice.recommended if self.advice else None

    @property
    def measured_gain_pct(self) -> float | None:
        """Measured rise of throughput with the recommended number, percent; None where it was not measured.

        A recorded run wins no more than its headspace, whatever is measured here.
        """
        best = self._best()
        if best is None or best.measured is None or self.base is None:
            return None
        gain = gain_pct(self.base, best.measured)
        most = None if self.recording is None else self.headspace_pct
        return gain if most is None else min(gain, most)

    @property
    def nothing_to_win(self) -> bool:
        """Whether a recorded run waited too little for data to be won by workers."""
        from ..workers import NOISE

        return self.recording is not None and self.headspace_pct is not None and self.headspace_pct < 100 * NOISE

    def _best(self) -> WorkersRow | None:
        times_s = {row.num_workers: row.measured.step_time_s for row in self.workers if row.measured}
        best = self.num_workers if self.nothing_to_win else fewest_near_best(times_s, self.num_workers)
        return next((row for row in self.workers if row.num_workers == best), None)

    def to_json(self) -> dict[str, object]:
        """Return plain objects for ``json.dumps``; every key stands in ``docs/reference/probe-json.md``."""
        from .show import to_json

        return to_json(self)

    def __str__(self) -> str:
        from .show import to_text

        return to_text(self)


def fewest_near_best(times_s: Mapping[int, float], present: int | None) -> int | None:
    """Return the number of workers that measured step times speak for. They count more than what was predicted.

    Args:
        times_s: Mean step time by number of workers.
        present: The number of the loader as it was given.

    Returns:
        The smallest number within 3 % of the best, which is the noise of such measurements; the present one where it is
        among them. None where fewer than two numbers were measured.
    """
    from ..workers import NOISE

    if len(times_s) < 2:
        return None
    enough_s = min(times_s.values()) * (1 + NOISE)
    near = [workers for workers, time_s in times_s.items() if time_s <= enough_s]
    return present if present in near else min(near)


def gain_pct(before: Rate, after: Rate) -> float:
    """Return the rise of throughput in percent: of items where their number is known, else of steps."""
    if before.samples_per_s and after.samples_per_s:
        return 100.0 * (after.samples_per_s / before.samples_per_s - 1)
    return 100.0 * (after.steps_per_s / before.steps_per_s - 1)
