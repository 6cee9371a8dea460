"""Which calls in a step make the host wait for the device: PyTorch's debug mode, on for two steps of a suspicious run.

Only a run whose device idles inside the steps and has always caught up with the host is probed, once. The mode reports
through Python's warnings, whose filters decide what becomes of a report: on those two steps a filter of ours stands in
front of the others. It counts the reports and ignores them, so that nothing is printed, recorded or raised, and touches
no other warning.
"""

from __future__ import annotations

import re
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from ..records import SyncCalls
from ..timing.clock import Register, StepClock

FIRST_STEP = 5
"""Steps before it are warm-up: compilation and autotuning wait for the device."""

SURE_POLLS = 3
"""So many polls in a row must ask for the probe: a passing impression is none."""

SYNC = "called a synchronizing CUDA operation"
PROTOTYPE = "Synchronization debug mode is a prototype"
_OURS = ("stallmeter", "warnings", "_py_warnings", "torch", "contextlib")
_FRAMEWORKS = ("lightning", "pytorch_lightning", "lightning_fabric")
MAX_CALL_SITES = 50


class SyncWarningFilter:
    """A warning filter that counts what the debug mode reports and keeps it from everybody else.

    Python asks filters in order and takes the first that matches, so this one must stay first: it returns there
    whenever filters were changed, which Python's own functions announce to the warnings' cache. It stands in plain
    lists, beside what the program puts there, and is taken out of all of them.

    Args:
        on_sync: Called by the thread that installed it, with the frame that made the host wait.
    """

    def __init__(self, on_sync: Callable[[FrameType], None]) -> None:
        self._on_sync = on_sync
        self._entry = ("ignore", self, UserWarning, None, 0)
        # Read by whichever thread warns, without a lock: at worst a report of another thread is shown or hidden once.
        self._thread: int | None = None
        self._lists: list[list[Any]] = []
        self._undo: list[tuple[str, Any, Any]] = []

    def match(self, text: str) -> bool:
        """Whether to ignore a warning; Python calls this for each, in the thread that warns."""
        if self._thread is None or not text.startswith((SYNC, PROTOTYPE)):
            return False
        if text.startswith(SYNC) and threading.get_ident() == self._thread:
            self._on_sync(sys._getframe(1))
        return True

    def install(self) -> None:
        """Begin; reports of other threads are ignored and not counted."""
        self._thread = threading.get_ident()
        # Private, one of the two depending on Python's version; without them the filter is just not put back in front.
        for name in ("_filters_mutated", "_filters_mutated_lock_held"):
            announce = getattr(warnings, name, None)
            if announce is not None:
                self._watch_changes(name, announce)
        self._move_to_front()

    def remove(self) -> None:
        """End, and leave the filters as the program has made them."""
        self._thread = None
        # A function that somebody else has patched meanwhile is left: what of ours is inside it does nothing any more.
        while self._undo:
            name, announce, followed = self._undo.pop()
            if getattr(warnings, name) is followed:
                setattr(warnings, name, announce)
        while self._lists:
            self._take_out(self._lists.pop())

    def __reduce__(self) -> tuple[Any, ...]:
        """Filters are sent to worker processes by some: there is nothing to count there."""
        return re.compile, ("(?!)",)

    def _watch_changes(self, name: str, announce: Callable[[], None]) -> None:
        def followed() -> None:
            announce()
            if self._thread is not None:
                self._move_to_front()

        setattr(warnings, name, followed)
        self._undo.append((name, announce, followed))

    def _move_to_front(self) -> None:
        asked = [warnings.filters]
        if hasattr(warnings, "_get_filters"):  # since Python 3.14 each context may have its own
            asked.append(warnings._get_filters())
        for filters in asked:
            if not isinstance(filters, list) or (filters and filters[0] is self._entry):
                continue
            self._take_out(filters)
            filters.insert(0, self._entry)
            if not any(known is filters for known in self._lists):
                self._lists.append(filters)

    def _take_out(self, filters: list[Any]) -> None:
        with suppress(ValueError):
            filters.remove(self._entry)


class SyncProbe:
    """The source of `SyncCalls`. Does nothing in a program that does not use CUDA.

    Args:
        register: How to be called between two steps.
        steps: How many steps to probe.
        wanted: Whether the run's signals ask for it; called by the sampler thread.
        modules: Where torch is looked for; it is never imported.
    """

    name = "sync probe"

    def __init__(
        self, register: Register, steps: int, wanted: Callable[[], bool] = lambda: True, modules: Any = None
    ) -> None:
        self._register = register
        self._steps = steps
        self._wanted = wanted
        self._modules = sys.modules if modules is None else modules
        self._asked = 0
        self._on = False
        self._left = steps
        self._first = 0
        self._calls: Counter[str] = Counter()
        self._filter = SyncWarningFilter(self._count_call)
        self._switch: Any = None
        self._switched = False
        self._result: SyncCalls | None = None

    def sample(self, time_s: float) -> Sequence[SyncCalls]:  # noqa: ARG002 - a Source's signature
        """Return what was found, once; until then ask to be called when the run asks for it and CUDA is in use.

        Args:
            time_s: Unix time of this poll.
        """
        if self._asked < SURE_POLLS:
            self._asked = self._asked + 1 if self._cuda_in_use() and self._wanted() else 0
            if self._asked == SURE_POLLS:
                self._register("sync probe", self.between_steps)
        result, self._result = self._result, None
        return () if result is None else (result,)

    def between_steps(self, clock: StepClock) -> bool:
        """Begin or end; for the training thread. Returns whether it wants to be called again."""
        if self._on:
            self._left -= 1
            if self._left > 0 and clock.open and not self._switched:
                return True
            if not self._stop():
                return False
            self._result = SyncCalls(
                time_s=time.time(),
                first_step=self._first,
                steps=self._steps - self._left,
                calls=dict(self._calls.most_common(MAX_CALL_SITES)),
            )
            return False
        if clock.open and clock.index >= FIRST_STEP:
            self._first = clock.index
            return self._start()
        return True

    def close(self) -> None:
        """Restore everything."""
        self._stop()

    def _cuda_in_use(self) -> bool:
        cuda = getattr(self._modules.get("torch"), "cuda", None)
        return cuda is not None and bool(cuda.is_initialized())

    def _start(self) -> bool:
        cuda = self._modules["torch"].cuda
        switch = cuda.set_sync_debug_mode
        if cuda.get_sync_debug_mode() != 0:  # the program uses the mode itself
            return False

        def switched(mode: int | str) -> None:
            self._switched = True  # by the step: what it reports from now on is the program's
            self._filter.remove()
            switch(mode)

        self._on = True
        self._filter.install()
        try:
            switch(1)
        except BaseException:
            self._on = False
            self._filter.remove()
            raise
        self._switch = switch, switched
        cuda.set_sync_debug_mode = switched
        return True

    def _stop(self) -> bool:
        """Restore everything; returns whether the mode was on and ours to the end."""
        if not self._on:
            return False
        self._on = False
        cuda = self._modules["torch"].cuda
        switch, switched = self._switch
        try:
            if cuda.set_sync_debug_mode is switched:
                cuda.set_sync_debug_mode = switch
            ours = not self._switched and cuda.get_sync_debug_mode() == 1
            if ours:
                switch(0)
        finally:
            self._filter.remove()
        return ours

    def _count_call(self, frame: FrameType) -> None:
        self._calls[call_site(frame)] += 1


def call_site(frame: FrameType | None) -> str:
    """Name the line that a call came from: the program's own, else that of the package that made it.

    Args:
        frame: Where the warning was issued; PyTorch's own frames are passed over.
    """
    inner: FrameType | None = None
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        root = module.split(".", 1)[0]
        if root not in _OURS:
            if root not in _FRAMEWORKS:
                return _named(frame)
            inner = inner or frame
            if ".loops." in module:  # the framework's own doing; whoever called the loop is not to blame
                break
        frame = frame.f_back
    return "unknown" if inner is None else _named(inner)


def _named(frame: FrameType) -> str:
    file = "/".join(Path(frame.f_code.co_filename).parts[-2:])
    return f"{file}:{frame.f_lineno} in {frame.f_code.co_name}"
