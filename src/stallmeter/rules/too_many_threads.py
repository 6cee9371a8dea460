"""Torch computes each operation with more threads than there are CPUs.

**What it means.** Threads of one operation wait for the slowest of them. Where there are more than CPUs, some of them
have not even begun while the others wait, and each operation takes several times as long. It happens where a number was
copied from a larger machine, where a container may use a part of the host's CPUs and torch counts all of them, and
where several processes train on one node.

**Evidence.** `loader.info`: threads that torch's operations may have, asked as each epoch begins. `host.cpus_per_rank`:
CPUs that this rank may use, after affinity and quota. `code.torch.computing_s`: seconds of the steps in which the
training thread is in a function of torch's, by looks at its stack. `host.loop.runs_share`: share of the time, 0 to 1,
in which that thread runs on a CPU. What it is in torch's functions and does not run is the loss; beside them, in the
steps (`spent.step_share_pct`), it is taken to run half of the time. It is at least what it waits for a CPU there
(`host.loop.wait_pct`), others' part left out (`host.loop.neighbour_wait_pct`, `host.loop.workers_wait_pct`,
`host.loop.threads_wait_pct`). With several ranks it is no more: they wait for each other, too.

**Advice.** As many threads as CPUs: `torch.set_num_threads`, or `OMP_NUM_THREADS` before the program starts. Workers
that compute need CPUs of their own.

**When it is wrong.** What is won depends on how often threads meet, which is not seen: the prediction is rough, and its
interval wide. On a GPU the rule is silent: what the CPU computes there is seldom what is waited for.

**References.** PyTorch's documentation, "CPU threading": oversubscription. Our measurement,
`benchmarks/workers/oversubscribed.py`, 4 networks on 2 CPUs with 3 to 64 threads: 1.15 to 5.1 times as slow as with 2
in 15 of 20 cases, 7 to 44 times in four, 186 times in one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import Gain, gain_without
from .frameworks import computes_on_device
from .rule import threshold

LEAST, MOST = 0.25, 4.0
"""Of the rise that is seen. 4 networks with 3 to 64 threads on 2 CPUs rose by so much of what their training thread
stood still for in 14 of 20 cases, by 0.18 to 0.20 in three and by 6.5 to 8.0 in three: our measurement,
benchmarks/workers/oversubscribed.py."""

MOST_OF_RANKS = 12.0
"""The same at the most where several ranks share the CPUs: threads that find as many CPUs as they are wait by spinning,
on those that the others need. Two networks, two ranks of 2 and 4 threads on 2 CPUs: 1.5, 3.4, 5.5 and 12 times."""

MOST_LOST = 0.95
"""Share of the training time; a larger loss is not believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyThreads:
    """Fires when torch's operations have more threads than the process has CPUs, and the loop stands still in them."""

    id: ClassVar[str] = "too-many-threads"
    title: ClassVar[str] = "Torch computes with more threads than there are CPUs"
    needs: ClassVar[tuple[str, ...]] = (
        "loader.info",
        "host.cpus_per_rank",
        "host.loop.runs_share",
        "host.loop.wait_pct",
        "code.torch.computing_s",
        "ledger.training_s",
    )
    optional: ClassVar[tuple[str, ...]] = (
        "device.pace_s",
        "facts.accelerator",
        "facts.has_other_ranks",
        "gpu.utilization_pct",
        "host.loop.beside_cpus",
        "host.loop.neighbour_wait_pct",
        "host.loop.threads_cpus",
        "host.loop.threads_wait_pct",
        "host.loop.workers_wait_pct",
        "host.others_cpus",
        "ledger.wall_s",
        "loader.num_workers",
        "spent.data_wait_share_pct",
        "spent.step_share_pct",
    )

    warn_pct: float = threshold(5.0, "%", "as for a callback that takes this much, which XProf reports")
    critical_pct: float = threshold(20.0, "%", "as for input wait, which XProf calls high from 20 %")
    gpu_pct: float = threshold(5.0, "%", "GPU utilization from which the CPU is not what computes; our choice")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare threads with CPUs, and ask what the training thread does not run of its time in torch."""
        info, cpus, training_s = window.loader.info, window.host.cpus_per_rank, window.ledger.training_s
        threads = None if info is None else info.torch_threads
        if threads is None or not cpus or not training_s or threads <= math.ceil(cpus):
            return None
        if computes_on_device(window) or (window.gpu.utilization_pct or 0.0) >= self.gpu_pct:
            return None
        lost = _lost(window, training_s)
        if lost is None:
            return None
        share = 100.0 * lost.share
        if share < self.warn_pct:
            return None
        lost_s = lost.share * training_s
        few, plural = max(1, int(cpus)), "" if cpus == 1 else "s"
        gain = lost.gain(window, training_s)
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if share >= self.critical_pct else Severity.WARNING,
            title=self.title,
            summary=f"{threads} threads for {cpus:.3g} CPU{plural}: they wait for each other in every operation, about "
            f"{share:.0f} % of the training time.",
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.85,
            culprit="torch.set_num_threads",
            evidence=(
                Evidence("threads of torch's operations", threads, "threads", math.ceil(cpus), "CPUs of this process"),
                Evidence("CPUs that this process may use", cpus, "CPUs"),
                Evidence(
                    "the training thread in torch's functions and not on a CPU, share of training time",
                    share,
                    "%",
                    self.warn_pct,
                    "XProf",
                ),
            ),
            advice=(
                Advice.of(
                    f"Set torch.set_num_threads({few}), or the environment variable OMP_NUM_THREADS={few}.",
                    expect="Operations whose threads all run at once.",
                    limit="How much is won depends on how often threads meet, which is not seen.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
            ),
            supersedes=("compute-bound", "cpu-saturated"),
        )


@dataclass(frozen=True, slots=True)
class _Lost:
    """Shares (0 to 1) of the training time in which the training thread is in torch's functions and does not run."""

    least: float
    """If it stands still whenever it is in none of them: all that it runs is theirs."""
    most: float
    """If it runs all the time then."""
    rises_most: float = MOST
    """Times the rise that is seen."""

    @property
    def share(self) -> float:
        return (self.least + self.most) / 2.0

    def gain(self, window: Window, training_s: float) -> Gain:
        """Predict what is won, with an interval that is wide on a scale of times."""
        least, most = (
            1.0 - 1.0 / (1.0 + part * share / (1.0 - share))
            for part, share in ((LEAST, self.least), (self.rises_most, self.most))
        )
        lost = self.share
        return gain_without(window, lost * training_s, least=least / lost, most=most / lost)


def _lost(window: Window, training_s: float) -> _Lost | None:
    """Return what is lost; at least what the training thread waits for a CPU in torch's functions."""
    in_torch_s, loop = window.code.torch.computing_s, window.host.loop
    runs, waits_pct = loop.runs_share, loop.wait_pct
    if in_torch_s is None or runs is None or waits_pct is None:
        return None
    in_torch = min(1.0, in_torch_s / training_s)
    # At each moment of such a wait one of those computes that it is for: it is no longer than they are busy.
    others = (
        (loop.neighbour_wait_pct, window.host.others_cpus),
        (loop.workers_wait_pct, loop.beside_cpus),
        (loop.threads_wait_pct, loop.threads_cpus),
    )
    foreign = sum(min((pct or 0.0) / 100.0, cpus or 0.0) for pct, cpus in others)
    waits = min(MOST_LOST, max(0.0, waits_pct / 100.0 - foreign) * in_torch)
    if window.facts.has_other_ranks:
        return _Lost(waits, waits, MOST_OF_RANKS)
    made = (window.spent.data_wait_share_pct or 0.0) / 100.0 if window.loader.num_workers == 0 else 0.0
    beside = max(0.0, (window.spent.step_share_pct or 0.0) / 100.0 - in_torch)
    ran = max(0.0, runs - made)
    least, most = (
        min(MOST_LOST, max(waits, in_torch * (1.0 - foreign) - max(0.0, ran - apart))) for apart in (0.0, beside)
    )
    return _Lost(least, most)
