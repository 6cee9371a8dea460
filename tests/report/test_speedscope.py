"""What looks saw, for speedscope, and as flame graphs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from stallmeter.recording.format import decode, encode
from stallmeter.records import CodeLook, CodeSpot, CodeStack
from stallmeter.report.page.flames import flames
from stallmeter.report.speedscope import to_speedscope
from stallmeter.sources.code.fold import Frame, Seen, fold
from stallmeter.sources.code.whose import Function

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


def test_what_is_the_users_has_its_own_colour():
    """Also a function that calls one of the user's, and so owns no time; in an old recording it needs some."""
    get = Function("Photos.__getitem__", "train.py", True, first_line=10)
    decoded = Function("decode", "train.py", True, first_line=20)
    rotate = Function("Image.rotate", "PIL/Image.py", False, "PIL.Image.Image.rotate", "PIL", first_line=2000)
    compress = Function("compress", "", False, "zlib.compress", "zlib")
    found = fold([Seen((Frame(get, 12), Frame(decoded, 22), Frame(rotate, 2100), Frame(compress)), 1.0)])
    look = replace(_look(*found.stacks), spots=found.spots)
    old = replace(look, stacks=tuple(replace(stack, own=()) for stack in found.stacks))
    tones = [[bar.tone for bar in flames([one])[0].bars] for one in (look, old)]
    assert tones == [["data_wait", "data_wait", "second", "limit"], ["second", "data_wait", "second", "limit"]]
    assert decode(encode(look)) == look
    line = encode(old).replace(',"own":[]', "")
    assert '"own":[' not in line
    assert decode(line) == old
