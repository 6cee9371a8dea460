"""slow-sampler: where in the program the sampler spends its time. What it costs is tested in `test_input_family`."""

from __future__ import annotations

from stallmeter.records import CodeLook, CodeSpot
from stallmeter.records.diagnosis import Location
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate

from .test_input_family import CASES
from .waiting import waiting
from .windows import START_S


def test_its_place_is_that_of_the_wait_for_data() -> None:
    made = waiting(**CASES["slow-sampler"])
    spot = CodeSpot(file="train.py", line=12, function="HardFirst.rank", own=True, wall_s=0.9, calls=("sorted",))
    look = CodeLook(
        time_s=START_S, place="loop", bucket="data_wait", rule="slow-sampler", method="samples", seen=100, wall_s=1.0,
        spots=(spot,),
    )  # fmt: skip
    made.append(look)
    found = evaluate(ALL_RULES, made).primary
    assert found is not None
    assert found.rule == "slow-sampler"
    assert found.location == Location("train.py", 12, "HardFirst.rank", 90.0, "sorted")


def test_more_may_be_saved_than_it_takes() -> None:
    found = evaluate(ALL_RULES, waiting(**CASES["slow-sampler"])).primary
    assert found is not None
    gain, (_, most) = found.advice[0].predicted_gain_pct or 0.0, found.advice[0].gain_interval_pct or (0.0, 0.0)
    saved, most_saved = (pct / (100.0 + pct) for pct in (gain, most))
    assert 1.2 * saved < most_saved <= 0.9
