"""The change of the user's own code that a run has shown to help: ready to paste."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import LoaderInfo, WorkerTrial
from ..records.diagnosis import Verdict
from .settings import NUM_WORKERS, PERSISTENT, PREFETCH, THREADS, Value, changes

ORDER = (NUM_WORKERS, PERSISTENT, PREFETCH, "pin_memory", "multiprocessing_context")
"""Arguments of a ``DataLoader``, as they are written."""

TORCHS_OWN = 2
"""``prefetch_factor`` of a loader with workers whose program sets none."""


def patch(verdict: Verdict, loader: LoaderInfo | None, trials: Sequence[WorkerTrial] = ()) -> str | None:
    """Return the arguments that the training loader should be made with; None where nothing is to be changed.

    What was tried in the run and kept is part of it, what was taken back is not. What a verdict asks for without a
    prediction is left out: it is not known to help.

    Args:
        verdict: The newest.
        loader: The training loader's settings, as they are now.
        trials: What was tried, in order.
    """
    values: dict[str, Value | None] = {
        change.setting: change.value for change in changes(verdict, loader) if change.predicted_gain_pct is not None
    }
    advice = verdict.num_workers
    if advice is not None and advice.recommended != advice.current:
        values[NUM_WORKERS] = advice.recommended
        if advice.torch_threads is not None:
            values[THREADS] = advice.torch_threads
        if advice.prefetch_factor is not None:
            values[PREFETCH] = advice.prefetch_factor
        if not advice.current:  # workers that start again each epoch would take a part of the gain
            values[PERSISTENT] = True
    kept: dict[str, Value | None] = {}
    for tried in trials:
        if tried.outcome == "kept":
            kept[tried.setting] = tried.workers
        elif tried.outcome == "reverted":
            for known in (values, kept):
                if known.get(tried.setting) == tried.workers:
                    del known[tried.setting]
    values = kept | values
    if values.get(NUM_WORKERS) == 0:
        values = {name: value for name, value in values.items() if name not in (PERSISTENT, PREFETCH)}
        values |= _without_workers(loader)
    lines = [f"{THREADS}({values[THREADS]})"] if THREADS in values else []
    arguments = [f"{name}={values[name]!r}" for name in ORDER if name in values]
    lines += [f"DataLoader(..., {', '.join(arguments)})"] if arguments else []
    return "\n".join(lines) or None


def _without_workers(loader: LoaderInfo | None) -> dict[str, Value | None]:
    """Return what the program must take back of what it sets, for torch takes it with workers only."""
    found: dict[str, Value | None] = {}
    if loader is not None and loader.persistent_workers:
        found[PERSISTENT] = False
    if loader is not None and loader.prefetch_factor not in (None, TORCHS_OWN):
        found[PREFETCH] = None
    return found
