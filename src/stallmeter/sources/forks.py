"""How long forks hold the training thread.

Workers that start by fork make the training process fork. What other packages do around a fork runs inside that call.
A tracker's client that lets a request in flight finish first can hold it for many seconds. That looks exactly like a
dataset that is slow to start. Handlers are called in reverse order of registration before a fork and in order after
it, so ours, registered as late as possible, enclose those of the others. They cannot be taken back: each source
leaves a pair behind that does nothing.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence

from ..records import Fork, Sample


class ForkSource:
    """Records each fork of this process."""

    name = "forks"

    def __init__(self) -> None:
        # The queue from the threads that fork to the sampler thread: appending and taking off are atomic, and a handler
        # that runs inside a fork must not wait for a lock, which the child would inherit locked.
        self._forks: deque[Fork] = deque(maxlen=4096)
        self._closed = False
        _register(weakref.ref(self))

    def sample(self, time_s: float) -> Sequence[Sample]:  # noqa: ARG002 - forks carry their own time
        """Return the forks since the last call."""
        taken: list[Sample] = []
        while self._forks:
            taken.append(self._forks.popleft())
        return taken

    def close(self) -> None:
        """Stop listening."""
        self._closed = True

    def note(self, fork: Fork) -> None:
        """Keep a fork until it is sampled."""
        if not self._closed:
            self._forks.append(fork)


def _register(listener: weakref.ref[ForkSource]) -> None:
    # Two threads may fork at once. Weak, because the handlers stay for the life of the process.
    started = threading.local()

    def before() -> None:
        started.at_s = time.perf_counter()

    def after() -> None:
        source = listener()
        if source is not None:
            source.note(Fork(time_s=time.time(), wall_s=time.perf_counter() - started.at_s))

    if hasattr(os, "register_at_fork"):
        # Nothing in the child, which has nobody to tell and where other threads' locks may stay locked for ever.
        os.register_at_fork(before=before, after_in_parent=after)
