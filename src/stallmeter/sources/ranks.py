"""The job's other ranks on this host, found by the headers of their recordings.

A source of its own, so that a folder that hangs takes nothing else with it. It makes no records.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import RecordingError
from ..machine.processes import set_known_ranks
from ..recording import Reader, ranks
from ..records import Sample

LONGEST_S = 64.0
"""Ranks start within seconds of each other: it is looked for missing ones after 1, 2, 4 … seconds, up to this."""


class RankSource:
    """Tells `stallmeter.machine.processes` which processes record other ranks of this job.

    Args:
        folder: Returns the recording's folder, None while there is none.
        rank: The rank of this process.
        others: Other ranks that this host may have: once all are found, the folder is not looked at again.
        host: Name of this host, as in headers.
    """

    name = "ranks"

    def __init__(
        self, folder: Callable[[], Path | None], rank: int, others: int, host: str = socket.gethostname()
    ) -> None:
        self._folder = folder
        self._rank = rank
        self._others = others
        self._host = host
        self._complete = False
        self._due_s = float("-inf")
        self._wait_s = 1.0
        set_known_ranks({})

    def sample(self, time_s: float) -> Sequence[Sample]:
        """Look for ranks that are not known yet, where it is time to; returns nothing.

        Args:
            time_s: Unix time of this poll.
        """
        folder = self._folder()
        # A clock that was set back must not put the next look off.
        if folder is None or self._complete or time_s < self._due_s <= time_s + LONGEST_S:
            return ()
        self._due_s = time_s + self._wait_s
        self._wait_s = min(2.0 * self._wait_s, LONGEST_S)
        found = {}
        for rank in ranks(folder):
            try:
                header = Reader(folder, rank).newest()[1]
            except (RecordingError, OSError):  # it is just being made
                continue
            if rank != self._rank and header.host == self._host:
                found[header.pid] = header.started_s
        set_known_ranks(found)
        self._complete = len(found) >= self._others
        return ()

    def close(self) -> None:
        """The other ranks are none of a later run's."""
        set_known_ranks({})
