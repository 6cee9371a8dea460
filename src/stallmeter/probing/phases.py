"""The phases of a probe, each within its share of the time."""

from __future__ import annotations

import gc
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..machine.budget import read_budget
from ..report.wording import seconds
from ..sources.loader.dataloader import stop_workers, why_no_other_workers
from ..timing.batches import BatchSizes, batch_size
from ..window import Window
from ..workers import BatchShape, batch_shape
from .loader_model import LoaderModel, model_of
from .loaders import (
    FreeData,
    NoBatchError,
    batch_size_of,
    copy_of,
    endless,
    touched_by_reading,
    why_batch_size_fixed,
    workers_of,
)
from .memory import is_out_of_memory, peak_memory_bytes, release_memory, reset_peak_memory
from .progress import Progress
from .rate_meter import MIN_STEPS, RateMeter
from .recorded import RecordedRun
from .result import BatchSizeRow, ProbeResult, Rate, WorkersRow
from .snapshot import Snapshot, all_of, random_state
from .training import Training, synchronize

MODEL_STEPS = 20
"""Steps of the present setting, which the model is asked about: it takes means of what it sees inside the loader."""

DRIFT_PCT = 15.0
"""Two measurements of one setting that differ by more than this were not made on the same machine, in effect."""

LATE = "the time limit was reached"
FEW = "too few batches came in its share of the time"
OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePlan:
    """What to measure and how long."""

    sweep_workers: Sequence[int] | None
    """None measures the recommended number only; empty chooses the numbers itself."""
    sweep_batch_size: Sequence[int]
    seconds: float
    """Most time to measure in each phase, its warm-up not counted."""
    time_limit_s: float
    now: Callable[[], float]


@dataclass(slots=True)
class ProbeRun:
    """Measures one training with one loader. `run` may be called once.

    Args:
        training: Makes the steps.
        loader: As the user gave it; only copies are read.
        plan: What to measure.
        progress: Told what is going on.
        recorded: A real run to say something about; None where it is measured here.
    """

    training: Training
    loader: Any
    plan: ProbePlan
    progress: Progress
    recorded: RecordedRun | None = None
    _ends_s: float = 0.0
    _began_s: float = 0.0
    _left: int = 3
    _batch: Any = None
    _notes: list[str] = field(default_factory=list)
    _rest: Snapshot | None = None
    _folder: Path = Path()
    _current: int | None = None
    _pause_s: float = 0.0

    def run(self) -> ProbeResult:
        """Measure.

        Raises:
            SettingError: The loader yields no batch.
            Exception: Whatever the training or the loader raises, after everything was put back.
        """
        self._began_s = self.plan.now()
        self._ends_s = self._began_s + self.plan.time_limit_s
        self._left = 4 + len(self.plan.sweep_workers or (0,)) + 2 * len(self.plan.sweep_batch_size)
        self._current = workers_of(self.loader)
        self._rest = Snapshot(*self.training.roots(), *touched_by_reading(self.loader))
        with tempfile.TemporaryDirectory(prefix="stallmeter-probe-") as folder:
            self._folder = Path(folder)
            return self._measure()

    def _measure(self) -> ProbeResult:
        free_compute = self._loader_alone()
        free_data = self._free_data(self._batch, "training on one batch")
        together, window = self._present()
        model = self._model(window, free_data)
        numbers = self._numbers(self._current, model)
        base = self._base(together, free_data, numbers)
        workers = self._sweep_workers(numbers, base, model)
        sizes = self._sweep_batch_sizes(free_data, base, model)
        drift_pct = self._drift_pct(base, swept=bool(workers or sizes))
        self._note_short({"loader alone": free_compute, "training on one batch": free_data, "together": together})
        return ProbeResult(
            framework=self.training.framework,
            device=self.training.device,
            num_workers=self._current,
            batch_size=batch_size_of(self.loader) or (None if self._batch is None else batch_size(self._batch)),
            free_data=free_data,
            free_compute=free_compute,
            together=together,
            recording=None if self.recorded is None else self.recorded.folder,
            advice=None if model is None else model.advice,
            workers=workers,
            batch_sizes=sizes,
            recorded_wait_s=None if self.recorded is None else self.recorded.wait_s,
            pause_s=self._pause_s,
            present=None if self.recorded is None else base,
            drift_pct=drift_pct,
            restored=tuple(type(thing).__name__ for thing in self.training.roots()),
            notes=tuple(self._notes),
            wall_s=self.plan.now() - self._began_s,
        )

    def _note_short(self, measured: Mapping[str, Rate | None]) -> None:
        for name, rate in measured.items():
            if rate is None:
                self._notes.append(f"{name}: {FEW}; raise the time limit")
            elif not rate.settled:
                self._notes.append(f"{name}: measured during its warm-up; raise the time limit")

    # -- phases -------------------------------------------------------------------------------------------------------

    def _loader_alone(self) -> Rate | None:
        with self._phase("loader alone", copy_of(self.loader)) as (clone, meter):
            sizes = BatchSizes()
            sizes.set_loader(clone)
            for batch in endless(clone):
                self._batch = batch
                if meter.tick(sizes(batch)):
                    break
        return meter.rate()

    def _free_data(self, batch: Any, name: str) -> Rate | None:
        with self._phase(name, FreeData(batch)) as (data, meter):
            self.training.run(data, meter, self._folder, inside=False)
        return meter.rate()

    def _together(self, loader: Any, name: str, least: int = MIN_STEPS) -> tuple[Rate | None, Window]:
        with self._phase(name, loader, least, self._pause_s) as (clone, meter):
            window = self.training.run(clone, meter, self._folder, inside=True)
        return meter.rate(), window

    def _present(self) -> tuple[Rate | None, Window]:
        if self.recorded is None:
            return self._together(copy_of(self.loader), "together", MODEL_STEPS)
        self._left -= 1
        window = self.recorded.window
        recorded = window.loader.num_workers
        if recorded is not None and recorded != self._current:
            self._notes.append(
                f"the recording is of {recorded} workers, the loader alone was measured with {self._current}"
            )
            self._current = recorded
        return self.recorded.rate, window

    def _base(self, together: Rate | None, free_data: Rate | None, numbers: set[int]) -> Rate | None:
        """Return what sweeps are compared with: the present setting, measured as they are.

        A recorded step holds more than theirs. A pause stands for that in each of them, and in the present setting.
        """
        others = len(numbers - {self._current}) + 2 * len(self.plan.sweep_batch_size)
        self._left = 1 + others
        if self.recorded is None:
            return together
        loader = self._current_loader
        if loader is None or not (numbers or self.plan.sweep_batch_size):
            return None
        if free_data and self.recorded.same_batches(free_data):
            self._pause_s = self.recorded.besides_s(free_data)
        elif free_data:
            self._notes.append("the recording is of batches of another size; gains are those of the training alone")
        self._left += 1
        here, _ = self._together(loader, "together, here")
        self._note_short({"the present number of workers": here})
        if here and together and abs(100.0 * (here.step_time_s / together.step_time_s - 1)) > DRIFT_PCT:
            self._notes.append(
                f"the present setting took {seconds(here.step_time_s)} a step here, and "
                f"{seconds(together.step_time_s)} in the recording; gains are those measured here"
            )
        return here

    @property
    def _current_loader(self) -> Any | None:
        """A copy with the present number of workers; None where that is a recording's, which cannot be had here."""
        if self._current == workers_of(self.loader):
            return copy_of(self.loader)
        return None if why_no_other_workers(self.loader) else copy_of(self.loader, workers=self._current)

    def _model(self, window: Window, free_data: Rate | None) -> LoaderModel | None:
        shape = BatchShape(0, 0) if self._batch is None else batch_shape(self._batch)
        on_device = free_data is not None and self.training.device != "cpu"
        model = model_of(window, shape, free_data.step_time_s if free_data and on_device else None)
        if model is None:
            why = "too few batches were measured inside the loader"
            if window.loader.num_workers is None:
                why = why_no_other_workers(self.loader) or "the recording names no loader"
            self._notes.append(f"nothing was predicted: {why}")
        return model

    def _drift_pct(self, base: Rate | None, *, swept: bool) -> float | None:
        """Measure the present setting once more after the sweeps: did the machine stay the same meanwhile?"""
        loader = self._current_loader
        if base is None or loader is None or not swept or self._late:
            return None
        again, _ = self._together(loader, "together, again")
        if again is None:
            return None
        drift_pct = 100.0 * (again.step_time_s / base.step_time_s - 1)
        if abs(drift_pct) > DRIFT_PCT:
            self._notes.append(
                f"the machine did not stay the same: measured again after the sweep, the present setting took "
                f"{drift_pct:+.0f} % of step time; gains are only as good as that"
            )
        return drift_pct

    @contextmanager
    def _phase(
        self, name: str, loader: Any, least: int = MIN_STEPS, pause_s: float = 0.0
    ) -> Iterator[tuple[Any, RateMeter]]:
        """Share out the time that is left, and put everything back afterwards."""
        now_s = self.plan.now()
        share_s = max(0.0, self._ends_s - now_s) / max(1, self._left)
        self._left -= 1
        put_back = random_state()
        self.progress.show(name, 0.0)
        meter = RateMeter(
            workers=workers_of(loader) or 0,
            seconds=self.plan.seconds,
            deadline_s=now_s + share_s,
            now=self.plan.now,
            synchronize=synchronize,
            least=least,
            pause_s=pause_s,
            on_progress=lambda part: self.progress.show(name, part),
        )
        try:
            with warnings.catch_warnings():
                # A sweep asks for more workers than CPUs on purpose.
                warnings.filterwarnings("ignore", message="This DataLoader will create")
                yield loader, meter
        finally:
            rest = (self._rest.restore,) if self._rest is not None else ()
            # The next phase is not to pay for the garbage of this one.
            all_of((partial(stop_workers, loader), *rest, put_back, gc.collect))

    @property
    def _late(self) -> bool:
        return self.plan.now() >= self._ends_s

    # -- sweeps -------------------------------------------------------------------------------------------------------

    def _sweep_workers(self, numbers: set[int], base: Rate | None, model: LoaderModel | None) -> tuple[WorkersRow, ...]:
        rows = []
        for number in sorted(numbers):
            predicted_s = model.step_time_s(number) if model else None
            if number == self._current:
                why_fixed = why_no_other_workers(self.loader) if self._current_loader is None else None
                rate, why_not = base, None if base else why_fixed or FEW
            else:
                rate, why_not = self._with_workers(number)
            rows.append(
                WorkersRow(num_workers=number, predicted_step_time_s=predicted_s, measured=rate, why_not=why_not)
            )
        return tuple(rows)

    def _numbers(self, current: int | None, model: LoaderModel | None) -> set[int]:
        asked = self.plan.sweep_workers
        likely = {model.advice.recommended} if model else set()
        if current is None:
            if asked is not None:
                self._notes.append(f"num_workers was not swept: {why_no_other_workers(self.loader)}")
            return set()
        if asked is None:
            return {current, *likely} if likely - {current} else set()
        if asked:
            return {current, *asked}
        most = 2 * math.ceil(read_budget().cpus_per_rank)
        return {current, 0, *likely, *(1 << i for i in range(most.bit_length()) if 1 << i <= most)}

    def _with_workers(self, number: int) -> tuple[Rate | None, str | None]:
        why_not = why_no_other_workers(self.loader) or (LATE if self._late else None)
        if why_not:
            return None, why_not
        rate, _ = self._together(copy_of(self.loader, workers=number), f"num_workers {number}")
        return rate, None if rate else FEW

    def _sweep_batch_sizes(
        self, free_data: Rate | None, base: Rate | None, model: LoaderModel | None
    ) -> tuple[BatchSizeRow, ...]:
        present = batch_size_of(self.loader)
        sizes = sorted({*self.plan.sweep_batch_size, *([present] if present else [])})
        rows: list[BatchSizeRow] = []
        refused = ""
        for size in sizes if self.plan.sweep_batch_size else ():
            if size == present:
                predicted_s = model.step_time_s(model.costs.current) if model else None
                row = _size_row(size, free_data, base, predicted_s)
            else:
                why_not = refused or why_batch_size_fixed(self.loader, size) or (LATE if self._late else "")
                row = _size_row(size, why_not=why_not) if why_not else self._with_batch_size(size, present, model)
            if row.why_not == OUT_OF_MEMORY:
                refused = f"{OUT_OF_MEMORY} with {size} already"
            rows.append(row)
        return tuple(rows)

    def _with_batch_size(self, size: int, present: int | None, model: LoaderModel | None) -> BatchSizeRow:
        free_data = measured = predicted_s = None
        why_not: str | None
        reset_peak_memory()
        try:
            batch = self._first_batch(copy_of(self.loader, batch_size=size))
            free_data = self._free_data(batch, f"batch size {size}, free data")
            if free_data and model and present:
                predicted_s = model.with_batch(size / present, free_data.step_time_s + self._pause_s)
            measured, _ = self._together(copy_of(self.loader, batch_size=size), f"batch size {size}")
        except (RuntimeError, MemoryError) as exc:
            if not is_out_of_memory(exc):
                raise
            exc.__traceback__ = None  # its frames hold the tensors that did not fit
            why_not = OUT_OF_MEMORY
        except NoBatchError as exc:
            why_not = str(exc)
        else:
            why_not = None if free_data and measured else FEW
        peak = peak_memory_bytes()
        release_memory()
        return BatchSizeRow(
            batch_size=size,
            free_data=free_data,
            predicted_step_time_s=predicted_s,
            measured=measured,
            peak_memory_bytes=peak,
            why_not=why_not,
        )

    def _first_batch(self, clone: Any) -> Any:
        try:
            return next(endless(clone))
        finally:
            stop_workers(clone)


def _size_row(
    size: int,
    free_data: Rate | None = None,
    measured: Rate | None = None,
    predicted_s: float | None = None,
    *,
    why_not: str | None = None,
) -> BatchSizeRow:
    return BatchSizeRow(
        batch_size=size,
        free_data=free_data,
        predicted_step_time_s=predicted_s,
        measured=measured,
        peak_memory_bytes=None,
        why_not=why_not,
    )
