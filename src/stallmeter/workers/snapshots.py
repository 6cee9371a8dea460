"""What a loader's own state costs: torchdata's `StatefulDataLoader` has a worker send it with a batch."""

from __future__ import annotations

from ..records.diagnosis import Advice
from ..window import Window
from .forecast import Outlook

OFTEN = 8
"""Batches from one state to the next from which on it is no matter: then it comes beside a few batches; our choice."""

LEAST_PCT = 5.0
"""Gain of a quick hand-over, percent, from which on it is worth a change: twice the noise of a step time."""


def rarer_snapshots(window: Window, predicted: Outlook, *, alone: bool = True) -> tuple[Advice, ...]:
    """Return the advice to send the state with fewer batches; nothing where none is sent, or batches come quickly.

    How much of a hand-over is the state is not known: a dataset that keeps a shuffle buffer has it pickled each time,
    and one that keeps a number sends next to nothing.

    Args:
        window: Of the run.
        predicted: Of its loader.
        alone: Whether it stands for itself, with a gain: that of a quick hand-over at the most.
    """
    info = window.loader.info
    every = None if info is None else info.snapshot_every_batches
    gain = predicted.without.gain_pct(predicted.without.light_handover_s)
    if every is None or not 0 < every < OFTEN or gain is None or gain < LEAST_PCT:
        return ()
    interval = predicted.interval_pct(gain)
    return (
        Advice.of(
            "Raise the loader's snapshot_every_n_steps, to 50 say.",
            expect="Its dataset's state is sent with one batch in so many, and no longer with each.",
            limit="Where a run is resumed, the batches since the last state are made again.",
            gain_pct=predicted.of_run(gain) if alone else None,
            interval_pct=(0.0, interval[1]) if alone and interval is not None else None,
        ),
    )
