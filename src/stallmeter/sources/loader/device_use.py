"""Whether the loop's own batches are made with the help of a CUDA device, which forked workers could not use."""

from __future__ import annotations

import sys
from typing import Any

LOOKED_AT = 6
"""Batches of which that is asked, the first of which may be the first use of the device at all."""

LEAST = 4
"""Of them, how many have to take memory of the device: another thread of the program may take some now and then."""


class DeviceUse:
    """Compares the allocator's counts before and after a batch is made. For the thread that makes it.

    Args:
        modules: Where torch is looked for; it is never imported, and CUDA is not initialised.
    """

    __slots__ = ("_before", "_modules", "_seen", "_using", "used")

    def __init__(self, modules: Any = None) -> None:
        self._modules = sys.modules if modules is None else modules
        self._before = -1
        self._seen = self._using = 0
        self.used: bool | None = None
        """Whether it is used; None until enough batches were made. Read by another thread as well."""

    def before(self) -> None:
        """A batch is to be made, and `used` is not known."""
        self._before = self._allocations()

    def after(self) -> None:
        """It is made."""
        self._seen += 1
        self._using += 0 <= self._before < self._allocations()
        if self._seen == LOOKED_AT:
            self.used = self._using >= LEAST

    def _allocations(self) -> int:
        """Return how often memory of a device was asked for so far: 20 us for each device. Never raises."""
        cuda = getattr(self._modules.get("torch"), "cuda", None)
        try:
            if cuda is None or not cuda.is_initialized():
                return 0
            stats = [cuda.memory_stats_as_nested_dict(index) for index in range(cuda.device_count())]
        except (AttributeError, RuntimeError):  # no CUDA in this torch, or a device that has failed
            return 0
        return sum(int(one.get("allocation", {}).get("all", {}).get("allocated", 0)) for one in stats if one)
