"""The workers wait for storage or the network.

**What it means.** Most of a worker's time for a batch it neither computes nor queues for a CPU: it waits for bytes.
The loop waits with it.

**Evidence.** `spent.data_wait_share_pct`: data wait as a share of training time, percent. `workers.blocked_share`:
share of a worker's time for a batch in which it was blocked, 0 to 1. `workers.service_s`: that time, seconds. Where
the system shows it, `workers.waits.kinds`: shares of what blocked workers waited in, 0 to 1, and
`workers.waits.lock_use`: share of the time in which the lock that is waited for most was held, 0 to 1.

Of threads or processes that are not torch's workers: `loader.producers.blocked_share`, the share of those at work in
the wait that are in a call to the file system, wait for a connection or sleep.

**Advice.** Read more in parallel: waiting workers need no CPU, so there may be more of them than CPUs. Then read less
or nearer: cache on a local SSD, larger files (shards) instead of many small ones, uncompressed or array formats,
prefetch. When a batch takes longer the more workers there are, the storage itself is the limit and more readers do
not help.

Workers that wait for each other at a lock are told apart where the system shows what a process waits in (Linux), also
where they sleep more in it than they wait for it: then the lock comes first, with the gain of what is done in it being
done side by side.

**When it is wrong.** A worker that waits for another process looks the same.

**References.** Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021 (fetch stall, prep
stall).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.forecast import Outlook, forecast
from ..workers.pipeline import INSTEAD, Pipeline, diagnosis_of, pipeline_of, threads_for_a_batch_s
from .rule import threshold

UNLOCK = "Hold the lock for less"
"""Begin of the advice about a lock that workers share: it changes how they are connected, and no item."""

_WORDS = {
    "lock": "for a lock that another process held",
    "threads": "for threads of its own",
    "sleep": "in a sleep",
    "socket": "for the other end of a connection",
    "file": "in the file system",
    "other": "in none of the usual waits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchStall:
    """Fires when the loop waits for workers that are mostly blocked."""

    id: ClassVar[str] = "fetch-stall"
    title: ClassVar[str] = "The workers wait for storage or the network"
    needs: ClassVar[tuple[str, ...]] = (
        "spent.data_wait_share_pct",
        "workers.blocked_share",
        "workers.service_s",
        "loader.num_workers",
        "steps.work_s",
    )
    optional: ClassVar[tuple[str, ...]] = (
        "host.loop.threads_cpus",
        "steps.step_time_s",
        "workers.waits.kinds",
        "workers.waits.lock_share",
        "workers.waits.lock_use",
    )
    instead: ClassVar[tuple[str, ...]] = INSTEAD
    family: ClassVar[str] = "input"
    rules_out: ClassVar[str] = "fewer workers"
    cure: ClassVar[str] = "more workers"

    warn_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    gain_pct: float = threshold(5.0, "%", "Twice the noise of a step time here; our measurement, benchmarks/workers")
    one_kind: float = threshold(0.5, "1", "Most of the blocked time, so that one kind of wait is named; our choice")
    at_work: float = threshold(0.5, "1", "Somebody is found at work in most looks; our choice")
    blocked: float = threshold(0.6, "1", "More than half, with room for noise; our measurement, benchmarks/faults")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the wait and the blocked share with the thresholds."""
        pipeline = pipeline_of(window)
        if pipeline is not None:
            return self._of_a_pipeline(window, pipeline)
        share, service = window.spent.data_wait_share_pct or 0.0, window.workers.service_s
        blocked = window.workers.blocked_share or 0.0
        predicted = forecast(window)
        if service is None or predicted is None or share < self.warn_pct or blocked < self.blocked:
            return None
        # What seems to wait for storage waits for threads of the dataset's own, which compute: prep-stall tells it.
        if threads_for_a_batch_s(window) >= (1.0 - self.blocked) * blocked * service.mean:
            return None
        gain = predicted.without.gain_pct(predicted.without.unblocked_s)
        if gain is not None and gain < self.gain_pct:
            return None
        lost = window.spent.bucket_s("data_wait") or 0.0
        waits = window.workers.waits
        alone = window.loader.num_workers == 0
        title = "The loop's own thread waits for storage or the network" if alone else self.title
        who, whose = ("the loop's thread was", "the loop's") if alone else ("the workers were", "a worker's")
        unlocked = predicted.without.gain_pct(predicted.without.unlocked_s) or 0.0
        at_a_lock = min(waits.lock_share or 0.0, waits.lock_use or 0.0) >= self.one_kind
        at_a_lock = at_a_lock or unlocked >= self.gain_pct
        return Diagnosis(
            rule=self.id,
            # The host's I/O wait is this loader's: no second problem.
            supersedes=("io-wait-high",),
            severity=Severity.CRITICAL if share >= 2 * self.warn_pct else Severity.WARNING,
            title="The workers wait for each other at a lock" if at_a_lock else title,
            summary=f"{share:.0f} % of the training time was spent waiting for data; {who} blocked for "
            f"{100 * blocked:.0f} % of the {service.mean * 1e3:.0f} ms that a batch takes"
            f"{self._waits_for(window, at_a_lock=at_a_lock)}.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=0.85,
            evidence=(
                Evidence("data wait, share of training time", share, "%", self.warn_pct, "MLPerf Storage"),
                Evidence("share of a batch's time blocked", blocked, "1", self.blocked, "benchmarks/faults"),
                Evidence(f"{whose} time for a batch, mean", service.mean, "s"),
            ),
            advice=(
                *(self._less_locking(predicted, unlocked or gain) if at_a_lock else ()),
                *self._more_readers(window, predicted),
                *self._less_reading(predicted, gain, at_a_lock=at_a_lock),
            ),
        )

    def _waits_for(self, window: Window, *, at_a_lock: bool) -> str:
        kinds = window.workers.waits.kinds or {}
        named = {kind for kind, share in kinds.items() if share >= self.one_kind}
        named |= {"lock"} & kinds.keys() if at_a_lock else set()
        words = [f"{kinds[kind]:.0%} {'' if n else 'of that '}{_WORDS[kind]}" for n, kind in enumerate(sorted(named))]
        return f", {' and '.join(words)}" if words else ""

    def _less_locking(self, predicted: Outlook, gain: float | None) -> tuple[Advice, ...]:
        return (
            Advice.of(
                "Hold the lock for less: give each worker its own file, connection or cache.",
                expect="Workers that read at the same time instead of one after the other.",
                limit="What the lock protects must allow several readers.",
                gain_pct=predicted.of_run(gain),
                interval_pct=predicted.interval_pct(gain),
            ),
        )

    def _more_readers(self, window: Window, predicted: Outlook) -> tuple[Advice, ...]:
        if predicted.recommended <= (window.loader.num_workers or 0):
            return ()
        return (
            Advice.of(
                f"Set num_workers={predicted.recommended}{predicted.place} to read more in parallel"
                f"{predicted.beside_it}.",
                expect=predicted.expect,
                limit=predicted.limit,
                gain_pct=predicted.of_run(predicted.gain_pct),
                interval_pct=predicted.interval_pct(predicted.gain_pct),
            ),
        )

    def _less_reading(self, predicted: Outlook, gain: float | None, *, at_a_lock: bool) -> tuple[Advice, ...]:
        together = Advice.of("Read several items at once: __getitems__, threads or asynchronous reads in the dataset.")
        return (
            Advice.of(
                "Keep the data on a local SSD or in a cache.",
                expect="Workers that are blocked less, and less data wait.",
                limit="The first epoch fills a cache, later ones read it.",
                gain_pct=predicted.of_run(gain),
                interval_pct=predicted.interval_pct(gain),
            ),
            Advice.of("Pack many small files into larger ones (shards), uncompressed or as arrays."),
            *(() if at_a_lock else (together,)),
        )

    def _of_a_pipeline(self, window: Window, pipeline: Pipeline) -> Diagnosis | None:
        share, gain = window.spent.data_wait_share_pct or 0.0, pipeline.free_gain_pct
        if share < self.warn_pct or pipeline.blocked_share < self.blocked or gain < self.gain_pct:
            return None
        if not pipeline.in_loop and pipeline.at_work < self.at_work:
            return None
        kinds = {} if pipeline.in_loop else window.loader.producers.kinds or {}  # of the others
        words = [f", mostly {_WORDS[kind]}" for kind, part in kinds.items() if part >= self.one_kind]
        who = "the loop's own thread was" if pipeline.in_loop else f"{pipeline.at_work:.1f} {pipeline.who} were"
        return diagnosis_of(
            self,
            window,
            pipeline,
            supersedes=("io-wait-high",),
            summary=f"{share:.0f} % of the training time was spent waiting for data; {who} at work on it and blocked "
            f"for {100 * pipeline.blocked_share:.0f} % of that time{words[0] if words else ''}.",
            warn_pct=self.warn_pct,
            evidence=(
                Evidence(
                    "share of those at work blocked", pipeline.blocked_share, "1", self.blocked, "benchmarks/faults"
                ),
                Evidence(f"{pipeline.who} at work in the wait", pipeline.at_work, "1"),
            ),
            advice=(
                Advice.of(
                    "Keep the data on a local SSD or in a cache.",
                    expect="Less waiting for storage, and less data wait.",
                    limit="The first epoch fills a cache, later ones read it.",
                    gain_pct=gain,
                    interval_pct=pipeline.interval_pct(gain),
                ),
                Advice.of(
                    "Read more in parallel: let more threads read ahead.",
                    limit="Blocked threads need no CPU; where they share one disk or connection, that is the limit.",
                ),
                Advice.of("Pack many small files into larger ones (shards), uncompressed or as arrays."),
            ),
        )
