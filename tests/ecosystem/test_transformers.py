"""The Hugging Face Trainer with the callback: where its time goes, its ends, and that it trains as without."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import stallmeter
from stallmeter.engine.patch import Patch
from stallmeter.recording import Reader
from stallmeter.records import LoaderInfo, StepRecord, WorkerBatch
from stallmeter.report.model import Report, read_history

from ..conftest import FakeTime
from ..test_howto import blocks
from . import closing

transformers = pytest.importorskip("transformers")
from stallmeter.transformers import StallCallback  # noqa: E402 - needs the package

pytestmark = pytest.mark.ecosystem
EVALUATE = (
    "eval_strategy"
    if "eval_strategy" in inspect.signature(transformers.TrainingArguments).parameters
    else ("evaluation_strategy")
)


class Rows(Dataset):
    """Each item takes ``cost_s`` of fake time; what is asked for is noted."""

    def __init__(self, count: int = 24, time: FakeTime | None = None, cost_s: float = 0.0, bad: int = -1) -> None:
        self.count, self.time, self.cost_s, self.bad = count, time, cost_s, bad
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.bad:
            raise ZeroDivisionError("a bad row")
        self.asked.append(index)
        if self.time is not None:
            self.time.sleep(self.cost_s)
        return {"x": torch.full((4,), float(index)), "labels": index % 2}


class Model(torch.nn.Module):
    def __init__(self, time: FakeTime | None = None, cost_s: float = 0.0) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.time, self.cost_s = time, cost_s

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.time is not None:
            self.time.sleep(self.cost_s)
        out = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(out, labels), "logits": out}


class Slow(transformers.TrainerCallback):
    """A callback that takes 2 s of fake time after each step."""

    def __init__(self, time: FakeTime) -> None:
        self.time = time

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.time.sleep(2.0)


class Timed(StallCallback):
    """On a fake clock."""

    def __init__(self, time: FakeTime, **options: Any) -> None:
        self._now = time
        super().__init__(**options)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What callbacks of tests are given."""
    for name in ("MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI", "WANDB_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    return {"directory": tmp_path / "rec", "trackers": None, "console": False, "hardware": False}


def trainer_of(folder: Path, *callbacks: Any, rows: Dataset | None = None, model: Any = None, **options: Any) -> Any:
    given = {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "num_train_epochs": 1,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_strategy": "no",
        "seed": 7,
    }
    evaluation = options.pop("eval_dataset", None)
    kind = options.pop("kind", transformers.Trainer)
    return kind(
        model=Model() if model is None else model,
        args=transformers.TrainingArguments(**{**given, **options}),
        train_dataset=Rows() if rows is None else rows,
        eval_dataset=evaluation,
        callbacks=list(callbacks),
    )


def report_of(callback: Any) -> Report:
    return read_history(callback.monitor.folder).report()


def buckets_of(callback: Any) -> dict[str, float]:
    record = read_history(callback.monitor.folder).window.ledger.record
    assert record is not None
    return {name: round(seconds, 6) for name, seconds in record.buckets.items()}


def steps_of(callback: Any) -> list[StepRecord]:
    return [one for one, _ in Reader(callback.monitor.folder) if isinstance(one, StepRecord)]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_every_second_has_its_place(accumulate: int, tmp_path: Path, quiet: dict[str, Any]) -> None:
    time = FakeTime()

    class Trainer(transformers.Trainer):
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            time.sleep(0.25)
            return super().training_step(*args, **kwargs)

        def log(self, *args: Any, **kwargs: Any) -> None:
            time.sleep(0.5)
            super().log(*args, **kwargs)

        def _save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
            time.sleep(3.0)
            return super()._save_checkpoint(*args, **kwargs)

    callback = Timed(time, **quiet, workers=False)
    trainer = trainer_of(
        tmp_path,
        callback,
        Slow(time),
        kind=Trainer,
        rows=Rows(24, time, 0.5),
        model=Model(time, 1.0),
        eval_dataset=Rows(6, time, 0.25),
        gradient_accumulation_steps=accumulate,
        num_train_epochs=2,
        logging_strategy="epoch",
        save_strategy="epoch",
        **{EVALUATE: "epoch"},
    )
    trainer.train()
    report, steps = report_of(callback), steps_of(callback)
    updates = 2 * 12 // accumulate
    assert report.steps == len(steps) == updates
    assert [step.optimizer_step for step in steps] == list(range(1, updates + 1))
    assert {step.samples for step in steps} == {2 * accumulate}
    assert report.ended == "end"
    ledger = {name: round(seconds, 3) for name, seconds in buckets_of(callback).items() if seconds}
    # The first waits of an epoch are start-up as far as they are longer than others.
    assert ledger["data_wait"] + ledger.get("worker_startup", 0.0) == 24.0
    assert ledger["forward"] == 24.0
    assert ledger["compute"] == 6.0
    assert ledger["callbacks"] == 2.0 * updates
    assert ledger["validation"] == 2 * (3 * 1.0 + 6 * 0.25)
    assert ledger["checkpoint"] == 6.0
    # Of each epoch, of each evaluation, of the whole.
    assert ledger["logging"] == 0.5 * 5
    window = read_history(callback.monitor.folder).window
    assert window.ledger.record.callbacks == {"Slow": 2.0 * updates}
    assert window.ledger.record.validation_parts["wait"] == pytest.approx(3.0)
    assert window.spent.evaluated is not None
    assert window.spent.optimizer is not None
    assert window.spent.optimizer.kind.startswith("Adam")
    assert (window.spent.evaluated.batches, window.spent.evaluated.batch_size) == (2 * 3, 2)


def test_one_step_waits_for_all_its_batches(tmp_path: Path, quiet: dict[str, Any]) -> None:
    time = FakeTime()
    callback = Timed(time, **quiet, workers=False)
    trainer_of(tmp_path, callback, rows=Rows(24, time, 0.5), gradient_accumulation_steps=4).train()
    assert [step.data_wait_s for step in steps_of(callback)][1:] == [4.0, 3.0]  # one was fetched ahead in the first


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_workers_are_looked_into(accumulate: int, tmp_path: Path, quiet: dict[str, Any]) -> None:
    callback = StallCallback(**quiet)
    trainer = trainer_of(
        tmp_path, callback, rows=Rows(240), dataloader_num_workers=2, gradient_accumulation_steps=accumulate
    )
    trainer.train()
    found = [one for one, _ in Reader(callback.monitor.folder)]
    infos = [one for one in found if isinstance(one, LoaderInfo)]
    assert {(one.kind, one.num_workers, one.probed) for one in infos} == {("DataLoaderShard", 2, True)}
    assert {one.batches_per_step for one in infos} == {None if accumulate == 1 else 3.0}
    assert sum(isinstance(one, WorkerBatch) for one in found) == 120
    if hasattr(trainer, "get_batch_samples"):
        assert any(step.ready is not None for step in steps_of(callback))
    loader = trainer.callback_handler.train_dataloader
    assert (
        getattr(loader, "base_dataloader", loader).worker_init_fn is None
        or "stallmeter" not in type(getattr(loader, "base_dataloader", loader).worker_init_fn).__module__
    )


def test_it_trains_as_without(tmp_path: Path, quiet: dict[str, Any]) -> None:
    told = []
    for name in ("without", "with"):
        callbacks = [StallCallback(**quiet)] if name == "with" else []
        rows = Rows(24)
        torch.manual_seed(3)
        trainer = trainer_of(
            tmp_path / name,
            *callbacks,
            rows=rows,
            num_train_epochs=2,
            gradient_accumulation_steps=2,
            logging_strategy="steps",
            logging_steps=2,
            eval_dataset=Rows(6),
            **{EVALUATE: "epoch"},
        )
        trainer.train()
        history = [
            {k: v for k, v in entry.items() if "runtime" not in k and "per_second" not in k}
            for entry in trainer.state.log_history
        ]
        told.append((closing.digest(trainer.model), rows.asked, history))
    assert told[0] == told[1]


def test_nothing_stays_but_what_tells_a_failure(tmp_path: Path, quiet: dict[str, Any]) -> None:
    callback = StallCallback(**quiet)
    trainer = trainer_of(tmp_path, callback, eval_dataset=Rows(4), dataloader_num_workers=1)
    before = set(vars(trainer))
    trainer.train()
    assert {name for name, value in vars(trainer).items() if isinstance(value, Patch)} == {"train"}
    assert "train" in before
    assert not [name for name in vars(trainer.accelerator) if isinstance(vars(trainer.accelerator)[name], Patch)]
    for other in trainer.callback_handler.callbacks:
        assert not any(isinstance(value, Patch) for value in vars(other).values())
    ours = [name for name in closing.leftovers() if name.startswith("transformers.") and not name.endswith(".train")]
    assert ours == []


@pytest.mark.parametrize("by", ["constructor", "add_callback"])
def test_an_exception_passes_through_and_ends_the_run(by: str, tmp_path: Path, quiet: dict[str, Any]) -> None:
    callback = StallCallback(**quiet)
    rows = Rows(24)
    trainer = trainer_of(tmp_path, *([callback] if by == "constructor" else []), rows=rows)
    if by == "add_callback":
        trainer.add_callback(callback)
        trainer.train()
        assert report_of(callback).ended == "end"
    rows.bad = 5
    with pytest.raises(ZeroDivisionError, match="a bad row"):
        trainer.train()
    assert callback.monitor.closed
    assert callback.monitor.finish()
    assert report_of(callback).ended == "exception: ZeroDivisionError"
    first = callback.monitor.folder
    rows.bad = -1
    trainer.train()
    assert callback.monitor.folder != first
    assert (report_of(callback).ended, report_of(callback).steps) == ("end", 12)
    gc.collect()


def test_a_training_that_goes_on(tmp_path: Path, quiet: dict[str, Any]) -> None:
    """The rest of an epoch is a loader of its own, made when the training has begun."""
    time = FakeTime()
    callback = Timed(time, **quiet, workers=False)
    common = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 8, "save_total_limit": 3}
    trainer_of(tmp_path, rows=Rows(24), max_steps=8, **common).train()
    trainer = trainer_of(tmp_path, callback, rows=Rows(24, time, 0.5), model=Model(time, 1.0), **common)
    trainer.train(resume_from_checkpoint=True)
    steps = steps_of(callback)
    assert [step.optimizer_step for step in steps] == list(range(9, 25))
    assert [step.epoch for step in steps] == 4 * [0] + 12 * [1]
    ledger = buckets_of(callback)
    assert ledger["forward"] == 16.0
    assert 16.0 <= ledger["data_wait"] + ledger["worker_startup"] <= 16.0 + 8.0  # 4.40 makes the batches that it skips


def test_of_two_the_second_steps_aside(tmp_path: Path, quiet: dict[str, Any]) -> None:
    one, other = StallCallback(**quiet), StallCallback(**quiet)
    trainer_of(tmp_path, one, other).train()
    assert report_of(one).steps == 12
    assert other.monitor is None


def test_a_copy_is_a_fresh_one(tmp_path: Path, quiet: dict[str, Any]) -> None:
    callback = StallCallback(**quiet)
    trainer = trainer_of(tmp_path, callback)
    trainer.train()
    assert copy.deepcopy(callback).monitor is None
    assert pickle.loads(pickle.dumps(callback)).monitor is None
    assert callback.monitor is not None


def test_the_number_of_workers_is_applied(tmp_path: Path, quiet: dict[str, Any]) -> None:
    callback = StallCallback(**{**quiet, "on_num_workers": lambda advice: 1})
    trainer = trainer_of(tmp_path, callback, rows=Rows(240), num_train_epochs=3)
    trainer.train()
    loader = trainer.callback_handler.train_dataloader
    assert getattr(loader, "base_dataloader", loader).num_workers in (0, 1)
    assert report_of(callback).steps == 360


def test_the_run_that_the_trainer_reports_to(
    tmp_path: Path, quiet: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    mlflow.set_tracking_uri(uri)
    try:
        callback = StallCallback(**{**quiet, "trackers": "auto", "period_s": 0.05})
        trainer = trainer_of(tmp_path, callback, report_to=["mlflow"], logging_strategy="steps", logging_steps=4)
        trainer.train()
        assert callback.monitor.finish()
        (run,) = mlflow.MlflowClient(uri).search_runs(["0"])
        assert {"loss", "stallmeter/step_time_ms"} <= run.data.metrics.keys()
        assert run.info.status == "FINISHED"
        (tracker,) = callback.monitor.run.trackers
        assert tracker.name == "mlflow"
    finally:
        mlflow.end_run()
        mlflow.set_tracking_uri(None)


def test_neptunes_run_is_taken(tmp_path: Path, quiet: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    class Run:
        """As much of one as is looked at."""

        def __getitem__(self, name: str) -> Any:
            raise ValueError(name)

        def sync(self) -> None: ...

        def wait(self) -> None: ...

    class NeptuneCallback(transformers.TrainerCallback):
        _run = None

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self._run = Run()

    callback = StallCallback(**{**quiet, "trackers": "auto"})
    trainer_of(tmp_path, NeptuneCallback(), callback).train()
    assert [tracker.name for tracker in callback.monitor.run.trackers] == ["neptune"]


def test_without_a_trainer_it_says_so(quiet: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = StallCallback(**quiet)
    args = transformers.TrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True, report_to=[])
    state, control = transformers.TrainerState(), transformers.TrainerControl()
    callback.on_train_begin(args, state, control)
    callback.on_train_end(args, state, control)
    assert "no transformers.Trainer calls it" in caplog.text


def test_beside_zero_code_it_counts_once(tmp_path: Path, quiet: dict[str, Any]) -> None:
    callback = StallCallback(**quiet)
    everything = stallmeter.auto(**{**quiet, "directory": tmp_path / "auto"})
    try:
        trainer_of(tmp_path, callback).train()
        assert everything.monitor is None
    finally:
        everything.stop()
    assert report_of(callback).steps == 12
    assert not list((tmp_path / "auto").glob("*"))


def test_the_how_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = blocks("transformers.md")
    names: dict[str, Any] = {"__name__": "howto", "model": Model(), "dataset": Rows(16)}
    exec(compile(program, "transformers.md", "exec", dont_inherit=True), names)
    (callback,) = [one for one in names["trainer"].callback_handler.callbacks if isinstance(one, StallCallback)]
    assert report_of(callback).steps == 2
    assert callback.monitor.folder.parent == tmp_path / "stallmeter"
    assert callback.monitor.finish()


def test_without_code_each_training_is_recorded_once(tmp_path: Path, quiet: dict[str, Any]) -> None:
    everything = stallmeter.auto(**quiet)
    try:
        for again in range(2):
            trainer = trainer_of(tmp_path / str(again), gradient_accumulation_steps=2)
            trainer.train()
            assert not any(isinstance(one, StallCallback) for one in trainer.callback_handler.callbacks)
            assert "train" not in vars(trainer)
        assert everything.monitor is None
    finally:
        everything.stop()
    histories = [read_history(folder) for folder in sorted(quiet["directory"].iterdir())]
    assert [history.report().steps for history in histories] == [6, 6]
    assert {history.header.framework for history in histories} == {f"transformers {transformers.__version__}"}
    assert "stallmeter" not in transformers.Trainer.train.__code__.co_filename


def test_without_code_an_exception_ends_the_run(tmp_path: Path, quiet: dict[str, Any]) -> None:
    everything = stallmeter.auto(**quiet)
    try:
        with pytest.raises(ZeroDivisionError):
            trainer_of(tmp_path, rows=Rows(bad=9)).train()
    finally:
        everything.stop()
    (folder,) = quiet["directory"].iterdir()
    assert any("ZeroDivisionError" in str(one) for one, _ in Reader(folder))


def test_without_code_it_trains_as_without(tmp_path: Path, quiet: dict[str, Any]) -> None:
    told = []
    for measured in (False, True):
        rows = Rows()
        torch.manual_seed(3)
        everything = stallmeter.auto(**quiet) if measured else None
        try:
            trainer = trainer_of(tmp_path / str(measured), rows=rows, num_train_epochs=2)
            trainer.train()
        finally:
            if everything is not None:
                everything.stop()
        told.append((rows.asked, closing.digest(trainer.model), torch.rand(3).tolist()))
    assert told[0] == told[1]


def test_a_trainer_with_a_loop_of_its_own_is_measured_as_any_loop(tmp_path: Path, quiet: dict[str, Any]) -> None:
    class Own(transformers.Trainer):
        """As some that are made of it: it calls no events."""

        def train(self, *_: Any, **__: Any) -> None:
            optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
            for batch in self.get_train_dataloader():
                optimizer.zero_grad()
                self.model(**batch)["loss"].backward()
                optimizer.step()

    everything = stallmeter.auto(**quiet)
    try:
        trainer_of(tmp_path, kind=Own).train()
        assert everything.monitor is not None
    finally:
        everything.stop()
    (folder,) = quiet["directory"].iterdir()
    assert read_history(folder).report().steps == 12
