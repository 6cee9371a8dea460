"""The sampler holds up the loop.

**What it means.** Which items make up the next batch is chosen in the loop's own thread, whatever the number of
workers: torch asks sampler and batch sampler there. One that sorts, draws weights or looks lengths up for each batch
makes the loop wait while the workers idle.

**Evidence.** `loader.indices_s`: time in which the loop's thread chooses the items of a batch, seconds, measured around
each answer of the sampler. `spent.data_wait_share_pct`: data wait as a share of training time, percent, of which it is
a part.

**Advice.** A cheaper sampler: choose the items of many batches at once, with arrays, before the epoch or in its first
batch. The gain is what the model predicts for a loop without that time. No number of workers is recommended for it.

**When it is wrong.** Where a change of the loader wins more, this is silent. The first batches of an epoch are asked
for together and count as others do.

**References.** PyTorch, `torch.utils.data.dataloader._BaseDataLoaderIter._next_index`; `docs/explain/workers-model.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.forecast import forecast
from .rule import threshold

FREED = 1.25
"""Times what the sampler takes that is saved at the most: what it put into the CPUs' caches slowed the steps as well.
Of four programs, whose draws read all weights, one won as much, and three 1.1 to 1.26 times that; our choice."""

MOST_SAVED = 0.9
"""Part of the training time that is said to be saved, at the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowSampler:
    """Fires when the loop waits for its own sampler more than for anything that the loader could do better."""

    id: ClassVar[str] = "slow-sampler"
    title: ClassVar[str] = "The sampler holds up the loop"
    needs: ClassVar[tuple[str, ...]] = ("spent.data_wait_share_pct", "loader.indices_s", "loader.num_workers")
    optional: ClassVar[tuple[str, ...]] = ("steps.data_wait_s",)
    family: ClassVar[str] = "input"

    warn_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    gain_pct: float = threshold(5.0, "%", "Twice the noise of a step time here; our measurement, benchmarks/workers")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the wait, and the gain without the sampler's time, with the thresholds and with other gains."""
        share, indices_s = window.spent.data_wait_share_pct or 0.0, window.loader.indices_s or 0.0
        predicted = forecast(window) if share >= self.warn_pct else None
        if predicted is None or predicted.asked is None:
            return None
        without, costs = predicted.without, predicted.asked[0]
        gain = without.gain_pct(without.no_indices_s)
        others = (without.most_gain_pct, without.gain_pct(without.alone_s) or 0.0)
        if gain is None or gain < self.gain_pct or gain < max(others):
            return None
        wait_s = window.spent.bucket_s("data_wait") or 0.0
        waits = window.steps.data_wait_s
        part = min(1.0, costs.indices_s / waits.mean) if waits is not None and waits.mean > 0 else 1.0
        lost = part * wait_s
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if part * share >= 2 * self.warn_pct else Severity.WARNING,
            title=self.title,
            summary=f"Choosing the items of a batch takes {indices_s * 1e3:.1f} ms in the loop's own thread: "
            f"{100 * part:.0f} % of the wait for data, which is {share:.0f} % of the training time.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=predicted.confidence,
            evidence=(
                Evidence("data wait, share of training time", share, "%", self.warn_pct, "MLPerf Storage"),
                Evidence("time to choose the items of a batch, mean", indices_s, "s"),
                Evidence("predicted gain without it", gain, "%", self.gain_pct, "benchmarks/workers"),
            ),
            advice=(
                Advice.of(
                    "Make the sampler cheaper: choose the items of many batches at once, with arrays.",
                    expect=f"Steps without the {costs.indices_s * 1e3:.3g} ms that it takes.",
                    limit="Workers do not help: the loop's own thread asks the sampler.",
                    gain_pct=predicted.of_run(gain),
                    interval_pct=_with_what_is_freed(predicted.of_run(gain), predicted.interval_pct(gain)),
                ),
            ),
        )


def _with_what_is_freed(gain_pct: float | None, interval_pct: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return the interval of a gain, as far up as it is where more is saved than the sampler takes."""
    if gain_pct is None or interval_pct is None:
        return interval_pct
    saved = min(MOST_SAVED, FREED * gain_pct / (100.0 + gain_pct))
    return interval_pct[0], max(interval_pct[1], 100.0 * (1.0 / (1.0 - saved) - 1.0))
