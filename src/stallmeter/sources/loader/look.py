"""A short look into batches where they are made, when the verdict says that making them is what the loop waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ...records import CodeItem, CodeLook, CodeSpot, CodeStack, Event
from ...records.code import EPOCH_STARTS, IN_WORKERS, PROFILE
from .ring import Order
from .starts import StartOrders

MIN_STEPS = 10
"""Steps before the look, so that it shows steady ones."""

FEW_STEPS, AFTER_S = 5, 6.0
"""Or so many, so long after the run was first looked at: where a step takes a second, a short run has a dozen."""

MOST_LOOKS = 3
"""In one run, however often the number of workers changes."""

STARTS = 3
"""Starts of workers that are looked into, where they take long: the newest is told of."""

GIVE_UP_S = 120.0
"""After so long without the last batch, what was seen is all there is."""


class Probe(Protocol):
    """What a look asks of the loader's probe."""

    starts: StartOrders

    def look(self, order: Order, loader: int) -> bool:
        """Have a few batches looked into; returns whether there is somebody who makes them."""
        ...

    def looked(self) -> list[dict[str, Any]]:
        """Return what was seen by now, the newest last."""
        ...

    def look_no_more(self) -> None:
        """Take back what was ordered."""
        ...


class WorkerLook:
    """The source of looks into the making of batches. All of it is for the sampler thread.

    Args:
        batches: How many.
        probe: Of the training's loaders.
        workers: Returns the number of workers, and which loader sets the pace; None where it is not known.
    """

    name = "code look"

    def __init__(self, batches: int, probe: Probe, workers: Callable[[], tuple[int, int] | None]) -> None:
        self._batches = batches
        self._probe = probe
        self._workers = workers
        self._asked: list[tuple[int, bool]] = []
        self._order: Order | None = None
        self._rule = ""
        self._loader = 0
        self._until_s: float | None = None
        self._first_s: float | None = None
        self._wish: tuple[str, int] | None = None
        """Asked for while nobody made batches, as between two epochs: verdicts are far apart."""
        self._sampled_s: float | None = None
        self._since_s: float | None = None
        probe.starts.look_at(STARTS)

    def request(self, rule: str, steps: int) -> None:
        """Ask for a look, if the verdict is one that it would explain and these workers were not looked into for it.

        Args:
            rule: Primary cause of the run.
            steps: Steps so far.
        """
        self._wish = None
        workers = self._workers()
        least = FEW_STEPS if (self._sampled_s or 0.0) - (self._first_s or 0.0) >= AFTER_S else MIN_STEPS
        if rule not in IN_WORKERS or steps < least or self._order is not None:
            return
        if workers is None:
            self._wish = rule, steps
            return
        number, loader = workers
        what = number, rule == "slow-batches"
        if what in self._asked or len(self._asked) >= MOST_LOOKS:
            return
        order = Order(number=len(self._asked) + 1, batches=self._batches, slow=what[1])
        if self._probe.look(order, loader):
            self._asked.append(what)
            self._order, self._rule, self._loader, self._until_s = order, rule, loader, None
            self._since_s = self._sampled_s
        else:
            self._wish = rule, steps

    def sample(self, time_s: float) -> Sequence[CodeLook | Event]:
        """Return what was seen by now, more of it with each batch.

        Args:
            time_s: Unix time of this poll.
        """
        self._sampled_s = time_s
        self._first_s = time_s if self._first_s is None else self._first_s
        if self._wish is not None:
            self.request(*self._wish)
        return [*(self._start(document, time_s) for document in self._probe.starts.seen()), *self._batches_seen(time_s)]

    def _batches_seen(self, time_s: float) -> Sequence[CodeLook | Event]:
        order = self._order
        if order is None:
            return ()
        found = [document for document in self._probe.looked() if document.get("order") == order.number]
        if self._until_s is None:
            self._until_s = time_s + GIVE_UP_S
        if any(document.get("done") or "why_not" in document for document in found) or time_s >= self._until_s:
            self._probe.look_no_more()
            self._order = None
        if not found:
            return ()
        if "why_not" in found[-1]:
            return (Event(time_s=time_s, name="no look into batches", detail=str(found[-1]["why_not"])),)
        return (self._look(found[-1], time_s),)

    def close(self) -> None:
        """Take back what was ordered."""
        if self._order is not None:
            self._probe.look_no_more()
            self._order = None

    def _look(self, document: dict[str, Any], time_s: float) -> CodeLook:
        return CodeLook(
            time_s=time_s,
            place="workers",
            rule=self._rule,
            loader=self._loader,
            method=PROFILE,
            seen=document["seen"],
            wall_s=document["wall_s"],
            cpu_s=document["cpu_s"],
            added_s=document["added_s"],
            since_s=self._since_s,
            item_s=document["item_s"],
            items=tuple(CodeItem(**item) for item in document["items"]),
            spots=_spots(document["spots"]),
            repeated=_spots(document["repeated"]),
            unvarying=_spots(document["unvarying"]),
            stacks=_stacks(document),
        )

    def _start(self, document: dict[str, Any], time_s: float) -> CodeLook:
        return CodeLook(
            time_s=time_s,
            place="workers",
            rule="worker-startup",
            bucket=EPOCH_STARTS,
            loader=document["loader"],
            method="samples",
            seen=document["seen"],
            wall_s=document["wall_s"],
            spots=_spots(document["spots"]),
            stacks=_stacks(document),
        )


def _spots(spots: Sequence[dict[str, Any]]) -> tuple[CodeSpot, ...]:
    return tuple(CodeSpot(**{**spot, "calls": tuple(spot["calls"])}) for spot in spots)


def _stacks(document: dict[str, Any]) -> tuple[CodeStack, ...]:
    return tuple(
        CodeStack(**{**stack, "frames": tuple(stack["frames"]), "own": tuple(stack["own"])})
        for stack in document["stacks"]
    )
