"""ignored-labels: classes are scored for positions that the loss leaves out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import ScoredPositions
from stallmeter.records.diagnosis import Severity
from stallmeter.rules.ignored_labels import IgnoredLabels, saved
from stallmeter.window import Window

from .windows import START_S, device_steps, fires, loader, missing, run, silent, window

FOUND = ScoredPositions(
    time_s=START_S, positions=1024, labelled=154, scored=1024, inputs=256, classes=12_000, share=0.45
)


def scored(found: ScoredPositions = FOUND, *more: Any, **buckets: Any) -> Window:
    """A run of 100 s, most of them in the model."""
    return run(loader(), found, *more, **buckets)


def test_fires() -> None:
    found = fires(IgnoredLabels(), scored())
    assert found.severity is Severity.WARNING
    assert found.summary == (
        "85 % of the positions have no label, and the layer of 12,000 classes and its loss compute with all of them."
    )
    computed_s = scored().spent.bucket_s("forward", "backward", "compute")
    assert computed_s is not None
    assert found.time_lost_s == pytest.approx(saved(FOUND, gpu=False)[1] * computed_s)
    gain, interval = found.advice[0].predicted_gain_pct, found.advice[0].gain_interval_pct
    assert gain is not None
    assert interval is not None
    assert interval[0] < gain < interval[1]


def test_what_the_loss_takes_is_part_of_it() -> None:
    """The fewer numbers a position has, the more of its scores' time is the loss."""
    least, usual, most = saved(FOUND, gpu=False)
    part = 1.0 - 154 / 1024
    assert least == pytest.approx(0.5 * part * 0.45)
    assert usual == pytest.approx(part * 0.45 * (1 + 100 / 256) / (0.45 * (1 + 100 / 256) + 0.55))
    assert usual < most < part
    narrow = saved(replace(FOUND, inputs=64), gpu=False)
    assert narrow[0] == least
    assert narrow[1] > usual


def test_beside_a_device_the_loss_takes_more() -> None:
    assert saved(FOUND, gpu=True)[1] > saved(FOUND, gpu=False)[1]
    with_device = fires(IgnoredLabels(), scored(FOUND, *device_steps()))
    assert with_device.time_lost_s > fires(IgnoredLabels(), scored()).time_lost_s


def test_it_is_critical_where_it_is_most_of_the_time() -> None:
    assert fires(IgnoredLabels(), scored(replace(FOUND, share=0.8))).severity is Severity.CRITICAL


@pytest.mark.parametrize(
    "found",
    [
        replace(FOUND, scored=154),
        replace(FOUND, scored=512),
        replace(FOUND, scored=2048),
        replace(FOUND, labelled=800),
        replace(FOUND, share=0.05),
        replace(FOUND, scored=0, inputs=0, classes=0, share=0.0),
    ],
    ids=["picked out", "in pieces", "other positions", "most have one", "a small layer", "no such layer"],
)
def test_nothing_to_be_said(found: ScoredPositions) -> None:
    assert silent(IgnoredLabels(), scored(found))


def test_the_last_position_of_a_sequence_predicts_nothing() -> None:
    assert fires(IgnoredLabels(), scored(replace(FOUND, scored=960)))


def test_the_look_in_the_middle_counts() -> None:
    picked = replace(FOUND, scored=154)
    assert silent(IgnoredLabels(), scored(FOUND, picked, picked))
    assert fires(IgnoredLabels(), scored(FOUND, picked, FOUND))


def test_a_batch_in_which_none_is_left_out_counts_where_no_other_does() -> None:
    none = ScoredPositions(time_s=START_S, positions=0, labelled=0)
    assert silent(IgnoredLabels(), scored(none))
    assert fires(IgnoredLabels(), scored(none, FOUND))
    assert fires(IgnoredLabels(), scored(FOUND, none, none))


def test_abstains() -> None:
    assert missing(IgnoredLabels(), window()) == ("ledger.training_s", "spent.tensors.scored")
    assert missing(IgnoredLabels(), run(loader())) == ("spent.tensors.scored",)
