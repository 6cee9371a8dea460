"""How ranks and their work are put into words."""

from __future__ import annotations

from collections.abc import Sequence

from ...ranks.between import BETWEEN
from .losses import COMPUTE, Loss

OTHERS = "the other ranks"
"""What it lacks where nothing, or not enough, is known of them."""

SHOWN = 6
"""More ranks are counted, not listed."""

RARE = 4
"""Who is late in fewer than each so-many-th step is late now and then."""

MOSTLY = 0.6
"""Part of a loss that is one bucket's, so that the bucket is named."""

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
    BETWEEN: "its own work between two epochs",
}


def named(bucket: str, *, many: bool = False) -> str:
    """Return the words for what a rank was late with, or many were."""
    words = _WORK.get(bucket, bucket)
    return words.replace("its ", "their ") if many else words


def work_of(loss: Loss) -> str:
    """Return the words for what ranks were late with; where that is several kinds of own work, for all of it."""
    many = len(loss.ranks) > 1
    if loss.bucket != COMPUTE:
        return named(loss.bucket, many=many)
    largest = max(loss.parts, key=lambda bucket: loss.parts[bucket], default="")
    if loss.parts.get(largest, 0.0) < MOSTLY:
        return "their own work" if many else "its own work"
    return named(largest, many=many)


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


def time(seconds: float) -> str:
    """Return a time of a step."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def waited(loss: Loss) -> str:
    """Say how long the others waited for whom, and with what that one was late, without a full stop."""
    who = of_ranks(loss.ranks) or "the last rank"
    late = f", late with {work_of(loss)}" if loss.ranks else ""
    share = f"{100.0 * loss.share:.0f} % of the training time"
    if loss.ranks and 0 < loss.steps * RARE < loss.of_steps:
        each_s = loss.per_step_s * loss.of_steps / loss.steps
        times = "once" if loss.steps == 1 else f"{loss.steps:,} times"
        return (
            f"In {loss.of_steps:,} steps the other ranks waited {times} for {who}{late}, {time(each_s)} each: {share}"
        )
    return f"In a mean step the other ranks waited {time(loss.per_step_s)} for {who}{late}: {share}"


_MEETINGS = ("torch.autograd", "torch.distributed", "backward", "all_reduce", "all_gather", "barrier", "broadcast")


def waits_for_ranks(place: str) -> bool:
    """Whether a place in the program is one where ranks meet, as far as its words say."""
    return any(word in place for word in _MEETINGS)
