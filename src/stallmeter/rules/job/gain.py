"""What a job gains when nobody is waited for any more."""

from __future__ import annotations

from ...ranks.job import Job

WIN_LEAST, WIN_MOST = 0.85, 1.05
"""Parts of the waited time that are won: ranks that are alike still differ a little in each step; benchmarks/ranks."""

RUN_NOISE = 0.05
"""What two runs of one program differ by, in 8 of 10 cases; benchmarks/faults."""


def job_gain(job: Job, lost_s: float) -> tuple[float | None, tuple[float, float] | None]:
    """Return the rise of throughput in percent and its interval, when so many seconds are no longer lost."""
    whole_s = job.training_s
    if not 0 < lost_s < whole_s:
        return None, None

    def pct(won_s: float, noise: float = 0.0) -> float:
        return 100.0 * (whole_s / max(whole_s - won_s, 0.02 * whole_s) * (1.0 + noise) - 1.0)

    return pct(lost_s), (max(0.0, pct(WIN_LEAST * lost_s, -RUN_NOISE)), pct(WIN_MOST * lost_s, RUN_NOISE))
