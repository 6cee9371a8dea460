"""Makes the runs of draws: the one that is judged, and the same with each planted cause removed.

All of them are watched by stallmeter in the same way, so that its own cost stands on both sides and cancels. A run
without a cause of every step is cut off after some seconds: it is compared with the other over the same steps.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import host, outside, work
from .cause import Cause, Lever
from .child import forget_quota
from .draw import Draw
from .program import CPUS, Program
from .truth import HEALTHY_PCT, gain_pct

ROOT = Path(__file__).resolve().parents[2]
STEADY_S = 2.5
"""Of a cured run whose steps are all alike."""
WHOLE_PART = 1.2
"""Of the judged run's time: a change that makes a run slower need not run to its end."""
LONGEST_S = 45.0
TIMEOUT_S = 150.0
BARE = "bare"


class Server:
    """The process that runs are forked from; see `server`."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.faults.server"],
            cwd=ROOT,
            env=environment(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.folder = folder
        assert self._answer()[0] == "ready"

    def run(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], float, int]:
        """Make a run; returns its result (with ``error`` where it failed), its CPU time and its process id."""
        result, log = self.folder / "result.json", self.folder / "log.txt"
        result.unlink(missing_ok=True)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**request, "result": str(result), "log": str(log)}) + "\n")
        self._process.stdin.flush()
        pid = int(self._answer()[1])
        watchdog = _Watchdog(pid)
        _, code, cpu_s = self._answer()
        watchdog.stop()
        forget_quota(pid)
        if code or not result.is_file():
            return {"error": f"exit code {code}: {log.read_text(errors='replace').strip()[-1500:]}"}, cpu_s, pid
        return json.loads(result.read_text()), cpu_s, pid

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _answer(self) -> list[Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process that forks the runs has ended")
        return json.loads(line)


class _Watchdog:
    """Kills a run that takes too long."""

    def __init__(self, pid: int) -> None:
        import threading

        self._timer = threading.Timer(TIMEOUT_S, self._kill, (pid,))
        self._timer.daemon = True
        self._timer.start()

    def _kill(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Leave it alone."""
        self._timer.cancel()


@dataclass
class Collector:
    """Runs draws and keeps what came out, each in a folder of its own.

    Args:
        folder: Where results are kept; an earlier benchmark's are taken up.
        cpus: Ids of the CPUs that a run, its neighbours and its store share.
        patience_s: Most seconds to wait until other processes leave the CPUs alone.
        retries: How often a draw that other processes disturbed is run again.
    """

    folder: Path
    cpus: tuple[int, ...] = field(default_factory=lambda: host.usable_cpus(CPUS))
    patience_s: float = 10.0
    retries: int = 1

    @contextmanager
    def ready(self) -> Iterator[Collector]:
        """Have what the runs need as long as the block lasts."""
        shared = self.folder / "shared"
        shared.mkdir(parents=True, exist_ok=True)
        work.data_file(shared)
        with ExitStack() as stack:
            self.store_pid, self.store_port = stack.enter_context(outside.opened_store(work.BANDWIDTH, self.cpus))
            temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stallmeter-faults-")))
            self.server = Server(temporary)
            stack.callback(self.server.close)
            found, _, _ = self.server.run({"calibrate": True, "cpus": self.cpus})
            self.rates = found["rates"]
            yield self

    def path(self, seed: int) -> Path:
        """Return the folder of a draw."""
        return self.folder / f"{seed:05d}"

    def collect(self, draw: Draw) -> dict[str, Any]:
        """Make the runs of a draw and keep their result."""
        best: dict[str, Any] | None = None
        for _ in range(1 + self.retries):
            host.wait_until_quiet(self.cpus, self.patience_s)
            result = self._attempt(draw)
            if best is None or result["disturbance_cpus"] < best["disturbance_cpus"]:
                best = result
            if best["disturbance_cpus"] < host.QUIET_CPUS:
                break
        assert best is not None
        path = self.path(draw.seed)
        path.mkdir(parents=True, exist_ok=True)
        for other in path.glob("recording-*"):
            if other.name != best["attempt"]:
                shutil.rmtree(other)
        (path / "result.json").write_text(json.dumps(best))
        return best

    def _attempt(self, draw: Draw) -> dict[str, Any]:
        started = time.monotonic()
        recording = self.path(draw.seed) / f"recording-{time.time_ns()}"
        judged = self.once(draw.program, draw.seed, recording=recording, gentle_s=2.0 * draw.seconds)
        result: dict[str, Any] = {
            "seed": draw.seed,
            "family": draw.family,
            "draw": draw.to_dict(),
            "described": draw.described,
            "rates": self.rates,
            "attempt": recording.name,
            **judged,
        }
        if "recording" in judged:
            result["recording"] = os.path.relpath(judged["recording"], self.folder)
        if "error" not in judged:
            result["cured"] = self.cures(draw, judged)
        result["elapsed_s"] = time.monotonic() - started
        return result

    def once(
        self,
        program: Program,
        seed: int,
        *,
        recording: Path | None = None,
        cap_s: float | None = None,
        gentle_s: float = LONGEST_S,
    ) -> dict[str, Any]:
        """Make one run and measure what others took of its CPUs."""
        request = self.request(program, seed, recording, cap_s=cap_s, gentle_s=gentle_s)
        with outside.neighbours(program.neighbours, self.cpus) as pids:
            known = [*pids, self.store_pid, os.getpid()]
            planted, before, started = sum(map(host.cpu_s, known)), host.busy_s(self.cpus), time.monotonic()
            result, own_s, _ = self.server.run(request)
            seconds = time.monotonic() - started
            others_s = host.busy_s(self.cpus) - before - own_s - (sum(map(host.cpu_s, known)) - planted)
        return {**result, "took_s": seconds, "disturbance_cpus": max(0.0, others_s) / seconds}

    def request(
        self,
        program: Program,
        seed: int,
        recording: Path | None,
        *,
        cap_s: float | None = None,
        gentle_s: float = LONGEST_S,
    ) -> dict[str, Any]:
        """Return what a run is asked for with; see `child.run`."""
        return {
            "program": program.to_dict(),
            "seed": seed,
            "tool": "stallmeter",
            "folder": None if recording is None else str(recording.resolve()),
            "shared": str((self.folder / "shared").resolve()),
            "rates": self.rates,
            "store": self.store_port,
            "cpus": self.cpus,
            "cap_s": cap_s,
            "gentle_s": gentle_s,
        }

    def cures(self, draw: Draw, judged: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Run it again with each planted cause removed; a cause that turns out to cost nothing has its levers left."""
        found = []
        for cause in draw.causes:
            works = [self._pulled(draw, cause, lever, judged, found) for lever in cause.levers if not lever.setting]
            if works and None not in works and max(works) < HEALTHY_PCT / 2:
                continue
            for lever in cause.levers:
                if lever.setting:
                    self._pulled(draw, cause, lever, judged, found)
        if all(cause.declared for cause in draw.causes):
            bare = {"work": (), "workers": 0, "callback_s": 0.0, "logger_s": 0.0, "save_every": 0, "validate_every": 0}
            only = Lever(name=BARE, rules=(), changes=({**bare, "tensors": 1},))
            self._pulled(draw, Cause(rule=BARE, mechanism=""), only, judged, found)
        return found

    def _pulled(
        self, draw: Draw, cause: Cause, lever: Lever, judged: Mapping[str, Any], found: list[dict[str, Any]]
    ) -> float | None:
        best = None
        for change in _changes(lever, judged):
            program = draw.program.changed(change)
            steady = not (lever.whole or cause.from_start)
            run = self.once(program, draw.seed, cap_s=STEADY_S if steady else WHOLE_PART * judged["last"])
            gain = None if "error" in run else gain_pct(judged, run, whole=lever.whole, from_start=cause.from_start)
            found.append(
                {
                    "lever": lever.name,
                    "change": {**change, "work": None} if "work" in change else dict(change),
                    "gain_pct": gain,
                    **run,
                }
            )
            best = gain if best is None or (gain is not None and gain > best) else best
        return best


def _changes(lever: Lever, judged: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the changes to measure: of workers also the recommended number."""
    advice = judged.get("num_workers") or {}
    numbers = [change["workers"] for change in lever.changes if set(change) == {"workers"}]
    recommended = advice.get("recommended")
    if not numbers or recommended is None or recommended in (*numbers, advice["current"]):
        return lever.changes
    return (*lever.changes, {"workers": recommended})


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a run: no accelerator, one thread, and nobody's settings."""
    kept = {k: v for k, v in base.items() if not k.startswith(("STALLMETER", "MLFLOW", "NEPTUNE", "SLURM", "PL_"))}
    return {
        **kept,
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
