"""Items that are met again in a later epoch, and whether modules made the same of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...records import FixedFeatures
from ...timing.rows import Marks, are_alike
from ..code.whose import Whose
from .look import Round, Stack

LEAST_COMPARED = 20
"""Rows of which what a module made was compared; fewer tell nothing."""

ALIKE = 0.9
"""Part of the rows met again of which a module must have made the same."""

MOST_RESULTS = 30_000
"""Results that are kept, of all modules: some 200 bytes each."""

SEVERAL = 0
"""Number of the rows that cannot be told from others of their epoch."""

Place = tuple[int, int, int]
"""Where in an epoch a row was met: step, calls before it in that step, place in its batch."""


@dataclass(slots=True)
class _Compared:
    """What one module made of rows that were met again."""

    kind: str
    stack: Stack
    rows: int = 0
    alike: int = 0
    ns: list[int] = field(default_factory=list)
    """Of its calls in each step in which it is called."""

    @property
    def makes_the_same(self) -> bool:
        return self.rows >= LEAST_COMPARED and self.alike >= ALIKE * self.rows


class Items:
    """What was met in some steps of some epochs.

    Args:
        ranks: Among which an epoch's items are shared out.
        most: Rows of an epoch, at the most.
    """

    def __init__(self, ranks: int, most: int) -> None:
        self._ranks, self._most = ranks, most
        self._known: dict[int, int] = {}
        """Numbers of the rows of earlier epochs, by what they are known by."""
        self._new: dict[int, int] = {}
        """Of this epoch's."""
        self._numbers = self._numbers_known = 0
        self._at: dict[int, Place] = {}
        """Where each was met first."""
        self._taken: set[Place] = set()
        self._results: dict[tuple[int, int], Any] = {}
        """First numbers of what a module made of a row."""
        self._modules: dict[int, _Compared] = {}
        self._looked = self._rows = 0
        self._of_an_epoch = 0
        """Rows in one, of all ranks; 0 before one is over."""
        self._again = self._in_order = self._there = 0
        self._by_chance = 0.0
        self._whose: Whose | None = None

    @property
    def expected(self) -> float:
        """Rows that had to be met again if each epoch had the same ones.

        Where most that are met again have kept their places, each had to; else as many as chance brings.
        """
        in_order = self._again and 2 * self._in_order >= self._again
        return float(self._there) if in_order else self._by_chance

    def forget(self) -> None:
        """Let go of all rows."""
        self._known, self._new, self._at, self._results = {}, {}, {}, {}
        self._taken = set()

    def end_epoch(self, steps: int) -> None:
        """Take what was met in an epoch for known from now on.

        Args:
            steps: Of the epoch.
        """
        if not self._of_an_epoch and self._looked:
            self._of_an_epoch = max(1, round(steps * self._rows / self._looked)) * self._ranks
        self._known = {**self._new, **self._known}
        self._new, self._numbers_known = {}, self._numbers
        self._taken = set(self._at.values())

    def take(self, rounds: Sequence[Round], step: int) -> bool:
        """Take the calls of a step. Returns whether more rows are to be looked at in this epoch.

        Args:
            rounds: The calls.
            step: Since the epoch began.
        """
        self._looked += 1
        spent: dict[int, int] = {}
        for number, one in enumerate(rounds):
            self._rows += one.rows
            met = [self._meet(marks, (step, number, place)) for place, marks in enumerate(one.marks)]
            for call in one.calls:
                known = self._modules.setdefault(call.module, _Compared(call.kind, call.stack))
                spent[call.module] = spent.get(call.module, 0) + call.ns
                for row, result in zip(met, call.results or (), strict=False):
                    self._compare(call.module, known, row, result)
        for module, ns in spent.items():
            self._modules[module].ns.append(ns)
        return len(self._new) < self._most

    def _meet(self, marks: Marks, place: Place) -> int:
        """Return the number of a row; `SEVERAL` where it cannot be told from others."""
        known = next((self._known[mark] for mark in marks if mark in self._known), None)
        if not marks or known == SEVERAL:
            return SEVERAL
        if self._of_an_epoch:
            self._there += place in self._taken
            self._by_chance += min(1.0, self._numbers_known / self._of_an_epoch)
        if known is not None:
            self._again += 1
            self._in_order += self._at[known] == place
            return known
        if any(mark in self._new for mark in marks):
            self._new.update(dict.fromkeys(marks, SEVERAL))
            return SEVERAL
        self._numbers += 1
        self._new.update(dict.fromkeys(marks, self._numbers))
        self._at[self._numbers] = place
        return self._numbers

    def _compare(self, module: int, known: _Compared, row: int, result: Any) -> None:
        if row == SEVERAL:
            return
        before = self._results.get((module, row))
        if before is None:
            if len(self._results) < MOST_RESULTS:
                self._results[module, row] = result
        else:
            known.rows += 1
            known.alike += are_alike(before, result)

    def told(self) -> FixedFeatures:
        """Return what is known by now."""
        fixed = [one for one in self._modules.values() if one.makes_the_same]
        spent_ns = sum(statistics.median(one.ns) * len(one.ns) / self._looked for one in fixed)
        most = max(fixed, key=lambda one: sum(one.ns), default=None)
        file, line, function = ("", 0, "") if most is None else self._called_at(most.stack)
        return FixedFeatures(
            time_s=time.time(),
            name="" if most is None else most.kind or function or "A module",
            modules=len(fixed),
            call_s=spent_ns / 1e9,
            expected=self.expected,
            again=self._again,
            file=file,
            line=line,
            function=function,
        )

    def _called_at(self, stack: Stack) -> tuple[str, int, str]:
        """Return file, line and function of the user's own that calls, as they are shown; empty where none does."""
        self._whose = self._whose or Whose.of_program()
        return self._whose.first_own((code, line, None) for code, line in stack)
