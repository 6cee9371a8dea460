"""Keras 3 on torch with the callback: where the time of ``fit`` goes, its ends, and that it trains as without."""

from __future__ import annotations

import gc
import os
import pickle
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import stallmeter
from stallmeter.recording import Reader
from stallmeter.records import Event, LoaderInfo, StepRecord, WorkerBatch
from stallmeter.report.model import Report, read_history

from ..conftest import FakeTime
from ..test_howto import blocks

keras = pytest.importorskip("keras")
from stallmeter.keras import StallCallback  # noqa: E402 - needs the package

pytestmark = [
    pytest.mark.ecosystem,
    pytest.mark.skipif(keras.backend.backend() != "torch", reason="Keras was imported with another backend"),
]


class Rows(Dataset):
    def __init__(self, count: int = 24, time: FakeTime | None = None, cost_s: float = 0.0) -> None:
        self.count, self.time, self.cost_s = count, time, cost_s
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        if self.time is not None:
            self.time.sleep(self.cost_s)
        return torch.full((4,), index / self.count), torch.ones(1)


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return np.full((2, 4), index / 12), np.ones((2, 1))


class Slow(keras.callbacks.Callback):
    def __init__(self, time: FakeTime) -> None:
        super().__init__()
        self.time = time

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.time.sleep(2.0)


class OnFakeTime(StallCallback):
    def __init__(self, time: FakeTime, **options: Any) -> None:
        self._now = time
        super().__init__(**options)


class Model(keras.Sequential):
    """A step takes a second of fake time, a batch of the evaluation an eighth."""

    time: FakeTime

    def train_step(self, data: Any) -> Any:
        self.time.sleep(1.0)
        return super().train_step(data)

    def test_step(self, data: Any) -> Any:
        self.time.sleep(0.125)
        return super().test_step(data)


def model_of(time: FakeTime | None = None) -> Any:
    keras.utils.set_random_seed(3)
    model = Model([keras.Input((4,)), keras.layers.Dense(1)])
    object.__setattr__(model, "time", time or FakeTime())
    model.compile("sgd", "mse")
    return model


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    return {"directory": tmp_path / "rec", "trackers": None, "console": False, "hardware": False}


def report_of(callback: Any) -> Report:
    return read_history(callback.monitor.folder).report()


def steps_of(callback: Any) -> list[StepRecord]:
    return [one for one, _ in Reader(callback.monitor.folder) if isinstance(one, StepRecord)]


def test_every_second_has_its_place(quiet: dict[str, Any]) -> None:
    time = FakeTime()
    callback = OnFakeTime(time, **quiet, workers=False)
    model_of(time).fit(
        DataLoader(Rows(24, time, 0.5), batch_size=2),
        epochs=2,
        validation_data=DataLoader(Rows(6, time, 0.25), batch_size=2),
        callbacks=[Slow(time), callback],
        verbose=0,
    )
    report, steps = report_of(callback), steps_of(callback)
    assert report.steps == len(steps) == 24
    assert [step.optimizer_step for step in steps] == list(range(1, 25))
    assert {step.samples for step in steps} == {2}
    assert report.ended == "end"
    record = read_history(callback.monitor.folder).window.ledger.record
    assert record is not None
    waited = record.buckets["data_wait"] + record.buckets.get("worker_startup", 0.0)
    assert waited == pytest.approx(24.0)
    assert sum(step.data_wait_s for step in steps if not step.epoch_start) == pytest.approx(22.0)
    assert record.buckets["compute"] == pytest.approx(24.0)
    assert record.callbacks == {"Slow": pytest.approx(48.0)}
    # Keras looks at a batch of the first evaluation, to build the model, before it evaluates.
    assert record.buckets["validation"] == pytest.approx(2 * (3 * 0.125 + 6 * 0.25), abs=0.6)
    assert record.validation_parts["wait"] == pytest.approx(3.0)


def test_the_workers_are_looked_into(quiet: dict[str, Any]) -> None:
    callback = StallCallback(**quiet)
    loader = DataLoader(Rows(48), batch_size=2, num_workers=2)
    model_of().fit(loader, epochs=2, callbacks=[callback], verbose=0)
    found = [one for one, _ in Reader(callback.monitor.folder)]
    infos = [one for one in found if isinstance(one, LoaderInfo)]
    assert {(one.num_workers, one.probed) for one in infos} == {(2, True)}
    # An iterator that Keras makes and does not use has its first batches made, too.
    assert sum(isinstance(one, WorkerBatch) for one in found) >= 48
    assert loader.worker_init_fn is None


def test_workers_that_fit_starts_before_it_calls_anybody(quiet: dict[str, Any]) -> None:
    callback = StallCallback(**quiet)
    model, loader = model_of(), DataLoader(Rows(48), batch_size=2, num_workers=1, persistent_workers=True)
    model.fit(loader, epochs=2, callbacks=[callback], verbose=0)
    found = [one for one, _ in Reader(callback.monitor.folder)]
    assert {one.probed for one in found if isinstance(one, LoaderInfo)} == {True}
    assert sum(isinstance(one, WorkerBatch) for one in found) >= 48


@pytest.mark.parametrize("how", ["adapter", "zero-code"])
def test_it_trains_as_without(how: str, quiet: dict[str, Any]) -> None:
    told = []
    for measured in (False, True):
        model, rows = model_of(), Rows()
        everything = stallmeter.auto(**quiet) if measured and how == "zero-code" else None
        callbacks = [StallCallback(**quiet)] if measured and how == "adapter" else None
        try:
            history = model.fit(
                DataLoader(rows, batch_size=2, shuffle=True),
                epochs=2,
                validation_data=DataLoader(Rows(6), batch_size=2),
                callbacks=callbacks,
                verbose=0,
            )
        finally:
            if everything is not None:
                everything.stop()
        told.append((rows.asked, [w.tobytes() for w in model.get_weights()], history.history, torch.rand(3).tolist()))
        kept = [name for name, value in vars(model).items() if "stallmeter" in type(value).__module__]
        assert kept == []
    assert told[0] == told[1]
    callbacks = None
    gc.collect()
    assert len(list(quiet["directory"].glob("*"))) == 1
    assert "stallmeter" not in keras.Model.fit.__code__.co_filename
    assert "stallmeter" not in type(model).train_step.__code__.co_filename


@pytest.mark.parametrize("given", ["nothing", "one", "a list", "a CallbackList"])
def test_without_code_it_is_attached_once(given: str, quiet: dict[str, Any]) -> None:
    model = model_of()
    one = keras.callbacks.LambdaCallback()
    listed = keras.callbacks.CallbackList([one], add_history=True, model=model, epochs=1, steps=12)
    callbacks = {"nothing": None, "one": one, "a list": [one], "a CallbackList": listed}[given]
    everything = stallmeter.auto(**quiet)
    try:
        model.fit(DataLoader(Rows(), batch_size=2), None, None, 1, 0, callbacks)
        assert everything.monitor is None
    finally:
        everything.stop()
    (folder,) = quiet["directory"].iterdir()
    history = read_history(folder)
    assert history.report().steps == 12
    assert history.header.framework.startswith("keras ")
    assert not any(isinstance(kept, StallCallback) for kept in listed.callbacks)


def test_a_callback_of_the_programs_own_wins(quiet: dict[str, Any], tmp_path: Path) -> None:
    callback = StallCallback(**quiet)
    second = StallCallback(**quiet)
    everything = stallmeter.auto(**{**quiet, "directory": tmp_path / "auto"})
    try:
        model_of().fit(DataLoader(Rows(), batch_size=2), callbacks=[callback, second], verbose=0)
    finally:
        everything.stop()
    assert report_of(callback).steps == 12
    assert second.monitor is None
    assert not list((tmp_path / "auto").glob("*"))


def test_batches_of_keras_own_making(quiet: dict[str, Any]) -> None:
    for data in (Batches(), Batches(workers=2)):
        callback = StallCallback(**quiet)
        model_of().fit(data, epochs=2, callbacks=[callback], verbose=0)
        assert report_of(callback).steps == 24
        assert {step.samples for step in steps_of(callback)} == {2}
        (info,) = (one for one, _ in Reader(callback.monitor.folder) if isinstance(one, LoaderInfo))
        assert (info.kind, info.probed) == ("Batches", False), "who makes its batches is looked for"
    callback = StallCallback(**quiet)
    model_of().fit(np.ones((24, 4)), np.ones((24, 1)), batch_size=2, callbacks=[callback], verbose=0)
    assert report_of(callback).steps == 12


@pytest.mark.parametrize("how", ["adapter", "zero-code"])
def test_an_exception_ends_the_run(how: str, quiet: dict[str, Any]) -> None:
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 3:
                raise ZeroDivisionError("a callback")

    everything = stallmeter.auto(**quiet) if how == "zero-code" else None
    mine = [] if everything is not None else [StallCallback(**quiet)]
    try:
        with pytest.raises(ZeroDivisionError):
            model_of().fit(DataLoader(Rows(), batch_size=2), callbacks=[Fails(), *mine], verbose=0)
    finally:
        if everything is not None:
            everything.stop()
    (folder,) = quiet["directory"].iterdir()
    (end,) = [one for one, _ in Reader(folder) if isinstance(one, Event) and one.name == "end"]
    assert "ZeroDivisionError" in str(end)


def test_on_another_backend_it_says_what_is_hidden(
    quiet: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: Any
) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    callback = StallCallback(**quiet)
    model_of().fit(DataLoader(Rows(), batch_size=2), callbacks=[callback], verbose=0)
    assert callback.monitor is None
    assert "Keras on tensorflow takes its batches inside its compiled step" in caplog.text
    assert "KERAS_BACKEND=torch" in caplog.text


def test_the_run_that_autolog_opens_is_taken(quiet: dict[str, Any], tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    callback = StallCallback(**{**quiet, "trackers": "auto"})
    with mlflow.start_run():
        model_of().fit(DataLoader(Rows(), batch_size=2), callbacks=[callback], verbose=0)
        assert [tracker.name for tracker in callback.monitor.run.trackers] == ["mlflow"]


def test_a_copy_is_a_fresh_one(quiet: dict[str, Any]) -> None:
    callback = StallCallback(**quiet)
    model_of().fit(DataLoader(Rows(), batch_size=2), callbacks=[callback], verbose=0)
    callback.set_model(None)
    assert pickle.loads(pickle.dumps(callback)).monitor is None


def test_the_how_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = blocks("keras.md")
    names: dict[str, Any] = {"__name__": "howto", "model": model_of(), "loader": DataLoader(Rows(), batch_size=2)}
    exec(compile(program, "keras.md", "exec", dont_inherit=True), names)
    (folder,) = Path("stallmeter").iterdir()
    assert read_history(folder).report().steps == 36
