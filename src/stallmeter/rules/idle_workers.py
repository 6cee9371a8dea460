"""Some workers have nothing to read.

**What it means.** A dataset that splits itself among workers gives each whole shards: files, tables, sources. With
fewer shards than workers the others get none. torch asks them once, hears that they have come to their end, and asks
them no more. Each costs a process and its memory. Where the loop waits for data, they are the workers that it lacks.

**Evidence.** `workers.idle`: workers that made no batch, or less than a tenth of a fair share, while each of the
others made many. `loader.num_workers`: workers in all. `loader.shards`: parts into which the dataset says that it can
be split, or the workers that had any. `workers.busy_share`: share of their time in which those worked, 0 to 1.

**Advice.** As many shards as workers, or a multiple. Where nothing waits, as many workers as shards: the others are
memory alone.

**When it is wrong.** In a short run over shards of very uneven size a worker may have had its turn yet to come.
Workers that have used up a shard before the others are not counted.

**References.** huggingface/datasets issue 8669; webdataset issue 65; torch's `DataLoader` warns of nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.forecast import forecast
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleWorkers:
    """Fires when workers made no batch while others made many."""

    id: ClassVar[str] = "idle-workers"
    title: ClassVar[str] = "Some workers have nothing to read"
    needs: ClassVar[tuple[str, ...]] = (
        "workers.idle",
        "workers.service_s",
        "loader.num_workers",
        "spent.data_wait_share_pct",
        "ledger.wall_s",
    )
    optional: ClassVar[tuple[str, ...]] = (
        "workers.busy_share",
        "steps.step_time_s",
        "steps.data_wait_s",
    )
    family: ClassVar[str] = "input"
    cure: ClassVar[str] = "fewer workers"

    warn_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    busy_share: float = threshold(
        0.85, "1", "Workers with less pause than that set the pace; as in the num_workers model"
    )
    gain_pct: float = threshold(5.0, "%", "Twice the noise of a step time here; our measurement, benchmarks/workers")

    def check(self, window: Window) -> Diagnosis | None:
        """Count the workers without batches; a warning where the loop waits and shards for them would help."""
        idle, workers = window.workers.idle, window.loader.num_workers
        if not idle or not workers:
            return None
        gain, lost = self._gain(window)
        outlook = forecast(window)
        had = workers - idle
        enough = f"{had} of {workers} workers made all batches: the dataset had nothing for {_others(idle)}."
        fewer = Advice.of(
            f"Set num_workers={had}.",
            expect="The same speed with fewer processes and their memory.",
            limit="Not where the dataset is to get more shards.",
        )
        shards = Advice.of(
            f"Write the dataset as {workers} shards or a multiple of it.",
            expect="Every worker has something to read.",
            limit="One shard is read by one worker only.",
            gain_pct=outlook.of_run(gain) if outlook is not None else None,
            interval_pct=outlook.interval_pct(gain) if outlook is not None else None,
        )
        return Diagnosis(
            rule=self.id,
            severity=Severity.INFO if gain is None else Severity.WARNING,
            title=self.title,
            summary=enough,
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=0.9,
            supersedes=("too-many-workers",),
            evidence=(
                Evidence("workers without batches", float(idle), "workers"),
                Evidence("workers", float(workers), "workers"),
                Evidence(
                    "data wait, share of training time",
                    window.spent.data_wait_share_pct or 0.0,
                    "%",
                    self.warn_pct,
                    "MLPerf Storage",
                ),
            ),
            advice=(fewer,) if gain is None else (shards, fewer),
        )

    def _gain(self, window: Window) -> tuple[float | None, float]:
        """Return what shards for all workers would gain, percent, and the seconds lost; None where they would not."""
        busy, wait_s = window.workers.busy_share, window.spent.bucket_s("data_wait") or 0.0
        if (window.spent.data_wait_share_pct or 0.0) < self.warn_pct or (busy is not None and busy < self.busy_share):
            return None, 0.0
        outlook, step = forecast(window), window.steps.step_time_s
        if outlook is None or outlook.unsharded_s is None or step is None or not outlook.unsharded_s:
            return None, 0.0
        gain = 100.0 * (step.trimmed_mean / outlook.unsharded_s - 1)
        if gain < self.gain_pct:
            return None, 0.0
        saved = step.trimmed_mean - outlook.unsharded_s
        waits = window.steps.data_wait_s
        share = min(1.0, saved / waits.trimmed_mean) if waits is not None and waits.trimmed_mean > 0 else 0.0
        return gain, wait_s * share


def _others(idle: int) -> str:
    return "the other" if idle == 1 else f"the other {idle}"
