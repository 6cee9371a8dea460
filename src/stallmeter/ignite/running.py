"""What stands around ``Engine.run`` of Ignite for as long as a trainer of ours trains, in whatever thread."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

from ignite.engine import Engine

from ..timing.tracebacks import let_out


class Evaluating(Protocol):
    """Who wants to know of engines that are run."""

    def evaluating(self, evaluator: Any) -> AbstractContextManager[None]:
        """Return what stands around the run of an engine."""
        ...


_listening: list[Evaluating] = []
_stands: tuple[Any, Any] | None = None
"""The method as it was, ours."""

# Trainers begin and end in threads of their own: who comes first replaces the method, who goes last puts it back.
_lock = threading.Lock()


@contextmanager
def watch_runs(listener: Evaluating) -> Iterator[None]:
    """Tell a training of engines that are run meanwhile."""
    global _stands
    with _lock:
        _listening.append(listener)
        if _stands is None:
            own = Engine.run
            _stands = own, _around(own)
            Engine.run = _stands[1]
    try:
        yield
    finally:
        with _lock:
            _listening.remove(listener)
            if not _listening and _stands is not None:
                own, ours = _stands
                _stands = None
                if vars(Engine).get("run") is ours:
                    Engine.run = own


def _around(own: Any) -> Any:
    @functools.wraps(own)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            with ExitStack() as stack:
                for listener in tuple(_listening):
                    stack.enter_context(listener.evaluating(self))
                return own(self, *args, **kwargs)
        except BaseException as exc:
            let_out(exc)
            raise

    return run
