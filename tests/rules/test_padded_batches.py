"""padded-batches: sequences are padded to a length that none of their batch has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from stallmeter.records import BatchContent
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.padded_batches import SAVES_SORTED, PaddedBatches, most_saved, usually_saved
from stallmeter.window import Window

from .windows import START_S, fires, loader, missing, run, silent, window


def padded(
    used: int = 40, positions: int | None = 100, batches: int = 20, records: Sequence[Any] = (), **more: Any
) -> Window:
    """A run with batches that use so many of their positions."""
    taken = None if positions is None else used
    looked_at = [
        BatchContent(time_s=START_S + i, tensors=3, bytes=4096, positions=positions, used_positions=taken)
        for i in range(batches)
    ]
    return run(loader(), *records, *looked_at, **more)


def test_fires() -> None:
    """Forward and backward pass take 80 of 99 s, and need a good 30 % of it."""
    found = fires(PaddedBatches(), padded())
    assert found.severity is Severity.WARNING
    assert found.summary == "60 % of the positions hold no token of any sequence in their batch."
    assert found.time_lost_s == pytest.approx(usually_saved(0.6) * 80.0)
    gain, interval = found.advice[0].predicted_gain_pct, found.advice[0].gain_interval_pct
    assert gain == pytest.approx(100.0 * (1.0 / (1.0 - usually_saved(0.6) * 80.0 / 99.0) - 1.0), rel=0.02)
    assert interval is not None
    assert interval[0] < gain < interval[1]


@pytest.mark.parametrize(
    ("used", "severity"), [(89, Severity.INFO), (78, Severity.INFO), (65, Severity.WARNING), (20, Severity.CRITICAL)]
)
def test_the_more_of_it_the_more_urgent(used: int, severity: Severity) -> None:
    assert fires(PaddedBatches(), padded(used)).severity is severity


def test_it_is_the_cause_where_it_is_much() -> None:
    primary = evaluate(ALL_RULES, padded()).primary
    assert primary is not None
    assert primary.rule == "padded-batches"


@pytest.mark.parametrize(
    ("used", "positions", "batches"), [(92, 100, 20), (100, 100, 20), (40, 100, 4), (40, None, 20)]
)
def test_nothing_to_be_said(used: int, positions: int | None, batches: int) -> None:
    assert silent(PaddedBatches(), padded(used, positions, batches))


def test_in_a_framework_with_words_of_its_own() -> None:
    found = fires(PaddedBatches(), padded(facts={"framework": "transformers 5.0"}))
    assert "DataCollatorWithPadding or DataCollatorForTokenClassification" in found.advice[0].text


@pytest.mark.parametrize(("beyond", "named"), [((1, 3, 7), True), ((1, 3, 9), False)])
def test_lengths_that_are_rounded_up(beyond: tuple[int, ...], named: bool) -> None:
    """As `pad_to_multiple_of=8` does: no batch is padded by as much."""
    looked_at = [
        BatchContent(time_s=START_S + i, tensors=3, bytes=4096, positions=at, used_positions=at - beyond[i % 3])
        for i, at in enumerate((16, 24, 32, 16, 24, 32))
    ]
    found = fires(PaddedBatches(), run(loader(), *looked_at))
    assert ("a multiple of 8: pad_to_multiple_of" in found.advice[0].fix.do) is named


def test_batches_of_one_length_are_not_rounded() -> None:
    made = padded(used=38, positions=48)
    assert made.loader.content is not None
    assert made.loader.content.rounded_to is None
    assert "multiple" not in fires(PaddedBatches(), made).advice[0].fix.do


def test_the_users_own_collate_function_is_named() -> None:
    own = replace(loader(), collate_file="train.py", collate_line=39, collate_function="Collate.__call__")
    found = fires(PaddedBatches(), padded(records=[own]))
    assert found.advice[0].fix.do == (
        "Pad batches to their longest sequence, not texts to one length, in Collate.__call__ (train.py:39)."
    )


def uneven(filled: float | None = 0.4, used: int | None = 100, batches: int = 20, **more: Any) -> Window:
    """A run with batches of which so much is filled up to the longest sequence."""
    looked_at = [
        BatchContent(
            time_s=START_S + i,
            tensors=3,
            bytes=4096,
            positions=100,
            used_positions=used,
            filled=filled,
            filled_by="ids" if used is None else "mask",
        )
        for i in range(batches)
    ]
    return run(loader(), *looked_at, **more)


@pytest.mark.parametrize("used", [100, 95, None])
def test_sequences_of_very_different_lengths(used: int | None) -> None:
    """The longest need their length; 60 % of the positions hold nothing all the same."""
    found = fires(PaddedBatches(), uneven(used=used))
    assert found.severity is Severity.WARNING
    assert found.title == "Batches hold sequences of very different lengths"
    assert found.summary == "60 % of the positions hold nothing, though the longest sequence needs them."
    assert found.time_lost_s == pytest.approx(SAVES_SORTED[1] * 0.6 * 80.0)
    assert found.advice[0].text.startswith("Collate sequences of similar length into a batch, by a sampler.")
    gain, interval = found.advice[0].predicted_gain_pct, found.advice[0].gain_interval_pct
    assert gain is not None
    assert interval is not None
    assert interval[0] < gain < interval[1]


def test_it_is_the_cause_where_it_is_much_as_well() -> None:
    primary = evaluate(ALL_RULES, uneven()).primary
    assert primary is not None
    assert primary.rule == "padded-batches"


@pytest.mark.parametrize(
    ("filled", "severity"), [(0.69, Severity.INFO), (0.5, Severity.WARNING), (0.05, Severity.WARNING)]
)
def test_the_more_different_the_more_urgent(filled: float, severity: Severity) -> None:
    assert fires(PaddedBatches(), uneven(filled)).severity is severity


def test_what_no_sequence_uses_comes_first() -> None:
    assert fires(PaddedBatches(), uneven(used=60)).title == PaddedBatches.title


@pytest.mark.parametrize(("filled", "batches"), [(0.71, 20), (1.0, 20), (0.3, 4), (None, 20)])
def test_lengths_that_differ_little(filled: float | None, batches: int) -> None:
    assert silent(PaddedBatches(), uneven(filled, batches=batches))


def test_different_lengths_in_a_framework_with_words_of_its_own() -> None:
    found = fires(PaddedBatches(), uneven(facts={"framework": "transformers 5.0"}))
    assert "group_by_length" in found.advice[0].text


def test_abstains() -> None:
    assert missing(PaddedBatches(), window()) == ("ledger.training_s", "loader.content")


@pytest.mark.parametrize("padding", [0.1, 0.5, 0.9])
def test_at_the_most_the_square_of_the_length_goes(padding: float) -> None:
    """Attention, and nothing else: half of the positions are three quarters of it."""
    assert most_saved(padding) == pytest.approx(padding * (2.0 - padding))
    assert most_saved(padding) > usually_saved(padding) > padding > SAVES_SORTED[1] * padding


def test_a_program_that_attends_lies_in_the_interval() -> None:
    """Half of the positions hold nothing: it was 3.1 times as fast without them, where 2 is as a rule."""
    assert 1.0 / (1.0 - usually_saved(0.5)) < 3.1 < 1.0 / (1.0 - most_saved(0.5))
