"""Functions of the program's own that steps call, and that return the same each time.

An adjacency matrix that is made ready in each forward pass, a table of positions, a mask, anchors: what depends on no
batch and on nothing that is learnt could be made once. In a few steps a profile function of Python's own, on the
training thread alone, hears what functions return in which looks at the stack have found much of the time. Numbers are
compared from step to step; only a sum that tells them is kept. What gradients go through is none of these.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any
from zlib import crc32

from ..records import SameResults
from ..timing.clock import Register, StepClock
from .code.whose import Whose

SAME = "same results"

FIRST_STEP = 12
"""Steps before it may be warm-up, and nothing is known of where the time goes."""

ASKED = 40
"""So often it is asked which functions hold much of the time, each time after a quarter more steps."""

LOOKS, APART = 4, 3
"""Steps that are looked at, and from one to the next: batches that come again differ in between, as a rule."""

LEAST_NUMBERS = 64
"""Fewer may be the same by chance, and are made in no time."""

MOST_NUMBERS = 2_000_000
"""Of more, so many are compared, evenly over all of them; some ms."""

MOST_PARTS = 64
"""Parts of what is returned that are looked at."""

MOST_EVENTS = 400_000
"""Calls and returns of a step after which the look ends, some 0.1 s."""

CALLERS = 4
"""Functions of the program's own around one that is looked at, which may return the same as well."""

Suspects = Callable[[], Collection[tuple[str, str]] | None]
"""Returns file and name of functions that hold much of the time; None where that is not known yet."""


class _OtherError(Exception):
    """What is returned is not the same each time, or it is not known whether it is."""


@dataclass(slots=True)
class _Calls:
    """What one function returned in one step."""

    took_ns: int = 0
    sums: list[int] = field(default_factory=list)
    """Of the numbers of each call, in order."""
    numbers: int = 0
    inside: set[CodeType] = field(default_factory=set)
    """Functions around it that are heard as well."""
    is_other: bool = False
    started: list[tuple[int, int]] = field(default_factory=list)
    """When calls that go on began, and what the profile function had taken by then."""


class SameResultSource:
    """The source of `SameResults`.

    Args:
        register: How to be called between two steps.
        guard: Calls what is given it, and keeps errors away: it is called in the midst of the program's steps.
        suspects: Which functions to hear.
        modules: Where torch and numpy are looked for; they are never imported.
        now: Nanoseconds.
    """

    name = SAME

    def __init__(
        self,
        register: Register,
        guard: Callable[..., Any],
        suspects: Suspects,
        *,
        modules: Mapping[str, Any] | None = None,
        now: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._guard, self._suspects, self._now = guard, suspects, now
        self._modules = sys.modules if modules is None else modules
        self._whose = Whose.of_program()
        self._due, self._asked = FIRST_STEP, 0
        self._wanted: frozenset[tuple[str, str]] = frozenset()
        self._known: dict[int, tuple[CodeType, bool]] = {}
        """Whether a function is heard, of those that were met: by identity, for code is compared by all it holds. It
        is kept, so that no number comes again."""
        self._step: dict[CodeType, _Calls] | None = None
        self._steps: list[dict[CodeType, _Calls]] = []
        self._profile: Callable[[FrameType, str, Any], None] | None = None
        self._events = self._own_ns = 0
        self._event_ns = 0.0
        self._thread = 0
        self._found: SameResults | None = None  # set by the training thread, taken by the sampler's
        register(self.name, self.between_steps)

    def sample(self, time_s: float) -> Sequence[SameResults]:  # noqa: ARG002 - a Source's signature
        """Return what was found since the last call.

        Args:
            time_s: Unix time of this poll.
        """
        found, self._found = self._found, None
        return () if found is None else (found,)

    def close(self) -> None:
        """Take the profile function back where a step has not ended."""
        if threading.get_ident() == self._thread:
            self._take_back()
        self._step = None  # on another thread than this it is what ends it

    def between_steps(self, clock: StepClock) -> bool:
        """Begin or end to look; for the training thread. Returns whether it wants to be called again."""
        if self._step is not None:
            goes_on = self._take_back()
            step, self._step = self._step, None
            if not goes_on or self._events > MOST_EVENTS:
                return False
            self._steps.append(step)
            if len(self._steps) >= LOOKS:
                self._found = self._told()
                self._known.clear()
                return False
            self._due = clock.index + APART - 1
        if not clock.open or clock.index < self._due:
            return True
        if not self._wanted:
            self._asked += 1
            suspects = self._suspects()
            self._wanted = frozenset(suspects or ())
            if suspects is not None and not suspects:
                self._found = SameResults(time_s=time.time(), steps=0)
            self._due = clock.index + max(8, clock.index // 4)
        if self._wanted:
            self._begin()
        return bool(self._wanted) or self._asked < ASKED

    def _begin(self) -> None:
        if sys.getprofile() is not None:  # somebody measures the program himself
            self._due += APART
            return
        self._thread = threading.get_ident()
        self._events = self._own_ns = 0
        self._event_ns = self._event_ns or _event_ns(self._now)
        self._step = {}
        self._profile = self._hear
        sys.setprofile(self._profile)

    def _take_back(self) -> bool:
        profile, self._profile = self._profile, None
        if profile is None or sys.getprofile() is not profile:
            return False
        sys.setprofile(None)
        return True

    def _hear(self, frame: FrameType, event: str, returned: Any) -> None:
        self._events += 1
        if event not in ("call", "return"):
            return
        known = self._known.get(id(frame.f_code))
        if known is None:
            known = frame.f_code, bool(self._guard(SAME, self._is_wanted, frame))
            self._known[id(frame.f_code)] = known
        if self._events > MOST_EVENTS or self._step is None:
            sys.setprofile(None)
        elif known[1]:
            self._guard(SAME, self._note, self._step, frame, returned if event == "return" else _BEGINS)

    def _is_wanted(self, frame: FrameType) -> bool:
        function = self._whose.code(frame.f_code, frame.f_globals.get("__name__"))
        return function.own and (function.file, function.name) in self._wanted

    def _note(self, step: dict[CodeType, _Calls], frame: FrameType, returned: Any) -> None:
        """A function that is heard begins, or returns something."""
        began_ns = self._now()
        calls = step.setdefault(frame.f_code, _Calls())
        if returned is _BEGINS:
            if not calls.inside:
                calls.inside = self._around(frame)
            start_ns = self._now()
            calls.started.append((start_ns, self._own() + start_ns - began_ns))
        elif calls.started:
            start_ns, own_ns = calls.started.pop()
            calls.took_ns += max(0, began_ns - start_ns - (self._own() - own_ns))
            try:
                sums = _Numbers(self._modules)
                sums.add(returned)
                calls.is_other = calls.is_other or sums.numbers < LEAST_NUMBERS
                calls.sums.append(sums.sum)
                calls.numbers = max(calls.numbers, sums.numbers)
            except _OtherError:
                calls.is_other = True
        else:  # it had begun before it was heard of
            calls.is_other = True
        self._own_ns += self._now() - began_ns

    def _own(self) -> int:
        """Return what has been taken in this step so far, events that are not heard included, ns."""
        return self._own_ns + round(self._events * self._event_ns)

    def _around(self, frame: FrameType) -> set[CodeType]:
        """Return the program's functions around one, which are heard from the next step on."""
        found: set[CodeType] = set()
        around = frame.f_back
        while around is not None and len(found) < CALLERS:
            if self._whose.code(around.f_code, around.f_globals.get("__name__")).own:
                found.add(around.f_code)
                self._known[id(around.f_code)] = around.f_code, True
            around = around.f_back
        return found

    def _told(self) -> SameResults:
        steps = self._steps[1:]  # callers are heard from the second on
        codes = set.intersection(*(set(step) for step in steps)) if steps else set()
        same = {code for code in codes if _is_same([step[code] for step in steps])}
        outermost = [code for code in same if not any(same & step[code].inside for step in steps)]
        found = SameResults(time_s=time.time(), steps=len(steps))
        if not outermost:
            return found

        def took_ns(code: CodeType) -> float:
            return sum(step[code].took_ns for step in steps) / len(steps)

        largest = max(outermost, key=took_ns)
        function = self._whose.code(largest)
        return SameResults(
            time_s=found.time_s,
            steps=found.steps,
            function=function.name,
            file=function.file,
            line=function.first_line,
            call_s=took_ns(largest) / 1e9,
            calls=len(steps[-1][largest].sums),
            numbers=steps[-1][largest].numbers,
        )


_BEGINS = object()


class _Numbers:
    """Adds up what is returned to one sum.

    Args:
        modules: Where torch and numpy are looked for.
    """

    def __init__(self, modules: Mapping[str, Any]) -> None:
        self._modules = modules
        self._left = MOST_PARTS
        self.sum = self.numbers = 0

    def add(self, part: Any) -> None:
        """Add a part.

        Raises:
            _OtherError: It holds what gradients go through, what lies on a device, or what is not known.
        """
        self._left -= 1
        if self._left < 0:
            raise _OtherError
        if isinstance(part, (bool, int, float, str, type(None))):
            self._sum_up(repr(part).encode())
        elif isinstance(part, dict):
            for key, value in part.items():
                self.add(key)
                self.add(value)
        elif isinstance(part, (list, tuple)):
            for value in part:
                self.add(value)
        elif type(part).__module__.partition(".")[0] == "scipy" and hasattr(part, "indices") and hasattr(part, "data"):
            self.add((part.shape, getattr(part, "indptr", None), part.indices, part.data))
        else:
            self._add_array(part)

    def _add_array(self, part: Any) -> None:
        torch, numpy = self._modules.get("torch"), self._modules.get("numpy")
        if torch is not None and isinstance(part, torch.Tensor):
            if part.requires_grad or part.device.type != "cpu":
                raise _OtherError
            if part.layout is torch.sparse_coo:
                coalesced = part.coalesce()
                self.add((coalesced.indices(), coalesced.values()))
                return
            if part.layout is torch.sparse_csr:
                self.add((part.crow_indices(), part.col_indices(), part.values(), part.shape))
                return
            if part.layout is not torch.strided:
                raise _OtherError
            every = max(1, part.numel() // MOST_NUMBERS)
            values = part.detach().reshape(-1)[::every].contiguous()
            self.numbers += part.numel()
            self._sum_up(repr(tuple(part.shape)).encode())
            self._sum_up(values.view(torch.uint8).numpy().data if values.numel() else b"")
        elif numpy is not None and isinstance(part, numpy.ndarray) and part.dtype.kind in "biufc":
            every = max(1, part.size // MOST_NUMBERS)
            self.numbers += part.size
            self._sum_up(repr(part.shape).encode())
            self._sum_up(numpy.ascontiguousarray(part.reshape(-1)[::every]).tobytes())
        else:
            raise _OtherError

    def _sum_up(self, data: Any) -> None:
        self.sum = crc32(data, self.sum)


def _is_same(calls: Sequence[_Calls]) -> bool:
    """Whether a function returned the same in all steps, numbers and no less often."""
    return not any(one.is_other or one.started or not one.sums or one.sums != calls[0].sums for one in calls)


def _event_ns(now: Callable[[], int]) -> float:
    """Return what an event takes that is not heard, ns: the quickest of some tries."""

    def nothing() -> None:
        pass

    def ignore(frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        seen[0] += 1
        known.get(id(frame.f_code))

    def took_ns() -> int:
        began_ns = now()
        for _ in range(200):
            nothing()
        return now() - began_ns

    seen, known = [0], {id(nothing.__code__): (nothing.__code__, False)}
    bare_ns = min(took_ns() for _ in range(3))
    sys.setprofile(ignore)
    try:
        heard_ns = min(took_ns() for _ in range(3))
    finally:
        sys.setprofile(None)
    return max(0.0, heard_ns - bare_ns) / 400.0
