"""What a loader or a framework asks the user's code for: batches, the next indices, what begins an epoch.

In a wait for data on this thread it is the sampler, which the loader asks however many workers there are, or what makes
the batch itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...records.code import AWAITS
from .fold import Frame, Seen
from .whose import Function

TIMED = "stallmeter/"
"""What asks for a batch in the loop's place, and times that."""

ASK = frozenset({"keras"})
"""Frameworks that ask for a batch between two events: what they call for it is the user's."""

LOADER, NEXT_INDEX = "torch/utils/data/dataloader.py", "._next_index"
"""Where a loader of torch asks its sampler, and by the end of which method's name."""

ITERATOR, BEGINS = ".__iter__", ("Iter.__init__", "._reset")
"""And where it has one begin: a sampler whose ``__iter__`` is no generator does all of its work there."""

TRAINERS = frozenset(
    {"accelerate", "ignite", "keras", "lightning", "lightning_fabric", "pytorch_lightning", "transformers"}
)
"""Packages that ask for loaders, and the user's hooks, where an epoch begins. What only calls the program is none."""

STARTS_PROCESSES = "multiprocessing/process.py"
"""On the stack of what a worker's start has done on this thread: a fork's handlers, what is pickled for a spawned one.
Workers that live on do without, so it is worker-startup's to tell."""

WORKER = "torch/utils/data/_utils/worker.py"
"""The loop of a worker: whatever called it was there before the worker began."""

TORCH = "torch/"
"""Whose loaders are looked into by other means, and wait for their workers."""

ITEMS = (".__getitem__", ".__getitems__")
"""Ends of the names of what a dataset is read by."""


def in_sampler(seen: Sequence[Seen]) -> list[Seen]:
    """Return the stacks in which a loader's sampler is asked for the next indices, from the sampler on.

    Args:
        seen: Of the thread that asks the loader for batches.
    """
    found = []
    for one in seen:
        at = _sampler_asked(one.stack)
        asked = () if at is None else one.stack[at + 1 :]
        # A sampler that reads the dataset, to learn lengths say, does so for itself.
        reads = (i for i, frame in enumerate(asked) if i and frame.function.own and frame.function.name.endswith(ITEMS))
        if asked:
            found.append(Seen(asked[: next(reads, None)], one.wall_s, one.cpu_s))
    return found


def at_epoch_starts(seen: Sequence[Seen]) -> list[Seen]:
    """Return the stacks of what a loader or a framework has the user's code do where an epoch begins.

    What the start of a worker has it do is left out.

    Args:
        seen: Of the thread that asks for a loader's iterator and its first batch.
    """
    found = []
    for one in seen:
        if _sampler_asked(one.stack) is not None:
            found += in_sampler([one])
            continue
        asked = next((i for i, frame in enumerate(one.stack) if _begins_epochs(frame.function)), len(one.stack))
        if _starts_worker(one.stack[asked:]):
            continue
        if any(frame.function.own for frame in one.stack[asked:]):
            found.append(Seen(one.stack[asked:], one.wall_s, one.cpu_s))
    return found


def in_worker(seen: Sequence[Seen]) -> list[Seen]:
    """Return what a worker of torch's does, without what the process was in that it was forked from.

    Args:
        seen: Of the worker's own thread.
    """
    found = []
    for one in seen:
        loops = [i for i, frame in enumerate(one.stack) if frame.function.file == WORKER]
        found.append(Seen(one.stack[loops[-1] + 1 :], one.wall_s, one.cpu_s) if loops else one)
    return found


def _starts_worker(stack: Sequence[Frame]) -> bool:
    begun = next((i for i, frame in enumerate(stack) if frame.function.file == LOADER), len(stack))
    return any(frame.function.file == STARTS_PROCESSES for frame in stack[begun:])


def _begins_epochs(function: Function) -> bool:
    return function.file.startswith((TIMED, LOADER)) or function.package in TRAINERS


def in_batches(seen: Sequence[Seen]) -> list[Seen]:
    """Return the stacks in which a batch is made on the thread that waits for it, sampler left out.

    By code of the user's; or by a library's alone, below the call that is timed, where that is not torch's and does not
    wait for others.

    Args:
        seen: Of the thread that asks for batches, below the call that is timed; or below a framework that asks itself.
    """
    found = []
    for one in seen:
        asked = [i for i, frame in enumerate(one.stack) if _asks_for_batches(frame.function)]
        made = one.stack[asked[-1] + 1 :] if asked else ()
        timed = bool(asked) and one.stack[asked[-1]].function.file.startswith(TIMED)
        makes = any(frame.function.own for frame in made) or (timed and _is_of_a_library(made))
        if makes and _sampler_asked(made) is None:
            found.append(Seen(made, one.wall_s, one.cpu_s))
    return found


def _is_of_a_library(stack: Sequence[Frame]) -> bool:
    if not stack or stack[-1].function.dotted.partition(".")[0] in AWAITS:
        return False
    return not any(frame.function.file.startswith(TORCH) for frame in stack)


def _asks_for_batches(function: Function) -> bool:
    return function.file.startswith(TIMED) or (not function.own and function.package in ASK)


def _sampler_asked(stack: Sequence[Frame]) -> int | None:
    """Return which frame of a stack asks a loader's sampler; None where none does."""
    for i, frame in enumerate(stack):
        function = frame.function
        if function.file != LOADER:
            continue
        if function.name.endswith(NEXT_INDEX):
            return i
        asked = stack[i + 1].function if i + 1 < len(stack) else None
        if function.name.endswith(BEGINS) and asked is not None and asked.own and asked.name.endswith(ITERATOR):
            return i
    return None
