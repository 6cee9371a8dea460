"""The single guard: what may fail or hang is called through it, and training goes on without it."""

from __future__ import annotations

import logging
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ..records import Event
from ..records.redaction import redact
from .sampler import Abandoned, is_abandoned

T = TypeVar("T")
_log = logging.getLogger("stallmeter")

MOST_FAILURES = 5
"""Failures in a row after which what is tried again is switched off: 15 polls after the first."""


class Guard:
    """Calls something that may fail without hurting the training: ``guard(name, call, *args)``.

    What fails is named once in a warning and in the recording, and never called again; see `retry` for what is. What a
    signal's handler raised is raised: it is for the program, and came in our code by chance.

    Args:
        tell: Takes events for the recording; from any thread.
    """

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self._named: dict[str, object] = {}
        """What was said to have failed: it is not called again, but by `attempt`."""
        self._hung: set[str] = set()
        self._failing: dict[str, _Failures] = {}
        self._asked = ""
        """The source or rule that the sampler thread waits for; the watching thread reads it when no answer comes."""
        self.out_of_time = False
        """Whether no source or rule is asked any more: there is no time left to find out whether it hangs."""

    def __call__(self, name: str, call: Callable[..., T], *args: Any) -> T | None:
        """Return what ``call`` returned; None when it failed now or before."""
        if name in self._named:
            return None
        try:
            return call(*args)
        except Exception as exc:  # the one guard: training never fails because of us
            if _is_of_a_handler(exc):
                raise
            self._failed(name, exc, "switched off")
            return None

    def attempt(self, name: str, call: Callable[..., T], *args: Any) -> T | None:
        """Call something even if it failed before: our own parts, and the last call to what has to be let go.

        Only what hung is not called again: it would hang here, too.
        """
        if name in self._hung:
            return None
        try:
            return call(*args)
        except Exception as exc:
            if _is_of_a_handler(exc):
                raise
            self._failed(name, exc, "failed")
            return None

    def retry(self, name: str, call: Callable[[], T]) -> T | None:
        """Call something that may work again after it failed: an error may pass.

        The more failures in a row, the more calls are left out before the next try: none, 1, 3, 7. After
        `MOST_FAILURES` it is switched off. One warning tells the first failure, an event the end.

        Args:
            name: What it is.
            call: What to call.
        """
        if name in self._named or name in self._hung:
            return None
        known = self._failing.get(name)
        if known is not None and known.wait:
            known.wait -= 1
            return None
        try:
            found = call()
        except Exception as exc:
            if _is_of_a_handler(exc):
                raise
            self._failed_again(name, exc)
            return None
        self._failing.pop(name, None)
        return found

    def keep_trying(self, name: str, call: Callable[[], T]) -> T | None:
        """Call something that is never switched off: who calls it leaves time between the tries.

        One warning tells the first failure.
        """
        try:
            return call()
        except Exception as exc:
            if _is_of_a_handler(exc):
                raise
            self._tell_failing(name, exc)
            return None

    def _failed_again(self, name: str, exc: Exception) -> None:
        said = self._tell_failing(name, exc)
        known = self._failing.setdefault(name, _Failures())
        known.wait = 2**known.failures - 1
        known.failures += 1
        if known.failures == MOST_FAILURES:
            self._named[name] = known
            detail = f"it failed {MOST_FAILURES} times in a row: {said}"
            self._tell(Event(time_s=time.time(), name=f"{name} switched off", detail=detail))
            _log.info("stallmeter: %s is switched off: %s", name, detail)

    def _tell_failing(self, name: str, exc: Exception) -> str:
        said = _said(exc)
        if self.name_once(name, "failed", said, key=f"failing {name}", verb="failed and is tried again"):
            _log_traceback(name, exc)
        return said

    def _failed(self, name: str, exc: Exception, outcome: str) -> None:
        if self.name_once(name, outcome, _said(exc)):
            _log_traceback(name, exc)

    def name_once(self, name: str, outcome: str, detail: str, key: str = "", verb: str = "") -> bool:
        """Say in a warning and in the recording that something failed; the first time only. Returns whether it was."""
        this_time = object()
        # One atomic call in place of a look and an assignment: two threads that fail at once are named once.
        if self._named.setdefault(key or name, this_time) is not this_time:
            return False
        self._tell(Event(time_s=time.time(), name=f"{name} {outcome}", detail=detail))
        verb = verb or ("failed and is switched off" if outcome == "switched off" else outcome)
        _log.warning("stallmeter: %s %s; training goes on. %s", name, verb, detail)
        return True

    # -- what may hang -------------------------------------------------------------------------------------------------

    def ask(self, name: str, call: Callable[..., T], /, *args: Any, again: bool = False) -> T | None:
        """Guard a call to a source or a rule, which may hang: the sampler thread is then abandoned with it.

        One that fails is tried again, see `retry`; one that hangs is not.

        Args:
            name: What it is.
            call: What to call.
            args: What to call it with.
            again: Now, even if it was switched off, unless it hung.

        Raises:
            Abandoned: The call came back after all, but another thread has taken over.
        """

        def ask() -> T:
            try:
                return call(*args)
            except BaseException as exc:
                if isinstance(exc, (Exception, KeyboardInterrupt)):
                    raise
                # SystemExit and the like would end the thread without a word.
                raise RuntimeError(f"it raised {type(exc).__name__}") from exc

        if self.out_of_time:
            return None
        before, self._asked = self._asked, name
        found = self.attempt(name, ask) if again else self.retry(name, ask)
        if is_abandoned():
            raise Abandoned  # another thread goes on
        self._asked = before
        return found

    def abandon(self) -> bool:
        """Switch off the source or rule that hangs in the sampler thread; False when none does."""
        name = self._asked  # read once: the answer may come, and another be asked, at this very moment
        if not name:
            return False
        self._hung.add(name)
        self.name_once(name, "switched off", "it hangs: no answer came in time")
        self._asked = ""
        return True

    @property
    def has_hung(self) -> bool:
        """Whether something was abandoned because it hung."""
        return bool(self._hung)


def _is_of_a_handler(exc: BaseException) -> bool:
    """Whether the program's handler of a signal raised an error: a limit that is set by SIGALRM, for example."""
    if threading.current_thread() is not threading.main_thread():
        return False  # no handler is run there
    handlers = [one for number in signal.valid_signals() if callable(one := signal.getsignal(number))]
    known = [part for one in handlers for part in (one, getattr(one, "func", None), type(one).__call__)]
    codes = [code for part in known if (code := getattr(part, "__code__", None)) is not None]
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(exc.__traceback__))


def _log_traceback(name: str, exc: BaseException) -> None:
    """Log where something failed, for who debugs: messages of clients repeat addresses with their passwords."""
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("stallmeter: %s\n%s", name, redact("".join(traceback.format_exception(exc))))


@dataclass(slots=True)
class _Failures:
    """What has failed and may work again."""

    failures: int = 0
    """In a row."""
    wait: int = 0
    """Calls to leave out before the next try."""


def _said(exc: Exception) -> str:
    said = "".join(traceback.format_exception_only(type(exc), exc))  # str() of a foreign error may fail
    return redact(said[:2000]).strip()[:500]
