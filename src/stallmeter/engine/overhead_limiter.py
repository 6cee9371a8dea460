"""How closely a run is watched: less closely once that costs too much."""

from __future__ import annotations

LIMIT_PCT = 0.5
"""Own cost, as a share of the wall time, above which less is sampled (a target of the project)."""

EASE_PCT = 0.2
"""Own cost below which more is sampled again. Halving the interval doubles the cost at most: no swinging."""

FIRST_LIMIT_PCT = 2.0
"""The limit while the run is short: a verdict is needed soonest there, and more is new. Beside loops of short steps
that leave no CPU idle our thread took 5 % (our measurement), and the training pays for that."""

SETTLE_S = 30.0
"""How long a run is short."""

PERIOD_S = 10.0
MOST = 16


class OverheadLimiter:
    """Compares own cost with the time of the run, period by period.

    `level` says how many times less is sampled than was asked for: sources and verdicts at so many times the interval,
    and so many times fewer steps in detail where steps are fast. Steps, ledger and recording are never delayed.
    """

    def __init__(self) -> None:
        self.level = 1
        self.share_pct: float | None = None
        """Own cost over the last whole period."""
        self._wall_s = self._cost_s = 0.0

    def note(self, wall_s: float, cost_s: float) -> bool:
        """Take a reading.

        Args:
            wall_s: Length of the run so far.
            cost_s: CPU time of stallmeter's own thread so far: what sampling less makes less.

        Returns:
            True when the level has changed.
        """
        seconds = wall_s - self._wall_s
        if seconds < PERIOD_S:
            return False
        self.share_pct = 100.0 * (cost_s - self._cost_s) / seconds
        self._wall_s, self._cost_s = wall_s, cost_s
        before = self.level
        if self.share_pct > (LIMIT_PCT if wall_s >= SETTLE_S else FIRST_LIMIT_PCT):
            self.level = min(MOST, 2 * self.level)
        elif self.share_pct < EASE_PCT:
            self.level = max(1, self.level // 2)
        return self.level != before
