"""Which calls in a step make the host wait for the device: PyTorch's debug mode, on for two steps after the warm-up.

The mode reports through Python's warnings. While it is on, a filter in front of all others keeps those warnings from
being raised or printed, whatever the program does with warnings, and a hook counts them; both are taken back.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from ..clock import Register, StepClock
from ..records import SyncCalls

FIRST_STEP = 5
"""Steps before it are warm-up: compilation and autotuning wait for the device."""

SYNC = "called a synchronizing CUDA operation"
PROTOTYPE = "Synchronization debug mode is a prototype"
_OURS = ("stallmeter", "warnings", "torch", "contextlib")
_FRAMEWORKS = ("lightning", "pytorch_lightning", "lightning_fabric")
MAX_PLACES = 50


class _Filters(list[Any]):
    """Python's warning filters, of which the first ones stay first, also where the step adds some or copies the list.

    Without this ``simplefilter("error")`` inside a probed step would make an error of what only we want to hear.
    """

    __slots__ = ("pinned",)

    def __init__(self, entries: Any, pinned: int = 0) -> None:
        super().__init__(entries)
        self.pinned = pinned

    def insert(self, index: Any, entry: Any) -> None:
        super().insert(max(index, min(self.pinned, len(self))), entry)

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return _Filters(found, self.pinned) if isinstance(index, slice) else found

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, value)
        if isinstance(index, slice) and not value:  # warnings.resetwarnings()
            self.pinned = 0


class SyncProbe:
    """The source of `SyncCalls`. Does nothing in a program that does not use CUDA.

    Args:
        register: How to be called between two steps.
        steps: How many steps to probe.
        modules: Where torch is looked for; it is never imported.
    """

    name = "sync probe"

    def __init__(self, register: Register, steps: int, modules: Any = None) -> None:
        self._register = register
        self._steps = steps
        self._modules = sys.modules if modules is None else modules
        self._registered = False
        self._on = False
        self._left = steps
        self._first = 0
        self._calls: Counter[str] = Counter()
        self._before: Any = None
        self._thread = 0
        self._result: SyncCalls | None = None

    def sample(self, time_s: float) -> Sequence[SyncCalls]:  # noqa: ARG002 - a Source's signature
        """Return what was found, once; until then ask to be called where CUDA is in use.

        Args:
            time_s: Unix time of this poll.
        """
        if not self._registered and self._cuda_in_use():
            self._registered = True
            self._register("sync probe", self.between_steps)
        result, self._result = self._result, None
        return () if result is None else (result,)

    def between_steps(self, clock: StepClock) -> bool:
        """Begin or end; for the training thread. Returns whether it wants to be called again."""
        if self._on:
            self._left -= 1
            if self._left > 0 and clock.open:
                return True
            self._stop()
            self._result = SyncCalls(
                time_s=time.time(),
                first_step=self._first,
                steps=self._steps - self._left,
                calls=dict(self._calls.most_common(MAX_PLACES)),
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
        if cuda.get_sync_debug_mode() != 0:  # the program uses the mode itself
            return False
        self._thread = threading.get_ident()
        self._before = warnings.showwarning
        self._on = True
        warnings.filters = filters = _Filters(warnings.filters)
        for action, message in (("always", SYNC), ("ignore", PROTOTYPE)):
            warnings.filterwarnings(action, message=message, category=UserWarning)  # type: ignore[arg-type]
        filters.pinned = 2
        warnings.showwarning = self._show
        try:
            cuda.set_sync_debug_mode(1)
        except BaseException:
            self._stop()
            raise
        return True

    def _stop(self) -> None:
        if not self._on:
            return
        self._on = False
        try:
            self._modules["torch"].cuda.set_sync_debug_mode(0)
        finally:
            if warnings.showwarning == self._show:
                warnings.showwarning = self._before
            filters = warnings.filters
            if isinstance(filters, _Filters):
                warnings.filters = list(filters)[filters.pinned :]

    def _show(
        self, message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        if not str(message).startswith(SYNC):
            self._before(message, category, filename, lineno, file, line)
        elif self._on and threading.get_ident() == self._thread:
            self._calls[place(sys._getframe(1))] += 1


def place(frame: FrameType | None) -> str:
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
