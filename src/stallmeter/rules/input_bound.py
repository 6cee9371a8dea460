"""The training loop waits for data.

**What it means.** The loop asks for the next batch and it is not there yet, so the accelerator idles. The cause of
the wait could not be told from what was measured; other rules of the input family name it when they can.

**Evidence.** `spent.data_wait_share_pct`: data wait as a share of training time, in percent, from the wall-clock
ledger. `steps.data_wait_s`: wait per step in seconds, median over steady steps. The first wait of each epoch counts as
worker start-up as far as it exceeds the steady wait.

**Advice.** Let stallmeter see the workers: then the cause has a name, and a number of workers a predicted gain. Without
workers prepare batches beside the loop, unless the loader's work is tiny: then the hand-over between processes costs
more than it saves. Then make the preparation of one batch cheaper. Without a measured loader no gain is predicted:
nothing is known of what a batch costs.

**When it is wrong.** On a GPU the host may wait while the device still has work queued; then a part of the wait costs
nothing. Very short runs consist of warm-up. Where the workers were measured and no change of the loader is predicted to
win 5 %, the wait is what handing batches over costs at least, and this is silent.

**References.** XProf calls a program moderately input-bound from 5 % and highly from 20 % of step time
(`op_stats_to_input_pipeline_analysis.cc`). MLPerf Storage demands an accelerator utilisation of 90 % or more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.forecast import Outlook, forecast
from ..workers.pipeline import CHEAPER, counted_by_the_library
from .frameworks import Setting, said
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class InputBound:
    """Fires when data wait takes a large share of the training time."""

    id: ClassVar[str] = "input-bound"
    title: ClassVar[str] = "The training loop waits for data"
    needs: ClassVar[tuple[str, ...]] = ("spent.data_wait_share_pct", "steps.data_wait_s", "ledger.wall_s")
    optional: ClassVar[tuple[str, ...]] = (
        "facts.framework",
        "loader.num_workers",
        "loader.info",
    )
    family: ClassVar[str] = "input"

    warn_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    quick_s: float = threshold(0.003, "s", "A batch made in less costs no more than its hand-over would")
    gain_pct: float = threshold(5.0, "%", "Twice the noise of a step time here; our measurement, benchmarks/workers")
    critical_pct: float = threshold(20.0, "%", "XProf calls a program highly input-bound from 20 %")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the data-wait share with the thresholds."""
        share, wait, wall = window.spent.data_wait_share_pct, window.steps.data_wait_s, window.ledger.wall_s
        lost = window.spent.bucket_s("data_wait")
        if share is None or wait is None or not wall or lost is None or share < self.warn_pct:
            return None
        if window.loader.num_workers == 0 and wait.median < self.quick_s:
            return None
        predicted = forecast(window)
        if predicted is not None and predicted.without.most_gain_pct < self.gain_pct:
            return None
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if share >= self.critical_pct else Severity.WARNING,
            title=self.title,
            summary=f"{share:.0f} % of the training time was spent waiting for data "
            f"({wait.median * 1e3:.1f} ms in a typical step).",
            time_lost_s=lost,
            share_pct=100.0 * lost / wall,
            confidence=0.6,
            evidence=(
                Evidence(
                    name="data wait, share of training time",
                    value=share,
                    unit="%",
                    threshold=self.warn_pct,
                    source="MLPerf Storage, accelerator utilisation >= 90 %",
                ),
                Evidence(name="data wait, median step", value=wait.median, unit="s"),
                *counted_by_the_library(window),
            ),
            advice=_by_the_loader(window, predicted, self.gain_pct),
        )


def _by_the_loader(window: Window, predicted: Outlook | None, least_pct: float) -> tuple[Advice, ...]:
    """What to do about a loader: its number of workers where another one is better, or batches beside the loop."""
    if predicted is not None and predicted.gain_pct >= least_pct and predicted.recommended != window.loader.num_workers:
        beside = predicted.fixes()
    elif window.loader.num_workers:
        beside = ()
    else:
        beside = (
            Advice.of(
                said(
                    "Make batches beside the loop",
                    window.facts,
                    Setting.PREPARE_BESIDE,
                    " in DataLoader workers, a thread or a prefetch queue",
                ),
                expect="Less waiting for data.",
                limit="Not where a batch takes under 1 ms to make, and only while CPUs are free.",
            ),
        )
    return (*_let_it_be_measured(window), *beside, CHEAPER)


def _let_it_be_measured(window: Window) -> tuple[Advice, ...]:
    """How the cause could be found, where the loader could not be looked into."""
    loader = window.loader.info
    if loader is None or loader.probed:
        return ()
    return (
        Advice.of(
            "Give watch() or the Trainer the DataLoader itself, made before training.",
            expect="The cause of the wait, measured inside the workers.",
            limit=f"This {loader.kind[:40] or 'loader'} could not be looked into.",
        ),
    )
