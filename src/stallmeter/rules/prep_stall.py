"""Preparing batches uses up the CPUs.

**What it means.** The loop waits for workers that compute, decode and transform, and the CPUs that this job may use
are spent. More workers only share the same CPUs. Or it has its batches in time, and computes on CPUs itself, which the
workers take from it: then its own work is slow, and little is seen of a wait for data.

**Evidence.** `spent.data_wait_share_pct`: data wait as a share of training time, percent. `workers.batch_cpu_s`: CPU
time of a batch, seconds. `host.usable_cpus`: CPUs after affinity and quota. CPUs needed for the full speed: CPU
time of a batch and of the loop's step, over the time of a step whose batch lies ready. `workers.waits.threads`: threads
of a worker that compute at a time. NumPy's and OpenCV's libraries start one for each CPU in each worker, and with more
of these than CPUs they keep each other from them. A worker that waits for such threads seems blocked: where all that
is predicted to win something is less CPU time, they are what it waits for. Where batches come in time, such workers
wait for a CPU (`workers.cpu_wait_share`) and so does the loop for a quarter of its time, they are in its way, even if
its steps take as long while no batch is made: such threads spin on for a while.

Of threads or processes that are not torch's workers: `loader.producers.blocked_share`, 0 to 1, and
`loader.producers.batch_cpu_s`. Of a dataset's own threads, where the loop makes its batches: `host.loop.threads_cpus`
over a step. Of threads that make batches in time: `host.loop.threads_cpus`, CPUs that they keep
busy, and `host.loop.wait_pct`, share of the time in which the training thread could run and had no CPU, percent.

**Advice.** Where each worker computes with several threads, one thread for each. Spend less CPU on a batch: simpler or
batched transforms, less to parse, images decoded at reduced size, transforms on the GPU where there is one (for images
Kornia and DALI), preprocessing once offline, uncompressed or array formats. Or give the job more CPUs. Where the loop
makes its batches itself and a worker beside it is predicted to win a smaller part, that is advised as well.

**When it is wrong.** When other processes hold the CPUs: `noisy-neighbour` is asked first.

**References.** Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021 (prep stall). Our
measurement of one thread for each worker, whose items multiply matrices with NumPy beside a recurrent, a dense or a
convolutional network, one worker on two CPUs: 2.1 to 6 times as fast in five cases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.forecast import Outlook, forecast
from ..workers.gains import gain_of_the_loop, gain_without
from ..workers.pipeline import (
    CONFIDENCE,
    INSTEAD,
    OWN_THREADS,
    Pipeline,
    diagnosis_of,
    made_by_threads,
    pipeline_of,
    threads_for_a_batch_s,
)
from .frameworks import has_gpu
from .rule import threshold

ONE_THREAD = "Let each worker compute with one thread"
"""Begin of the advice about libraries that start a thread for each CPU, in each worker: it changes a setting."""

LOOP_WAITS_PCT = 25.0
"""Part of its time that the loop waits for a CPU, percent, from which on that counts; as a worker's own wait."""

MOST_WAITS_PCT = 75.0
"""A larger part is not believed; as `stallmeter.workers.whatif`."""

MORE_CPUS = 1.1
"""Times the CPUs that the job can have, from which on more are asked for: what is needed is known to a tenth."""

TEAM, MOST_TEAM = 1.5, 2.5
"""Threads of an operation that wait for each other, as expected and at the most; our choice, between none and two."""

LESS_WAIT, ROOM = "the data wait with them", "the loop's own work gets more of the CPUs"
"""What follows when items cost less."""

OFFLINE = Advice.of(
    "Preprocess once, offline, into uncompressed or array formats.",
    limit="What must be random stays in the loader.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepStall:
    """Fires when batches cost CPU time that the loop waits for, and more workers would not help."""

    id: ClassVar[str] = "prep-stall"
    title: ClassVar[str] = "Preparing batches uses up the CPUs"
    needs: ClassVar[tuple[str, ...]] = (
        "spent.data_wait_share_pct",
        "workers.batch_cpu_s",
        "workers.service_s",
        "loader.num_workers",
        "steps.work_s",
        "workers.cpu_wait_share",
    )
    optional: ClassVar[tuple[str, ...]] = (
        "host.loop.wait_pct",
        "workers.waits.threads",
        "host.loop.neighbour_wait_pct",
        "host.loop.team",
        "host.loop.threads_cpus",
        "loader.producers.batch_cpu_s",
        "steps.step_time_s",
        "gpu.count",
        "facts.accelerator",
    )
    instead: ClassVar[tuple[tuple[str, ...], ...]] = (
        INSTEAD,
        ("loader.info", "host.loop.threads_cpus", "host.loop.wait_pct", "ledger.training_s"),
    )
    family: ClassVar[str] = "input"
    rules_out: ClassVar[str] = "more of its workers"

    warn_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    cpu_share: float = threshold(0.4, "1", "What is not mostly blocked computes; our measurement, benchmarks/faults")
    crowd_pct: float = threshold(20.0, "%", "our choice: batches always take something of a loop that uses all CPUs")
    gain_pct: float = threshold(5.0, "%", "Twice the noise of a step time here; our measurement, benchmarks/workers")
    at_work: float = threshold(0.5, "1", "Somebody is found at work in most looks; our choice")
    min_cpu_s: float = threshold(0.003, "s", "Below it the hand-over, not the CPU, is what a batch costs")
    threads: float = threshold(1.5, "threads", "our choice: of two threads one computes for half of the time")
    cpu_wait: float = threshold(0.25, "1", "as noisy-neighbour: below, there are CPUs enough for all threads")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the wait and the CPU share of a batch with the thresholds."""
        pipeline = pipeline_of(window)
        if pipeline is not None:
            return self._of_a_pipeline(window, pipeline) or self._of_threads(window)
        if made_by_threads(window):
            return self._of_threads(window)
        share, cpu, service = (
            window.spent.data_wait_share_pct or 0.0,
            window.workers.batch_cpu_s,
            window.workers.service_s,
        )
        pool_s = threads_for_a_batch_s(window)
        if cpu is None or service is None or max(cpu.mean, pool_s) < self.min_cpu_s:
            return None
        if pool_s >= self.cpu_share * service.mean and share >= self.warn_pct:
            return self._of_a_pool(window, share, cpu.mean + pool_s)
        if cpu.mean < self.min_cpu_s:
            return None
        part = min(1.0, cpu.trimmed_mean / service.trimmed_mean) if service.trimmed_mean > 0 else 0.0
        predicted = forecast(window)
        if predicted is None or (part < self.cpu_share and not self._waits_for_its_threads(window, predicted)):
            return None
        if share < self.warn_pct:
            return self._beside_the_loop(window, predicted, cpu.mean)
        gain = predicted.without.gain_pct(predicted.without.no_cpu_s)
        if gain is not None and gain < self.gain_pct:
            return None
        lost = window.spent.bucket_s("data_wait") or 0.0
        needed, left = predicted.cpus_for_full_speed, predicted.available_cpus
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if share >= 2 * self.warn_pct else Severity.WARNING,
            title=self.title if needed > left else "The loop waits while its batches are prepared",
            summary=f"{share:.0f} % of the training time was spent waiting for batches that cost "
            f"{cpu.mean * 1e3:.0f} ms of CPU each{_short_of(needed, left)}.{predicted.neighbours}",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=predicted.confidence,
            evidence=(
                Evidence("data wait, share of training time", share, "%", self.warn_pct, "MLPerf Storage"),
                Evidence("CPU time of a batch, mean", cpu.mean, "s", self.min_cpu_s, "benchmarks/faults"),
                self._computes(window, part),
                Evidence("CPUs that loop and batches need for the full speed", needed, "CPUs"),
                Evidence("CPUs that the job can have", left, "CPUs"),
            ),
            advice=(
                *self._one_thread_each(window, predicted, gain),
                _cheaper_items(
                    LESS_WAIT,
                    cpu.mean,
                    limit=f"Full speed needs {needed:.1f} CPUs; the job can have {left:.1f}." if needed > left else "",
                    gain_pct=predicted.of_run(gain),
                    interval_pct=predicted.interval_pct(gain, eased=True),
                ),
                *_workers_beside(predicted, self.gain_pct),
                *_on_the_gpu(window),
                OFFLINE,
                *_more_cpus(needed, predicted),
            ),
        )

    def _computes(self, window: Window, part: float) -> Evidence:
        """Return what shows that a batch's time is spent on computing: its own part, or that of threads beside."""
        if part >= self.cpu_share:
            return Evidence("CPU share of a batch's time", part, "1", self.cpu_share, "benchmarks/faults")
        threads = window.workers.waits.threads or 0.0
        return Evidence("CPU time of a worker over its own thread's", threads, "1", self.threads, "our choice")

    def _waits_for_its_threads(self, window: Window, predicted: Outlook) -> bool:
        """Whether workers that seem blocked wait for threads of their own, which compute and wait for a CPU."""
        threads, without = window.workers.waits.threads, predicted.without
        if threads is None or threads < self.threads:
            return False
        blocked_pct, cpu_pct = without.gain_pct(without.unblocked_s), without.gain_pct(without.no_cpu_s)
        return (blocked_pct or 0.0) < self.gain_pct <= (cpu_pct or 0.0)

    def _one_thread_each(self, window: Window, predicted: Outlook, without_pct: float | None) -> tuple[Advice, ...]:
        """Where workers compute with several threads each, and wait for CPUs, these keep each other from them.

        A thread that shares a piece of work spins until the others have done their parts, which have no CPU: all that
        the helpers compute is waste then, and as much of the worker's own. So it is taken as that part of what batches
        would win that cost nothing (``without_pct``); at the least half of what the helpers compute is waste, at the
        most all of it.
        """
        threads, waits = window.workers.waits.threads, window.workers.cpu_wait_share
        won = _part_of(without_pct) or 0.0
        if threads is None or threads < self.threads or (waits or 0.0) < self.cpu_wait:
            return ()
        wasted = ((1.0 - 1.0 / threads) / 2.0, 1.0 - threads**-2.0, 1.0)
        least, gain, most = (100.0 * (1.0 / (1.0 - part * won) - 1.0) for part in wasted)
        # First batches, which all workers make at once, are slow for the same reason: that part of a start goes, too.
        crowded = _gains_of_a_crowded_loop(window, wasted[0])
        least, gain, most = map(max, (predicted.of_run(least) or 0.0, gain, most), crowded)
        if not gain:
            return ()
        return (
            Advice.of(
                "Let each worker compute with one thread: OPENBLAS_NUM_THREADS=1, cv2.setNumThreads(0).",
                expect=f"Workers that no longer take the CPUs from each other, {threads:.1f} threads each.",
                limit="Before NumPy is imported, else by threadpoolctl in worker_init_fn. "
                "OMP_NUM_THREADS=1 would take the loop's threads as well.",
                gain_pct=gain,
                interval_pct=(least, most),
            ),
        )

    def _beside_the_loop(self, window: Window, predicted: Outlook, cpu_s: float) -> Diagnosis | None:
        """The loop gets its batches in time, and waits for the CPUs that making them takes, in its own work."""
        gain, seconds = predicted.crowding_gain_pct, window.ledger.training_s
        interval = predicted.crowding_interval_pct
        # Little is seen of it but the loop's wait for a CPU: only what would matter at the least is told.
        crowds = gain is not None and interval is not None and interval[0] >= self.gain_pct and gain >= self.crowd_pct
        threads = self._one_thread_each(window, predicted, gain)
        # Threads that spin for a while after their batch is made are in the way of other steps as well: by what steps
        # take while no worker makes a batch they cost little.
        if not seconds or not (crowds or (threads and self._matters(threads[0]))):
            return None
        of_run = (predicted.of_run(gain) or 0.0) if crowds else 0.0
        most_pct = max([of_run, *(advice.predicted_gain_pct or 0.0 for advice in threads)])
        lost = seconds * most_pct / (100.0 + most_pct)
        needed, left = predicted.cpus_for_full_speed, predicted.available_cpus
        waits_pct = window.host.loop.wait_pct or 0.0
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING,
            title=self.title,
            summary=f"The loop has its batches in time, but they cost {cpu_s * 1e3:.0f} ms of CPU each, and it waits "
            f"for a CPU during {waits_pct:.0f} % of its time.{predicted.neighbours}",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=predicted.confidence,
            evidence=(
                Evidence("training thread waits for a CPU", waits_pct, "%"),
                Evidence("CPU time of a batch, mean", cpu_s, "s", self.min_cpu_s, "benchmarks/faults"),
                *_least(interval if crowds else threads[0].gain_interval_pct, self.gain_pct),
                Evidence("CPUs that loop and batches need for the full speed", needed, "CPUs"),
                Evidence("CPUs that the job can have", left, "CPUs"),
            ),
            advice=(
                *threads,
                _cheaper_items(
                    ROOM,
                    cpu_s,
                    gain_pct=of_run if crowds else None,
                    interval_pct=interval if crowds else None,
                ),
                *predicted.fewer_threads,
                OFFLINE,
                *_more_cpus(needed, predicted),
            ),
        )

    def _matters(self, advice: Advice) -> bool:
        least_pct = (advice.gain_interval_pct or (0.0, 0.0))[0]
        return least_pct >= self.gain_pct and (advice.predicted_gain_pct or 0.0) >= self.crowd_pct

    def _of_threads(self, window: Window) -> Diagnosis | None:
        """Threads make the batches in time, and take the CPUs that the loop's own work needs."""
        loop, training_s, step = window.host.loop, window.ledger.training_s, window.steps.step_time_s
        cpus, waits_pct = loop.threads_cpus, loop.threads_wait_pct
        if not training_s or step is None or cpus is None or waits_pct is None or not made_by_threads(window):
            return None
        gain, cpu_s = gain_of_the_loop(waits_pct, loop.team), cpus * step.mean
        if gain.pct is None or gain.pct < self.crowd_pct or cpu_s < self.min_cpu_s:
            return None
        lost = training_s * gain.pct / (100.0 + gain.pct)
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING,
            title=self.title,
            summary=f"The loop has its batches in time, but the threads that make them keep {cpus:.1f} CPUs busy, "
            f"and it waits for a CPU during {waits_pct:.0f} % of its time.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=CONFIDENCE,
            culprit=OWN_THREADS,
            evidence=(
                Evidence("training thread waits for a CPU that threads hold", waits_pct, "%"),
                Evidence("predicted gain without that", gain.pct, "%", self.crowd_pct, "our choice"),
                Evidence("CPUs of the program's threads", cpus, "CPUs"),
                Evidence("CPU time of a batch, mean", cpu_s, "s", self.min_cpu_s, "benchmarks/faults"),
            ),
            advice=(
                _cheaper_items(
                    ROOM,
                    cpu_s,
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                OFFLINE,
            ),
        )

    def _of_a_pool(self, window: Window, share: float, cpu_s: float) -> Diagnosis:
        """The loop makes its batches, and waits for threads of the dataset's own that compute."""
        lost = window.spent.bucket_s("data_wait") or 0.0
        gain = gain_without(window, lost, least=0.5)
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if share >= 2 * self.warn_pct else Severity.WARNING,
            title=self.title,
            summary=f"{share:.0f} % of the training time was spent making batches that cost {cpu_s * 1e3:.0f} ms of "
            "CPU each, most of it in threads of the dataset's own.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=CONFIDENCE,
            evidence=(
                Evidence("data wait, share of training time", share, "%", self.warn_pct, "MLPerf Storage"),
                Evidence("CPU time of a batch, threads included", cpu_s, "s", self.min_cpu_s, "benchmarks/faults"),
            ),
            advice=(
                _cheaper_items(
                    LESS_WAIT,
                    cpu_s,
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                OFFLINE,
            ),
        )

    def _of_a_pipeline(self, window: Window, pipeline: Pipeline) -> Diagnosis | None:
        share, more = window.spent.data_wait_share_pct or 0.0, pipeline.more_gain_pct
        if share < self.warn_pct or pipeline.receives or 1.0 - pipeline.blocked_share <= self.cpu_share:
            return None
        if not pipeline.in_loop and pipeline.at_work < self.at_work:
            return None
        if more is not None and more >= self.gain_pct:
            return None
        gain, cpu_s = pipeline.free_gain_pct, window.loader.producers.batch_cpu_s
        if pipeline.in_loop:
            cpu_s = (1.0 - pipeline.blocked_share) * (pipeline.step_s - pipeline.work_s)
        if gain < self.gain_pct or cpu_s is None or cpu_s < self.min_cpu_s:
            return None
        return diagnosis_of(
            self,
            window,
            pipeline,
            summary=f"{share:.0f} % of the training time was spent waiting for batches that cost {cpu_s * 1e3:.0f} ms "
            "of CPU each.",
            warn_pct=self.warn_pct,
            evidence=(
                Evidence("CPU time of a batch, mean", cpu_s, "s", self.min_cpu_s, "benchmarks/faults"),
                Evidence(
                    "share of those who make batches that computes",
                    1.0 - pipeline.blocked_share,
                    "1",
                    self.cpu_share,
                    "benchmarks/faults",
                ),
            ),
            advice=(
                _cheaper_items(
                    LESS_WAIT,
                    cpu_s,
                    limit="" if more is None else f"More {pipeline.who} share the same CPUs and do not help.",
                    gain_pct=gain,
                    interval_pct=pipeline.interval_pct(gain),
                ),
                *_on_the_gpu(window),
                OFFLINE,
            ),
        )


def _on_the_gpu(window: Window) -> tuple[Advice, ...]:
    if not has_gpu(window):
        return ()
    return (
        Advice.of(
            "Move transforms of tensors to the GPU; for images Kornia and DALI do that.",
            limit="Only where it has time to spare.",
        ),
    )


def _least(interval_pct: tuple[float, float] | None, gain_pct: float) -> tuple[Evidence, ...]:
    if interval_pct is None:
        return ()
    return (
        Evidence("gain if batches took no CPU, at the least", interval_pct[0], "%", gain_pct, "benchmarks/workers"),
    )


def _gains_of_a_crowded_loop(window: Window, least: float) -> tuple[float, float, float]:
    """Return what is won at the least, as expected and at the most, percent, if the loop waits for nothing any more.

    A loop of several threads that waits for a CPU loses more than its own thread does: each operation is as late as the
    latest of them. Seen with two beside two workers, where one thread for each made the steps 4.8 times as fast: the
    training thread waited for a CPU for half of its time.

    Args:
        window: Of the run.
        least: Part of its wait for a CPU that is gone at the least.
    """
    loop, share_pct = window.host.loop, window.spent.data_wait_share_pct or 0.0
    waits_pct = max(0.0, (loop.wait_pct or 0.0) - (loop.neighbour_wait_pct or 0.0))
    if waits_pct < LOOP_WAITS_PCT:
        return 0.0, 0.0, 0.0
    runs = (1.0 - share_pct / 100.0, 1.0 - min(MOST_WAITS_PCT, waits_pct) / 100.0)
    gain, most = (
        100.0 * (1.0 / (runs[0] * runs[1] ** team) - 1.0) for team in (TEAM, min(MOST_TEAM, loop.team or 1.0))
    )
    return 100.0 * (1.0 / (1.0 - least * min(MOST_WAITS_PCT, waits_pct) / 100.0) - 1.0), gain, max(gain, most)


def _part_of(gain_pct: float | None) -> float | None:
    """Return the part of the time that a rise of throughput saves; None without any."""
    return gain_pct / (100.0 + gain_pct) if gain_pct is not None and gain_pct > 0 else None


def _short_of(needed: float, left: float) -> str:
    return f"; loop and batches need {needed:.1f} CPUs at full speed and can have {left:.1f}" if needed > left else ""


def _workers_beside(predicted: Outlook, least_pct: float) -> tuple[Advice, ...]:
    """Where the loop makes its batches itself a first worker is no more of them: it wins what runs side by side.

    More of them do help while some of the CPUs are idle.
    """
    advice = predicted.advice
    if advice.recommended <= advice.current or predicted.gain_pct < least_pct:
        return predicted.fewer_threads
    if not advice.current:
        return predicted.fixes(" and persistent_workers=True")
    return predicted.fewer_threads if predicted.are_cpus_short else predicted.fixes()


def _cheaper_items(
    won: str,
    cpu_s: float,
    *,
    gain_pct: float | None,
    interval_pct: tuple[float, float] | None,
    limit: str = "",
) -> Advice:
    return Advice.of(
        "Make items cheaper: simpler or batched transforms, less to decode and to parse.",
        expect=f"All {cpu_s * 1e3:.0f} ms of CPU for a batch go, and {won}.",
        limit=limit,
        gain_pct=gain_pct,
        interval_pct=interval_pct,
    )


def _more_cpus(needed: float, predicted: Outlook) -> tuple[Advice, ...]:
    if needed <= MORE_CPUS * predicted.available_cpus:
        return ()
    limit = "More workers on the same CPUs do not help." if predicted.are_cpus_short else ""
    if not predicted.advice.current:
        limit = "With workers alone: without any the loop makes its batches itself."
    return (Advice.of(f"Give the job more CPUs: {math.ceil(needed)} for full speed.", limit=limit),)
