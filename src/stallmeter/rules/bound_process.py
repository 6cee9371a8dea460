"""The program has bound itself to a few of the CPUs that it began with, and keeps these busy.

**What it means.** Something called `os.sched_setaffinity`, `psutil.Process.cpu_affinity` or a library that does so: the
process may run on fewer CPUs than when it began. All that it starts later, workers too, inherits that. They share what
is left, while other CPUs are idle.

**Evidence.** `facts.cpus_at_start`: CPUs that the process might run on as the interpreter started; `facts.budget`:
those that it may run on as the training began, and the cgroup's quota. `host.job_cpus`: CPUs that the job keeps busy,
median. `host.loop.wait_pct`: share of the time in which the training thread could have run and had none.

**Advice.** Do not bind it; or to more CPUs. Where torch was imported after that it has as many threads as CPUs were
left, and gets the others' as well. What that wins is taken from too-few-threads; one program of others won 1.5 times.

**When it is wrong.** Where other processes are meant to have the other CPUs. A single thread that computes alone wins
nothing by a second CPU until it has a second thread. Ranks that a launcher binds are not judged, nor are threads that
an OpenMP runtime binds (`OMP_PROC_BIND`), nor a process that was started with few CPUs (`taskset`). Where the recording
did not begin with the interpreter (`stallmeter run`) it is not known what it began with.

**References.** Linux, `sched_setaffinity(2)`: children inherit it. PyTorch's documentation, "CPU threading".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import gain_without
from .rule import THREADS_SHARE, threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundProcess:
    """Fires when the process has fewer CPUs than it began with, and all of them are busy."""

    id: ClassVar[str] = "bound-process"
    title: ClassVar[str] = "The program bound itself to a few of its CPUs"
    needs: ClassVar[tuple[str, ...]] = ("facts.budget", "facts.cpus_at_start", "host.job_cpus", "ledger.training_s")
    optional: ClassVar[tuple[str, ...]] = (
        "device.pace_s",
        "facts.has_other_ranks",
        "facts.threads",
        "host.loop.wait_pct",
        "ledger.wall_s",
    )

    busy: float = threshold(0.9, "1", "Of its CPUs; our choice: an idle one would be asked for first")
    warn_pct: float = threshold(10.0, "%", "our choice: as for threads that are too few")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the CPUs of now with those of the start, and with what is used of them."""
        budget, began, used = window.facts.budget, window.facts.cpus_at_start, window.host.job_cpus
        training_s, settings = window.ledger.training_s, window.facts.threads
        if budget is None or began is None or used is None or not training_s or window.device.pace_s is not None:
            return None
        now = budget.affinity_cpus
        could = began if budget.quota_cpus is None else min(float(began), budget.quota_cpus)
        if now is None or now >= could or used < self.busy * now or window.facts.has_other_ranks:
            return None
        if settings is not None and settings.binds is not None:
            return None
        waits = (window.host.loop.wait_pct or 0.0) / 100.0
        least, usual, most = (max(part * (1.0 - now / could), waits) for part in THREADS_SHARE)
        lost_s = usual * training_s
        if 100.0 * usual < self.warn_pct:
            return None
        gain = gain_without(window, lost_s, least=least / usual, most=most / usual)
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING,
            title=f"The program bound itself to {now} of its {began} CPUs",
            summary=f"It could run on {began} CPUs as it began, and may run on {now} since something set its affinity. "
            f"The job keeps {used:.1f} of them busy.",
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.7,
            culprit="sched_setaffinity",
            evidence=(
                Evidence("CPUs that the process may run on", float(now), "CPUs", float(began), "CPUs as it began"),
                Evidence("CPUs that the job keeps busy", used, "CPUs", self.busy * now, "our choice"),
                Evidence("training thread waits for a CPU", 100.0 * waits, "%"),
            ),
            advice=(
                Advice.of(
                    "Leave the process unbound: look for os.sched_setaffinity or cpu_affinity.",
                    expect=f"The training, its threads and what it starts share {began} CPUs.",
                    limit="A single thread alone wins nothing.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
            ),
            supersedes=("cpu-saturated",),
        )
