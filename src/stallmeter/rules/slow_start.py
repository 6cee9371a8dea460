"""The run takes long to start.

**What it means.** Before the first step come set-up, data preparation, the building or download of the model, a
sanity check and the first start of the device. In a long run that hardly matters. In a short one, or one that is
repeated in a search, it is time in which nothing is learnt. A start of many minutes holds an expensive machine for
nothing.

**Evidence.** `ledger.start_s`: wall time from the moment stallmeter was attached to the first request for a batch, in
seconds, and as a share of the whole run in percent. Imports before that are not seen. As lost counts only what exceeds
a usual start (`usual_s`).

**Advice.** Save what is prepared anew in each run. Download data and weights once, to local storage. Skip the sanity
check (`num_sanity_val_steps=0`) once the code works. When a compiler takes the time, keep its cache between runs.

**When it is wrong.** A run that is only a trial, stopped after a few steps, consists of its start. Then this is
reported for information up to `warn_s`.

**References.** SageMaker MaxInitializationTime: 20 minutes. Nielsen, "Response Times: The 3 Important Limits": after
10 seconds attention is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import gain_of_start
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowStart:
    """Fires when the time before the first step is a large share of the run, or very long."""

    id: ClassVar[str] = "slow-start"
    title: ClassVar[str] = "The run takes long to start"
    needs: ClassVar[tuple[str, ...]] = ("ledger.start_s", "ledger.wall_s")

    warn_pct: float = threshold(25.0, "%", "our choice: a quarter of the run is over before it learns anything")
    usual_s: float = threshold(2.0, "s", "our choice: a start of this length is nobody's problem")
    warn_s: float = threshold(10.0, "s", "Nielsen: the limit of keeping a person's attention")
    always_s: float = threshold(1200.0, "s", "SageMaker MaxInitializationTime, 20 minutes")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the start with the run and with the clock."""
        start_s, wall_s = window.ledger.start_s, window.ledger.wall_s
        if start_s is None or not wall_s or start_s < self.usual_s:
            return None
        share, lost_s = 100.0 * start_s / wall_s, start_s - self.usual_s
        if share < self.warn_pct and start_s < self.always_s:
            return None
        gain = gain_of_start(window, lost_s, least=0.5, most=start_s / (lost_s or start_s or 1.0))
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING if start_s >= self.warn_s else Severity.INFO,
            title=self.title,
            summary=f"The first step began after {start_s:.1f} s, {share:.0f} % of the run.",
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.8,
            evidence=(
                Evidence(
                    "time before the first step, share of the run",
                    share,
                    "%",
                    self.warn_pct,
                    "our choice: a quarter of the run is over before it learns anything",
                ),
                Evidence("time before the first step", start_s, "s", self.always_s, "SageMaker MaxInitializationTime"),
            ),
            advice=(
                Advice.of(
                    "Save what is prepared anew in each run: file lists, indices, tokenised or resized data.",
                    expect=f"A first step within {self.usual_s:.0f} s.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of(
                    "Skip Lightning's sanity check: Trainer(num_sanity_val_steps=0).",
                    expect="An earlier first step.",
                    limit="Only once the code works: the check finds mistakes in validation early.",
                ),
                Advice.of("Keep data, weights and compiler caches on a local disk that outlives the run."),
            ),
        )
