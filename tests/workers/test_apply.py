"""Numbers of workers in plain loops: decided by the sampler thread, set between two iterations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import stallmeter
from stallmeter import api
from stallmeter.errors import SettingError
from stallmeter.recording import Reader
from stallmeter.records import (
    BatchContent,
    Event,
    LedgerRecord,
    LoaderInfo,
    StepRecord,
    WorkerBatch,
    WorkerChange,
    WorkerTrial,
)
from stallmeter.records.diagnosis import Advice, Diagnosis, Severity, Verdict, WorkerAdvice
from stallmeter.timing.clock import StepClock
from stallmeter.timing.ledger import COMPUTE, OTHER, START, Ledger
from stallmeter.window import Window
from stallmeter.workers.agreement import ALONE, Follower
from stallmeter.workers.apply import Seen, WorkerTuner

from ..children import ProcessesLeft
from ..conftest import FakeTime

STEPS = 20


def advice(current: int, recommended: int) -> WorkerAdvice:
    return WorkerAdvice(
        current=current,
        recommended=recommended,
        predicted_step_time_s=0.01,
        predicted_gain_pct=0.0 if current == recommended else 100.0,
        limited_by="compute",
        reason="",
        confidence=0.9,
    )


class Items(Dataset):
    """An item costs fake time in the loop thread, none in a worker."""

    def __init__(self, time: FakeTime) -> None:
        self.time = time

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        self.time.sleep(0.01)
        return torch.full((3,), float(index))


class Plain:
    """A monitor for a plain loop whose model recommends what a table says."""

    def __init__(self, folder: Path, time: FakeTime, monkeypatch: pytest.MonkeyPatch, table: dict[int, int]) -> None:
        def evaluate(rules: Any, window: Any, guard: Any) -> Verdict:
            now = window.present().loader.num_workers
            return Verdict(primary=None, num_workers=None if now is None else advice(now, table.get(now, now)))

        monkeypatch.setattr("stallmeter.engine.collector.evaluate", evaluate)
        self.time = time
        self.folder = folder

    def monitor(self, **options: Any) -> stallmeter.Monitor:
        made = stallmeter.Monitor(
            directory=self.folder, hardware=False, console=False, trackers=None, interval_s=86_400, **options
        )
        ledger = made.run.clock.ledger
        ledger.now = self.time
        ledger.origin = ledger.last = self.time()
        return made

    def epoch(self, monitor: stallmeter.Monitor, watched: Any) -> list[float]:
        seen = []
        for batch in watched:
            self.time.sleep(0.002)
            seen.append(float(batch[0, 0]))
        monitor.run.collector.tick()
        return seen


@pytest.fixture
def plain(tmp_path: Path, fake_time: FakeTime, monkeypatch: pytest.MonkeyPatch) -> Plain:
    return Plain(tmp_path, fake_time, monkeypatch, {0: 2})


def records(monitor: stallmeter.Monitor, kind: type) -> list[Any]:
    return [record for record, _ in Reader(monitor.folder) if isinstance(record, kind)]


def test_a_plain_loop_is_given_workers(plain: Plain, processes_left: ProcessesLeft) -> None:
    loader = DataLoader(Items(plain.time))
    with plain.monitor(on_num_workers="apply") as monitor:
        numbers = []
        for _ in range(4):
            assert plain.epoch(monitor, monitor.watch(loader)) == list(range(STEPS))
            numbers.append(loader.num_workers)
    assert numbers == [0, 2, 2, 2]
    assert [(t.workers, t.outcome) for t in records(monitor, WorkerTrial)] == [(2, "measuring"), (2, "kept")]
    assert records(monitor, WorkerTrial)[1].achieved_gain_pct == pytest.approx(500, rel=0.1)
    assert records(monitor, BatchContent) == [records(monitor, BatchContent)[0]]
    assert records(monitor, BatchContent)[0].bytes == 12
    assert not processes_left()


def test_another_loader_in_the_same_run_ends_it(plain: Plain, caplog: pytest.LogCaptureFixture) -> None:
    first, second = DataLoader(Items(plain.time)), DataLoader(Items(plain.time))
    with plain.monitor(on_num_workers="apply") as monitor:
        for loader in (first, second, first, second):
            plain.epoch(monitor, monitor.watch(loader))
    assert (first.num_workers, second.num_workers) == (0, 0)
    assert "there are several training loaders" in caplog.text


def test_a_validation_loader_is_left_alone(plain: Plain) -> None:
    loader, validation = DataLoader(Items(plain.time)), DataLoader(Items(plain.time))
    with plain.monitor(on_num_workers="apply") as monitor:
        for _ in range(3):
            plain.epoch(monitor, monitor.watch(loader))
            for _ in monitor.watch(validation, stage="validation"):
                pass
    assert (loader.num_workers, validation.num_workers) == (2, 0)


def test_what_is_no_dataloader_is_named(plain: Plain, caplog: pytest.LogCaptureFixture) -> None:
    with plain.monitor(on_num_workers="apply") as monitor:
        for _ in range(3):
            for _ in monitor.watch([torch.ones(1, 1)] * STEPS):
                plain.time.sleep(0.01)
    assert [e.detail for e in records(monitor, Event) if "num_workers" in e.name] == [
        "list is no torch.utils.data.DataLoader"
    ]


def test_the_setting_of_watch(plain: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    """The implicit monitor takes the setting of the first call."""
    told: list[WorkerAdvice] = []
    made: list[stallmeter.Monitor] = []
    monkeypatch.setattr(api, "_implicit", None)
    make = plain.monitor

    def monitor(**options: Any) -> stallmeter.Monitor:
        with monkeypatch.context() as original:
            original.setattr(api, "Monitor", stallmeter_monitor)
            made.append(make(**options))
        return made[-1]

    stallmeter_monitor = api.Monitor
    monkeypatch.setattr(api, "Monitor", monitor)
    loader = DataLoader(Items(plain.time))
    for options in ({"on_num_workers": told.append}, {}, {}):
        for _ in stallmeter.watch(loader, **options):
            plain.time.sleep(0.002)
        made[0].run.collector.tick()
    made[0].close()
    assert len(made) == 1
    assert told == [advice(0, 2)] * 2
    with pytest.raises(SettingError, match="on_num_workers is 3"):
        stallmeter.watch(loader, on_num_workers=3)


# -- asking for the advice ---------------------------------------------------------------------------------------------


def test_recommend_num_workers(plain: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(Items(plain.time))
    with plain.monitor() as monitor:
        assert stallmeter.recommend_num_workers(monitor) is None
        plain.epoch(monitor, monitor.watch(loader))
        assert stallmeter.recommend_num_workers(monitor) == advice(0, 2)
    monkeypatch.setattr(api, "_implicit", monitor)
    assert stallmeter.recommend_num_workers() == advice(0, 2)

    class Callback:
        def __init__(self, monitor: object) -> None:
            self.monitor = monitor

    assert stallmeter.recommend_num_workers(Callback(monitor)) == advice(0, 2)
    for wrong, what in ((loader, "takes a Monitor"), (Callback(None), "no run yet")):
        with pytest.raises(SettingError, match=what):
            stallmeter.recommend_num_workers(wrong)
    monkeypatch.setattr(api, "_implicit", None)
    with pytest.raises(SettingError, match="no run yet"):
        stallmeter.recommend_num_workers()


def fill(
    window: Window, *, first: int, epoch: int, step_s: float, wait_s: float, service_s: float, workers: int
) -> None:
    """40 steps and batches from second ``first`` on, one a second."""
    for i in range(40):
        window.append(
            StepRecord(
                index=first + i, epoch=epoch, optimizer_step=None, tracker_step=first + i, samples=4,
                time_s=float(first + i), total_s=step_s, data_wait_s=wait_s, epoch_start=i == 0,
            )
        )  # fmt: skip
        window.append(
            WorkerBatch(
                worker=i % workers if workers else -1, time_s=first + i + 0.5, wall_s=service_s, cpu_s=service_s / 2
            )
        )


def ledger(at_s: float, wait_s: float) -> LedgerRecord:
    return LedgerRecord(
        time_s=at_s, wall_s=at_s, steps=int(at_s), epochs=1 + int(at_s) // 40,
        buckets={"data_wait": wait_s, "compute": at_s - wait_s, "other": 0.0},
    )  # fmt: skip


@pytest.fixture
def changed() -> Window:
    """40 s without workers, most of it data wait, then 40 s with two workers and hardly any."""
    window = Window()
    window.append(LoaderInfo(time_s=0, kind="DataLoader", num_workers=0))
    fill(window, first=0, epoch=0, step_s=1.0, wait_s=0.8, service_s=0.8, workers=0)
    window.append(ledger(40.0, 32.0))
    window.append(WorkerChange(time_s=40.0, step=40, before=0, workers=2))
    window.append(LoaderInfo(time_s=40.1, kind="DataLoader", num_workers=2))
    fill(window, first=40, epoch=1, step_s=0.4, wait_s=0.01, service_s=0.7, workers=2)
    window.append(WorkerBatch(worker=0, time_s=39.9, wall_s=99.0, cpu_s=99.0))
    window.append(ledger(80.0, 33.0))
    return window


def test_two_numbers_of_workers_are_not_mixed(changed: Window) -> None:
    """Rules and model see the time since the change; the report sees the whole run."""
    present = changed.present()
    assert present.loader.num_workers == 2
    assert {s.index for s in present.steps.steady} == set(range(41, 80))
    assert len(present.workers.batches.items) == 40
    assert present.ledger.wall_s == 40.0
    assert present.spent.bucket_s("data_wait") == pytest.approx(1.0)
    assert present.before is not None
    assert present.before.loader.num_workers == 0
    assert {b.worker for b in present.before.workers.batches.items} == {-1}
    assert changed.ledger.wall_s == 80.0
    assert changed.spent.bucket_s("data_wait") == 33.0
    assert len(changed.steps.steady) > 70


def test_until_enough_is_known_the_time_before_counts() -> None:
    window = Window()
    window.append(LoaderInfo(time_s=0, kind="DataLoader", num_workers=0))
    fill(window, first=0, epoch=0, step_s=1.0, wait_s=0.8, service_s=0.8, workers=0)
    window.append(ledger(40.0, 32.0))
    assert window.present() is window
    window.append(WorkerChange(time_s=40.0, step=40, before=0, workers=2))
    window.append(ledger(41.0, 32.0))
    assert window.loader.num_workers == 0
    assert window.present().loader.num_workers == 0
    assert window.present() is not window


def test_a_second_change_forgets_the_first(changed: Window) -> None:
    changed.append(WorkerChange(time_s=80.0, step=80, before=2, workers=3))
    fill(changed, first=80, epoch=2, step_s=0.5, wait_s=0.1, service_s=0.9, workers=3)
    changed.append(ledger(120.0, 37.0))
    present = changed.present()
    assert present.loader.num_workers == 3
    assert present.ledger.wall_s == 40.0
    assert present.before is not None
    assert present.before.loader.num_workers == 2
    assert present.before.before is None


def test_trials_are_kept_as_they_stand(changed: Window) -> None:
    open_trial = WorkerTrial(time_s=40.0, before=0, workers=2, outcome="measuring")
    kept = WorkerTrial(time_s=80.0, before=0, workers=2, outcome="kept")
    for trial in (open_trial, kept, open_trial):
        changed.append(trial)
    assert changed.loader.trials == [kept, open_trial]
    assert changed.present().loader.trials == changed.loader.trials


# -- two threads -------------------------------------------------------------------------------------------------------


class Hands:
    """What a WorkerTuner is given."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.sizes: list[int] = []
        self.fixed: str | None = None

    def resize(self, loader: Any, workers: int, *, prefetch_factor: int | None = None) -> None:
        if self.fixed:
            raise SettingError(self.fixed)
        loader.num_workers = workers
        self.sizes.append(workers)

    def worker_tuner(self, epochs: int | None = None) -> WorkerTuner:
        return WorkerTuner(
            "apply",
            resize=self.resize,
            why_fixed=lambda loader, workers: None,
            guard=lambda name, call, *args: call(*args),
            tell=self.events.append,
            epochs=lambda: epochs,
        )


def make_clock(time: FakeTime) -> StepClock:
    return StepClock(Ledger(START, now=time), loop=COMPUTE, idle=OTHER, unix_ns=lambda: 0)


def run_epoch(worker_tuner: WorkerTuner, clock: StepClock, seconds: float = 0.1) -> None:
    for i in range(STEPS):
        clock.index += 1
        worker_tuner.step(
            StepRecord(
                index=clock.index, epoch=0, optimizer_step=None, tracker_step=0, samples=1,
                time_s=0.0, total_s=seconds, data_wait_s=0.0, epoch_start=i == 0,
            )
        )  # fmt: skip


@pytest.mark.parametrize(("epochs", "tried"), [(None, True), (3, True), (2, False)])
def test_nothing_is_tried_in_the_last_epoch(fake_time: FakeTime, epochs: int | None, tried: bool) -> None:
    """It could neither be measured against a later one nor taken back."""
    hands, loader, clock = Hands(), DataLoader(Items(fake_time)), make_clock(fake_time)
    worker_tuner = hands.worker_tuner(epochs)
    worker_tuner.attach(loader)
    clock.epochs = 1
    run_epoch(worker_tuner, clock)
    worker_tuner.decide(advice(0, 2), fresh=True)
    assert worker_tuner.boundary(clock) == tried
    assert hands.sizes == [2] * tried


def test_a_decision_is_used_once(fake_time: FakeTime) -> None:
    """What was decided before a boundary that has been passed meanwhile is not carried out at the next one."""
    hands, loader, clock = Hands(), DataLoader(Items(fake_time)), make_clock(fake_time)
    worker_tuner = hands.worker_tuner()
    worker_tuner.attach(loader)
    run_epoch(worker_tuner, clock)
    worker_tuner.decide(advice(0, 2), fresh=True)
    assert worker_tuner.boundary(clock)
    worker_tuner.decide(advice(0, 4), fresh=True)  # the sampler has not seen the boundary yet
    assert not worker_tuner.boundary(clock)
    for boundary in worker_tuner.take_boundaries():
        worker_tuner.on_boundary(boundary)
    assert hands.sizes == [2]
    assert worker_tuner.take_boundaries() == []


def test_a_boundary_without_advice_asks_for_one(fake_time: FakeTime) -> None:
    """A short epoch may end before the first verdict: then one is made at once, and only one."""
    hands, clock = Hands(), make_clock(fake_time)
    worker_tuner = hands.worker_tuner()
    worker_tuner.attach(DataLoader(Items(fake_time)))
    assert not worker_tuner.needs_advice
    run_epoch(worker_tuner, clock)
    worker_tuner.boundary(clock)
    for boundary in worker_tuner.take_boundaries():
        worker_tuner.on_boundary(boundary)
    assert worker_tuner.needs_advice
    worker_tuner.decide(None, fresh=True)
    assert not worker_tuner.needs_advice
    worker_tuner.decide(advice(0, 2), fresh=True)
    assert worker_tuner.boundary(clock)


def test_a_loader_that_refuses_is_named_once(fake_time: FakeTime) -> None:
    hands, clock = Hands(), make_clock(fake_time)
    hands.fixed = "its dataset holds CUDA tensors"
    worker_tuner = hands.worker_tuner()
    worker_tuner.attach(DataLoader(Items(fake_time)))
    for _ in range(3):
        run_epoch(worker_tuner, clock)
        worker_tuner.decide(advice(0, 2), fresh=True)
        assert not worker_tuner.boundary(clock)
        for boundary in worker_tuner.take_boundaries():
            worker_tuner.on_boundary(boundary)
    assert [e.detail for e in hands.events] == ["its dataset holds CUDA tensors"]


# -- other settings ----------------------------------------------------------------------------------------------------


class OtherSettings:
    """Takes what is set; refuses what it is told to."""

    def __init__(self, refused: str = "") -> None:
        self.refused = refused
        self.set_: list[tuple[str, Any]] = []
        self.let_go: str | None = None

    def boundary(self, loader: Any) -> str | None:
        return self.let_go

    def set(self, loader: Any, setting: str, value: Any) -> None:
        if setting == self.refused:
            raise SettingError(f"{setting} stays")
        self.set_.append((setting, value))

    def threads(self) -> int | None:
        return 8


def seen(*rules: str, cpus: float = 2.0) -> Seen:
    found = tuple(
        Diagnosis(
            rule=rule,
            severity=Severity.WARNING,
            title="",
            summary="",
            time_lost_s=1.0,
            share_pct=10.0,
            confidence=0.9,
            advice=(Advice.of("Set persistent_workers=True in the DataLoader.", gain_pct=90.0),),
        )
        for rule in rules
    )
    info = LoaderInfo(time_s=0.0, kind="DataLoader", num_workers=2, prefetch_factor=2, persistent_workers=False)
    return Seen(verdict=Verdict(primary=None, diagnoses=found), loader=info, cpus=cpus)


def tuner_of(hands: Hands, settings: OtherSettings, **known: Any) -> WorkerTuner:
    return WorkerTuner(
        "apply",
        resize=hands.resize,
        why_fixed=lambda loader, workers: None,
        guard=lambda name, call, *args: call(*args),
        tell=hands.events.append,
        settings=settings,
        **known,
    )


def pass_boundary(worker_tuner: WorkerTuner, clock: StepClock) -> list[Any]:
    worker_tuner.boundary(clock)
    records: list[Any] = []
    for boundary in worker_tuner.take_boundaries():
        records += worker_tuner.on_boundary(boundary)
    return records


def test_another_setting_is_tried_between_two_epochs_and_begins_a_phase(fake_time: FakeTime) -> None:
    hands, settings, clock = Hands(), OtherSettings(), make_clock(fake_time)
    worker_tuner = tuner_of(hands, settings)
    worker_tuner.attach(DataLoader(Items(fake_time), num_workers=2))
    run_epoch(worker_tuner, clock)
    worker_tuner.decide(None, fresh=True, seen=seen("worker-startup"))
    change, trial = pass_boundary(worker_tuner, clock)
    assert settings.set_ == [("persistent_workers", True)]
    assert (change.before, change.workers) == (2, 2)
    assert (trial.setting, trial.before, trial.workers, trial.outcome) == (
        "persistent_workers",
        False,
        True,
        "measuring",
    )
    assert hands.sizes == []


def test_a_setting_that_is_refused_is_named_once_and_the_next_one_tried(fake_time: FakeTime) -> None:
    hands, settings, clock = Hands(), OtherSettings("persistent_workers"), make_clock(fake_time)
    worker_tuner = tuner_of(hands, settings)
    worker_tuner.attach(DataLoader(Items(fake_time), num_workers=2))
    for _ in range(3):
        run_epoch(worker_tuner, clock)
        worker_tuner.decide(None, fresh=True, seen=seen("worker-startup", "prep-stall"))
        pass_boundary(worker_tuner, clock)
        if settings.set_:
            break
    assert settings.set_ == [("torch.set_num_threads", 1)]
    assert [event.detail for event in hands.events] == ["persistent_workers stays"]


def test_workers_that_must_not_be_kept_any_more_are_let_go_at_once(fake_time: FakeTime) -> None:
    hands, settings, clock = Hands(), OtherSettings(), make_clock(fake_time)
    worker_tuner = tuner_of(hands, settings)
    worker_tuner.attach(DataLoader(Items(fake_time), num_workers=2))
    run_epoch(worker_tuner, clock)
    worker_tuner.decide(None, fresh=True, seen=seen("worker-startup"))
    pass_boundary(worker_tuner, clock)
    settings.let_go = "the dataset changes"
    run_epoch(worker_tuner, clock)
    records = pass_boundary(worker_tuner, clock)
    assert settings.set_[-1] == ("persistent_workers", False)
    assert [r.outcome for r in records if hasattr(r, "outcome")] == ["reverted"]


def test_a_rank_of_several_changes_no_other_setting(fake_time: FakeTime) -> None:
    hands, settings, clock = Hands(), OtherSettings(), make_clock(fake_time)
    follower = Follower()
    follower.mode = ALONE
    worker_tuner = tuner_of(hands, settings, job=follower)
    worker_tuner.attach(DataLoader(Items(fake_time), num_workers=2))
    run_epoch(worker_tuner, clock)
    worker_tuner.decide(None, fresh=True, seen=seen("worker-startup"))
    pass_boundary(worker_tuner, clock)
    assert settings.set_ == []
