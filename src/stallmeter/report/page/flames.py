"""Flame graphs: what a look into the code saw, each call as a bar as wide as its time, above the one that made it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...records import CodeLook, CodeStack
from .. import wording
from ..speedscope import where

WIDTH = 1000.0
"""Of the drawing, in its own units."""

ROW = 18
"""Height of a bar."""

NARROWEST = 1.0
"""Narrower bars are left out: they would be no wider than a pixel or two."""

LETTER = 6.2
"""Width of a letter: so many fit into a bar."""

DEEPEST = 40
"""Rows that are drawn."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A function, called by the one below it."""

    x: float
    y: float
    width: float
    tone: str
    """Of the palette: the user's own, a library's, or what is not written in Python."""
    label: str
    """As much of its name as fits; empty where too little does."""
    said: str
    """Its name in full and its time."""


@dataclass(frozen=True, slots=True)
class Flame:
    """One flame graph."""

    title: str
    summary: str
    height: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class _Name:
    """A frame's name as it is shown."""

    full: str
    short: str
    tone: str


class _Names:
    """Frames' names as they are shown: each is made fit to be shown once, however many bars it has.

    Args:
        own: The frames that are the user's.
    """

    def __init__(self, own: set[str]) -> None:
        self._own = own
        self._known: dict[str, _Name] = {}

    def of(self, frame: str) -> _Name:
        """Return what is shown of a frame."""
        if frame not in self._known:
            written = frame.endswith(")")
            tone = "data_wait" if frame in self._own else "second" if written else "limit"
            short = frame.rpartition(" (")[0] if written else frame
            self._known[frame] = _Name(wording.one_line(frame), wording.one_line(short, wording.NAME_LIMIT), tone)
        return self._known[frame]


def flames(looks: Sequence[CodeLook]) -> list[Flame]:
    """Return a flame graph for each look that saw stacks."""
    found = []
    for look in looks:
        names = _Names(_own(look))
        bars = list(_bars(look.stacks, 0.0, 0, sum(stack.wall_s for stack in look.stacks), names))
        if bars:
            rows = max(bar.y for bar in bars)
            turned = tuple(_upside_down(bar, rows) for bar in bars)
            title = f"Where in the code: {where(look)}"
            found.append(Flame(wording.one_line(title), _summary(look), int(rows + ROW), turned))
    return found


def _own(look: CodeLook) -> set[str]:
    """Return the frames that are the user's; of an old recording those that hold a spot's time."""
    spots = tuple(f"{spot.function} ({spot.file}:" for spot in look.spots if spot.own)
    frames = {frame for stack in look.stacks for frame in stack.frames if frame.startswith(spots)}
    return frames | {name for stack in look.stacks for i, name in enumerate(stack.frames) if i in stack.own}


def _summary(look: CodeLook) -> str:
    cost = "" if look.added_s is None else f" Looking added {wording.seconds(look.added_s)} to them."
    cpu = "" if look.cpu_s is None else f", {wording.seconds(look.cpu_s)} of it computing"
    return f"{wording.seconds(look.wall_s)}{cpu}.{cost}"


def _bars(stacks: Sequence[CodeStack], x: float, depth: int, total_s: float, names: _Names) -> Iterator[Bar]:
    callees: dict[str, list[CodeStack]] = {}
    for stack in stacks:
        if len(stack.frames) > depth:
            callees.setdefault(stack.frames[depth], []).append(stack)
    if depth >= DEEPEST or not total_s:
        return
    for name, inside in callees.items():
        wall_s = sum(stack.wall_s for stack in inside)
        width = WIDTH * wall_s / total_s
        if width >= NARROWEST:
            yield _bar(names.of(name), x, depth, width, wall_s / total_s, wall_s)
            yield from _bars(inside, x, depth + 1, total_s, names)
        x += width


def _bar(name: _Name, x: float, depth: int, width: float, share: float, wall_s: float) -> Bar:
    fits = int(width / LETTER)
    label = name.short if len(name.short) <= fits else f"{name.short[: fits - 1]}…" if fits >= 4 else ""
    said = f"{name.full}: {wording.seconds(wall_s)}, {wording.percent(100 * share)}"
    return Bar(round(x, 2), depth * ROW, round(width, 2), name.tone, label, said)


def _upside_down(bar: Bar, rows: float) -> Bar:
    return Bar(bar.x, rows - bar.y, bar.width, bar.tone, bar.label, bar.said)
