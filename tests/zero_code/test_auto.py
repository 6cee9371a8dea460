"""Programs that know nothing of stallmeter: their training steps, their validation, and what is left as it was."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from stallmeter.recording import Reader
from stallmeter.records import (
    EvaluationBatches,
    Event,
    LedgerRecord,
    LoaderInfo,
    OptimizerInfo,
    StepRecord,
    WorkerBatch,
)

from ..warm import NO_PICTURES, Forks, Program
from .programs import PROGRAMS, program

AUTO = "import stallmeter; stallmeter.auto(directory='runs', trackers=None, console=False, hardware=False)\n"

ACCELERATE = pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="no accelerate is installed")

NO_RUN = ("nothing", "no loader")


@dataclass(frozen=True)
class Done:
    """What a program left behind."""

    stdout: str
    stderr: str
    status: int
    folder: Path

    @property
    def records(self) -> list[object]:
        (folder,) = (self.folder / "runs").iterdir()
        return [record for record, _ in Reader(folder)]

    @property
    def steps(self) -> list[StepRecord]:
        return [record for record in self.records if isinstance(record, StepRecord)]

    @property
    def ledger(self) -> LedgerRecord:
        return [record for record in self.records if isinstance(record, LedgerRecord)][-1]


def finish(running: Program, folder: Path) -> Done:
    try:
        stdout, stderr = running.communicate(timeout=120)
    finally:
        running.kill()
    return Done(stdout, stderr, running.wait(), folder)


class Runs(dict[tuple[str, bool], Done]):
    """What programs left behind, by name and whether they were measured. Each runs when it is first asked for.

    Args:
        forks: Starts them.
        folder: Where they run, each in one of its own.
        text: Returns a program's, by the same.
    """

    def __init__(self, forks: Forks, folder: Path, text: Callable[[str, bool], str]) -> None:
        super().__init__()
        self._forks, self._folder, self._text = forks, folder, text

    def __missing__(self, which: tuple[str, bool]) -> Done:
        place = self._folder / "{} {}".format(*which).replace(" ", "-")
        place.mkdir()
        found = self[which] = finish(self._forks.start(self._text(*which), cwd=place), place)
        return found


@pytest.fixture(scope="module")
def done(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    def text(name: str, measured: bool) -> str:
        return (NO_PICTURES + AUTO if measured else "") + program(name)

    return Runs(forks, tmp_path_factory.mktemp("programs"), text)


def marks(name: str) -> list[pytest.MarkDecorator]:
    """Some programs are compared with themselves each time, and all where there is more time."""
    own = [ACCELERATE] if name == "accelerate" else []
    return own if name in ("epochs", "workers of two", "exception", "nothing") else [*own, pytest.mark.long]


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in PROGRAMS])
def test_it_computes_the_same(done: Runs, name: str) -> None:
    off, on = done[name, False], done[name, True]
    assert on.status == off.status == (name == "exception")
    assert on.stdout == off.stdout
    assert ("weights" in on.stdout) is (name != "exception")
    assert "switched off" not in on.stderr
    assert "Traceback" not in on.stderr or name == "exception"
    assert (on.folder / "runs").exists() is (name not in NO_RUN)


@pytest.mark.parametrize(
    ("name", "epochs", "updates"),
    [
        ("epochs", [8, 8], 16),
        ("inner no_grad", [8, 8], 16),
        ("validation in the midst", [8, 8], 16),
        ("two loaders", [8, 8], 16),
        ("asked inside", [8, 8], 16),
        ("accumulation", [8, 8], 4),
        ("steps", [8, 8, 4], 20),
        ("looked at first", [8], 8),
        ("new loaders", [5, 5, 5], 15),
        ("all under no_grad", [8, 8], 16),
        ("optimizer of its own", [8, 8], None),
        ("compiled", [8, 8], None),
        ("workers that never end", [16], 16),
        ("workers", [16, 16], 32),
        ("workers of two", [16, 16], 32),
        ("a new iterator for each step", [8, 8], 16),
        pytest.param("accelerate", [8, 8], 16, marks=ACCELERATE),
        ("fabric", [8, 8], 16),
        ("stateful", [3, 5], 8),
        ("calls that say what they are", [8], 8),
        ("exception", [5], 5),
    ],
)
def test_its_steps(done: Runs, name: str, epochs: list[int], updates: int | None) -> None:
    steps = done[name, True].steps
    assert [step.index for step in steps] == list(range(sum(epochs)))
    assert [sum(step.epoch == epoch for step in steps) for epoch in sorted({step.epoch for step in steps})] == epochs
    assert [step.epoch_start for step in steps].count(True) == len(epochs)
    assert {step.samples for step in steps} == {4}
    assert steps[-1].optimizer_step == updates
    assert (sum(step.optimizer_s or 0 for step in steps) > 0) is (updates is not None)


def test_how_it_updates_and_validates_is_known(done: Runs) -> None:
    records = done["validation in the midst", True].records
    assert [found.kind for found in records if isinstance(found, OptimizerInfo)] == ["SGD"]
    evaluations = [found for found in records if isinstance(found, EvaluationBatches)]
    assert {found.batch_size for found in evaluations} == {4}


def test_a_loop_over_tasks_has_the_steps_of_the_inner_loop(done: Runs) -> None:
    assert len(done["tasks", True].steps) == 12


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("epochs", 0.06),
        ("inner no_grad", 0.06),
        ("validation in the midst", 0.06),
        ("looked at first", 0.03),
        pytest.param("accelerate", 0.06, marks=ACCELERATE),
        ("fabric", 0.06),
        ("workers that never end", 0.06),
        ("two loaders", 0),
        ("asked inside", 0),
        ("accumulation", 0),
        ("steps", 0),
        ("new loaders", 0),
        ("all under no_grad", 0),
    ],
)
def test_its_validation(done: Runs, name: str, seconds: float) -> None:
    ledger = done[name, True].ledger
    if seconds:
        assert ledger.buckets["validation"] >= seconds
        assert ledger.buckets["validation"] <= ledger.wall_s / 2 + seconds
    else:
        assert ledger.buckets["validation"] == 0
    assert sum(ledger.buckets.values()) == pytest.approx(ledger.wall_s, abs=1e-5)


def test_what_is_saved_and_called_stands_under_its_name(done: Runs) -> None:
    ledger = done["calls that say what they are", True].ledger
    assert ledger.callbacks["on_step"] >= 0.08
    assert ledger.buckets["checkpoint"] >= 0.008
    assert ledger.buckets["compute"] < ledger.wall_s / 2


@ACCELERATE
def test_the_last_batch_of_a_wrapper_that_asks_for_one_more_is_a_step(done: Runs) -> None:
    steps = done["accelerate", True].steps
    assert all((step.compute_s or 0) > 0.009 for step in steps)


def test_its_workers_are_looked_into_from_the_first_epoch(done: Runs) -> None:
    found = done["workers", True].records
    infos = [record for record in found if isinstance(record, LoaderInfo)]
    assert {(info.num_workers, info.probed) for info in infos} == {(1, True)}
    assert sum(isinstance(record, WorkerBatch) for record in found) == 32
    assert all(step.ready is not None for step in done["workers", True].steps[1:])


def test_the_workers_of_all_loaders_of_a_zip_are_looked_into_and_of_no_other(
    done: Runs,
) -> None:
    found = done["workers of two", True].records
    infos = {info.loader: info for info in found if isinstance(info, LoaderInfo)}
    assert sorted((info.num_workers, info.probed) for info in infos.values()) == [(1, True), (2, True)]
    made = [record.loader for record in found if isinstance(record, WorkerBatch)]
    assert [made.count(number) for number in infos] == [32, 32]
    assert done["workers of two", True].stdout == done["workers of two", False].stdout


def test_workers_that_start_for_one_batch_are_waited_for(done: Runs) -> None:
    """From the third batch on: a look or two at a loader are none."""
    on = done["a new iterator for each step", True]
    starting = [step.worker_startup_s or 0.0 for step in on.steps]
    assert not any(starting[1:2])
    waits = [step.data_wait_s + s for step, s in zip(on.steps, starting, strict=True)]
    assert min(waits[3:8]) > 0.008  # four items of 2 ms
    infos = {info.loader: info for info in on.records if isinstance(info, LoaderInfo)}
    assert [(info.num_workers, info.probed) for info in infos.values()] == [(1, True)] * 2
    leading, other = infos
    batches = [record for record in on.records if isinstance(record, WorkerBatch)]
    assert sum(record.loader == leading for record in batches) == 16
    assert sum(record.loader == other and record.idle_s is None for record in batches) >= 12
    assert on.ledger.buckets["worker_startup"] > 0.01


def test_an_exception_ends_the_run(done: Runs) -> None:
    on = done["exception", True]
    assert on.stderr.rstrip().endswith("KeyError: 'no such thing'")
    assert [record.name for record in on.records if isinstance(record, Event)][-1] == "end"


def test_a_program_that_trains_nothing_says_why(done: Runs) -> None:
    said = done["nothing", True].stderr
    assert said.count("nothing was recorded") == 1
    assert "no optimizer of torch made a step" in said
