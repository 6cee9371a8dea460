"""Which run this is: a new folder for each fit, and the same one on all its ranks.

Rank 0 draws the folder's name, at random, and knows it at once. Every other rank asks for it with a number drawn for
this one question, and rank 0 answers under that number: an answer can be neither of an earlier fit nor of another
job. Questions and answers go over a `Channel`, on a thread of their own. The thread that trains never waits for them.
"""

from __future__ import annotations

import atexit
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Protocol

ANSWER_TIMEOUT_S = 60.0
"""A rank that has got no answer for so long records into a folder of its own."""

CLOSING_S = 1.0
"""The same for a rank whose run ends."""

ANSWERING_S = 10.0
"""Rank 0 still answers for so long after its run has ended: the others may be a little later."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.5
"""Between two looks at the channels. The pauses grow as long as nothing comes."""

EXIT_S = 0.5
"""Most seconds that the program's end waits for a call that is going on."""

_FOLDER_NAME = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
_fits: Counter[str] = Counter()
"""Runs that this process has begun, by kind: what tells a question about this fit from one about the fit before. All
ranks begin the same runs in the same order, each on the thread that trains, so that nothing need guard the count."""


class Channel(Protocol):
    """Carries the ranks' questions to rank 0 and its answers back. All but the name may raise OSError."""

    keeps_files: bool
    """Whether what is not removed stays when the job is over."""

    def ask(self, nonce: str) -> None:
        """Ask, with a number that nobody else uses."""

    def take_answer(self, nonce: str) -> str | None:
        """Return the answer, and remove it; None while there is none."""

    def withdraw(self, nonce: str) -> None:
        """Wait for the answer no longer."""

    def questions(self) -> list[str]:
        """Return the numbers of the questions that came since the last call, and remove these."""

    def answer(self, nonce: str, name: str) -> None:
        """Answer a question."""

    def is_taken(self, nonce: str) -> bool:
        """Whether an answer was taken."""

    def expect_posts(self) -> None:
        """Rank 0 is there to read posts."""

    def post(self, rank: int, text: str) -> bool:
        """Leave a rank's newest post; returns whether somebody may read it."""

    def is_posted(self, rank: int) -> bool:
        """Whether a rank's newest post has not been taken yet: the next one has to repeat it."""

    def posted(self, rank: int) -> str | None:
        """Return a rank's newest post, and leave it for others; None while there is none."""

    def take_post(self, rank: int) -> str | None:
        """Return a rank's newest post, and remove it; None while there is none."""

    def end_posts(self, ranks: Iterable[int]) -> None:
        """Rank 0 reads no more: remove what these ranks have left."""


Channels = Callable[[str], Mapping[str, Callable[[], Channel]]]
"""Returns what connects this process with the other ranks at the moment, by address, for one topic. Called often."""


class RunFolder:
    """The name of one run's folder.

    Args:
        rank: Of this process.
        world_size: Number of ranks.
        channels: What connects the ranks; without any, each records into a folder of its own.
        timeout_s: Most seconds to wait for rank 0.
    """

    def __init__(
        self,
        rank: int = 0,
        world_size: int = 1,
        channels: Channels | None = None,
        *,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        self._rank = rank
        self._world_size = world_size
        self._channels = channels
        self._timeout_s = timeout_s
        self._deadline = 0.0
        self._lock = threading.Lock()
        self._known = threading.Event()
        self._wake = threading.Event()
        self._stopped = False
        self._closing = False
        self._name = ""
        self._draw: Callable[[], str] = lambda: ""
        self.why_own_folder = ""
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
        self._deadline = time.monotonic() + self._timeout_s
        if self._rank == 0:
            self._settle(draw())
        if self._world_size <= 1:
            return
        _fits[kind] += 1
        if self._channels is None:
            self.use_own_folder("nothing connects it with rank 0")
            return
        topic = f"{kind}/{_fits[kind]}"
        exchange = (lambda: self._answer(topic, is_over)) if self._rank == 0 else (lambda: self._ask(topic))
        try:
            _ExchangeThread(self, lambda: attempt("finding the other ranks", exchange)).start()
        except RuntimeError as exc:  # no more threads for this user
            self.use_own_folder(str(exc))

    def shorten_wait(self) -> None:
        """The run ends: there is little time left to wait."""
        self._closing = True
        self._deadline = min(self._deadline, time.monotonic() + CLOSING_S)

    def stop(self) -> None:
        """End the thread before its next call."""
        self._stopped = True  # before the event, whose waiter reads it
        self._wake.set()

    def name(self) -> str | None:
        """Return the folder's name; None while rank 0 may still answer. Waits only once the run ends."""
        if self._closing:
            self._known.wait(max(0.0, self._deadline - time.monotonic()))
        if not self._known.is_set() and time.monotonic() >= self._deadline:
            self.use_own_folder("rank 0 did not answer in time")
        return self._name if self._known.is_set() else None

    def use_own_folder(self, why: str) -> str:
        """Record into a folder of its own, unless the common one is known; returns the name.

        Args:
            why: The reason, for the recording.
        """
        if self._settle(self._draw()) and self._rank:
            self.why_own_folder = why
        return self._name

    def use_other_folder(self, why: str) -> str:
        """The common folder cannot be used: record into one of its own; returns its name."""
        self._name, self.why_own_folder = self._draw(), why
        return self._name

    def _settle(self, name: str) -> bool:
        # Rank 0's answer, the time-out and the end of the run come on three threads: the first one names the folder.
        with self._lock:
            if self._known.is_set():
                return False
            # The name before the event: `name` reads it without the lock once the event is set.
            self._name = name
            self._known.set()
            if self._rank:
                self._wake.set()
            return True

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _ask(self, topic: str) -> None:
        nonce = secrets.token_hex(8)
        asked: dict[str, Channel] = {}
        for pause_s, channels in self._polls(topic):
            name = None
            for address, channel in list(channels.items()):  # a copy: a channel that fails is taken out meanwhile
                with _disconnecting(channels, address):
                    if asked.get(address) is not channel:
                        channel.ask(nonce)
                        asked[address] = channel
                    name = channel.take_answer(nonce) or name
            if name is None and not self._wake.wait(pause_s):
                continue
            if self._stopped:
                return
            # Before the name is known: after that the program may end at any time.
            for address, channel in list(channels.items()):
                with _disconnecting(channels, address):
                    channel.withdraw(nonce)
            if name is not None and _FOLDER_NAME.fullmatch(name):
                self._settle(name)
            return

    def _answer(self, topic: str, is_over: Callable[[], bool]) -> None:
        waiting: set[tuple[str, str]] = set()
        reached, ended_s = 0, None
        for pause_s, channels in self._polls(topic):
            for address, channel in list(channels.items()):
                with _disconnecting(channels, address):
                    for nonce in channel.questions():
                        channel.answer(nonce, self._name)
                        waiting.add((address, nonce))
                    taken = {(a, nonce) for a, nonce in waiting if a == address and channel.is_taken(nonce)}
                    waiting -= taken
                    reached += len(taken)
            if reached >= self._world_size - 1:
                return
            if is_over():
                ended_s = ended_s or time.monotonic()
                if time.monotonic() > ended_s + ANSWERING_S:
                    return
            self._wake.wait(pause_s)

    def _polls(self, topic: str) -> Iterator[tuple[float, dict[str, Channel]]]:
        """Yield the channels that are there, and how long to pause before the next look."""
        assert self._channels is not None
        channels: dict[str, Channel] = {}
        pause_s = FIRST_PAUSE_S
        while not self._stopped:
            there = self._channels(topic)
            for address in channels.keys() - there.keys():
                del channels[address]  # without a call, which could hang: its other end is gone
            for address in there.keys() - channels.keys():
                with _disconnecting(channels, address):
                    channels[address] = there[address]()
            yield pause_s, channels
            pause_s = min(1.2 * pause_s, LONGEST_PAUSE_S)


class _ExchangeThread(threading.Thread):
    """The thread on which one rank asks, or rank 0 answers.

    It is ended before the interpreter is: a thread that comes back to Python then, out of one of torch's calls, would
    abort the process.
    """

    running: ClassVar[set[_ExchangeThread]] = set()

    def __init__(self, run_folder: RunFolder, exchange: Callable[[], object]) -> None:
        super().__init__(name="stallmeter-run-folder", daemon=True)
        self._run_folder = run_folder
        self._exchange = exchange
        self.running.add(self)

    def run(self) -> None:
        try:
            self._exchange()
        finally:
            self.running.discard(self)

    def stop(self) -> None:
        """End it now; test suites call this of a daemon thread that outlives a test."""
        self._run_folder.stop()
        self.join(ANSWERING_S)

    @classmethod
    def end_all(cls) -> None:
        """End those that are not stuck in a call."""
        deadline = time.monotonic() + EXIT_S
        threads = list(cls.running)
        for thread in threads:
            thread._run_folder.stop()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


atexit.register(_ExchangeThread.end_all)


class _disconnecting:  # noqa: N801 - used as a statement
    """Hangs up a channel that fails; it is tried again at the next look."""

    def __init__(self, channels: dict[str, Channel], address: str) -> None:
        self._channels, self._address = channels, address

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> bool:
        if kind is None or not issubclass(kind, OSError):
            return False
        self._channels.pop(self._address, None)
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
