"""What is said of a library's call that takes most of a batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.records import CodeSpot
from stallmeter.records.diagnosis import Location
from stallmeter.rules.libraries import BY_CALL, beside

from .windows import check_fix

READ = CodeSpot(
    file="data.py",
    line=30,
    function="Windows.__getitem__",
    own=True,
    wall_s=0.9,
    calls=("h5py.Dataset.__getitem__",),
    called_there="h5py.Dataset.__getitem__",
)


def test_hdf5_unpacks_whole_chunks() -> None:
    (advice,) = beside(Location.of(READ, 90.0))
    assert "rdcc_nbytes" in advice.fix.do
    assert advice.predicted_gain_pct is None


def test_nothing_is_known_of_most() -> None:
    assert beside(Location.of(replace(READ, calls=("json.loads",), called_there="json.loads"), 90.0)) == ()
    assert beside(Location.of(replace(READ, calls=(), called_there=""), 90.0)) == ()


@pytest.mark.parametrize("call", BY_CALL)
def test_form(call: str) -> None:
    check_fix(BY_CALL[call].fix)
