"""How ranks and their work are put into words."""

from __future__ import annotations

import pytest

from stallmeter.ranks.steps import PHASES
from stallmeter.rules.job.losses import COMPUTE, Loss
from stallmeter.rules.job.words import named, of_ranks, time, waited, work_of


def loss(**changes) -> Loss:
    given = {
        "bucket": "data_wait",
        "ranks": (1,),
        "lost_s": 4.0,
        "share": 0.4,
        "per_step_s": 0.02,
        "steps": 190,
        "of_steps": 200,
        "parts": {"data_wait": 1.0},
        "from_collectives": False,
    }
    return Loss(**(given | changes))


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((), ""),
        ((3,), "rank 3"),
        ((1, 3), "ranks 1 and 3"),
        ((1, 3, 5), "ranks 1, 3 and 5"),
        (range(64), "ranks 0, 1, 2, 3, 4, 5 and 58 more"),
    ],
)
def test_ranks(ranks, words):
    """Few are listed, of many some."""
    assert of_ranks(ranks) == words


def test_every_phase_has_words():
    """A bucket's bare name is no word for what a rank was late with; a newer version's bucket keeps its name."""
    assert all(named(bucket).startswith(("its ", "the start of its ")) for bucket in PHASES)
    assert named("data_wait", many=True) == "their data"
    assert named("worker_startup", many=True) == "the start of their workers"
    assert named("new_bucket") == "new_bucket"


def test_own_work_is_named_by_its_largest_part():
    """Where no part is most of it, it is all of it together."""
    backward = loss(bucket=COMPUTE, parts={"backward": 0.8, "loop": 0.2})
    mixed = loss(bucket=COMPUTE, parts={"forward": 0.4, "backward": 0.3, "loop": 0.3})
    assert work_of(backward) == "its backward pass"
    assert work_of(mixed) == "its own work"
    assert work_of(loss(bucket=COMPUTE, parts={"": 1.0})) == "its own work before the exchange"
    assert work_of(loss(ranks=(1, 2))) == "their data"


@pytest.mark.parametrize(("seconds", "words"), [(0.0203, "20.3 ms"), (0.00042, "0.42 ms"), (2.25, "2.2 s")])
def test_times(seconds, words):
    """Steps take milliseconds, checkpoints seconds."""
    assert time(seconds) == words


def test_waited_in_each_step():
    """Who is late all the time is told by the mean step."""
    assert waited(loss()) == (
        "In a mean step the other ranks waited 20 ms for rank 1, late with its data: 40 % of the training time"
    )


def test_waited_now_and_then():
    """Who is late in few steps is told by how often, and how long each time."""
    few = loss(bucket="checkpoint", ranks=(0,), steps=4, of_steps=2000, per_step_s=0.004, parts={"checkpoint": 1.0})
    assert waited(few).startswith("In 2,000 steps the other ranks waited 4 times for rank 0, late with its checkpoints")
    assert "2.0 s each: 40 % of the training time" in waited(few)
    assert " once for rank 0" in waited(loss(ranks=(0,), steps=1, of_steps=2000))


def test_waited_in_turn():
    """Where it is another one each time nobody is named."""
    assert "for the last rank: 40 %" in waited(loss(ranks=()))
