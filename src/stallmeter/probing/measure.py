"""The entry of the probe: checks what was asked, measures, restores, forwards."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import SettingError
from .result import ProbeResult

if TYPE_CHECKING:
    from ..delivery.choice import Trackers
    from .recorded import RecordedRun
    from .training import Training

SECONDS = 3.0
TIME_LIMIT_S = 60.0
MOST_WORKERS = 512


def probe(
    module: Any = None,
    data: Any = None,
    *,
    step: Callable[[Any], object] | None = None,
    loader: Iterable[Any] | None = None,
    restore: Iterable[object] | None = None,
    sweep_workers: Sequence[int] | Literal["auto"] | None = None,
    sweep_batch_size: Sequence[int] | None = None,
    seconds: float = SECONDS,
    time_limit_s: float = TIME_LIMIT_S,
    recording: str | os.PathLike[str] | None = None,
    trainer_kwargs: Mapping[str, Any] | None = None,
    trackers: Trackers = "auto",
    progress: bool = True,
) -> ProbeResult:
    """Measure the ceilings of a training: how fast with free data, how fast with free compute, how fast together.

    Give a LightningModule with its data, or ``step`` and ``loader`` of a plain loop. Weights, buffers, gradients,
    optimizer state, modes and random generators are afterwards what they were before, also after an error or Ctrl-C.
    The loader is not touched: copies of it are read.

    Args:
        module: A LightningModule of either package.
        data: A LightningDataModule, or the training DataLoader.
        step: Of a plain loop: takes a batch, trains on it.
        loader: Of a plain loop: any iterable that can be read more than once, for example a list of batches.
        restore: What ``step`` changes (model, optimizer, …); by default what its closure and globals are found to hold.
        sweep_workers: Numbers of workers to measure; ``auto`` chooses them by the CPUs; None measures the
            recommended one only.
        sweep_batch_size: Batch sizes to measure.
        seconds: Most time (s) to measure in each phase, warm-up not counted.
        time_limit_s: Most time (s) for everything; looked at between two batches.
        recording: A recording of the real run, to say what it could win. Gains of a sweep are measured here.
        trainer_kwargs: For Lightning's Trainer: ``precision``, ``accelerator``, ``accumulate_grad_batches``, …
        trackers: Where the result is forwarded: ``auto`` to the active MLflow run or that of ``MLFLOW_RUN_ID``.
        progress: Whether to draw a bar, where stderr is a terminal.

    Raises:
        SettingError: An argument makes no sense, or the loader yields no batch.
        RecordingError: There is no recording to read.
        MissingPackageError: torch, Lightning or a tracker's client is not installed.
        Exception: Whatever the training or the loader raises.
    """
    from ..delivery.choice import choose_trackers
    from ..engine.run import claim_loops
    from ..engine.wiring import this_rank
    from .forward import closing, forward
    from .phases import ProbePlan, ProbeRun
    from .progress import Progress

    plan = ProbePlan(
        sweep_workers=_workers(sweep_workers),
        sweep_batch_size=_numbers("sweep_batch_size", sweep_batch_size or (), 1),
        seconds=_seconds("seconds", seconds),
        time_limit_s=_seconds("time_limit_s", time_limit_s),
        now=time.perf_counter,
    )
    _, world_size = this_rank()
    if world_size > 1:
        raise SettingError(f"the probe measures one process, and this job has {world_size}; run it on its own")
    _require_torch()
    recorded = None if recording is None else _recorded(recording)
    subject = _Subject(module, data, step, loader, restore, trainer_kwargs)
    # Found before minutes are spent: what is missing for it should be said now.
    with ExitStack() as stack:
        chosen = [stack.enter_context(closing(tracker)) for tracker in choose_trackers(trackers, (), 0)]
        bar = Progress(progress)
        with subject, claim_loops():
            try:
                result = ProbeRun(subject.training, subject.loader, plan, bar, recorded).run()
            finally:
                bar.clear()
        forward(result, chosen)
    return result


class _Subject:
    """What is probed. On leaving, data module and random generators are what they were on entering."""

    training: Training
    loader: Any

    def __init__(
        self,
        module: Any,
        data: Any,
        step: Any,
        loader: Any,
        restore: Iterable[object] | None,
        trainer_kwargs: Mapping[str, Any] | None,
    ) -> None:
        from .loaders import check_loader
        from .trainer import LightningTraining, is_datamodule, lightning_namespace
        from .training import StepTraining

        self._datamodule: Any = None
        if step is not None or loader is not None:
            if module is not None or data is not None or trainer_kwargs:
                raise SettingError("give a LightningModule and its data, or step= and loader=, not both")
            if step is None or loader is None:
                raise SettingError("a plain loop needs both step= and loader=")
            self.training, self.loader = StepTraining(step, restore), loader
        elif module is None or lightning_namespace(module) is None:
            raise SettingError(
                f"the probe takes a LightningModule, not {type(module).__name__}; "
                "for a plain loop give step= (a function that trains on a batch) and loader="
            )
        elif data is None:
            raise SettingError("give the module's data: a LightningDataModule or the training DataLoader")
        else:
            if is_datamodule(data):
                self._datamodule = data
            self.training = LightningTraining(module, self._datamodule, trainer_kwargs or {})
            self.loader = data
        if self._datamodule is None:
            check_loader(self.loader, batches=step is not None)

    def __enter__(self) -> None:
        from .loaders import check_loader
        from .snapshot import Snapshot, random_state

        self._put_back = random_state()
        self._data = Snapshot() if self._datamodule is None else Snapshot(self._datamodule)
        if self._datamodule is None:
            return
        try:
            self._datamodule.prepare_data()
            self._datamodule.setup("fit")
            self.loader = self._datamodule.train_dataloader()
            check_loader(self.loader, batches=False)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exc: object) -> None:
        from .snapshot import all_of

        all_of((self._data.restore, self._put_back))


def _recorded(path: str | os.PathLike[str]) -> RecordedRun:
    from ..recording import find_recording, ranks
    from ..report.model import read_history
    from .recorded import RecordedRun

    folder = find_recording(Path(path))
    return RecordedRun(read_history(folder, min(ranks(folder), default=0)).window, str(folder))


def _require_torch() -> None:
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        from ..errors import MissingPackageError

        raise MissingPackageError("torch", "lightning", "stallmeter.probe")


def _workers(given: Sequence[int] | str | None) -> Sequence[int] | None:
    if given is None:
        return None
    if isinstance(given, str):
        if given != "auto":
            raise SettingError(f"sweep_workers is {given!r}; give 'auto' or a list of numbers")
        return ()
    numbers = _numbers("sweep_workers", given, 0)
    if not numbers:
        raise SettingError("sweep_workers is empty; give 'auto', a list of numbers, or None")
    if max(numbers) > MOST_WORKERS:
        raise SettingError(f"sweep_workers has {max(numbers)}; give at most {MOST_WORKERS}")
    return numbers


def _numbers(name: str, given: Sequence[int], least: int) -> tuple[int, ...]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise SettingError(f"{name} is {given!r}; give a list of numbers")
    numbers = tuple(given)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise SettingError(f"{name} has {number!r}; give whole numbers from {least} up")
    return tuple(sorted(set(numbers)))


def _seconds(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) and value > 0):
        raise SettingError(f"{name} is {value!r}; give a number of seconds above 0")
    return float(value)
