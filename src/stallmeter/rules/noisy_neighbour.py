"""Other processes on the host take the CPUs that the loader or the loop needs.

**What it means.** Making a batch waits for a CPU, or the training thread itself does. The job's own workers are not to
blame: processes outside the job use the CPUs that it may use.

**Evidence.** `workers.cpu_wait_share`: share of a worker's time spent waiting for a CPU, 0 to 1. `host.others_cpus`:
CPUs that processes outside the job keep busy, its other ranks not among them, median. `host.usable_cpus`: CPUs after
affinity and quota. `host.loop.neighbour_wait_pct`: share of the time in which the training thread could have run and
had no CPU, as far as others are the reason, percent. From the num_workers model: the share of the loss that comes back
when the neighbours go. Where most of the wait would stay, the loader is the cause, and its own rule says what the
neighbours add.

**Advice.** Reserve CPUs: an exclusive node or cpuset, a higher CPU request in Kubernetes, another host. The number of
workers is not the cause.

**When it is wrong.** Other ranks of the same job are no neighbours, however busy they are. With several ranks on the
node this rule is silent unless all of them were found (each records into the same folder). Another training of your
own is a neighbour like any other.

**References.** SPDL's guide on noisy neighbours; `/proc/<pid>/schedstat` in the Linux documentation of the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.forecast import forecast
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyNeighbour:
    """Fires when batches that the loop waits for, or the loop itself, wait for a CPU, and others hold the CPUs."""

    id: ClassVar[str] = "noisy-neighbour"
    title: ClassVar[str] = "Other processes take the CPUs that the job needs"
    needs: ClassVar[tuple[str, ...]] = (
        "spent.data_wait_share_pct",
        "workers.cpu_wait_share",
        "host.others_cpus",
        "host.usable_cpus",
        "loader.num_workers",
        "workers.service_s",
        "steps.work_s",
    )
    optional: ClassVar[tuple[str, ...]] = ("host.loop.neighbour_wait_pct",)
    family: ClassVar[str] = "input"
    rules_out: ClassVar[str] = "more workers"

    warn_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    queue: float = threshold(0.25, "1", "Our measurement, benchmarks/faults: without neighbours it stays below 0.1")
    recovers: float = threshold(0.75, "1", "Our choice: what is left without neighbours is no longer worth a warning")
    others_share: float = threshold(0.25, "1", "Share of the usable CPUs; our measurement, benchmarks/faults")

    loop_pct: float = threshold(5.0, "%", "Our choice: as for a callback that takes this much")

    def check(self, window: Window) -> Diagnosis | None:
        """Look at the loader first: where its wait is not the others' doing, the loop's own may be."""
        return self._loader(window) or self._loop(window)

    def _loop(self, window: Window) -> Diagnosis | None:
        """Weigh the training thread's own wait for a CPU against what the best change of the loader would win."""
        waits_pct, others = window.host.loop.neighbour_wait_pct, window.host.others_cpus
        usable, training_s = window.host.usable_cpus, window.ledger.training_s
        if waits_pct is None or others is None or not usable or not training_s:
            return None
        if waits_pct < self.loop_pct or others < self.others_share * usable:
            return None
        lost = min(0.9, waits_pct / 100.0) * training_s
        gain, least, most = (100.0 * (1.0 / (1.0 - min(0.9, k * waits_pct / 100.0)) - 1.0) for k in (1.0, 0.6, 1.8))
        predicted = forecast(window)
        if predicted is not None and predicted.without.most_gain_pct > gain:
            return None
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING,
            title=self.title,
            summary=f"The training thread could have run and had no CPU during {waits_pct:.0f} % of the time, while "
            f"processes outside the job kept {others:.1f} of {usable:.1f} CPUs busy.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=0.8,
            evidence=(
                Evidence("training thread waits for a CPU", waits_pct, "%", self.loop_pct, "our choice"),
                Evidence("CPUs kept busy by others", others, "CPUs", self.others_share * usable, "benchmarks/faults"),
                Evidence("CPUs this job may use", usable, "CPUs"),
            ),
            advice=(
                Advice.of(
                    "Reserve CPUs: an exclusive node, a cpuset, a higher CPU request, another host.",
                    expect="A loop that does not wait for a CPU.",
                    limit="What it is waiting for beside that stays.",
                    gain_pct=gain,
                    interval_pct=(least, most),
                ),
                Advice.of("Find the neighbours with top or htop."),
            ),
        )

    def _loader(self, window: Window) -> Diagnosis | None:
        """Compare the wait for a CPU and the others' use of CPUs with the thresholds."""
        share, queue = window.spent.data_wait_share_pct or 0.0, window.workers.cpu_wait_share or 0.0
        others, usable = window.host.others_cpus, window.host.usable_cpus
        predicted = forecast(window)
        if others is None or not usable or predicted is None or share < self.warn_pct:
            return None
        if queue < self.queue or others < self.others_share * usable:
            return None
        without = predicted.without
        part = without.recovers(without.alone_s)
        if part < self.recovers:
            return None
        lost, gain = part * (window.spent.bucket_s("data_wait") or 0.0), without.gain_pct(without.alone_s)
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING,
            title=self.title,
            summary=f"Batches waited for a CPU during {100 * queue:.0f} % of their making while processes outside "
            f"the job kept {others:.1f} of {usable:.1f} CPUs busy.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=0.8,
            evidence=(
                Evidence("data wait, share of training time", share, "%", self.warn_pct, "MLPerf Storage"),
                Evidence("share of a batch's time waiting for a CPU", queue, "1", self.queue, "benchmarks/faults"),
                Evidence("CPUs kept busy by others", others, "CPUs", self.others_share * usable, "benchmarks/faults"),
                Evidence("CPUs this job may use", usable, "CPUs"),
                Evidence("share of the loss that comes back without them", part, "1", self.recovers, "our choice"),
            ),
            advice=(
                Advice.of(
                    "Reserve CPUs: an exclusive node, a cpuset, a higher CPU request, another host.",
                    expect="Batches that wait less for a CPU.",
                    limit="The DataLoader's settings are not the cause, and changing them does not help.",
                    gain_pct=gain,
                    interval_pct=predicted.interval_pct(gain, eased=True),
                ),
                Advice.of("Find the neighbours with top or htop."),
            ),
        )
