"""Which rules could not judge a run, and for want of what."""

from __future__ import annotations

from collections.abc import Iterable

from ..records import NO_LOADER, LoaderInfo
from ..records.diagnosis import Abstention
from . import wording


def abstention(item: Abstention) -> str:
    """Return which rule could not judge, and for want of what."""
    missing = ", ".join(wording.one_line(m, wording.NAME_LIMIT) for m in item.missing)
    return f"{wording.one_line(item.rule, wording.NAME_LIMIT)} (needs {missing or 'more steps'})"


_GPU, _NO_GPU = "not known of the GPU", "GPU rules: no GPU was seen"
_LOADER = "not known of the loader and its workers"
_WORKERS, _NO_WORKERS = "workers", "rules about workers: there are none"
_OF_WORKERS = ("workers.", "queue.", "loader.producers.")
_ABOUT = {
    _GPU: ("gpu.", "device.caught", "device.h2d", "device.syncs"),
    "torch.compile was not seen": ("device.compiler.",),
    "torch was not asked": ("device.modes.",),
    _LOADER: ("loader.", "queue.", "workers."),
    "not known of the machine": ("host.",),
    "not known of model and optimizer": (
        "spent.optimizer",
        "spent.unused_gradients",
        "spent.tensors.",
    ),
    "no batches smaller than others were seen": ("sizes.",),
    "too few steps": ("ledger.", "spent.", "steps."),
}
"""Why rules cannot judge, by how the signals begin that they miss; one that misses several is named with the first."""


def unjudged(
    abstained: Iterable[Abstention], *, gpu_seen: bool, loader: LoaderInfo | None, most: int = 99
) -> list[str]:
    """Return which rules could not judge, together where they miss the same kind of signal; the JSON has each signal.

    Args:
        abstained: The rules.
        gpu_seen: Whether anything of a GPU was measured.
        loader: Without workers it has no rules about them.
        most: Rules of a kind that are named; of more only their number is told.
    """
    groups: dict[str, list[str]] = {}
    others, has_none = [], loader is not None and (loader.num_workers == 0 or loader.kind == NO_LOADER)
    for item in abstained:
        about = _about(item)
        if about is None:
            others.append(abstention(item))
            continue
        of_workers = has_none and about == _LOADER and all(name.startswith(_OF_WORKERS) for name in item.missing)
        groups.setdefault(_WORKERS if of_workers else about, []).append(wording.one_line(item.rule, wording.NAME_LIMIT))
    none = [_NO_GPU] if not gpu_seen and groups.pop(_GPU, []) else []
    none += [_NO_WORKERS] if groups.pop(_WORKERS, []) else []
    said = (f"{about}: {', '.join(n) if len(n) <= most else f'{len(n)} rules'}" for about, n in groups.items())
    return [*none, *said, *others]


def _about(item: Abstention) -> str | None:
    for about, begins in _ABOUT.items():
        if any(name.startswith(begins) for name in item.missing):
            return about
    return None
