"""One colour per bucket and per quantity, the same in every picture. Each has a tone for light and one for dark pages.

Reds and oranges wait for data, blues compute, the rest is neither. Neighbours in a stack differ in lightness too, so
that they can be told apart without telling the hues apart.
"""

from __future__ import annotations

from collections.abc import Mapping

PALETTE: Mapping[str, tuple[str, str]] = {
    "start": ("#c3cad6", "#566072"),
    "warmup": ("#9aa8bd", "#728097"),
    "worker_startup": ("#f2a65e", "#f0a35a"),
    "data_wait": ("#d64550", "#f0616b"),
    "h2d": ("#efc94c", "#e6c453"),
    "forward": ("#7db7e8", "#7db7e8"),
    "backward": ("#3b82c4", "#4a90d9"),
    "optimizer": ("#1f4e86", "#2f65a7"),
    "callbacks": ("#9b6fc3", "#a983d0"),
    "logging": ("#c9a3dd", "#c9a3dd"),
    "checkpoint": ("#8a6d4b", "#a98a62"),
    "validation": ("#6fae75", "#79b880"),
    "loop": ("#8f9bb0", "#8592a8"),
    "compute": ("#3b82c4", "#4a90d9"),
    "other": ("#5d6675", "#b9c1cf"),
    "step": ("#3b82c4", "#6aa9ea"),
    "tail": ("#1f4e86", "#a9cdf3"),
    "cpu": ("#2a9d8f", "#3bb3a4"),
    "blocked": ("#efc94c", "#e6c453"),
    "queued": ("#9b6fc3", "#a983d0"),
    "second": ("#e08a3c", "#f0a35a"),
    "third": ("#6fae75", "#79b880"),
    "limit": ("#5d6675", "#b9c1cf"),
}
"""Name to (light, dark). Names that are no bucket: ``step`` and ``tail`` of the step time, what a worker does
(``cpu``, ``blocked``, ``queued``), and ``second``, ``third``, ``limit`` for curves beside each other."""


def tone(name: str) -> str:
    """Return the palette's name for a bucket; buckets of a newer version share the tone of ``other``."""
    return name if name in PALETTE else "other"
