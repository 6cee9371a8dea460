"""Looks into batches of the process that trains: into those that its own thread makes, and what workers wrote down."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...timing.tracebacks import let_out
from .loop import LoopTimer
from .wrappers import attributes, iterators_in

if TYPE_CHECKING:
    from .batch_look import BatchLook
    from .ring import Order

SHARED = "/dev/shm"  # noqa: S108 - a file of our own, whose name is drawn

MOST_MISSED = 8
"""Looking for what makes the batches takes time: it is given up after so many."""

MOST_BYTES = 8 * 2**20
"""A larger file is not read: it is none of ours."""


class LoopLook:
    """Looks into the batches of a loader without workers. `prepare` is for the training thread, the rest for any.

    The fetcher of the loader's iterator gets a ``fetch`` of its own while it is looked into, and loses it with the last
    batch; dataset and collate function are as they were.

    Args:
        timer: Times the batches that nobody looks into.
        iterator_of: Returns the iterator that the loop asks for batches.
    """

    def __init__(self, timer: LoopTimer, iterator_of: Callable[[], object | None]) -> None:
        # Set by the sampler thread and read by the training thread: a reference is replaced whole.
        self.order: Order | None = None
        self._timer = timer
        self._iterator_of = iterator_of
        # Appended by the training thread, emptied by the sampler's; both ends of a deque are atomic.
        self._documents: deque[dict[str, Any]] = deque()
        self._looks: tuple[int, BatchLook] | None = None
        self._missed = 0
        """Batches whose maker was not found."""

    def take(self) -> list[dict[str, Any]]:
        """Return what was seen since the last call."""
        return [self._documents.popleft() for _ in range(len(self._documents))]

    def prepare(self) -> None:
        """A batch is asked for, and an order is to be carried out: with this batch, if nobody does already."""
        order = self.order
        if order is None:
            return
        if self._looks is None or self._looks[0] != order.number:
            self._looks = order.number, self._look(order, max(1, len(_fetchers(self._iterator_of()))))
        look = self._looks[1]
        if look.done:
            self.order = None
            return
        fetchers = [one for one in _fetchers(self._iterator_of()) if "fetch" not in attributes(one)]
        for fetcher in fetchers:
            self._look_into(fetcher, look)
        if not fetchers:
            self._missed += 1
            if self._missed >= MOST_MISSED:
                self.order = None
                why_not = "what makes the loop's batches could not be found"
                self._documents.append({"order": order.number, "why_not": why_not})

    def _look(self, order: Order, fetchers: int) -> BatchLook:
        from .batch_look import BatchLook

        # Of several loaders as many batches each, and nobody knows what a batch of each takes when nobody looks.
        recent = self._timer.recent() if fetchers == 1 else ()
        return BatchLook(order._replace(batches=fetchers * order.batches), recent, self._documents.append)

    def _look_into(self, fetcher: Any, look: BatchLook) -> None:
        own = type(fetcher).fetch

        def fetch(index: Any) -> Any:
            try:
                del fetcher.fetch  # whatever comes: the next batch is prepared for again
                if look.done:
                    return own(fetcher, index)
                self._timer.pass_over()
                return look.fetch(own, fetcher, index)
            except BaseException as exc:
                let_out(exc)
                raise

        fetcher.fetch = fetch


def _fetchers(iterator: object) -> list[Any]:
    """Return what makes the batches of the iterators without workers inside one."""
    found = iterators_in(iterator) if iterator is not None else []
    fetchers = [attributes(one).get("_dataset_fetcher") for one in found]
    return [] if None in fetchers else fetchers


def answers_file() -> str:
    """Return a name for the file in which workers write down what they saw, which nobody else guesses.

    It lies where shared memory does, which no disk is behind; in the temporary folder where there is none.
    """
    folder = SHARED if os.access(SHARED, os.W_OK) else tempfile.gettempdir()
    return os.path.join(folder, f"stallmeter-{os.getpid()}-{secrets.token_hex(8)}.json")  # noqa: PTH118


def read_answers(path: str) -> list[dict[str, Any]]:
    """Return what a worker wrote down, and delete it."""
    file = Path(path)
    try:
        if file.stat().st_size > MOST_BYTES:
            return []
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    finally:
        with suppress(OSError):
            file.unlink()
    return [document] if isinstance(document, dict) else []
