"""Torch computes with fewer threads than there are cores, and the others are idle.

**What it means.** The steps compute on a CPU, and each operation uses fewer threads than the cores that are free. The
number comes from the environment, where torchrun and some clusters put 1, or from the program.

**Evidence.** `loader.info`: threads that torch's operations may have, asked as each epoch begins. `host.cpus_per_rank`:
CPUs that this rank may use, after affinity and quota; `facts.threads`: the cores behind them, and the variables of the
environment that set a number. What workers (`host.loop.beside_cpus`), threads of the program (`host.loop.threads_cpus`)
and other jobs (`host.others_cpus`) use of them is left to them, and what the job uses (`host.job_cpus`) is no idle CPU.
`spent.bucket_s`: seconds in which the steps compute; `code.torch.computing_s`: how many of them in torch's functions,
where looks tell. `spent.optimizer`: the tensors that a step updates. `spent.step_share_pct` and
`spent.data_wait_share_pct`: whether the steps set the pace.

**Advice.** As many threads as there are free cores: the variable that was found, or `torch.set_num_threads`.

**When it is wrong.** Operations differ in how well a second thread helps, which is seen by their length alone: a step's
computing, divided by the tensors that it updates. Where several optimizers take turns only the tensors of the first are
known. A layer that is called many times in a step (a recurrent one) looks as if its operations were long. Below
`tensor_ms` more threads won nothing, or lost, and nothing is said; where the tensors or the cores are not known it only
informs. CPUs of one core (hyper-threads) are counted once.

**References.** PyTorch's documentation, "CPU threading". Our measurement, `benchmarks/faults/idle_cpus.py`: one thread
against two on two cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import gain_without
from .frameworks import on_cpu
from .rule import THREADS_SHARE, threshold

COMPUTES = ("forward", "backward", "optimizer", "compute")
"""Buckets that torch's threads work in."""

SLACK = 0.15
"""Part of a CPU that others may use of those that are counted as free: samplers and loggers take a little; our
choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TooFewThreads:
    """Fires when the steps compute on a CPU with fewer threads than there are free cores."""

    id: ClassVar[str] = "too-few-threads"
    title: ClassVar[str] = "Torch computes with fewer threads than there are free cores"
    needs: ClassVar[tuple[str, ...]] = (
        "host.cpus_per_rank",
        "host.job_cpus",
        "host.loop.beside_cpus",
        "ledger.training_s",
        "loader.info",
        "spent.step_share_pct",
        "steps.step_time_s",
    )
    optional: ClassVar[tuple[str, ...]] = (
        "code.torch.computing_s",
        "device.pace_s",
        "facts.accelerator",
        "facts.budget",
        "facts.threads",
        "gpu.count",
        "host.loop.threads_cpus",
        "host.others_cpus",
        "ledger.wall_s",
        "spent.data_wait_share_pct",
        "spent.optimizer",
    )

    step_pct: float = threshold(70.0, "%", "as for compute-bound: our choice")
    wait_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    idle_cpus: float = threshold(0.7, "CPUs", "More than a loop's other threads take now and then; our choice")
    tensor_ms: float = threshold(0.9, "ms", "Our measurement: below it a second thread won nothing, or lost")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare threads with free cores, and ask whether operations are long enough."""
        found = _free(window, self.idle_cpus)
        if found is None or not self._computes(window):
            return None
        threads, free, is_sure = found
        training_s = window.ledger.training_s or 0.0
        computed_s = min(training_s, _computed_s(window))
        tensor_ms = _tensor_ms(window, computed_s, training_s)
        if not computed_s or (tensor_ms is not None and tensor_ms < self.tensor_ms):
            return None
        warns = is_sure and tensor_ms is not None
        idle = 1.0 - threads / free
        least, usual, most = (part * idle * computed_s for part in THREADS_SHARE)
        gain = gain_without(window, usual, least=least / usual, most=most / usual)
        one = "" if threads == 1 else "s"
        culprit, because = _cause(window, threads)
        lost_s = usual if warns else 0.0
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING if warns else Severity.INFO,
            title=self.title,
            summary=f"Torch computes {100.0 * computed_s / training_s:.0f} % of the training time with {threads} "
            f"thread{one}{because}, and {free} cores are free.",
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.6,
            culprit=culprit,
            evidence=(
                Evidence("threads of torch's operations", threads, "threads", free, "free cores"),
                Evidence("CPUs that this process may use", window.host.cpus_per_rank or 0.0, "CPUs"),
                Evidence("CPUs that it keeps busy", window.host.job_cpus or 0.0, "CPUs"),
                *(
                    (Evidence("computing for each tensor", tensor_ms, "ms", self.tensor_ms, "our measurement"),)
                    if tensor_ms is not None
                    else ()
                ),
            ),
            advice=(
                Advice.of(
                    f"Set {_setting(window, threads, free)}: torch has {threads} thread{one}.",
                    expect=f"Long operations are computed by {free} cores at once.",
                    limit="Short operations win nothing, and workers need CPUs, too.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
            ),
        )

    def _computes(self, window: Window) -> bool:
        """Whether what a CPU computes sets the pace."""
        if not on_cpu(window):
            return False
        share, wait = window.spent.step_share_pct or 0.0, window.spent.data_wait_share_pct or 0.0
        return share >= self.step_pct and wait < self.wait_pct


def _free(window: Window, least_idle: float) -> tuple[int, int, bool] | None:
    """Return the threads, the cores that are free for them, and whether that is known for certain.

    None where there are no more of these.
    """
    info, cpus, job = window.loader.info, window.host.cpus_per_rank, window.host.job_cpus
    threads = None if info is None else info.torch_threads
    beside, others = window.host.loop.beside_cpus, window.host.others_cpus
    if not threads or not cpus or job is None or beside is None or cpus - job - (others or 0.0) < least_idle:
        return None
    free = int(cpus - beside - (window.host.loop.threads_cpus or 0.0) - (others or 0.0) + SLACK)
    settings, budget = window.facts.threads, window.facts.budget
    cores = None if settings is None else settings.cores
    if cores is not None:
        ranks = 1 if budget is None or budget.bound_per_rank else budget.ranks_on_node
        free = min(free, cores // ranks)
    return (threads, free, cores is not None and others is not None) if free > threads else None


def _computed_s(window: Window) -> float:
    """Seconds of the training time in which the steps compute; only what torch's functions take, where looks tell."""
    seconds, in_torch_s = window.spent.bucket_s(*COMPUTES) or 0.0, window.code.torch.computing_s
    return seconds if in_torch_s is None else min(seconds, in_torch_s)


def _tensor_ms(window: Window, computed_s: float, training_s: float) -> float | None:
    """Milliseconds that a step computes for each tensor that it updates; None where these are not known."""
    info, step = window.spent.optimizer, window.steps.step_time_s
    if info is None or not info.tensors or step is None or training_s <= 0:
        return None
    return 1e3 * step.median * computed_s / training_s / info.tensors


def _setting(window: Window, threads: int, free: int) -> str:
    """Return what sets the number of threads, as it would set as many as there are free cores."""
    variable = _variable(window, threads)
    return f"torch.set_num_threads({free})" if variable is None else f"{variable}={free}"


def _cause(window: Window, threads: int) -> tuple[str | None, str]:
    """Return what set the number, and that as part of a sentence; None and nothing where it is not known."""
    if window.facts.threads is None:
        return None, ""
    variable = _variable(window, threads)
    if variable is None:
        return f"torch.set_num_threads({threads})", " (the program sets it)"
    return f"{variable}={threads}", f" ({variable}={threads})"


def _variable(window: Window, threads: int) -> str | None:
    settings = window.facts.threads
    return None if settings is None else settings.sets(threads)
