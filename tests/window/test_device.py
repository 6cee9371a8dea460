"""What the device's timeline tells."""

from __future__ import annotations

import pytest

from stallmeter.records import DeepProfile, SyncCalls
from stallmeter.window.device import DeviceSignals

from ..rules.windows import device_steps


def test_a_part_alone():
    """Steady steps count; what was looked at in a few steps is kept as it is."""
    made = DeviceSignals(size=16)
    assert (made.exposed_wait_share, made.h2d_share_pct, made.caught_up_share, made.pace_s) == (None,) * 4
    assert (made.syncs, made.profile) == (None, None)
    for found in device_steps(50, exposed=0.5):
        made.append(found)
    assert len(made.steps) == 47
    assert len(made.steps.items) <= 16
    assert made.exposed_wait_share == pytest.approx(0.5)
    assert made.h2d_share_pct == pytest.approx(1.0)
    assert made.caught_up_share == pytest.approx(0.5)
    assert made.pace_s == pytest.approx(0.099)
    made.append(SyncCalls(time_s=0.0, first_step=1, steps=2))
    made.append(DeepProfile(time_s=0.0, cause="compute-bound", first_step=1, steps=2, held_s=0.0))
    assert made.syncs is not None
    assert made.profile is not None
