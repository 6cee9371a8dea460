"""Carries what the ranks of a job agree on about their workers: rank 0's orders there, the others' words back.

It happens on the sampler thread, through clients of our own: no collective, no barrier, no call into a process group.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from ..ranks.run_folder import Channel, Channels
from ..workers.agreement import Follower, Leader
from .job_watch import HasHeader

RANKS_PER_S = 128
"""Others look for orders this often in all, at most: each look costs the store's thread a tenth of a millisecond."""

LOOKS = 3.0
"""An order is given this many looks before it is to be carried out: a thread may be late by one, and so may a tick."""


def look_s(interval_s: float, world_size: int) -> float:
    """Return the seconds between two looks of a rank.

    Args:
        interval_s: Between two ticks of the sampler thread.
        world_size: Ranks.
    """
    return max(interval_s, world_size / RANKS_PER_S)


def part_of(rank: int, world_size: int, interval_s: float) -> Leader | Follower:
    """Return what a rank knows of the others at first."""
    return Follower() if rank else Leader(world_size, LOOKS * look_s(interval_s, world_size))


class JobWorkers:
    """One rank's part in the job's number of workers.

    Args:
        rank: Of this process.
        part: What is known here.
        channels: What connects the ranks.
        every_s: Seconds between two looks.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        rank: int,
        part: Leader | Follower,
        channels: Channels,
        *,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rank = rank
        self._part = part
        self._channels = channels
        self._every_s = every_s
        self._clock = clock
        self._due_s = float("-inf")
        self._open: dict[str, Channel] = {}
        self._posted = ""

    def exchange(self, recorder: HasHeader | None, ended: bool = False) -> list[str]:
        """Tell and hear what is new; returns the trials that rank 0 has told, encoded.

        Args:
            recorder: Of this rank: all ranks of a run share its id.
            ended: Whether the run ends: nothing is changed any more.

        Raises:
            OSError: Nobody can be reached.
        """
        # A look that is due within a tenth of the pause is due now: ticks are not that even.
        header = None if recorder is None else recorder.header
        early = self._clock() < self._due_s - 0.1 * self._every_s
        if header is None or not header.run_id or (early and not ended):
            return []
        self._due_s = self._clock() + self._every_s
        try:
            self._connect(f"workers/{header.run_id}")
            if isinstance(self._part, Leader):
                self._lead(self._part, ended)
                return []
            return [] if ended else self._follow(self._part)
        except OSError:
            self._open.clear()
            raise

    def _connect(self, topic: str) -> None:
        there = self._channels(topic)
        for address in self._open.keys() - there.keys():
            del self._open[address]
        for address in there.keys() - self._open.keys():
            self._open[address] = there[address]()
            self._posted = ""  # where nobody has read it
            if self._rank == 0:
                self._open[address].expect_posts()

    def _lead(self, leader: Leader, ended: bool) -> None:
        if ended:
            for channel in self._open.values():
                channel.end_posts(range(leader.world_size))
            return
        if self._tell(leader.text()):
            leader.posted()
        for rank in leader.awaited:
            for channel in self._open.values():
                text = channel.posted(rank)
                if text is not None:
                    with contextlib.suppress(ValueError):  # of another version
                        leader.hear(rank, text)

    def _follow(self, follower: Follower) -> list[str]:
        told: list[str] = []
        for channel in self._open.values():
            text = channel.posted(0)
            if text is not None:
                with contextlib.suppress(ValueError):
                    told += follower.hear(text)
        self._tell(follower.word.text())
        return told

    def _tell(self, text: str) -> bool:
        """Post what is new; returns whether it can be read now."""
        if text != self._posted and self._open:
            left = [channel.post(self._rank, text) for channel in self._open.values()]
            self._posted = text if any(left) else ""
        return text == self._posted
