"""What a job gains when nobody is waited for any more."""

from __future__ import annotations

from ...ranks.job import Job

MOST_WON = 0.9
"""Part of the training time that is said to be won, at the most, where a sum of guesses may be more."""

WIN_LEAST, WIN_MOST = 0.85, 1.05
"""Parts of the waited time that are won: ranks that are alike still differ a little in each step; benchmarks/ranks."""

RUN_NOISE = 0.05
"""What two runs of one program differ by, in 8 of 10 cases; benchmarks/faults."""


def shared_out_s(job: Job, lost_s: float, late: int = 1) -> float:
    """Return the seconds that are won where the work of late ranks is not gone but shared out among all of them.

    All then take the mean of what they take now, which lies above the shortest by the late ones' part of the loss.

    Args:
        job: Of the ranks.
        lost_s: Waited for the late ones.
        late: How many ranks are late at a time.
    """
    ranks = max(len(job.ranks), late)
    return lost_s * (1.0 - late / ranks)


def job_gain(
    job: Job, lost_s: float, *, least_s: float | None = None, most_s: float | None = None
) -> tuple[float | None, tuple[float, float] | None]:
    """Return the rise of throughput in percent and its interval, when so many seconds are no longer lost.

    Args:
        job: Of the ranks.
        lost_s: No longer lost, as expected.
        least_s: At the least, but for noise; by default as expected.
        most_s: At the most.
    """
    whole_s = job.training_s
    if not 0 < lost_s < whole_s:
        return None, None

    def pct(won_s: float, noise: float = 0.0) -> float:
        return 100.0 * (whole_s / max(whole_s - won_s, 0.02 * whole_s) * (1.0 + noise) - 1.0)

    least_s = lost_s if least_s is None else least_s
    most_s = lost_s if most_s is None else most_s
    return pct(lost_s), (max(0.0, pct(WIN_LEAST * least_s, -RUN_NOISE)), pct(WIN_MOST * most_s, RUN_NOISE))
