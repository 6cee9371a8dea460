"""When backward passes began and ended: the end of an exchange of gradients that nobody else notes.

DistributedDataParallel and sharded models exchange inside the backward pass and wait for the last of it at its end.
NCCL's collectives are noted with their ends, gloo's are not; and the body of a plain loop goes on after the pass.
"""

from __future__ import annotations

import functools
import sys
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ..timing.tracebacks import let_out

MOST = 4096
"""Passes that are kept, the newest; the flight recorder keeps 2,000 collectives."""


class BackwardPasses:
    """Notes backward passes from the first call of `begin` on.

    ``torch.autograd.backward`` is what ``Tensor.backward`` calls. It is replaced in this process, costs under a
    microsecond a pass, and is put back by `close` where nobody else has replaced it since.

    Args:
        modules: Where torch is looked for; it is never imported.
        clock: Unix nanoseconds.
    """

    def __init__(self, modules: Mapping[str, Any] | None = None, *, clock: Callable[[], int] = time.time_ns) -> None:
        self._modules = sys.modules if modules is None else modules
        self._clock = clock
        # Appended to by the training thread, copied by the sampler's: one reference at a time.
        self._passes: deque[tuple[int, int]] = deque(maxlen=MOST)
        self._put: tuple[Any, Any] | None = None
        self._closed = False

    def begin(self) -> None:
        """Note passes from now on. Does nothing the second time, without torch, or after `close`."""
        autograd = self._modules.get("torch.autograd")
        own = getattr(autograd, "backward", None)
        if self._put is not None or self._closed or own is None:
            return
        is_compiling = getattr(getattr(self._modules.get("torch"), "compiler", None), "is_compiling", bool)
        clock, passes = self._clock, self._passes

        @functools.wraps(own)
        def backward(*args: Any, **kwargs: Any) -> Any:
            # What is traced must come to an end at once: a clock would break a graph in two.
            if self._closed or is_compiling():
                return own(*args, **kwargs)
            began = clock()
            try:
                return own(*args, **kwargs)
            except BaseException as exc:
                let_out(exc)
                raise
            finally:
                passes.append((began, clock()))

        self._put = (own, backward)
        autograd.backward = backward  # type: ignore[union-attr]

    def around(self, times_ns: list[int]) -> list[tuple[int, int] | None]:
        """Return the pass in which each of some times lies, None where it lies in none that is known.

        Args:
            times_ns: Unix time.
        """
        passes = sorted(self._passes)  # copied first, and in one piece: the training thread goes on
        begins = [began for began, _ in passes]
        found = [bisect_right(begins, at) - 1 for at in times_ns]
        return [passes[i] if i >= 0 and at <= passes[i][1] else None for i, at in zip(found, times_ns, strict=True)]

    def close(self) -> None:
        """Put back what was there."""
        self._closed = True
        autograd: Any = self._modules.get("torch.autograd")
        if self._put is not None and autograd is not None and autograd.backward is self._put[1]:
            autograd.backward = self._put[0]
        self._put = None
