"""Which steps are kept where there are too many: rows of steps, chosen by their index alone.

What a rank does after the exchange of gradients is waited for in the step after: single steps hold one side only, who
was late or who waited. What comes each so-many-th step, a checkpoint, a logged value, must be in as many of the rows as
it is in the run. So no two rows are chosen at a fixed distance.
"""

from __future__ import annotations

FIRST_STEPS = 200
"""Steps from the start of a run that are all kept, and that trackers get one by one: there a slow start can be seen as
it happened."""

ROW = 8
"""Steps in a row."""

_GOLDEN, _RANGE = 0x9E3779B1, 1 << 32
"""Multiples of the golden ratio, whole turns left out, fill a circle evenly, and so does each so-many-th of them."""


def is_kept(index: int, every: int) -> bool:
    """Whether a step is kept where one row in so many is. All that are kept of more rows are kept of fewer.

    Args:
        index: Of the step.
        every: 1 keeps all.
    """
    return every == 1 or (index // ROW * _GOLDEN) % _RANGE * every < _RANGE
