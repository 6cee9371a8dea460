"""What an engine of Ignite calls at its events: each handler gets a span of its own, under its name.

Ignite asks the list of an event for one handler after the other, so the time between two of them is the first one's.
The lists are its private affair: where they are not what they were in 0.4 to 0.5, handlers are part of `compute`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from ..engine.guard import Guard
from ..timing.ledger import CALLBACKS, CHECKPOINT, LOGGING, VALIDATION, Ledger, Span, WorkSpan

LedgerHere = Callable[[], Ledger | None]
"""Returns the ledger that the calling thread may move now; None where there is none."""

_LISTS = "_event_handlers"


class Timed(list):  # type: ignore[type-arg]
    """The handlers of one event. Copied or pickled it is a list like any."""

    ledger_here: LedgerHere
    guard: Guard
    spans: dict[int, tuple[Any, Ledger, Span | None]]
    """Of each handler, by the id of its entry, which is held so that no other gets that; None of one of our own."""

    def __iter__(self) -> Iterator[Any]:
        spans = self.spans
        for entry in list.__iter__(self):
            ledger = self.ledger_here()
            if ledger is None:
                yield entry
                continue
            known = spans.get(id(entry))
            if known is None or known[1] is not ledger:
                place = self.guard("a handler's name", _place, entry)
                span = None if place is None else Span(ledger, ledger.slot(*place))
                known = spans[id(entry)] = (entry, ledger, span)
            if known[2] is None:
                yield entry
                continue
            with known[2]:
                yield entry

    def __reduce_ex__(self, _: Any) -> Any:
        return list, (list(list.__iter__(self)),)


def time_handlers(engine: Any, ledger_here: LedgerHere, guard: Guard) -> Callable[[], None]:
    """Have the handlers timed that an engine has now; returns what undoes it.

    Args:
        engine: Of Ignite.
        ledger_here: Asked before each handler.
        guard: Keeps errors away: a handler may be anything that can be called.
    """
    lists = getattr(engine, _LISTS, None)
    if not isinstance(lists, dict):
        return lambda: None
    put: dict[Any, Timed] = {}
    for event, handlers in list(lists.items()):
        if type(handlers) is list:
            timed = put[event] = lists[event] = Timed(handlers)
            timed.ledger_here, timed.guard, timed.spans = ledger_here, guard, {}

    def undo() -> None:
        for event, timed in put.items():
            if lists.get(event) is timed:
                lists[event] = list(list.__iter__(timed))

    return undo


def in_handler(ledger: Ledger) -> bool:
    """Whether a handler is being called: an engine that is run there is an evaluation."""
    return any(ledger.slots[slot][0] in (CALLBACKS, LOGGING, CHECKPOINT) for slot in ledger.stack[1:])


def evaluation(ledger: Ledger) -> Span:
    """Return the span of an engine that is run in a handler of another."""
    return WorkSpan(ledger, VALIDATION)


def _owner(handler: Any) -> Any:
    """Return whose method a handler is, or the handler itself."""
    parent = getattr(handler, "_parent", None)  # of one that is called at every so-many-th event
    if isinstance(parent, weakref.ref):
        handler = parent() or handler
    while isinstance(handler, functools.partial):
        handler = handler.func
    return getattr(handler, "__self__", handler)


def _place(entry: Any) -> tuple[int, str] | None:
    """Return the bucket and the name of a handler; None of one of our own."""
    owner = _owner(entry[0])
    kinds = type(owner).__mro__
    if kinds[0].__module__.startswith(__package__):
        return None
    name = getattr(owner, "__name__", None) or kinds[0].__name__
    if any(kind.__module__ == "ignite.handlers.checkpoint" for kind in kinds):
        return CHECKPOINT, str(name)
    for given in entry[1]:
        if any(kind.__name__ == "BaseLogger" for kind in type(given).__mro__) and not _is_progress_bar(given):
            return LOGGING, type(given).__name__
    return CALLBACKS, str(name)


def _is_progress_bar(logger: object) -> bool:
    return type(logger).__name__ == "ProgressBar"


def runs_of_neptune(engine: Any) -> list[Any]:
    """Return the runs that loggers of Ignite report to, among what its handlers are given."""
    lists = getattr(engine, _LISTS, {})
    given = {id(one): one for handlers in lists.values() for entry in list.__iter__(handlers) for one in entry[1]}
    return [getattr(one, "experiment", None) for one in given.values() if type(one).__name__ == "NeptuneLogger"]
