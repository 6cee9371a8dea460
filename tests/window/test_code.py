"""The newest look at each place of the code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.recording.format import decode, encode
from stallmeter.records import CodeItem, CodeLook, CodeSpot, CodeStack, LedgerRecord, StepRecord
from stallmeter.window import Window
from stallmeter.window.torch_calls import Recomputed


def _look(place: str, bucket: str = "", part: str = "", wall_s: float = 1.0, time_s: float = 0.0) -> CodeLook:
    return CodeLook(
        time_s=time_s, place=place, rule="", bucket=bucket, part=part, method="profile", seen=3, wall_s=wall_s
    )


def test_a_newer_look_replaces_the_one_at_the_same_place():
    window = Window()
    window.append(_look("workers", time_s=1.0))
    window.append(_look("workers", time_s=2.0))
    assert [look.time_s for look in window.code.looks] == [2.0]


def test_a_named_part_is_found_and_without_a_name_the_one_that_saw_the_most():
    window = Window()
    window.append(_look("loop", "callbacks", "A", wall_s=1.0))
    window.append(_look("loop", "callbacks", "B", wall_s=3.0))
    assert window.code.at("loop", "callbacks", "A").part == "A"
    assert window.code.at("loop", "callbacks").part == "B"
    assert window.code.at("loop", "logging") is None
    assert window.code.at("workers") is None


def test_of_a_batch_it_is_known_what_of_it_may_be_computed_by_several_threads():
    stacks = (
        CodeStack(frames=("load (a.py:1)", "resize (PIL/Image.py:9)", "ImagingCore.resize"), wall_s=0.6, own=(0,)),
        CodeStack(frames=("load (a.py:1)", "torch.Tensor.div_"), wall_s=0.1, own=(0,)),
        CodeStack(frames=("load (a.py:1)",), wall_s=0.1, own=(0,)),
        CodeStack(frames=("default_collate (torch/utils/data/_utils/collate.py:4)",), wall_s=0.2),
    )
    look, window = replace(_look("workers"), stacks=stacks), Window()
    window.append(look)
    assert window.code.batch_operations == (pytest.approx(0.1), pytest.approx(0.1))
    for unknown in (replace(look, method="samples"), replace(look, stacks=()), _look("loop", "callbacks")):
        window = Window()
        window.append(unknown)
        assert window.code.batch_operations is None


def test_what_is_computed_again_is_told_of_the_steps_and_none_of_it_as_well():
    known = {"epoch": 0, "optimizer_step": None, "samples": 1, "data_wait_s": 0.0, "total_s": 0.1, "compute_s": 0.1}
    steps = [StepRecord(index=i, tracker_step=i, time_s=float(i), **known) for i in range(100)]
    ledger = LedgerRecord(time_s=10.0, wall_s=10.0, steps=100, epochs=1, buckets={"compute": 10.0})
    look = replace(_look("loop", "steps", wall_s=2.0), seen=200, recomputed_s=0.5)
    window = Window()
    for record in (*steps, ledger):
        window.append(record)
    assert window.code.torch.recomputed is None
    window.append(replace(look, recomputed_s=None))
    assert window.code.torch.recomputed is None
    window.append(look)
    assert window.code.torch.recomputed == Recomputed(seconds=pytest.approx(2.5), samples=50)
    window.append(replace(look, recomputed_s=0.0))
    assert window.code.torch.recomputed == Recomputed(seconds=0.0, samples=0)


def test_penalties_are_told_of_the_steps_and_none_of_them_as_well():
    known = {"epoch": 0, "optimizer_step": None, "samples": 1, "data_wait_s": 0.0, "total_s": 0.1, "compute_s": 0.1}
    steps = [StepRecord(index=i, tracker_step=i, time_s=float(i), **known) for i in range(100)]
    ledger = LedgerRecord(time_s=10.0, wall_s=10.0, steps=100, epochs=1, buckets={"compute": 10.0})
    spots = [CodeSpot(file="train.py", line=i, function=f"f{i}", own=True, wall_s=0.1 * i) for i in (3, 1)]
    look = replace(_look("loop", "steps", wall_s=2.0), seen=200, penalties=tuple(spots), gradients_s=1.0)
    window = Window()
    for record in (*steps, ledger):
        window.append(record)
    assert window.code.torch.weight_penalties is None
    window.append(look)
    found = window.code.torch.weight_penalties
    assert found is not None
    assert found.spot == spots[0]
    assert (found.seconds, found.gradients_s) == (pytest.approx(2.0), pytest.approx(5.0))
    assert (found.share_of_steps_pct, found.samples) == (pytest.approx(15.0), 40)
    window.append(replace(look, penalties=()))
    assert window.code.torch.weight_penalties == replace(
        found, spot=None, seconds=0.0, share_of_steps_pct=0.0, samples=0
    )


def test_a_look_is_read_back_from_a_recording_as_it_was():
    look = CodeLook(
        time_s=1.0,
        place="workers",
        rule="slow-batches",
        method="profile",
        seen=3,
        wall_s=1.0,
        item_s=0.01,
        added_s=0.1,
        items=(CodeItem(index=3, wall_s=0.5, size_bytes=9),),
        spots=(CodeSpot(file="a.py", line=1, function="f", own=True, wall_s=1.0, calls=("zlib.compress",)),),
        stacks=(CodeStack(frames=("f (a.py:1)",), wall_s=1.0),),
    )
    assert decode(encode(look)) == look
