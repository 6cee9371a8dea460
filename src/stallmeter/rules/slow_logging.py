"""A logger holds up training.

**What it means.** The loop hands its metrics to a logger and waits until they are written or sent. That happens on the
training thread, so a slow disk, database or tracking server stands directly between two steps.

**Evidence.** `ledger.logging_by_name_s`: seconds in each logger's `log_metrics` and `save`, from the wall-clock ledger,
as a share of training time in percent. What a logger does on threads of its own is not counted.

**Advice.** Log less often (`Trainer(log_every_n_steps=…)`). Log fewer metrics: each is sent by itself in some trackers.
Let the client send in the background where it can. Leave the logger alone when it is slow only while a server is down:
fix the server.

**When it is wrong.** On a GPU a metric is a tensor until it is logged. Turning it into a number waits for the device,
and that wait is charged to the logger although the device works meanwhile.

**References.** XProf reports debug printing in the step from 5 % (`smart_suggestion/constants.h`). A blocking request
to a tracking server takes tens of milliseconds, many small steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import FIX_SAVES, gain_without
from .frameworks import Setting, said
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLogging:
    """Fires when writing metrics takes a large share of the training time."""

    id: ClassVar[str] = "slow-logging"
    title: ClassVar[str] = "A logger holds up training"
    bucket: ClassVar[str] = "logging"
    needs: ClassVar[tuple[str, ...]] = ("ledger.logging_by_name_s", "ledger.training_s", "ledger.wall_s")
    optional: ClassVar[tuple[str, ...]] = ("facts.framework",)

    warn_pct: float = threshold(5.0, "%", "XProf reports debug printing in the step from 5 %")
    critical_pct: float = threshold(20.0, "%", "as for input wait, which XProf calls high from 20 %")
    min_lost_s: float = threshold(0.5, "s", "our choice: less is not worth a change of the program")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the share of logging with the thresholds."""
        named, lost_s = window.ledger.logging_by_name_s, window.spent.bucket_s("logging")
        share = None if lost_s is None else window.ledger.training_share_pct(lost_s)
        if named is None or lost_s is None or share is None or share < self.warn_pct or lost_s < self.min_lost_s:
            return None
        ranked = sorted(((s, name) for name, s in named.items()), reverse=True)
        name = ranked[0][1] if ranked else None
        gain = gain_without(window, lost_s, least=FIX_SAVES[0], most=FIX_SAVES[1])
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if share >= self.critical_pct else Severity.WARNING,
            title=f"{name} holds up training" if name else self.title,
            summary=f"Writing metrics{f' to {name}' if name else ''} took {lost_s:.1f} s, "
            f"{share:.0f} % of the training time.",
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.9,
            culprit=name,
            evidence=(
                Evidence(
                    "logging, share of training time",
                    share,
                    "%",
                    self.warn_pct,
                    "XProf reports debug printing in the step from 5 %",
                ),
                *(Evidence(f"time in {n}", s, "s") for s, n in ranked[:3]),
            ),
            advice=(
                Advice.of(
                    said("Log less often", window.facts, Setting.LOG_LESS_OFTEN, ", every N steps"),
                    expect="Most of this time is saved.",
                    limit="Curves get coarser.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of("Log fewer metrics, and averages in place of each step's value."),
                Advice.of("Let the tracker's client send in the background, and log images apart from it."),
            ),
        )
