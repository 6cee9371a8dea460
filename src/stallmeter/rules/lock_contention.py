"""Threads of the program hold each other up, or the training, at Python's own lock.

**What it means.** Only one thread of a process runs Python code at a time: the one that has the interpreter's lock (the
GIL). Several threads that make batches in Python code are no faster than one, and the thread that trains waits for the
lock, too, so that its own steps take longer. So it does beside any other thread that computes in Python: one that
collects statistics, say.

**Evidence.** `code.lock_trial`: where other threads of the program compute, the interpreter's switch interval is short
and the program's own in turn; steps that are faster with the short one wait for the lock, at least for the difference.
`loader.producers.lock_waiters`: threads that wait for the lock while the loop waits for data, mean.
`loader.producers.cpus`: CPUs that all of them together keep busy, about one. `loader.producers.body.lock_share`: share
of the steps' own time in which the loop's thread waits for the lock while another thread of Python holds it, 0 to 1.
That is no more than `host.loop.blocked_share` of all time without the wait for data, and than what those threads
compute.

There is more to win than that: to ask for the lock sooner costs as well. The trial counts, too, for how long the
training thread stood still in the steps' own work with the program's own interval. That time counts as far as other
threads of the program compute (`host.loop.threads_cpus`), where most of the waits that looks meet in the steps are for
the lock (`loader.producers.body.lock_part`). Where nobody looks at that, steps must be faster with the short interval,
and the training thread must have no team of threads for its operations (`host.loop.team`) and no GPU to wait for.

So it is with a lock of the program's own, around a connection that all share: `code.helpers_in_line`, the part of the
looks, while the loop waits for threads, in which some of them wait in one place of the code, and the kernel says that
they wait for another thread of the process.

**Advice.** Make batches in processes, each of which has a lock of its own. Or have the work done by code that lets go
of the lock: NumPy, Pillow, torch, compressors and files do, for pieces that are large enough.

Of a thread that does something else than batches its function is named, and its work moved to a process or made rarer.
A shorter switch interval wins a part of it at once.

**When it is wrong.** Looks cannot see whether a thread that computes holds the lock; a trial can. On a build of Python
without the lock this is silent.

**References.** David Beazley, "Understanding the Python GIL", PyCon 2010 (threads that compute delay one that does not
by the switch interval, 5 ms, each time it needs the lock). `sys.setswitchinterval`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ..records import LockTrial
from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import gain_without
from ..workers.pipeline import ONE_LOCK, made_by_threads, pipeline_of
from .frameworks import has_gpu
from .rule import threshold

OF_THE_RUN = ("spent.data_wait_share_pct", "spent.step_work_s", "steps.work_s", "ledger.training_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockContention:
    """Fires when threads that make batches wait for a lock, or the loop for the interpreter's because of them."""

    id: ClassVar[str] = "lock-contention"
    title: ClassVar[str] = "Threads that make batches hold each other up at Python's lock"
    needs: ClassVar[tuple[str, ...]] = ("loader.producers.lock_waiters", *OF_THE_RUN)
    instead: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("loader.producers.body.lock_share", *OF_THE_RUN),
        ("code.lock_trial", "ledger.training_s"),
        ("code.helpers_in_line", "spent.data_wait_share_pct", "ledger.training_s"),
    )
    optional: ClassVar[tuple[str, ...]] = (
        "code.before_model",
        "facts.accelerator",
        "gpu.count",
        "host.loop.blocked_share",
        "host.loop.team",
        "host.loop.threads_cpus",
        "loader.asks_none",
        "loader.info",
        "loader.producers.body.lock_part",
        "loader.producers.cpus",
    )
    family: ClassVar[str] = "input"

    warn_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    waiters: float = threshold(0.9, "1", "One thread alone is found waiting in 0.3 of the looks; our choice")
    most_cpus: float = threshold(1.4, "CPUs", "Threads that hold one lock keep one CPU busy; our choice")
    pairs: float = threshold(3.0, "1", "Three of three go one way by chance in one run of eight; our choice")
    plain: float = threshold(1.5, "x", "our choice: steps seldom get half as long by chance, and twice in turn never")
    opened: float = threshold(0.4, "1", "Least part of the wait that is won; our choice, for what lies behind it")
    few_pairs: float = threshold(2.0, "1", "Enough where it is so plain; our choice")
    agree: float = threshold(
        0.75, "1", "Of the pairs: six of eight go one way by chance in one run of seven; our choice"
    )
    gain_pct: float = threshold(5.0, "%", "Twice the noise of a step time here; our measurement, benchmarks/workers")

    in_line: float = threshold(0.5, "1", "Most looks find threads in line; our choice")
    at_lock: float = threshold(0.5, "1", "Most waits within the steps; seen: 0.97 and 0.25 of them; our choice")
    alone: float = threshold(1.2, "threads", "Up to this the loop computes in one; our choice")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare what a lock costs the wait and the steps themselves with the thresholds."""
        return self._of_pythons_own(window) or self._of_another(window)

    def _of_another(self, window: Window) -> Diagnosis | None:
        """Threads that make batches, and let one of them through at a time: by a lock of the program's."""
        in_line, training_s = window.code.helpers_in_line, window.ledger.training_s
        if in_line is None or in_line < self.in_line or not training_s:
            return None
        if window.loader.asks_none:
            before = window.code.before_model
            lost = before.seconds if before is not None and before.spot is not None and before.spot.awaits else 0.0
        else:
            lost = (window.spent.bucket_s("data_wait") or 0.0) if made_by_threads(window) else 0.0
        if lost < self.warn_pct / 100.0 * training_s:
            return None
        gain = gain_without(window, lost, least=self.opened, in_steps=bool(window.loader.asks_none))
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if lost >= 2 * self.warn_pct / 100.0 * training_s else Severity.WARNING,
            title="Threads that make batches stand in line for one lock",
            summary=f"{100 * lost / training_s:.0f} % of the training time was spent waiting for threads; some of "
            f"these stood in line in {100 * in_line:.0f} % of the looks: one at a time gets through.",
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=0.8,
            culprit=ONE_LOCK,
            evidence=(
                Evidence("looks that found threads in line", in_line, "1", self.in_line, "our choice"),
                Evidence("wait for threads, share of training time", 100 * lost / training_s, "%", self.warn_pct),
            ),
            advice=(
                Advice.of(
                    "Give each thread what the lock guards, such as a connection.",
                    expect="As many at a time as there are threads.",
                    limit="Not where what lies behind it serves one at a time as well.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of("Hold the lock for less: parse and decode outside of it."),
            ),
        )

    def _of_pythons_own(self, window: Window) -> Diagnosis | None:
        trial = self._trial(window)
        wait_s, body_s = self._in_the_wait_s(window), self._in_the_steps_s(window)
        training_s = window.ledger.training_s
        tried_s = 0.0 if trial is None else (training_s or 0.0) * (1.0 - trial.short_step_s / trial.usual_step_s)
        stood_s = self._stood_s(window, agrees=trial is not None)
        lost = max(wait_s + body_s, tried_s, stood_s)
        if not training_s or lost < self.warn_pct / 100.0 * training_s:
            return None
        gain = self._gain_pct(window, lost, training_s)
        if gain is not None and gain < self.gain_pct:
            return None
        waiting = window.loader.producers.lock_waiters or 0.0
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if lost >= 2 * self.warn_pct / 100.0 * training_s else Severity.WARNING,
            title=self.title if wait_s else "Another thread holds Python's lock while the training needs it",
            summary=f"{100 * lost / training_s:.0f} % of the training time went by at the interpreter's lock (GIL)"
            + (f"; {waiting:.1f} threads waited for it while the loop had no data." if wait_s else "."),
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=0.8,
            evidence=self._evidence(window, trial, waiting if wait_s else None, body_s, stood_s),
            advice=_advice(gain, trial, batches=bool(wait_s)),
        )

    def _evidence(
        self, window: Window, trial: LockTrial | None, waiting: float | None, body_s: float, stood_s: float
    ) -> tuple[Evidence, ...]:
        found = []
        if waiting is not None:
            found.append(Evidence("threads that wait for the lock", waiting, "1", self.waiters, "our choice"))
        if body_s:
            share = body_s / (window.spent.step_work_s or math.inf)
            found.append(Evidence("share of the steps' time waiting for the lock", share, "1"))
            found.append(Evidence("CPUs that those threads use", window.loader.producers.cpus or 0.0, "CPUs"))
        if stood_s:
            share = stood_s / (window.spent.step_work_s or math.inf)
            found.append(Evidence("share of the steps' time in which the training thread stood still", share, "1"))
            found.append(Evidence("CPUs that other threads use", window.host.loop.threads_cpus or 0.0, "CPUs"))
        if trial is not None:
            found.append(Evidence("step with Python's own switch interval, mean", trial.usual_step_s, "s"))
            short = f"step with one of {1e3 * trial.short_s:.2g} ms, in turn, mean"
            found.append(Evidence(short, trial.short_step_s, "s"))
        return tuple(found)

    def _trial(self, window: Window) -> LockTrial | None:
        """Return what was tried with the switch interval, if steps were faster with a short one."""
        trial = window.code.lock_trial
        if trial is None or not 0.0 < trial.short_step_s < trial.usual_step_s:
            return None
        is_plain = trial.usual_step_s >= self.plain * trial.short_step_s
        enough = trial.pairs >= (self.few_pairs if is_plain else self.pairs)
        return trial if enough and trial.faster >= self.agree * trial.pairs else None

    def _in_the_wait_s(self, window: Window) -> float:
        producers = window.loader.producers
        pipeline = pipeline_of(window)
        waiting, cpus = producers.lock_waiters, producers.cpus
        if pipeline is None or pipeline.in_loop or pipeline.outside or waiting is None or waiting < self.waiters:
            return 0.0
        is_one_cpu = cpus is None or cpus <= self.most_cpus
        return (window.spent.bucket_s("data_wait") or 0.0) if is_one_cpu else 0.0

    @staticmethod
    def _in_the_steps_s(window: Window) -> float:
        """Return the seconds of the steps at the lock: no more than the thread was blocked, or the others computed."""
        seen_s = (window.loader.producers.body.lock_share or 0.0) * (window.spent.step_work_s or 0.0)
        training_s, waited_s = window.ledger.training_s or 0.0, window.spent.bucket_s("data_wait") or 0.0
        blocked, cpus = window.host.loop.blocked_share, window.loader.producers.cpus
        blocked_s = math.inf if blocked is None else max(0.0, blocked * training_s - waited_s)
        return min(seen_s, blocked_s, math.inf if cpus is None else cpus * training_s)

    def _stood_s(self, window: Window, *, agrees: bool) -> float:
        """Return the seconds in which the steps stood still for the lock while other threads ran; 0 where not known.

        Args:
            window: Of the run.
            agrees: Whether steps are faster with a short interval.
        """
        trial, loop, training_s = window.code.lock_trial, window.host.loop, window.ledger.training_s
        if trial is None or trial.stood_step_s is None or loop.threads_cpus is None or not training_s:
            return 0.0
        part = window.loader.producers.body.lock_part
        alone = loop.team is not None and loop.team <= self.alone and not has_gpu(window)
        if part is None:
            part = 1.0 if agrees and alone else 0.0
        elif part < self.at_lock:
            return 0.0
        in_steps_s = (window.spent.step_work_s or 0.0) + (window.spent.bucket_s("data_wait") or 0.0)
        return min(part * trial.stood_step_s / trial.usual_step_s * in_steps_s, loop.threads_cpus * training_s)

    @staticmethod
    def _gain_pct(window: Window, lost_s: float, training_s: float) -> float | None:
        """Return the gain without the lock: the rest of the step, or what the CPUs take for all the work."""
        bound_pct = 100.0 * lost_s / max(training_s - lost_s, 0.02 * training_s)
        pipeline = pipeline_of(window)
        if pipeline is None or pipeline.cpu_bound_s is None:
            return bound_pct
        return min(bound_pct, pipeline.gain_pct(pipeline.cpu_bound_s) or 0.0)


def _advice(gain: float | None, trial: LockTrial | None, *, batches: bool) -> tuple[Advice, ...]:
    """What to do: away from the lock first, then what makes it change hands sooner.

    A thread that is gone wins at least what a short interval has won: nobody waits for that either.
    """
    least = 0.0 if gain is None else max(0.0, 100.0 * ((1 + gain / 100) / 1.3 - 1))
    interval = None if gain is None else (least, (2.0 if trial else 1.3) * gain + 30.0)
    away = (
        Advice.of(
            "Make batches in processes: DataLoader workers, or a pool of processes in place of threads.",
            expect="Each process has a lock of its own, and the training keeps this one's.",
            limit="Batches must then be handed over between processes.",
            gain_pct=gain,
            interval_pct=interval,
        )
        if batches
        else Advice.of(
            "Move that thread's work into a process of its own, or do it less often.",
            expect="The training keeps the lock to itself.",
            limit="What the process needs must then be sent to it.",
            gain_pct=gain,
            interval_pct=interval,
        )
    )
    sooner: tuple[Advice, ...] = ()
    if trial is not None:
        won_pct = 100.0 * (trial.usual_step_s / trial.short_step_s - 1.0)
        sooner = (
            Advice.of(
                f"Call sys.setswitchinterval({trial.short_s:g}) before training.",
                expect="The lock changes hands sooner: tried in this run.",
                limit="The other thread takes longer for its work.",
                gain_pct=won_pct,
                interval_pct=(0.7 * won_pct, 1.3 * won_pct),
            ),
        )
    return (
        away,
        *sooner,
        Advice.of(
            "Use code that lets go of the lock: NumPy, Pillow or torch on whole batches.",
            limit="Many small calls need the lock as often as Python code does.",
        ),
    )
