"""Where in the code a rank's steps do their own work."""

from __future__ import annotations

from dataclasses import replace

from stallmeter.ranks.code import MOST_PLACES, between_of, places_of
from stallmeter.records import CodeLook, CodeSpot


def _spot(function: str, wall_s: float) -> CodeSpot:
    return CodeSpot(file="train.py", line=3, function=function, own=True, wall_s=wall_s)


def _look(*spots: CodeSpot, after: tuple[CodeSpot, ...] = (), seen: int = 50) -> CodeLook:
    return CodeLook(
        time_s=1.0,
        place="loop",
        rule="",
        bucket="steps",
        method="samples",
        seen=seen,
        wall_s=10.0,
        spots=spots,
        after=after,
    )


def test_who_calls_the_model_once_the_gradients_are_there_holds_its_time():
    """The model takes 8 of 10 s, of which 4 are an evaluation's, whose own lines take half a second."""
    look = _look(_spot("Net.forward", 8.0), _spot("score", 0.5), after=(_spot("score", 4.5),))
    assert [(place.function, place.share_pct) for place in places_of([look])] == [
        ("Net.forward", 80.0),
        ("score", 45.0),
    ]


def test_the_largest_are_known_and_few_looks_tell_nothing():
    many = [_spot(f"f{i}", 0.1 * i) for i in range(20)]
    assert [place.function for place in places_of([_look(*many)])] == [f"f{i}" for i in range(19, 19 - MOST_PLACES, -1)]
    assert places_of([_look(*many, seen=49)]) == places_of([]) == ()


def test_between_two_epochs_the_largest_is_known():
    steps = _look(_spot("Net.forward", 8.0))
    few = replace(_look(_spot("validate", 9.0), _spot("save", 1.0), seen=19), bucket="other")
    assert between_of([steps]) is None
    assert between_of([steps, few]) is None
    place = between_of([steps, replace(few, seen=20)])
    assert place is not None
    assert (place.function, place.share_pct) == ("validate", 90.0)


def test_who_spends_most_of_its_time_in_a_collective_calls_that():
    """To log the mean of all ranks calls a library, which calls the collective."""
    log = replace(_spot("Net.log_all", 4.0), calls=("lightning.LightningModule.log",))
    meets = replace(log, wall_s=3.0, calls=("torch.distributed.all_reduce",))
    for wall_s, call in ((3.0, "torch.distributed.all_reduce"), (1.0, "lightning.LightningModule.log")):
        (place,) = places_of([replace(_look(log), meets=(replace(meets, wall_s=wall_s),))])
        assert (place.call, place.share_pct) == (call, 40.0)
