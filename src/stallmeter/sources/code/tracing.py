"""What torch spends on the stack of calls that it notes for each operation while it looks for anomalies."""

from __future__ import annotations

from collections.abc import Sequence

from .fold import Seen

FORMATS = "format_stack"
FILES = ("torch/fx/traceback.py", "traceback.py")
"""Files whose function of that name torch calls for it, the second one up to torch 2.4."""


def tracing_s(seen: Sequence[Seen]) -> float:
    """Return the seconds below such a call.

    Args:
        seen: Of the steps.
    """
    return sum(
        one.wall_s for one in seen if any(_formats(frame.function.file, frame.function.name) for frame in one.stack)
    )


def _formats(file: str, name: str) -> bool:
    return name == FORMATS and file in FILES
