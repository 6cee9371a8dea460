"""PyTorch Ignite with the handler: where a trainer's time goes, its ends, and that it trains as without."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import stallmeter
from stallmeter.recording import Reader
from stallmeter.records import Event, LoaderInfo, StepRecord, WorkerBatch
from stallmeter.report.model import Report, read_history

from ..conftest import FakeTime
from ..test_howto import blocks

pytest.importorskip("ignite")
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver

from stallmeter.ignite import StallHandler
from stallmeter.ignite.handlers import Timed

pytestmark = pytest.mark.ecosystem


class Rows(Dataset):
    def __init__(self, count: int, time: FakeTime | None = None, cost_s: float = 0.0) -> None:
        self.count, self.time, self.cost_s = count, time, cost_s
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= self.count:
            raise IndexError(index)
        self.asked.append(index)
        if self.time is not None:
            self.time.sleep(self.cost_s)
        return torch.full((4,), float(index))


class OnFakeTime(StallHandler):
    def __init__(self, time: FakeTime, **options: Any) -> None:
        self._now = time
        super().__init__(**options)


class Training:
    """A trainer with a validation, a slow handler and a handler that fails where that is wanted."""

    def __init__(self, time: FakeTime | None = None, rows: int = 24) -> None:
        torch.manual_seed(3)
        self.time = time or FakeTime()
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.rows = Rows(rows, time, 0.5)
        self.held_out = DataLoader(Rows(6, time, 0.25), batch_size=2)
        self.trainer, self.evaluator = Engine(self.train), Engine(self.evaluate)
        self.trainer.add_event_handler(Events.EPOCH_COMPLETED, self.run_validation)
        self.trainer.add_event_handler(Events.ITERATION_COMPLETED(every=2), slow, self)

    def train(self, engine: Engine, batch: torch.Tensor) -> None:
        self.time.sleep(1.0)
        self.optimizer.zero_grad()
        self.model(batch).sum().backward()
        self.optimizer.step()

    def evaluate(self, engine: Engine, batch: torch.Tensor) -> None:
        with torch.no_grad():
            self.time.sleep(0.125)

    def run_validation(self) -> None:
        self.evaluator.run(self.held_out)

    def loader(self, **more: Any) -> DataLoader:
        return DataLoader(self.rows, batch_size=2, shuffle=True, **more)

    def run(self, epochs: int = 2, **more: Any) -> None:
        self.trainer.run(self.loader(**more), max_epochs=epochs)


def slow(engine: Engine, training: Training) -> None:
    training.time.sleep(2.0)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    return {"directory": tmp_path / "rec", "trackers": None, "console": False, "hardware": False}


def report_of(handler: Any) -> Report:
    return read_history(handler.monitor.folder).report()


def steps_of(handler: Any) -> list[StepRecord]:
    return [one for one, _ in Reader(handler.monitor.folder) if isinstance(one, StepRecord)]


def test_every_second_has_its_place(quiet: dict[str, Any]) -> None:
    time = FakeTime()
    training = Training(time)
    handler = OnFakeTime(time, **quiet, workers=False).attach(training.trainer)
    training.run()
    report, steps = report_of(handler), steps_of(handler)
    assert report.steps == len(steps) == 24
    assert [step.optimizer_step for step in steps] == list(range(1, 25))
    assert {step.samples for step in steps} == {2}
    assert report.ended == "end"
    record = read_history(handler.monitor.folder).window.ledger.record
    assert record is not None
    assert record.buckets["data_wait"] + record.buckets["worker_startup"] == pytest.approx(24.0)
    assert record.buckets["compute"] == pytest.approx(24.0)
    assert record.callbacks["slow"] == pytest.approx(24.0)
    assert record.buckets["validation"] == pytest.approx(2 * (3 * 0.125 + 6 * 0.25))
    assert record.validation_parts["wait"] == pytest.approx(3.0)
    spent = read_history(handler.monitor.folder).window.spent
    assert spent.evaluated is not None
    assert spent.evaluated.batches == 2 * 3
    assert spent.optimizer is not None
    assert spent.optimizer.kind == "SGD"


def test_the_workers_are_looked_into(quiet: dict[str, Any]) -> None:
    training = Training(rows=48)
    handler = StallHandler(**quiet).attach(training.trainer)
    training.run(num_workers=2)
    found = [one for one, _ in Reader(handler.monitor.folder)]
    infos = [one for one in found if isinstance(one, LoaderInfo)]
    assert {(one.num_workers, one.probed) for one in infos} == {(2, True)}
    assert sum(isinstance(one, WorkerBatch) for one in found) == 48
    assert any(step.ready is not None for step in steps_of(handler))


@pytest.mark.parametrize("how", ["adapter", "zero-code"])
def test_it_trains_as_without(how: str, quiet: dict[str, Any], tmp_path: Path) -> None:
    told = []
    for measured in (False, True):
        training = Training()
        everything = stallmeter.auto(**quiet) if measured and how == "zero-code" else None
        if measured and how == "adapter":
            StallHandler(**quiet).attach(training.trainer)
        try:
            training.run()
            if everything is not None:
                assert everything.monitor is not None
        finally:
            if everything is not None:
                everything.stop()
        handlers = {event: list(found) for event, found in training.trainer._event_handlers.items() if found}
        told.append((training.rows.asked, training.model.state_dict(), torch.rand(3), list(handlers)))
        kinds = [type(found) for found in training.trainer._event_handlers.values()]
        assert Timed not in kinds
    (asked, weights, after, events), (asked_too, weights_too, after_too, events_too) = told
    assert asked == asked_too
    assert torch.equal(weights["weight"], weights_too["weight"])
    assert torch.equal(after, after_too)
    assert [event.name for event in events] == [event.name for event in events_too]
    assert "stallmeter" not in Engine.run.__code__.co_filename


def test_without_code_its_handlers_are_named(quiet: dict[str, Any]) -> None:
    training = Training()

    def sleeps(*_: Any) -> None:
        import time

        time.sleep(0.01)

    training.trainer.add_event_handler(Events.ITERATION_COMPLETED, sleeps)
    training.evaluator.add_event_handler(Events.ITERATION_COMPLETED, sleeps)
    everything = stallmeter.auto(**quiet)
    try:
        training.run()
        monitor = everything.monitor
    finally:
        everything.stop()
    assert monitor is not None
    history = read_history(monitor.folder)
    record = history.window.ledger.record
    assert record is not None
    assert history.report().steps == 24
    assert record.callbacks["sleeps"] >= 0.24
    assert record.buckets["validation"] >= 0.06
    assert record.validation_parts["wait"] > 0.0
    spent = history.window.spent
    assert spent.evaluated is not None
    assert (spent.evaluated.batches, spent.evaluated.batch_size) == (3, 2)  # the first one's: told twice a second
    assert history.header.framework.startswith("ignite ")
    assert len(list(quiet["directory"].glob("*"))) == 1


def test_beside_the_handler_zero_code_counts_nothing(quiet: dict[str, Any], tmp_path: Path) -> None:
    training = Training()
    handler = StallHandler(**quiet).attach(training.trainer)
    assert StallHandler(**quiet).attach(training.trainer).monitor is None  # the first one records
    everything = stallmeter.auto(**{**quiet, "directory": tmp_path / "auto"})
    try:
        training.run()
        assert everything.monitor is None
    finally:
        everything.stop()
    assert report_of(handler).steps == 24
    assert len(list(quiet["directory"].glob("*"))) == 1


def test_an_exception_passes_through_and_ends_the_run(quiet: dict[str, Any]) -> None:
    training = Training()

    def fails(_: Engine) -> None:
        raise ZeroDivisionError("a handler")

    training.trainer.add_event_handler(Events.ITERATION_COMPLETED(once=3), fails)
    handler = StallHandler(**quiet).attach(training.trainer)
    with pytest.raises(ZeroDivisionError):
        training.run()
    assert handler.monitor.finish()
    (end,) = [one for one, _ in Reader(handler.monitor.folder) if isinstance(one, Event) and one.name == "end"]
    assert "ZeroDivisionError" in str(end)
    assert "stallmeter" not in Engine.run.__code__.co_filename


def test_of_trainers_that_overlap_the_last_one_puts_back_what_runs_engines(quiet: dict[str, Any]) -> None:
    """Each in a thread of its own: the first to begin ends while the other one trains."""
    own = Engine.run
    begun, may_end = threading.Event(), threading.Event()
    first, second = Training(), Training()
    for training in (first, second):
        StallHandler(**quiet).attach(training.trainer)

    def waits(_: Engine) -> None:
        begun.set()
        may_end.wait(30)

    second.trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), waits)
    first.trainer.add_event_handler(Events.STARTED, lambda _: thread.start() or begun.wait(30))
    thread = threading.Thread(target=second.run)
    first.run()
    assert Engine.run is not own
    may_end.set()
    thread.join(30)
    assert Engine.run is own


def test_checkpoints_and_loggers_have_their_places(quiet: dict[str, Any], tmp_path: Path) -> None:
    training = Training()
    saver = Checkpoint({"model": training.model}, DiskSaver(str(tmp_path / "saved"), create_dir=True), n_saved=1)
    training.trainer.add_event_handler(Events.ITERATION_COMPLETED(every=4), saver)
    handler = StallHandler(**quiet).attach(training.trainer)
    training.run()
    record = read_history(handler.monitor.folder).window.ledger.record
    assert record is not None
    assert record.buckets["checkpoint"] > 0
    assert "Checkpoint" not in record.callbacks


def test_the_active_run_of_mlflow_is_taken(quiet: dict[str, Any], tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    from ignite.handlers import MLflowLogger

    training = Training()
    logger = MLflowLogger(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    try:
        handler = StallHandler(**{**quiet, "trackers": "auto"}).attach(training.trainer)
        training.run()
        assert [tracker.name for tracker in handler.monitor.run.trackers] == ["mlflow"]
    finally:
        logger.close()
        mlflow.end_run()


def test_a_copy_is_a_fresh_one(quiet: dict[str, Any]) -> None:
    handler = StallHandler(**quiet).attach(Training().trainer)
    assert pickle.loads(pickle.dumps(handler)).monitor is None


def test_detached_it_records_nothing(quiet: dict[str, Any]) -> None:
    training = Training()
    handler = StallHandler(**quiet).attach(training.trainer)
    handler.detach()
    training.run()
    assert handler.monitor is None
    assert "run" not in vars(training.trainer)


def test_the_how_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = blocks("ignite.md")
    training = Training()
    names: dict[str, Any] = {"__name__": "howto", "train_step": training.train, "loader": training.loader()}
    exec(compile(program, "ignite.md", "exec", dont_inherit=True), names)
    (folder,) = Path("stallmeter").iterdir()
    assert read_history(folder).report().steps == 36
