"""Whether steps get slower, and what makes them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from stallmeter.records import LedgerRecord, StepRecord
from stallmeter.window.drift import find_drift

from ..rules.windows import ledger, step


def steps(
    shape: Callable[[float], float], count: int = 400, *, noise: float = 0.15, seed: int = 0, part: str = "forward"
) -> list[StepRecord]:
    """Steps of 20 ms times what ``shape`` says at this share of the run, on a machine with stalls."""
    rng, made = random.Random(seed), []
    for i in range(count):
        work = 0.02 * rng.lognormvariate(0, noise) + (rng.random() < 0.03) * rng.uniform(0.02, 0.2)
        own = {"forward_s": work, "backward_s": 0.0, "optimizer_s": 0.0, "loop_s": 0.0, "data_wait_s": 0.001}
        grown = 0.02 * (shape(i / count) - 1)
        own[f"{part}_s"] = own.get(f"{part}_s", 0.0) + grown
        made.append(step(i, **own, total_s=work + grown + 0.001))
    return made


@pytest.mark.parametrize("part", ["forward", "data_wait", "callbacks", "checkpoint", "compute"])
def test_growth_is_found_where_it_is(part):
    """In whatever bucket, with what it added."""
    found = find_drift(steps(lambda x: 1 + 2 * x, part=part))
    assert found is not None
    assert (found.bucket, found.name) == (part, None)
    assert found.bucket_share > 0.8
    assert found.bucket_late_s - found.bucket_early_s == pytest.approx(0.035, rel=0.2)
    assert found.excess_s == pytest.approx(0.018, rel=0.3)


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(lambda x: 1, id="steady"),
        pytest.param(lambda x: 1 + (x > 0.5), id="slower at once"),
        pytest.param(lambda x: 1 + (0.4 < x < 0.6), id="a slow phase"),
        pytest.param(lambda x: 1 + (x < 0.25), id="a slow first epoch"),
        pytest.param(lambda x: 1 + (x > 0.25), id="a fast first epoch"),
        pytest.param(lambda x: 1 + math.exp(-20 * x), id="warm-up"),
        pytest.param(lambda x: 2 - math.exp(-8 * x), id="grown and full"),
        pytest.param(lambda x: 1 + (4 * x) % 1, id="grows in each epoch"),
        pytest.param(lambda x: 2 - x, id="faster"),
    ],
)
def test_other_shapes_are_none(shape):
    """Not once in many noisy runs."""
    for seed in range(12):
        assert find_drift(steps(shape, seed=seed)) is None, seed
        assert find_drift(steps(shape, 100, noise=0.3, seed=seed)) is None, seed


def test_too_few_steps():
    """Sixty steps make the twelve blocks that can be compared."""
    assert find_drift(steps(lambda x: 1 + 5 * x, 59, noise=0.01)) is None
    assert find_drift(steps(lambda x: 1 + 5 * x, 100, noise=0.01)) is not None


def test_what_works_now_and_then():
    """Each twentieth step a callback goes through all that it has gathered."""
    made = [
        step(i, callbacks_s=0.001 * i * (i % 20 == 0), total_s=0.1 + 0.001 * i * (i % 20 == 0)) for i in range(1000)
    ]
    found = find_drift(made)
    assert found is not None
    assert found.bucket == "callbacks"


def test_names():
    """The callback whose calls got slower, not the one that takes most."""

    def reading(i: int) -> LedgerRecord:
        return ledger(wall_s=100.0, steps=100 * i, callbacks={"Steady": 4.0 * i, "Grows": 0.1 * i * i, "New": 0.01 * i})

    made = steps(lambda x: 1 + 2 * x, part="callbacks")
    found = find_drift(made, [reading(i) for i in range(1, 13)])
    assert found is not None
    assert found.name == "Grows"
    assert find_drift(made, [reading(i) for i in range(1, 3)]).name is None  # type: ignore[union-attr]
