"""How ranks and their work are put into words."""

from __future__ import annotations

from collections.abc import Sequence

OTHERS = "the other ranks"
"""What it lacks where nothing, or not enough, is known of them."""

SHOWN = 6
"""More ranks are counted, not listed."""

_WORK = {
    "data_wait": "its data",
    "worker_startup": "the start of its workers",
    "h2d": "its copies to the device",
    "forward": "its forward pass",
    "backward": "its backward pass",
    "compute": "its own work in the loop's body",
    "": "its own work before the exchange",
    "optimizer": "its optimizer",
    "callbacks": "its callbacks",
    "logging": "its logging",
    "checkpoint": "its checkpoints",
    "validation": "its validation",
    "loop": "its own work between the steps",
    "other": "its own work between the steps",
}


def named(bucket: str) -> str:
    """Return the words for what a rank was late with."""
    return _WORK.get(bucket, bucket)


def of_ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 1``, ``ranks 1 and 3``, ``ranks 1, 3, 5 and 7 more``; nothing for none."""
    if not ranks:
        return ""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = list(map(str, ranks[:SHOWN]))
    rest = len(ranks) - len(shown)
    if rest:
        return f"ranks {', '.join(shown)} and {rest} more"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"
