"""Other processes on the host take the CPUs that the loader or the loop needs.

**What it means.** Making a batch waits for a CPU, or the training thread itself does. The job's own workers are not to
blame: processes outside the job use the CPUs that it may use. Or processes do that the program has started beside its
workers, an encoder say, while the loop does not wait for data that they may make. Or threads do that it has started in
the process that trains.

**Evidence.** `workers.cpu_wait_share`: share of a worker's time spent waiting for a CPU, 0 to 1. `host.others_cpus`:
CPUs that processes outside the job keep busy, its other ranks not among them, median. `host.usable_cpus`: CPUs after
affinity and quota. `host.loop.neighbour_wait_pct`: share of the time in which the training thread could have run and
had no CPU, as far as others are the reason, percent. `host.loop.beside_cpus`: CPUs of the job's processes beside the
one that trains, median; `workers.total_cpu_s` of that is for batches, seconds. From the num_workers model: what is won
when the neighbours go, of the loader's time and of the loop's at once. Where another number of workers would win more,
or cheaper items far more, the loader is the cause, and its own rule says what the neighbours add. What the program has
started must keep a quarter of the CPUs busy, or compute for half of what the training thread waits.

**Advice.** Reserve CPUs: an exclusive node or cpuset, a higher CPU request in Kubernetes, another host. The number of
workers is not the cause. Processes of the program's own: a lower priority (`os.nice`), other CPUs, another time.

**When it is wrong.** Other ranks of the same job are no neighbours, however busy they are. With several ranks on the
node this rule is silent unless all of them were found (each records into the same folder). Another training of your
own is a neighbour like any other.

**References.** SPDL's guide on noisy neighbours; `/proc/<pid>/schedstat` in the Linux documentation of the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.forecast import Outlook, forecast
from ..workers.gains import Gain, gain_of_the_loop
from ..workers.pipeline import OWN_THREADS, made_by_threads
from .rule import threshold

AS_MUCH_AGAIN = 1.5
"""CPU time of workers over what they were seen to spend on batches: they send these, and start. Our choice."""


class _Started(NamedTuple):
    """What the program has started beside its training, in words."""

    kind: str
    others: str
    use: str
    culprit: str | None = None


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
        "host.cpus_per_rank",
        "loader.num_workers",
        "workers.service_s",
        "steps.work_s",
        "ledger.training_s",
    )
    instead: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("host.loop.wait_pct", "host.loop.beside_cpus", "host.cpus_per_rank", "ledger.training_s"),
        ("host.loop.wait_pct", "host.loop.threads_cpus", "host.cpus_per_rank", "ledger.training_s"),
    )
    optional: ClassVar[tuple[str, ...]] = (
        "host.loop.beside_cpus",
        "host.loop.neighbour_wait_pct",
        "host.loop.team",
        "host.loop.threads_cpus",
        "host.loop.threads_wait_pct",
        "loader.info",
        "workers.total_cpu_s",
    )
    family: ClassVar[str] = "input"
    rules_out: ClassVar[str] = "more workers"

    warn_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    queue: float = threshold(0.25, "1", "Our measurement, benchmarks/faults: without neighbours it stays below 0.1")
    gain_pct: float = threshold(5.0, "%", "Twice the noise of a step time here; our measurement, benchmarks/workers")
    others_share: float = threshold(0.25, "1", "Share of the usable CPUs; our measurement, benchmarks/faults")
    loop_pct: float = threshold(5.0, "%", "Our choice: as for a callback that takes this much")
    explains: float = threshold(
        0.5, "1", "Part of the wait that who is named must compute for at the least; our choice"
    )

    def check(self, window: Window) -> Diagnosis | None:
        """Ask what is won without the neighbours, and whether another change of the loader would win more."""
        found = (self._of_others(window), self._of_companions(window), self._of_threads(window))
        return max((one for one in found if one is not None), key=lambda one: one.time_lost_s, default=None)

    def _of_companions(self, window: Window) -> Diagnosis | None:
        """Processes that the program has started, and that make none of its batches."""
        loop, training_s, usable = window.host.loop, window.ledger.training_s, window.host.cpus_per_rank
        for_batches_s, waited_pct = window.workers.total_cpu_s, window.spent.data_wait_share_pct or 0.0
        if loop.beside_cpus is None or not usable or not training_s or for_batches_s is None:
            return None
        workers = AS_MUCH_AGAIN * for_batches_s / training_s
        cpus = loop.beside_cpus - workers
        # What the loop waits for may be made by them; then they are no neighbours.
        made_elsewhere = waited_pct >= self.warn_pct or window.loader.producers.processes
        if made_elsewhere or cpus < self.others_share * usable:
            return None
        rest = workers + (window.host.others_cpus or 0.0) + (loop.threads_cpus or 0.0)
        waits_pct = loop.wait_without_pct(cpus, rest) or 0.0
        gain = gain_of_the_loop(waits_pct, loop.team)
        advice = (
            Advice.of(
                "Give these processes a lower priority: os.nice(19), or `nice` in front of their command.",
                expect="A loop that waits less for a CPU; they take what it leaves.",
                limit="Not where the training waits for what they make.",
                gain_pct=gain.pct,
                interval_pct=gain.interval_pct,
            ),
            Advice.of("Run them on other CPUs, on another host, or after the training."),
        )
        who = _Started("Processes", "other processes of the program", "CPUs of what makes no batches")
        return self._of_its_own(window, who, cpus, waits_pct, gain, advice)

    def _of_threads(self, window: Window) -> Diagnosis | None:
        """Threads that the program has started in the process that trains, and that make none of a loader's batches."""
        loop = window.host.loop
        cpus, waits_pct = loop.threads_cpus, loop.threads_wait_pct
        # A dataset may decode in threads of its own while the loop, which makes the batch, waits for them.
        waited_pct = window.spent.data_wait_share_pct or 0.0
        awaited = not window.loader.num_workers and waited_pct >= self.warn_pct
        if cpus is None or waits_pct is None or made_by_threads(window) or awaited:
            return None
        gain = gain_of_the_loop(waits_pct, loop.team)
        advice = (
            Advice.of(
                "Let these threads compute less, or after the training.",
                expect="A loop that waits less for a CPU.",
                limit="Not where the training waits for what they make.",
                gain_pct=gain.pct,
                interval_pct=gain.interval_pct,
            ),
            Advice.of("Move their work into a process of its own, with a lower priority: os.nice(19)."),
        )
        who = _Started("Threads", "other threads of its process", "CPUs of the program's threads", OWN_THREADS)
        return self._of_its_own(window, who, cpus, waits_pct, gain, advice)

    def _of_its_own(
        self, window: Window, who: _Started, cpus: float, waits_pct: float, gain: Gain, advice: tuple[Advice, ...]
    ) -> Diagnosis | None:
        """Say what the program has started, where it keeps the training thread from a CPU for long enough."""
        training_s, usable = window.ledger.training_s, window.host.cpus_per_rank
        if not training_s or not usable or waits_pct < self.loop_pct or gain.pct is None:
            return None
        # Who computes for less than half of what the loop waits cannot be why it does; who computes for more may be,
        # however many CPUs there are.
        least = min(self.others_share * usable, self.explains * waits_pct / 100.0)
        if cpus < least:
            return None
        lost = training_s * gain.pct / (100.0 + gain.pct)
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING,
            title=f"{who.kind} that the program started take the CPUs that its training needs",
            summary=f"The training thread could have run and had no CPU during {waits_pct:.0f} % of the time, while "
            f"{who.others} kept {cpus:.1f} of {usable:.1f} CPUs busy.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=0.8,
            culprit=who.culprit,
            evidence=(
                Evidence("training thread waits for a CPU they hold", waits_pct, "%", self.loop_pct, "our choice"),
                Evidence(who.use, cpus, "CPUs", least, "our choice"),
                Evidence("CPUs this job may use", usable, "CPUs"),
            ),
            advice=advice,
        )

    def _of_others(self, window: Window) -> Diagnosis | None:
        share, queue = window.spent.data_wait_share_pct or 0.0, window.workers.cpu_wait_share or 0.0
        others, usable = window.host.others_cpus, window.host.usable_cpus
        waits_pct, training_s = window.host.loop.neighbour_wait_pct or 0.0, window.ledger.training_s
        if others is None or not usable or not training_s or others < self.others_share * usable:
            return None
        of_loader, of_loop = share >= self.warn_pct and queue >= self.queue, waits_pct >= self.loop_pct
        if not of_loader and not of_loop:
            return None
        predicted = forecast(window)
        gain = gain_of_the_loop(waits_pct) if predicted is None else _gain_alone(predicted)
        if gain.pct is None or gain.pct < self.gain_pct:
            return None
        lost = training_s * gain.pct / (100.0 + gain.pct)
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING,
            title=self.title,
            summary=f"{self._who_waits(queue if of_loader else None, waits_pct)} while processes outside "
            f"the job kept {others:.1f} of {usable:.1f} CPUs busy.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=0.8,
            evidence=(
                Evidence("data wait, share of training time", share, "%", self.warn_pct, "MLPerf Storage"),
                Evidence("share of a batch's time waiting for a CPU", queue, "1", self.queue, "benchmarks/faults"),
                Evidence("training thread waits for a CPU", waits_pct, "%", self.loop_pct, "our choice"),
                Evidence("CPUs kept busy by others", others, "CPUs", self.others_share * usable, "benchmarks/faults"),
                Evidence("CPUs this job may use", usable, "CPUs"),
                Evidence("predicted gain without them", gain.pct, "%", self.gain_pct, "benchmarks/workers"),
            ),
            advice=(
                Advice.of(
                    "Reserve CPUs: an exclusive node, a cpuset, a higher CPU request, another host.",
                    expect="Batches and a loop that wait less for a CPU.",
                    limit="The DataLoader's settings are not the cause, and changing them does not help."
                    if of_loader
                    else "What the loop waits for beside that stays.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of("Find the neighbours with top or htop."),
            ),
        )

    def _who_waits(self, queue: float | None, waits_pct: float) -> str:
        if queue is not None:
            return f"Batches waited for a CPU during {100 * queue:.0f} % of their making"
        return f"The training thread could have run and had no CPU during {waits_pct:.0f} % of the time,"


def _gain_alone(predicted: Outlook) -> Gain:
    """Return what the model says is won; nothing where another change of the loader is the better advice."""
    without = predicted.without
    if not without.is_the_setting(without.alone_s):
        return Gain()
    gain_pct = without.gain_pct(without.alone_s)
    return Gain(predicted.of_run(gain_pct), predicted.interval_pct(gain_pct, eased=True))
