"""What looks saw, for speedscope, and as flame graphs."""

from __future__ import annotations

import json

import pytest

from stallmeter.records import CodeLook, CodeSpot, CodeStack
from stallmeter.report.page.flames import flames
from stallmeter.report.speedscope import to_speedscope

from .recordings import HOSTILE

SPOT = CodeSpot(file="t.py", line=8, function="Rotate.__call__", own=True, wall_s=0.7)


def _look(*stacks: CodeStack) -> CodeLook:
    return CodeLook(
        time_s=0.0,
        place="workers",
        rule="",
        method="profile",
        seen=3,
        wall_s=1.0,
        cpu_s=0.5,
        spots=(SPOT,),
        stacks=stacks,
    )


STACKS = (
    CodeStack(frames=("fetch (torch/f.py:1)", "Rotate.__call__ (t.py:5)", "zlib.compress"), wall_s=0.7),
    CodeStack(frames=("fetch (torch/f.py:1)",), wall_s=0.3),
)


def test_speedscope_reads_it():
    found = to_speedscope([_look(*STACKS)])
    assert found is not None
    (profile,) = found["profiles"]
    frames = found["shared"]["frames"]
    assert {"name": "Rotate.__call__", "file": "t.py", "line": 5} in frames
    assert {"name": "zlib.compress"} in frames
    assert [[frames[i]["name"] for i in sample] for sample in profile["samples"]][1] == ["fetch"]
    assert profile["endValue"] == pytest.approx(sum(profile["weights"])) == pytest.approx(1.0)
    json.dumps(found)


def test_without_stacks_there_is_nothing_to_show():
    assert to_speedscope([_look()]) is None
    assert flames([_look()]) == []


def test_bars_are_as_wide_as_their_time_and_callees_above():
    (flame,) = flames([_look(*STACKS)])
    fetch, rotate, compress = flame.bars
    assert (fetch.width, rotate.width, compress.width) == (1000.0, 700.0, 700.0)
    assert fetch.y > rotate.y > compress.y >= 0
    assert fetch.y + 18 == flame.height
    assert (rotate.tone, fetch.tone, compress.tone) == ("data_wait", "second", "limit")
    assert rotate.label == "Rotate.__call__"


def test_hostile_names_are_one_line():
    (flame,) = flames([_look(CodeStack(frames=(HOSTILE,), wall_s=1.0))])
    assert "\n" not in flame.bars[0].said
    assert "\x1b" not in flame.bars[0].said
