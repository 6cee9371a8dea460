"""Which run this is: a new folder for each fit, and the same one on all its ranks.

Rank 0 draws the folder's name, at random, and knows it at once. Every other rank asks for it with a number drawn for
this one question, and rank 0 answers under that number: an answer can be neither of an earlier fit nor of another
job. Questions and answers go over a `Line`, on a thread of their own. The thread that trains never waits for them.
"""

from __future__ import annotations

import atexit
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Protocol

PATIENCE_S = 60.0
"""A rank that has got no answer for so long records into a folder of its own."""

CLOSING_S = 1.0
"""The same for a rank whose run ends."""

LINGER_S = 10.0
"""Rank 0 still answers for so long after its run has ended: the others may be a little later."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.5
"""Between two looks at the lines. The pauses grow as long as nothing comes."""

EXIT_S = 0.5
"""Most seconds that the program's end waits for a call that is going on."""

_FOLDER_NAME = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
_fits: Counter[str] = Counter()
"""Runs that this process has begun, by kind. All ranks begin the same runs in the same order."""


class Line(Protocol):
    """Carries the ranks' questions to rank 0 and its answers back. All but the name may raise OSError."""

    def ask(self, nonce: str) -> None:
        """Ask, with a number that nobody else uses."""

    def take(self, nonce: str) -> str | None:
        """Return the answer, and remove it; None while there is none."""

    def leave(self, nonce: str) -> None:
        """Wait for the answer no longer."""

    def questions(self) -> list[str]:
        """Return the numbers of the questions that came since the last call, and remove these."""

    def answer(self, nonce: str, name: str) -> None:
        """Answer a question."""

    def is_taken(self, nonce: str) -> bool:
        """Whether an answer was taken."""


Lines = Callable[[str], Mapping[str, Callable[[], Line]]]
"""Returns what connects this process with the other ranks at the moment, by address, for one topic. Called often."""


class Identity:
    """The name of one run's folder.

    Args:
        rank: Of this process.
        world_size: Number of ranks.
        lines: What connects the ranks; without any, each records into a folder of its own.
        patience_s: Most seconds to wait for rank 0.
    """

    def __init__(
        self, rank: int = 0, world_size: int = 1, lines: Lines | None = None, *, patience_s: float = PATIENCE_S
    ) -> None:
        self._rank = rank
        self._world_size = world_size
        self._lines = lines
        self._patience_s = patience_s
        self._deadline = 0.0
        self._lock = threading.Lock()
        self._known = threading.Event()
        self._wake = threading.Event()
        self._stopped = False
        self._closing = False
        self._name = ""
        self._draw: Callable[[], str] = lambda: ""
        self.why_alone = ""
        """Why this rank does not record beside rank 0; empty when it does."""

    def begin(
        self,
        kind: str,
        draw: Callable[[], str],
        *,
        attempt: Callable[[str, Callable[[], None]], object],
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """A run begins. Returns at once.

        Args:
            kind: Of the run; each kind is counted apart.
            draw: Makes a name that is not in use.
            attempt: Calls what may fail.
            is_over: Whether the run has ended.
        """
        self._draw = draw
        self._deadline = time.monotonic() + self._patience_s
        if self._rank == 0:
            self._settle(draw())
        if self._world_size <= 1:
            return
        _fits[kind] += 1
        if self._lines is None:
            self.stay_alone("nothing connects it with rank 0")
            return
        topic = f"{kind}/{_fits[kind]}"
        meet = (lambda: self._answer(topic, is_over)) if self._rank == 0 else (lambda: self._ask(topic))
        try:
            _Talk(self, lambda: attempt("finding the other ranks", meet)).start()
        except RuntimeError as exc:  # no more threads for this user
            self.stay_alone(str(exc))

    def hurry(self) -> None:
        """The run ends: there is little time left to wait."""
        self._closing = True
        self._deadline = min(self._deadline, time.monotonic() + CLOSING_S)

    def stop(self) -> None:
        """End the thread before its next call."""
        self._stopped = True
        self._wake.set()

    def name(self) -> str | None:
        """Return the folder's name; None while rank 0 may still answer. Waits only when told to hurry."""
        if self._closing:
            self._known.wait(max(0.0, self._deadline - time.monotonic()))
        if not self._known.is_set() and time.monotonic() >= self._deadline:
            self.stay_alone("rank 0 did not answer in time")
        return self._name if self._known.is_set() else None

    def stay_alone(self, why: str) -> str:
        """Record into a folder of its own, unless the common one is known; returns the name.

        Args:
            why: The reason, for the recording.
        """
        if self._settle(self._draw()) and self._rank:
            self.why_alone = why
        return self._name

    def leave(self, why: str) -> str:
        """The common folder cannot be used: record into one of its own; returns its name."""
        self._name, self.why_alone = self._draw(), why
        return self._name

    def _settle(self, name: str) -> bool:
        with self._lock:
            if self._known.is_set():
                return False
            self._name = name
            self._known.set()
            if self._rank:
                self._wake.set()
            return True

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _ask(self, topic: str) -> None:
        nonce = secrets.token_hex(8)
        asked: dict[str, Line] = {}
        for pause_s, lines in self._looks(topic):
            name = None
            for address, line in list(lines.items()):
                with _dropping(lines, address):
                    if asked.get(address) is not line:
                        line.ask(nonce)
                        asked[address] = line
                    name = line.take(nonce) or name
            if name is None and not self._wake.wait(pause_s):
                continue
            if self._stopped:
                return
            # Before the name is known: after that the program may end at any time.
            for address, line in list(lines.items()):
                with _dropping(lines, address):
                    line.leave(nonce)
            if name is not None and _FOLDER_NAME.fullmatch(name):
                self._settle(name)
            return

    def _answer(self, topic: str, is_over: Callable[[], bool]) -> None:
        waiting: set[tuple[str, str]] = set()
        reached, ended_s = 0, None
        for pause_s, lines in self._looks(topic):
            for address, line in list(lines.items()):
                with _dropping(lines, address):
                    for nonce in line.questions():
                        line.answer(nonce, self._name)
                        waiting.add((address, nonce))
                    taken = {(a, nonce) for a, nonce in waiting if a == address and line.is_taken(nonce)}
                    waiting -= taken
                    reached += len(taken)
            if reached >= self._world_size - 1:
                return
            if is_over():
                ended_s = ended_s or time.monotonic()
                if time.monotonic() > ended_s + LINGER_S:
                    return
            self._wake.wait(pause_s)

    def _looks(self, topic: str) -> Iterator[tuple[float, dict[str, Line]]]:
        """Yield the lines that are there, and how long to pause before the next look."""
        assert self._lines is not None
        lines: dict[str, Line] = {}
        pause_s = FIRST_PAUSE_S
        while not self._stopped:
            there = self._lines(topic)
            for address in lines.keys() - there.keys():
                del lines[address]  # without a word: its other end is gone
            for address in there.keys() - lines.keys():
                with _dropping(lines, address):
                    lines[address] = there[address]()
            yield pause_s, lines
            pause_s = min(1.2 * pause_s, LONGEST_PAUSE_S)


class _Talk(threading.Thread):
    """The thread on which one identity talks.

    It is ended before the interpreter is: a thread that comes back to Python then, out of one of torch's calls, would
    abort the process.
    """

    talking: ClassVar[set[_Talk]] = set()

    def __init__(self, identity: Identity, talk: Callable[[], object]) -> None:
        super().__init__(name="stallmeter-identity", daemon=True)
        self._identity = identity
        self._talk = talk
        self.talking.add(self)

    def run(self) -> None:
        try:
            self._talk()
        finally:
            self.talking.discard(self)

    def stop(self) -> None:
        """End it now; test suites call this of a daemon thread that outlives a test."""
        self._identity.stop()
        self.join(LINGER_S)

    @classmethod
    def end_all(cls) -> None:
        """End those that are not stuck in a call."""
        deadline = time.monotonic() + EXIT_S
        threads = list(cls.talking)
        for thread in threads:
            thread._identity.stop()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


atexit.register(_Talk.end_all)


class _dropping:  # noqa: N801 - used as a statement
    """Hangs up a line that fails; it is tried again at the next look."""

    def __init__(self, lines: dict[str, Line], address: str) -> None:
        self._lines, self._address = lines, address

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> bool:
        if kind is None or not issubclass(kind, OSError):
            return False
        self._lines.pop(self._address, None)
        return True


def new_name(directory: Path, started_s: float) -> str:
    """Return a name for a run's folder that is not in use: the local time, and a random id.

    Args:
        directory: Where the folder will be.
        started_s: Unix time.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(started_s))
    while (directory / (name := f"{stamp}-{secrets.token_hex(3)}")).exists():
        pass
    return name
