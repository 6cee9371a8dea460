"""One step's outermost calls of modules through which nothing is trained, with the rows that they are given."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from ...timing.numbers import tensors_in
from ...timing.rows import Marks, number_of_rows, results_of, rows_of

FIXED = "looking for fixed features"

MOST_CALLS = 20_000
"""Calls of modules in one step that are looked at."""

DEEPEST = 60
"""Frames above a call among which the user's own function is looked for."""

Stack = tuple[tuple[CodeType, int], ...]


@dataclass(slots=True)
class Call:
    """An outermost call through which nothing is trained."""

    module: int
    kind: str
    """Name of its class; empty for one of torch's, which many modules are of."""
    ns: int
    results: list[Any] | None
    stack: Stack


@dataclass(slots=True)
class Round:
    """Calls that are given the same rows, one after the other."""

    rows: int = 0
    marks: list[Marks] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


class FixedLook:
    """One step's calls, on the thread that made it."""

    def __init__(
        self,
        torch: Any,
        nn: Any,
        guard: Callable[..., Any],
        in_steps: Callable[[], bool],
        trained: dict[int, bool],
        now: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._guard, self._in_steps, self._now = guard, in_steps, now
        self._learns, self._kind, self._tensor = torch.is_grad_enabled, torch.nn.Module, torch.Tensor
        self._trained = trained
        """Modules by identity, and whether something is trained through them; kept from step to step."""
        self._thread = threading.get_ident()
        self._inside: list[int] = []
        """The call that is timed and those within it, by their modules."""
        self.calls = 0
        self.rounds: list[Round] = []
        self.own_ns = 0
        self._round: Round | None = None
        self._stack: Stack = ()
        self._began_ns = self._own_within_ns = 0
        self._handles = [
            nn.register_module_forward_pre_hook(self._before),
            nn.register_module_forward_hook(self._after),
        ]

    def remove(self) -> None:
        """Take the hooks back."""
        while self._handles:  # torch goes through a copy of its hooks
            self._handles.pop().remove()

    def _before(self, module: Any, given: Any) -> None:
        if (
            threading.get_ident() == self._thread
            and self._handles
            and not self._guard(FIXED, self._begins, module, given)
        ):
            self._fail()

    def _after(self, module: Any, _: Any, made: Any) -> None:
        if threading.get_ident() == self._thread and self._inside and not self._guard(FIXED, self._ends, module, made):
            self._fail()

    def _fail(self) -> None:
        self.remove()
        self._inside, self.rounds = [], []

    def _begins(self, module: Any, given: Any) -> bool:
        self.calls += 1
        if self.calls > MOST_CALLS:
            return False
        if self._inside:
            self._inside.append(id(module))
            self._know_rows(given)
            return True
        if not self._in_steps() or self._is_trained(module, given):
            return True
        began_ns = self._now()
        self._inside.append(id(module))
        self._stack = _stack()
        if self._round is None or self._is_another(self._round, module, given):
            self._round = Round()
            self.rounds.append(self._round)
        self._know_rows(given)
        self._own_within_ns = 0
        self._began_ns = self._now()
        self.own_ns += self._began_ns - began_ns
        return True

    def _is_another(self, one: Round, module: Any, given: Any) -> bool:
        """Whether a call begins another round: of a module that was called in this one, or with as many other rows."""
        rows = number_of_rows(given)
        differs = rows is not None and one.rows not in (0, rows)
        return differs or any(call.module == id(module) for call in one.calls)

    def _know_rows(self, given: Any) -> None:
        """Take the rows of the first call that is given any in its place: hooks are not told what is given by name."""
        if self._round is None or self._round.rows:
            return
        began_ns = self._now()
        found = rows_of(given)
        if found is not None:
            self._round.rows, self._round.marks = found
        took_ns = self._now() - began_ns
        if len(self._inside) > 1:
            self._own_within_ns += took_ns
            self.own_ns += took_ns

    def _is_trained(self, module: Any, given: Any) -> bool:
        if not self._learns():
            return False
        known = self._trained.get(id(module))
        if known is None:
            known = any(p.requires_grad for p in self._kind.parameters(module))
            self._trained[id(module)] = known
        return known or self._asks_for_gradients(given)

    def _asks_for_gradients(self, held: Any) -> bool:
        return any(tensor.requires_grad for tensor in tensors_in(held) if isinstance(tensor, self._tensor))

    def _ends(self, module: Any, made: Any) -> bool:
        ended_ns = self._now()
        if self._inside[-1] != id(module):  # a call within it has failed, and the program goes on
            return False
        self._inside.pop()
        if self._inside or self._round is None:
            return True
        if self._asks_for_gradients(made):  # what it is given by name does
            self._trained[id(module)] = True
        else:
            rows = self._round.rows
            ns = ended_ns - self._began_ns - self._own_within_ns
            results = results_of(made, rows) if rows else None
            self._round.calls.append(Call(id(module), _kind_of(module), ns, results, self._stack))
        self._began_ns = 0
        self.own_ns += self._now() - ended_ns
        return True


def _kind_of(module: Any) -> str:
    kind = type(module)
    return "" if kind.__module__.startswith("torch.") else kind.__name__


def _stack() -> Stack:
    """Return the functions that are running, the innermost first."""
    found: list[tuple[CodeType, int]] = []
    frame = sys._getframe(1)
    while frame is not None and len(found) < DEEPEST:
        found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)
