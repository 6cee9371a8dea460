"""What the workers wait in while they make a batch: a few looks at a time, from beside them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from ...machine import blocked
from ...machine.blocked import Wait
from ...records import WorkerWaits
from .ring import Making

LOOKS = 8
"""Looks at a time, as long as little is known. Neighbouring ones find the same batch: more would tell little more."""

APART_S = 0.004
"""Time between two of them."""

POLLS = 40
"""Polls with several looks; from then on there is one look a poll."""

MOST_LOCKS = 256
"""Locks that are told apart."""


class WaitLooks:
    """Looks at workers. For one thread.

    Args:
        making: Returns the batches that are being made at this moment.
        waits_in: Says what a process waits in; None when that cannot be read.
        sleep: Waits for so many seconds.
    """

    def __init__(
        self,
        making: Callable[[], Sequence[Making]],
        waits_in: Callable[[int], Wait | None] = blocked.waits_in,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._making, self._waits_in, self._sleep = making, waits_in, sleep
        self._polls = 0
        self._can = blocked.is_known_here() or waits_in is not blocked.waits_in
        self._locks: Counter[str] = Counter()

    def sample(self, time_s: float, *, same_addresses: bool) -> WorkerWaits | None:
        """Look a few times; None when no worker was making a batch, or none could be looked at.

        Args:
            time_s: Unix time.
            same_addresses: Workers were forked, so that one address in two of them is one lock. With others each has an
                address of its own, and all locks in memory count as one.
        """
        if not self._can or not self._making():
            return None
        looks = [self._look()]
        self._polls += 1
        for _ in range(LOOKS - 1 if self._polls <= POLLS and looks[0] else 0):
            self._sleep(APART_S)
            looks.append(self._look())
        return self._sum_up(time_s, [look for look in looks if look], same_addresses)

    def _look(self) -> list[Wait]:
        try:
            found = [(batch, self._waits_in(batch.pid)) for batch in self._making()]
        except PermissionError:  # it will be the same for all of them, and for ever
            self._can = False
            return []
        # The batch that it was about may have been finished meanwhile: an idle worker waits, too, and for nothing.
        still = set(self._making())
        return [wait for batch, wait in found if wait is not None and batch in still]

    def _sum_up(self, time_s: float, looks: list[list[Wait]], same_addresses: bool) -> WorkerWaits | None:
        if not looks:
            return None
        locks = [[_lock(wait, same_addresses) for wait in look if wait.kind == blocked.LOCK] for look in looks]
        for found in locks:
            self._locks.update(found if len(self._locks) < MOST_LOCKS else [one for one in found if one in self._locks])
        most = self._locks.most_common(1)[0][0] if self._locks else ""
        kinds = Counter(wait.kind for look in looks for wait in look)
        return WorkerWaits(
            time_s=time_s,
            looks=len(looks),
            workers=sum(kinds.values()),
            running=kinds[blocked.RUNNING],
            lock=kinds[blocked.LOCK],
            threads=kinds[blocked.THREADS],
            sleep=kinds[blocked.SLEEP],
            socket=kinds[blocked.SOCKET],
            file=kinds[blocked.FILE],
            other=kinds[blocked.OTHER],
            queued=sum(found.count(most) for found in locks),
            contended=sum(most in found for found in locks),
        )


def _lock(wait: Wait, same_addresses: bool) -> str:
    return wait.what if same_addresses or not wait.what.startswith("futex") else "futex"
