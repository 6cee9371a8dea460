"""Shared memory is too small for the loader's batches.

**What it means.** Workers hand their batches over in shared memory, /dev/shm. A container has 64 MB of it by default.
When it is full, a worker dies with "Bus error. It is possible that dataloader's workers are out of shared memory", or
with "No space left on device", often only after many steps: the queue has to be full first.

**Evidence.** `host.memory.shm.least_free_bytes`: the least free space that was seen, as a share of
`host.memory.shm.size_bytes`. And, before anything fails, what the loader may hold: `num_workers` times
`prefetch_factor` batches, and the one in use, of as many bytes as one was seen to have (`loader.content`), for each
rank on this node, against the most free space that was seen.

**Advice.** A larger /dev/shm: `docker run --shm-size` or `--ipc=host`, in Kubernetes an `emptyDir` with
`medium: Memory` at /dev/shm, counted towards the container's memory. Otherwise a smaller `prefetch_factor` or fewer
workers. The sharing strategy `file_system` uses /dev/shm too: it helps against too many open files, not here.

**When it is wrong.** While training waits for data the queue is never full, and the loader holds less than it may. Each
batch is taken to have the size of the one that was looked at. Tensors that are views of larger ones take more. What a
dataset keeps in shared memory itself, and other programs' part of it, counts as taken.

**References.** pytorch/pytorch issues 5040 and 108861. Docker: `--shm-size`, 64 MB by default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from .rule import threshold

PREFETCH = 2
"""PyTorch's default of `prefetch_factor`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShmNearLimit:
    """Fires when /dev/shm was nearly full, or would be with a full prefetch queue."""

    id: ClassVar[str] = "shm-near-limit"
    title: ClassVar[str] = "Shared memory is too small for the loader's batches"
    needs: ClassVar[tuple[str, ...]] = (
        "host.memory.shm.least_free_bytes",
        "host.memory.shm.most_free_bytes",
        "host.memory.shm.size_bytes",
        "loader.num_workers",
    )
    optional: ClassVar[tuple[str, ...]] = (
        "loader.info",
        "loader.content",
        "facts.budget",
    )

    warn_pct: float = threshold(90.0, "%", "as for memory: PyTorch Profiler's TensorBoard plugin and TraceML, 90 %")
    critical_pct: float = threshold(97.0, "%", "as for memory: TraceML, 97 %")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare what was taken, and what a full queue takes, with the size."""
        shm, info = window.host.memory.shm, window.loader.info
        least, most, size = shm.least_free_bytes, shm.most_free_bytes, shm.size_bytes
        if least is None or most is None or not size or info is None or not info.num_workers:
            return None
        batch = None if window.loader.content is None else window.loader.content.bytes
        prefetch, budget = info.prefetch_factor or PREFETCH, window.facts.budget
        ranks = 1
        if budget is not None:
            ranks = max(1, budget.ranks_on_node)
            most = min(size, max(most, budget.shm_free_bytes or 0))  # the queue may have been full in the first sample
        need = None if not batch else ranks * (info.num_workers * prefetch + 1) * batch
        used_pct = 100.0 * (size - least) / size
        full_pct = 0.0 if need is None else 100.0 * (size - most + need) / size
        if max(used_pct, full_pct) < self.warn_pct:
            return None
        seen = f"Up to {used_pct:.0f} % of the {_size(size)} of /dev/shm were taken"
        held = (
            ""
            if need is None or not batch
            else f"; {_workers(info.num_workers)} times {prefetch} batches of {_size(batch)} and one in use"
            f"{f', on each of {ranks} ranks,' if ranks > 1 else ''} can take {_size(need)}"
        )
        wanted = _gigabytes(2 * max(size - least, size - most + (need or 0)))
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if max(used_pct, full_pct) >= self.critical_pct else Severity.WARNING,
            title=self.title,
            summary=f"{seen}{held}. When it is full, a worker is killed by a bus error.",
            time_lost_s=0.0,
            share_pct=0.0,
            confidence=0.85 if used_pct >= self.warn_pct else 0.75,
            culprit="shared memory",
            evidence=(
                Evidence("shared memory taken, most seen", used_pct, "%", self.warn_pct, "as for memory: 90 %"),
                Evidence("size of /dev/shm", size / 1e6, "MB"),
                Evidence("least free space seen", least / 1e6, "MB"),
                *(
                    (Evidence("taken with a full queue", full_pct, "%", self.warn_pct, "as for memory: 90 %"),)
                    if need is not None
                    else ()
                ),
            ),
            advice=(
                Advice.of(
                    f"Give /dev/shm {wanted} GB: docker run --shm-size={wanted}g, or --ipc=host.",
                    expect="Room for a full queue, twice over.",
                    limit="It counts towards the container's memory; Kubernetes: emptyDir, medium Memory, at /dev/shm.",
                ),
                Advice.of(
                    f"Lower prefetch_factor (now {prefetch}).",
                    expect="Fewer batches held at a time.",
                    limit="Where training waits for data, fewer workers make it slower.",
                ),
                Advice.of(
                    "Send smaller batches: uint8 images, normalised on the device.",
                    expect="A quarter of the bytes of float32.",
                ),
            ),
        )


def _workers(count: int) -> str:
    return f"{count} worker{'s' * (count != 1)}"


def _size(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _gigabytes(size: float) -> int:
    return max(1, math.ceil(size / 1e9))
