"""Runs cases in processes of their own, pinned to two CPUs, and measures how much other processes disturbed them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import outside, rivals
from .case import Case

TIMEOUT_S = 180.0
QUIET_CPUS = 0.3
"""A machine on which others use less is quiet."""

ROOT = Path(__file__).resolve().parents[2]
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Run:
    """One case at one intensity with one seed."""

    case: Case
    level: int
    seed: int

    @property
    def name(self) -> str:
        """Name of the run in files."""
        return f"{self.case.id}-{self.level}-{self.seed}"


@dataclass(frozen=True, slots=True)
class Runner:
    """How runs are made.

    Args:
        cpus: Ids of the CPUs that a run, its neighbours and its store share.
        python: Interpreter that has the tool under test.
        tool: The tool under test.
        recordings: Where recordings are kept; None throws them away.
        patience_s: Most seconds to wait until other processes leave the CPUs alone.
    """

    cpus: tuple[int, ...]
    python: str = sys.executable
    tool: str = "stallmeter"
    recordings: Path | None = None
    patience_s: float = 0.0

    def __call__(self, run: Run) -> dict[str, Any]:
        """Make a run, once the CPUs are free or the patience is spent."""
        self.wait_until_quiet()
        return self.attempt(run)

    def wait_until_quiet(self) -> None:
        """Wait until the CPUs are free, as long as the patience lasts."""
        until = time.monotonic() + self.patience_s
        while time.monotonic() < until:
            before, started = busy_s(self.cpus), time.monotonic()
            time.sleep(1.0)
            if (busy_s(self.cpus) - before) / (time.monotonic() - started) < QUIET_CPUS:
                return

    def attempt(self, run: Run) -> dict[str, Any]:
        """Make a run once."""
        shape = run.case.shape(run.level, run.seed)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) if self.recordings is None else self.recordings / run.name
            folder.mkdir(parents=True, exist_ok=True)
            training = Path(temporary) / "training"
            with (
                outside.started(shape.neighbours, shape.store_bytes_per_s, self.cpus, training) as (pids, port),
                (Path(temporary) / "stderr").open("w+") as stderr,
            ):
                planted, before, started = sum(map(cpu_s, pids)), busy_s(self.cpus), time.monotonic()
                text, code, own_s = self._process(run, folder, training, port, stderr)
                seconds = time.monotonic() - started
                others_s = busy_s(self.cpus) - before - own_s - (sum(map(cpu_s, pids)) - planted)
                stderr.seek(0)
                errors = stderr.read()
        return {
            **_result(run, text, code, errors),
            "elapsed_s": seconds,
            "disturbance_cpus": max(0.0, others_s) / seconds,
        }

    def _process(self, run: Run, folder: Path, training: Path, port: int | None, stderr: Any) -> tuple[str, int, float]:
        """Run it; returns what it printed, how it ended and the CPU time of it and its workers."""
        command = [self.python, "-m", "benchmarks.faults.run_case"]
        if self.tool != "stallmeter":
            command = rivals.command(self.python, self.tool, folder)
        output = folder / "output.json"
        output.unlink(missing_ok=True)
        command += [run.case.id, "--level", str(run.level), "--seed", str(run.seed), "--tool", self.tool]
        command += ["--result", str(output), "--folder", str(folder), "--training", str(training)]
        command += ["--cpus", ",".join(map(str, self.cpus))]
        if port is not None:
            command += ["--store-port", str(port)]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(os.environ),
            stdout=stderr,
            stderr=stderr,
            start_new_session=True,
        )
        code, own_s = _wait(process)
        text = output.read_text() if output.is_file() else ""
        return text, code, own_s


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Wait for a run's end, and make one if it takes too long; returns its exit code and the CPU time of its tree."""
    until = time.monotonic() + TIMEOUT_S
    try:
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                return process.returncode, usage.ru_utime + usage.ru_stime
            if time.monotonic() > until:
                return -signal.SIGKILL, 0.0
            time.sleep(0.05)
    finally:
        if process.returncode is None:
            # Its session is its own, so its workers end with it.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _result(run: Run, text: str, code: int, errors: str) -> dict[str, Any]:
    try:
        result = json.loads(text)
    except ValueError:
        result = {"primary": None, "diagnoses": [], "error": f"exit code {code}: {errors.strip()[-2000:]}"}
    else:
        result["slowed_pct"] = slowed_pct(result)
    return {"case": run.case.id, "truth": run.case.truth, "level": run.level, "seed": run.seed, **result}


def slowed_pct(result: Mapping[str, Any]) -> float:
    """Return the share of a fit in which the loop waited for data, or slept longer than its device was told to."""
    shape, spent = result["shape"], result["spent"]
    computing = shape["device_s"] * shape["steps"] * shape["epochs"]
    lost = spent.get("next", 0.0) + max(0.0, spent.get("forward", 0.0) - computing)
    return float(100.0 * lost / result["fit_s"])


def gather(
    runs: Sequence[Run],
    makers: Sequence[Callable[[Run], dict[str, Any]]],
    *,
    retries: int = 0,
    on_result: Callable[[dict[str, Any]], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Make the runs, and those that other processes disturbed again at the end.

    Of several attempts the least disturbed counts: the CPU time of other processes decides, never the verdict.

    Args:
        runs: What to make.
        makers: Each makes one run at a time, side by side.
        retries: How often a disturbed run is made again.
        on_result: Told of every attempt that counts so far.
    """
    best: dict[str, dict[str, Any]] = {}
    free = list(makers)

    def make(run: Run) -> dict[str, Any]:
        maker = free.pop()
        try:
            return maker(run)
        finally:
            free.append(maker)

    with ThreadPoolExecutor(len(makers)) as pool:
        for _ in range(1 + retries):
            todo = [run for run in runs if run.name not in best or disturbed(best[run.name])]
            for run, result in zip(todo, pool.map(make, todo), strict=True):
                known = best.get(run.name)
                attempts = 1 if known is None else known["attempts"] + 1
                if known is not None and known["disturbance_cpus"] <= result["disturbance_cpus"]:
                    known["attempts"] = attempts
                    continue
                best[run.name] = {**result, "attempts": attempts}
                on_result(best[run.name])
    return [best[run.name] for run in runs]


def disturbed(result: Mapping[str, Any]) -> bool:
    """Whether other processes used so much of the CPUs that the planted truth may not be the truth."""
    return bool(result.get("disturbance_cpus", 0.0) >= QUIET_CPUS)


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a run: no accelerator, one thread, and nobody's settings."""
    kept = {k: v for k, v in base.items() if not k.startswith(("STALLMETER", "MLFLOW", "NEPTUNE", "SLURM", "PL_"))}
    return {**kept, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def busy_s(cpus: Sequence[int], text: str | None = None) -> float:
    """Return the seconds that these CPUs have been busy; 0 where the system does not say."""
    if text is None:
        try:
            text = Path("/proc/stat").read_text()
        except OSError:
            return 0.0
    wanted = {f"cpu{c}" for c in cpus}
    ticks = 0
    for line in text.splitlines():
        name, *values = line.split()
        if name in wanted:
            user, nice, system, _idle, _iowait, irq, softirq = map(int, values[:7])
            ticks += user + nice + system + irq + softirq
    return ticks * _TICK_S


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process that runs; 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def usable_cpus(count: int) -> tuple[int, ...]:
    """Return the CPUs to pin a run to."""
    known = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    return tuple(known[:count])
