"""Uploading files within a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from ....records.interfaces import Page


@dataclass(slots=True)
class Upload:
    """Files on their way to a run, in a daemon thread: not every store of artifacts has a timeout that we can set."""

    page: Page
    upload: Callable[[], None]
    error: BaseException | None = None
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="stallmeter-upload", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Return True when it is over.

        Raises:
            BaseException: What the upload raised.
        """
        self._thread.join(seconds)
        if self.error is not None:
            raise self.error
        return not self._thread.is_alive()

    def _run(self) -> None:
        with self:
            self.upload()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> bool:
        self.error = exc  # not lost: raised again by `wait`, in the thread that can report it
        return True
