"""One short window of torch.profiler, when the verdict says that the cause lies inside the step. Off by default."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..records import DeepProfile, Event, Operator
from ..timing.clock import Register, StepClock

CAUSES = ("launch-bound", "compute-bound", "low-utilization")
"""Verdicts that only a look inside the step explains."""

MIN_STEPS = 20
"""Steps before the profile, so that it shows steady ones."""

TOP = 20
"""Operators that are kept."""

MAX_TRACE_BYTES = 32 * 2**20
"""A larger trace is deleted: it is uploaded to the run."""


class DeepProfiler:
    """Profiles a few steps, once. `request` and `sample` are for the sampler thread, `between_steps` for the training.

    Args:
        steps: How many steps.
        register: How to be called between two steps.
        folder: Where the trace goes; returns None when there is no recording.
        median_s: Median step time so far, seconds; None when it is not known.
        suffix: Put behind the files' names, to tell ranks apart.
        modules: Where torch is looked for; it is never imported.
    """

    name = "profiler"

    def __init__(
        self,
        steps: int,
        register: Register,
        folder: Callable[[], Path | None],
        median_s: Callable[[], float | None],
        *,
        suffix: str = "",
        modules: Any = None,
    ) -> None:
        self._steps = steps
        self._register = register
        self._folder = folder
        self._median_s = median_s
        self._suffix = suffix
        self._modules = sys.modules if modules is None else modules
        self._cause: str | None = None
        self._profile: Any = None
        self._running = False
        self._held_ns = 0
        self._first = self._done = 0
        self._begun_ns = 0
        self._took: list[float] = []
        self._refused: str | None = None
        self.files: dict[str, Path] = {}
        """What was written, by the name that it has on a tracker."""

    def request(self, rule: str, steps: int) -> None:
        """Ask for the profile, if the verdict is one that it would explain and none was made.

        Args:
            rule: Primary cause of the run.
            steps: Steps so far.
        """
        if self._cause is None and rule in CAUSES and steps >= MIN_STEPS and "torch" in self._modules:
            self._cause = rule
            self._register("torch profiler", self.between_steps)

    def between_steps(self, clock: StepClock) -> bool:
        """Begin or end; for the training thread. Returns whether it wants to be called again."""
        now = time.perf_counter_ns()
        if not self._running:
            return not clock.open or self._start(clock)
        if self._begun_ns:
            self._took.append((now - self._begun_ns) / 1e9)
        self._done += 1
        if self._done < self._steps and clock.open:
            self._begun_ns = time.perf_counter_ns()
            return True
        self._stop()
        return False

    def sample(self, time_s: float) -> Sequence[DeepProfile | Event]:
        """Return the profile when it is complete.

        Args:
            time_s: Unix time of this poll.
        """
        if self._refused is not None:
            refused, self._refused = self._refused, None
            return (Event(time_s=time_s, name="no profile", detail=refused),)
        if self._running or self._profile is None:
            return ()
        profile, self._profile = self._profile, None
        return (self._evaluate(profile, time_s),)

    def close(self) -> None:
        """Stop a profile that is under way; what it saw is lost."""
        if self._running:
            self._stop()
        self._profile = None

    def _start(self, clock: StepClock) -> bool:
        torch = self._modules["torch"]
        if torch._C._autograd._profiler_enabled():
            self._refused = "another profiler is active"
            return False
        begun = time.perf_counter_ns()
        kinds = torch.profiler.ProfilerActivity
        activities = [kinds.CPU, *([kinds.CUDA] if torch.cuda.is_initialized() else [])]
        profile = torch.profiler.profile(activities=activities)
        profile.start()
        self._profile, self._running, self._first = profile, True, clock.index
        self._begun_ns = time.perf_counter_ns()
        self._held_ns += self._begun_ns - begun
        return True

    def _stop(self) -> None:
        begun = time.perf_counter_ns()
        try:
            self._profile.stop()
        except BaseException:
            self._profile = None
            raise
        finally:
            self._held_ns += time.perf_counter_ns() - begun
            # Last: the sampler's thread takes a profile that does not run any more, and one that has not yet
            # stopped has nothing to write.
            self._running = False

    def _evaluate(self, profile: Any, time_s: float) -> DeepProfile:
        begun = time.perf_counter()
        operators = top_operators(profile.key_averages())
        trace = self._export(profile)
        median = self._median_s()
        slowdown_s = None if median is None or not self._took else max(0.0, sum(self._took) - len(self._took) * median)
        record = DeepProfile(
            time_s=time_s,
            cause=self._cause or "",
            first_step=self._first,
            steps=self._done,
            held_s=self._held_ns / 1e9,
            slowdown_s=slowdown_s,
            evaluated_s=time.perf_counter() - begun,
            trace=None if trace is None else trace.name,
            trace_bytes=None if trace is None else trace.stat().st_size,
            operators=operators,
        )
        self._write_operators(record)
        return record

    def _export(self, profile: Any) -> Path | None:
        folder = self._folder()
        if folder is None:
            return None
        path = folder / f"trace{self._suffix}.json.gz"
        partial = folder / f"trace{self._suffix}.part.json.gz"
        try:
            profile.export_chrome_trace(str(partial))
            if partial.stat().st_size > MAX_TRACE_BYTES:
                return None
            partial.replace(path)
        except (OSError, RuntimeError):  # a full disk costs the trace, not the table
            return None
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
        self.files["trace.json.gz"] = path
        return path

    def _write_operators(self, record: DeepProfile) -> None:
        folder = self._folder()
        if folder is None:
            return
        path = folder / f"operators{self._suffix}.json"
        with suppress(OSError):
            path.write_text(json.dumps(asdict(record), indent=2), encoding="utf-8")
            self.files["operators.json"] = path


def top_operators(averages: Any) -> tuple[Operator, ...]:
    """Return the operators that took most of the device's time, or of the host's where no device was seen.

    Args:
        averages: As `torch.profiler.profile.key_averages` returns them.
    """
    found = [
        Operator(
            name=str(event.key)[:200],
            calls=int(event.count),
            host_s=float(event.self_cpu_time_total) / 1e6,
            device_s=_device_s(event),
        )
        for event in averages
        if not str(event.key).startswith("ProfilerStep")
    ]
    on_device = any(o.device_s for o in found)
    if not on_device:
        found = [Operator(name=o.name, calls=o.calls, host_s=o.host_s) for o in found]
    found.sort(key=lambda o: -(o.device_s or 0.0) if on_device else -o.host_s)
    return tuple(found[:TOP])


def _device_s(event: Any) -> float:
    # Called self_cuda_time_total before PyTorch 2.4.
    value = getattr(event, "self_device_time_total", None)
    return float(getattr(event, "self_cuda_time_total", 0.0) if value is None else value) / 1e6
