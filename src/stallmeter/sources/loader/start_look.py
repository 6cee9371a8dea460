"""A look into the first batch of a worker: in which function a start that takes long is spent.

By samples of the stack and with no profiler, whose calls would make a table that is read at the beginning take several
times as long. The thread that takes them lives as long as that batch is made, in one worker. Where a function of C
holds the interpreter's lock the look comes when that has returned, and stands for all the time since the one before.
"""

from __future__ import annotations

import random
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from time import monotonic_ns

from ...machine.frames import CAN_LOOK, Stack, stack_of

SWITCH_S = 0.00005
"""Switch interval of the interpreter meanwhile; see `stallmeter.sources.stacks.sampler`, whose it is."""

EVERY_S = 0.01
"""Time between two looks, at first."""

THINNING = 1 / 200
"""Part of the time since the beginning that lies between two looks: a start of an hour has some 1,500."""

LEAST = 10
"""Fewer looks say nothing; as `stallmeter.rules.location.LEAST_SAMPLES`. A start that is as short is none to look
into."""


class StartLook:
    """Looks at the thread that makes it until `end`, which that thread calls.

    Args:
        path: File to write what was seen to.
        loader: Which of the training's loaders.
    """

    def __init__(self, path: str, loader: int) -> None:
        self._path = path
        self._loader = loader
        self._looked_at = threading.get_ident()
        self._looks: list[tuple[Stack, int]] = []
        """Stacks, and the time that each stands for, ns."""
        self._ended = threading.Event()
        self._random = random.Random(0)  # noqa: S311 - its own: the program's numbers stay what they are
        self._thread = threading.Thread(target=self._run, name="stallmeter-start", daemon=True)
        self._switch_s = sys.getswitchinterval()
        if CAN_LOOK:
            self._thread.start()

    def end(self) -> None:
        """The batch is made: look no more, and hand over what was seen."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        if abs(sys.getswitchinterval() - SWITCH_S) < SWITCH_S / 2:  # else the program has set another one
            sys.setswitchinterval(self._switch_s)
        if len(self._looks) >= LEAST:
            self._hand_over()

    def _run(self) -> None:
        began = last = monotonic_ns()
        pause_s = EVERY_S
        while not self._ended.wait(pause_s * (0.5 + self._random.random())):
            stack = stack_of(self._looked_at)
            now = monotonic_ns()
            if self._ended.is_set():  # a function of C held the lock until after the batch: it stands elsewhere now
                return
            if not self._looks:  # quick first batches are left as they are
                sys.setswitchinterval(min(self._switch_s, SWITCH_S))
            self._looks.append((stack, now - last))
            last = now
            pause_s = max(EVERY_S, (now - began) / 1e9 * THINNING)

    def _hand_over(self) -> None:
        # Not where this module is imported: the loop waits for the batch that is made next.
        from ..code.asked import in_worker
        from ..code.fold import fold
        from ..code.reading import Reading
        from ..code.whose import Whose
        from .batch_look import FAILS, write_to

        with suppress(*FAILS):  # names and files of a program that is not as expected
            folded = fold(in_worker(Reading(Whose.of_program()).seen(self._looks)))
            write_to(self._path)(
                {
                    "loader": self._loader,
                    "seen": len(self._looks),
                    "wall_s": folded.wall_s,
                    "spots": [asdict(spot) for spot in folded.spots],
                    "stacks": [asdict(stack) for stack in folded.stacks],
                }
            )
