"""What a source and a tracker are, and what a tracker is given. What a rule is: `stallmeter.rules.rule`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from . import Sample, StepRecord

T = TypeVar("T")


@runtime_checkable
class Source(Protocol):
    """Makes records. Polled by the sampler thread, never by the training thread.

    A source whose measurements would be lost if it were asked less often than once an interval has an attribute
    ``overflows = True``; the others are asked less often when stallmeter costs too much.
    """

    name: str
    """Shown when the source fails."""

    def sample(self, time_s: float) -> Sequence[Sample]:
        """Return what was measured since the last call.

        Args:
            time_s: Unix time of this poll.

        Raises:
            Exception: Anything; the monitor names the source once, asks it again later, and switches it off after
                several failures in a row.
        """
        ...

    def close(self) -> None:
        """Give back what the source holds."""
        ...


def by_name(sources: Iterable[Source]) -> dict[str, Source]:
    """Return sources by the names that are shown; another one of the same name gets a number, and none is lost."""
    found: dict[str, Source] = {}
    for source in sources:
        names = chain([source.name], (f"{source.name} {number}" for number in count(2)))
        found[next(name for name in names if name not in found)] = source
    return found


@dataclass(frozen=True, slots=True)
class Point:
    """One value of one metric, as trackers take it."""

    group: str
    """``steps`` or ``hardware``; a tracker puts each where its users look for it."""
    key: str
    """Short name with a unit, ``[A-Za-z0-9_./ -]`` only."""
    value: float
    """Finite; the user's own as they are, all others with 4 significant digits."""
    step: int
    time_s: float
    """Unix time of the measurement, never of the sending: replays stay idempotent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a tracker shows on the run's page besides curves."""

    tags: Mapping[str, str]
    headline: str
    """Verdict, fix and gain in one line."""
    note: str
    """Markdown, at most 4 kB, beginning with the headline."""
    files: Mapping[str, Path]
    """Artifact name to local file, for example ``report.md``."""
    final: bool
    """False while the run goes on."""
    slow_steps: Sequence[StepRecord] = ()
    """The slowest steady steps so far, the slowest first."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Function in which most of a bucket of the ledger is, by bucket, where that is known."""


@runtime_checkable
class Tracker(Protocol):
    """A replica of the recording. Called by the forwarder thread only.

    A tracker whose `close` ends a run that it started has an attribute ``owns_run``, True until that is done. It is
    kept in the cursor, so that a later program can end the run; without it the run counts as somebody else's. Where
    runs end with a status it has an attribute ``end_status``, set to ``FAILED`` before `close` when training raised.
    One that writes through a client of the program's, which may be closed as soon as the run is over, has an attribute
    ``borrowed`` that is True: the end of the run waits for it until it has the final page.

    A tracker whose `send` only takes points, to hand them over later, has an attribute ``held_points``: how many of
    those taken are still to be handed over, counted from the oldest of them. The cursor stays before these, so that
    another program knows what was lost with this one.
    """

    name: str
    """Short and unique in a run, for example ``mlflow``: names the cursor file."""
    destination: str
    """Where it goes, without secrets: shown to the user and kept beside the cursor."""
    batch_size: int
    """Most points that `send` takes at once."""

    def send(self, points: Sequence[Point]) -> None:
        """Deliver points. Delivering the same points twice must leave one copy where the tracker allows it.

        Raises:
            TrackerUnavailableError: Not now; the same points will be sent again later.
            TrackerError: Never; the tracker is stopped with one warning.
        """
        ...

    def show(self, page: Page) -> None:
        """Put tags, note and files on the run's page. Raises as `send` does."""
        ...

    def close(self) -> None:
        """Let go of the client. Never ends a run that somebody else started."""
        ...


class GuardedCall(Protocol):
    """Calls what may fail, so that its failure costs nothing else: it is caught, told once, and None returned."""

    def __call__(self, name: str, call: Callable[..., T], /, *args: Any) -> T | None:
        """Return what ``call`` returns; None when it raised.

        Args:
            name: What fails, in a message.
            call: What to call.
            args: What to call it with.
        """
        ...


def unguarded(name: str, call: Callable[..., T], /, *args: Any) -> T | None:  # noqa: ARG001 - a GuardedCall's signature
    """A `GuardedCall` that lets errors rise."""
    return call(*args)
