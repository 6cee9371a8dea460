"""Workers may run on a few of the process's CPUs only.

**What it means.** With `OMP_PROC_BIND` and the like an OpenMP runtime ties the main thread to one CPU, as soon as torch
has computed something with several threads. Workers that are started later inherit that: all of them share one CPU with
the training thread, while others are idle. More workers win nothing.

**Evidence.** `workers.waits.cpus`: CPUs that the workers may run on, all together, as the system says.
`workers.waits.process_cpus`: those that any thread of the training process may, or could when it began.
`spent.data_wait_share_pct`: data wait as a share of training time, percent. The predicted gain comes from the
num_workers model with the CPUs of the process. `facts.threads`: the variable that ties threads to CPUs.

**Advice.** Leave the variable unset, or give each worker the process's CPUs back in `worker_init_fn`.

**When it is wrong.** Where somebody keeps workers away from the training thread's CPUs on purpose; the gain is then
small. A system without affinity (macOS, Windows) tells nothing.

**References.** GNU libgomp's manual, `OMP_PROC_BIND`. Linux, `sched_setaffinity(2)`: children inherit it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.forecast import forecast
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedWorkers:
    """Fires when the loop waits for workers that share fewer CPUs than the process has."""

    id: ClassVar[str] = "pinned-workers"
    title: ClassVar[str] = "All workers share a few of the process's CPUs"
    needs: ClassVar[tuple[str, ...]] = (
        "loader.num_workers",
        "spent.data_wait_share_pct",
        "workers.batch_cpu_s",
        "workers.waits.cpus",
        "workers.waits.process_cpus",
    )
    optional: ClassVar[tuple[str, ...]] = ("facts.threads",)
    family: ClassVar[str] = "input"
    rules_out: ClassVar[str] = "more workers"

    warn_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    gain_pct: float = threshold(10.0, "%", "Below it a prediction may be noise; benchmarks/faults")
    recovers: float = threshold(0.25, "1", "A part of the wait that makes it a cause, and no detail; our choice")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the CPUs of workers and process, and ask the model what all of them would win."""
        cpus, process_cpus = window.workers.waits.cpus, window.workers.waits.process_cpus
        share, workers = window.spent.data_wait_share_pct or 0.0, window.loader.num_workers
        cpu = window.workers.batch_cpu_s
        if not cpus or process_cpus is None or not workers or cpu is None or share < self.warn_pct:
            return None
        predicted = forecast(window) if cpus < process_cpus and workers >= cpus else None
        if predicted is None or predicted.with_cpus_s is None:
            return None
        gain = predicted.without.gain_pct(predicted.with_cpus_s) or 0.0
        if gain < self.gain_pct or predicted.without.recovers(predicted.with_cpus_s) < self.recovers:
            return None
        lost = window.spent.bucket_s("data_wait") or 0.0
        settings = window.facts.threads
        variable = None if settings is None else settings.binds
        plural, because = "" if workers == 1 else "s", "" if variable is None else f" ({variable} is set)"
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if share >= 2 * self.warn_pct else Severity.WARNING,
            title=self.title,
            summary=f"{workers} worker{plural} may run on {cpus} of the {process_cpus} CPUs of the process{because}, "
            f"and {share:.0f} % of the training time was spent waiting for data.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=predicted.confidence,
            culprit=variable,
            evidence=(
                Evidence("CPUs that the workers may run on", cpus, "CPUs", process_cpus, "CPUs of the process"),
                Evidence("data wait, share of training time", share, "%", self.warn_pct, "MLPerf Storage"),
                Evidence("CPU time of a batch, mean", cpu.mean, "s"),
                Evidence("predicted gain", gain, "%", self.gain_pct, "benchmarks/faults"),
            ),
            advice=_advice(variable, predicted.of_run(gain), predicted.interval_pct(gain, eased=True), process_cpus),
        )


def _advice(
    variable: str | None, gain_pct: float | None, interval_pct: tuple[float, float] | None, process_cpus: int
) -> tuple[Advice, ...]:
    give_back = Advice.of(
        "Call os.sched_setaffinity(0, cpus) in worker_init_fn.",
        expect=f"Workers on all {process_cpus} CPUs of the process.",
        limit="Take cpus = os.sched_getaffinity(0) as the program begins, before torch has computed.",
        gain_pct=gain_pct,
        interval_pct=interval_pct,
    )
    if variable is None:
        return (give_back,)
    unset = Advice.of(
        f"Leave {variable} unset where the program is started.",
        expect=f"Workers on all {process_cpus} CPUs of the process.",
        limit="The training thread is then tied to no CPU, either.",
        gain_pct=gain_pct,
        interval_pct=interval_pct,
    )
    return (unset, give_back)
