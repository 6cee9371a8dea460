"""Collections, summed over the run."""

from __future__ import annotations

from stallmeter.records import GarbagePauses
from stallmeter.window import Window

from ..rules.windows import window


def test_sums():
    """Records add up; the longest and the newest are kept."""
    pauses = [
        GarbagePauses(
            time_s=1.0,
            passes=2,
            pause_s=3.0,
            training_s=2.0,
            waiting_s=0.5,
            validation_s=0.25,
            longest_s=1.5,
            blocks=7,
        ),
        GarbagePauses(time_s=2.0, passes=1, pause_s=1.0, training_s=1.0, longest_s=0.5, automatic=False),
    ]
    garbage = window(*pauses).host.garbage
    assert (garbage.training_s, garbage.waiting_s, garbage.step_s) == (3.0, 0.5, 2.25)
    assert (garbage.other_threads_s, garbage.longest_s, garbage.passes) == (1.0, 1.5, 3)
    assert (garbage.blocks, garbage.automatic) == (7, False)


def test_nothing():
    """Not measured is None, not nought."""
    garbage = Window().host.garbage
    assert (garbage.training_s, garbage.waiting_s, garbage.step_s, garbage.other_threads_s) == (None,) * 4
    assert (garbage.longest_s, garbage.passes, garbage.blocks, garbage.automatic) == (None,) * 4
