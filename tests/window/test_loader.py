"""What is known of the training loader."""

from __future__ import annotations

from stallmeter.records import BatchContent, WorkerTrial
from stallmeter.window.loader import LoaderSignals

from ..rules.windows import loader


def test_a_part_alone():
    """The newest record counts."""
    made = LoaderSignals()
    assert (made.info, made.content, made.num_workers, made.batch_size, made.pin_memory) == (None,) * 5
    made.set_workers(2)
    assert made.num_workers is None
    made.append(loader(2))
    made.append(loader(3))
    assert (made.num_workers, made.batch_size, made.pin_memory) == (3, 32, None)
    made.set_workers(4)
    assert made.num_workers == 4


def test_trials_stand_as_they_are():
    """The end of a trial replaces its beginning."""
    made = LoaderSignals()
    for outcome in ("measuring", "kept", "measuring"):
        made.append(WorkerTrial(time_s=1.0, before=0, workers=2, outcome=outcome))
    assert [t.outcome for t in made.trials] == ["kept", "measuring"]


def test_what_follows_knows_the_same():
    """And hears of trials that begin later; another number of workers is its own."""
    made, later = LoaderSignals(), LoaderSignals()
    made.append(loader(2))
    made.append(BatchContent(time_s=0.0, bytes=7, tensors=1))
    later.follow(made)
    later.set_workers(5)
    made.append(WorkerTrial(time_s=1.0, before=2, workers=5, outcome="measuring"))
    assert later.trials == made.trials
    assert later.content == made.content
    assert (made.num_workers, later.num_workers) == (2, 5)
