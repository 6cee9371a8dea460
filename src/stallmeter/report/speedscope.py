"""What looks into the code saw, as a file for speedscope and for every viewer that reads its format.

The format: https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources. Nothing is loaded from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..records import CodeLook
from ..records.code import HELPERS

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def to_speedscope(looks: Sequence[CodeLook]) -> dict[str, Any] | None:
    """Return one profile for each look; None where none saw a stack."""
    seen = [look for look in looks if look.stacks]
    if not seen:
        return None
    names = sorted({frame for look in seen for stack in look.stacks for frame in stack.frames})
    index = {name: i for i, name in enumerate(names)}
    return {
        "$schema": SCHEMA,
        "exporter": "stallmeter",
        "shared": {"frames": [_frame(name) for name in names]},
        "profiles": [_profile(look, index) for look in seen],
    }


def where(look: CodeLook) -> str:
    """Return what a look looked at, in a few words."""
    if look.place == "workers":
        return f"making batches ({look.seen} batch{'es' * (look.seen != 1)})"
    if look.place == HELPERS:
        return "other threads, beside the steps" if look.bucket else "other threads, while the loop waits for one"
    return ": ".join(part for part in (look.bucket or look.place, look.part) if part)


def _frame(name: str) -> dict[str, Any]:
    function, _, place = name.rpartition(" (")
    file, _, line = place.rstrip(")").rpartition(":")
    if not function or not line.isdigit():
        return {"name": name}
    return {"name": function, "file": file, "line": int(line)}


def _profile(look: CodeLook, index: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "sampled",
        "name": where(look),
        "unit": "seconds",
        "startValue": 0,
        "endValue": sum(stack.wall_s for stack in look.stacks),
        "samples": [_indices(stack.frames, index) for stack in look.stacks],
        "weights": [stack.wall_s for stack in look.stacks],
    }


def _indices(frames: Iterable[str], index: dict[str, int]) -> list[int]:
    return [index[frame] for frame in frames]
