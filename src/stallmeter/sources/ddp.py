"""What DistributedDataParallel times itself: its backward pass, and the exchange of gradients beside it.

It times the first ten iterations and then each hundredth, whether somebody reads it or not. Reading copies a table, in
17 us and without the interpreter's lock. It takes the lock of DDP's reducer, which gloo's exchange holds until all
ranks have come: where one has died, for ever. So it is read only while no exchange can be under way, in a forward pass
or outside the step. The module is not searched for: an adapter knows it, or it says itself that it is in its forward
pass. Neither is a documented interface: where a version has none, there is no record.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ..records import DdpTimes

FIRST = 2
"""Earlier iterations are left out: buckets are built anew after the first one."""

LONGEST_S = 30.0
"""Between two readings at most, in a run of an hour and more."""

WAITS_S, LOOKS_S = 0.25, 0.005
"""For so long it waits for a moment in which it may read, and looks so often. A backward pass on CPUs takes most of a
step, and a poll a second would meet it nearly always; in ten iterations there are few polls."""

MOST_WAITS = 20
"""So often it waits in vain for a first module: there may be none in this job."""

_NS = 1e9


class DdpSource:
    """Reads the newest iteration that was timed.

    Args:
        index: Returns the number of steps so far.
        is_outside: Whether the training thread is outside all that may exchange gradients.
        module: Returns the wrapped module, where an adapter knows it.
        clock: Monotonic seconds.
        sleep: Waits so many seconds.
    """

    name = "DDP's own times"

    def __init__(
        self,
        index: Callable[[], int],
        is_outside: Callable[[], bool],
        module: Callable[[], object] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._index = index
        self._is_outside = is_outside
        self._module = module
        self._clock = clock
        self._sleep = sleep
        self._begun_s = self._due_s = clock()
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._last = self._waits = 0

    def sample(self, time_s: float) -> Sequence[DdpTimes]:
        """Return the newest iteration, where it is time to look and there is a new one.

        Args:
            time_s: Unix time of this poll.
        """
        now_s = self._clock()
        due = now_s >= self._due_s
        if not self._may_read(waits=due and self._waits < MOST_WAITS) or not due:
            return ()
        self._due_s = now_s + min(LONGEST_S, (now_s - self._begun_s) / 120.0)
        found = [times for module in list(self._known) if (times := _times(module, time_s, self._index())) is not None]
        # Of several modules, the one that exchanges most.
        newest = max(found, key=lambda times: times.sent_bytes, default=None)
        if newest is None or newest.iteration == self._last:
            return ()
        self._last = newest.iteration
        return [newest]

    def close(self) -> None:
        """Forget the modules."""
        self._known.clear()

    def _may_read(self, *, waits: bool) -> bool:
        """Look for the module, and whether no exchange can be under way; wait for such a moment, but not for long."""
        looks = round(WAITS_S / LOOKS_S) if waits else 1
        for number in range(looks):
            if number:
                self._sleep(LOOKS_S)
            in_forward = _in_forward()
            self._look(in_forward if self._module is None else self._module())
            if self._known and (in_forward is not None or self._is_outside()):
                return True
        self._waits = 0 if self._known else self._waits + waits
        return False

    def _look(self, module: object) -> None:
        if hasattr(module, "_get_ddp_logging_data"):
            self._known.add(module)


def _in_forward() -> object | None:
    """Return the module that is in its forward pass at this moment."""
    cls = getattr(sys.modules.get("torch.nn.parallel.distributed"), "DistributedDataParallel", None)
    return getattr(cls, "_active_ddp_module", None)


def _times(module: Any, time_s: float, step: int) -> DdpTimes | None:
    if getattr(module, "logger", None) is None:  # its reducer is of another kind, or it is being made
        return None
    data = module._get_ddp_logging_data()
    iteration = data.get("iteration", 0)
    exchange_ns = data.get("backward_comm_time", 0)
    if iteration < FIRST or exchange_ns <= 0 or data.get("has_error"):
        return None
    # The program may give a module another buffer at this moment: then there is an error, and the next reading tells.
    buffers = {name: buffer.numel() * buffer.element_size() for name, buffer in module.module.named_buffers()}
    largest = max(buffers, key=lambda name: buffers[name], default="")
    gradients = {
        name: parameter.numel() * parameter.element_size()
        for name, parameter in module.module.named_parameters()
        if parameter.requires_grad
    }
    sent = max(gradients, key=lambda name: gradients[name], default="")
    sizes = str(data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or "")
    return DdpTimes(
        time_s=time_s,
        iteration=iteration,
        step=step,
        backward_s=data.get("backward_compute_time", 0) / _NS,
        exchange_s=exchange_ns / _NS,
        overlap_s=data.get("backward_compute_comm_overlap_time", 0) / _NS,
        sent_bytes=int(data.get("total_parameter_size_bytes", 0)),
        buckets=sizes.count(",") + 1,
        buffers_bytes=sum(buffers.values()),
        largest_buffer=largest,
        largest_buffer_bytes=buffers.get(largest, 0),
        ranks=data.get("world_size"),
        largest_gradient=sent,
        largest_gradient_bytes=gradients.get(sent, 0),
        is_of_a_table=_is_of_a_table(module.module, sent),
    )


def _is_of_a_table(module: Any, name: str) -> bool:
    """Whether a parameter is an embedding table whose gradient is as large as the table."""
    owner = module.get_submodule(name.rpartition(".")[0]) if name else None
    return type(owner).__name__ in ("Embedding", "EmbeddingBag") and not getattr(owner, "sparse", False)
