"""A function beside the model takes a large part of each step.

**What it means.** Between two batches the program does more than train: it draws a plot, writes a file, or counts with
another package. While it does, nothing is trained. This function takes more of the time than a helper should, and the
package that it spends it in trains nothing, or the step has its gradients by then.

**Evidence.** `code.beside_model`: seconds of functions of the program in the steps' own work, from looks at the
training thread's stack. What lies below a module's call, in the backward pass or in a collective is the model's, and so
are the functions that call these. A function that is called from a later line than the one that has the gradients
computed is neither a loss nor part of a batch, whatever it spends its time in, the model included. One that is called
from an earlier line than the model, and computes with a package that no gradient flows through, prepares the batch; so
does one that is called, whatever it computes, before a function that holds both the model and its gradients.
Looks into steps of usual length, and into what long steps take beyond three medians, are weighed by the time that the
ledger and the steps hold of each. Rare long steps are step-outliers' to tell.

**Advice.** Do it every N steps, or once an epoch. Work that needs no current weights, such as drawing or writing a
file, can go to a thread. What prepares a batch belongs to the dataset or the collate function, where workers do it
beside the steps.

**When it is wrong.** Between the call of the model and the gradients a function whose time is spent in code of its own,
in torch or in NumPy is not blamed: it may be the loss. Nor is one before the model in code of its own or in torch
where the same function has the gradients computed, one after the gradients that sleeps, which may stand for a device,
or what stands in the loop itself. Where no optimizer of torch was heard of, a function may be one. compute-bound names
the place of all of them. Programs without modules are not judged, nor are those on a GPU, where the host waits for the
device in whatever asks for a result.

**References.** XProf calls other host work in a step moderate from 3 % and high from 15 %
(`op_stats_to_input_pipeline_analysis.cc`).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar

from ..records import CodeSpot
from ..records.diagnosis import Advice, Diagnosis, Evidence, Location, Severity
from ..window import BesideModel, Window
from ..workers.gains import Gain, gain_by_looks, part_that_grew
from .rule import threshold

TRAINS_NOTHING = frozenset(
    (
        *("PIL", "cv2", "imageio", "matplotlib", "plotly", "seaborn", "skimage"),
        *("csv", "gzip", "h5py", "json", "logging", "pickle", "shutil", "sqlite3", "tarfile", "yaml", "zipfile"),
        *("pandas", "polars", "pyarrow", "sklearn", "statistics"),
        *("boto3", "botocore", "http", "requests", "socket", "ssl", "subprocess", "urllib", "urllib3"),
        *("mlflow", "neptune", "tensorboard", "tensorboardX", "wandb"),
    )
)
"""Packages that draw, count, read, write or send: a step can do without them, now and then."""

PASSES_ON = frozenset(
    [
        "abc",
        "asyncio",
        "concurrent",
        "contextlib",
        "copy",
        "enum",
        "functools",
        "gc",
        "inspect",
        "multiprocessing",
        "queue",
        "selectors",
        "signal",
        "threading",
        "time",
        "types",
        "typing",
        "warnings",
        "weakref",
    ]
)
"""Parts of the standard library that wait, or through which a program calls anything, torch included."""

PREPARE = frozenset(
    (
        *("librosa", "nltk", "numpy", "scipy", "soundfile", "spacy", "tokenizers", "transformers"),
        *(sys.stdlib_module_names - PASSES_ON),
    )
)
"""Packages through which no gradient flows, and which a batch is prepared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowFunction:
    """Fires when a function of the program that is no part of the model takes a large share of the training time."""

    id: ClassVar[str] = "slow-function"
    title: ClassVar[str] = "A function beside the model holds up the steps"
    needs: ClassVar[tuple[str, ...]] = ("ledger.training_s", "ledger.wall_s", "steps.body_s")
    optional: ClassVar[tuple[str, ...]] = (
        "code.beside_model",
        "device.pace_s",
        "host.garbage.step_s",
        "ledger.record",
        "loader.asks_none",
        "steps.drift",
    )

    warn_pct: float = threshold(20.0, "%", "our choice: a loss that is written by hand may cost as much")
    critical_pct: float = threshold(40.0, "%", "our choice: twice the share from which it is reported")
    min_lost_s: float = threshold(0.5, "s", "our choice: less is not worth a change of the program")
    min_samples: float = threshold(20.0, "looks", "a share of all of them is then known to a fifth, one standard error")
    grown: float = threshold(0.5, "1", "Most of the time; our choice")
    most: float = threshold(0.9, "1", "Of a function's time; our choice: a look may fall between two lines")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the largest function that trains nothing with the thresholds."""
        beside = window.code.beside_model or ()
        prepares = not window.loader.asks_none  # else input-bound tells it with all that comes before the model
        found = next((one for one in beside if self._trains_nothing(one) or (prepares and self._prepares(one))), None)
        if found is None or window.device.pace_s is not None:
            return None
        # Seconds of the garbage collector are gc-pauses' to tell, and what grows is step-time-drift's.
        lost_s = max(0.0, found.seconds - (window.host.garbage.step_s or 0.0))
        share = window.ledger.training_share_pct(lost_s)
        if share is None or share < self.warn_pct or lost_s < self.min_lost_s or found.samples < self.min_samples:
            return None
        if part_that_grew(window, lost_s) >= self.grown:
            return None
        gain = gain_by_looks(window, lost_s, found.samples)
        spot, prepares = found.spot, self._prepares(found)
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if share >= self.critical_pct else Severity.WARNING,
            title=f"{spot.function} holds up the steps",
            summary=f"{spot.function} took about {lost_s:.1f} s, {share:.0f} % of the training time, "
            + ("and prepares the batch between the steps." if prepares else "and is no part of the model."),
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.8,
            culprit=spot.function,
            location=Location(
                spot.file, spot.line, spot.function, found.share_of_steps_pct, next(iter(spot.calls), None)
            ),
            evidence=(
                Evidence("function beside the model, share of training time", share, "%", self.warn_pct, "our choice"),
                Evidence("samples of the training thread's stack in it", float(found.samples), "samples"),
            ),
            advice=_earlier(spot, gain) if prepares else _rarer(spot, gain),
        )

    def _trains_nothing(self, one: BesideModel) -> bool:
        """Whether it spends its time in a package that trains nothing, or comes when the gradients are there."""
        if one.spot.calls and one.spot.calls[0].partition(".")[0] in TRAINS_NOTHING:
            return True
        return one.after_s >= self.most * one.seconds

    def _prepares(self, one: BesideModel) -> bool:
        """Whether it comes before the model, and what it makes cannot be trained through: it belongs to the batch."""
        if one.apart_s >= self.most * one.seconds:
            return True
        package = one.spot.calls[0].partition(".")[0] if one.spot.calls else ""
        return package in PREPARE and one.before_s >= self.most * one.seconds


def _rarer(spot: CodeSpot, gain: Gain) -> tuple[Advice, ...]:
    return (
        Advice.of(
            f"Run it less often, or make it cheaper ({spot.file}:{spot.line}).",
            expect="Nearly all of this time is saved.",
            limit="Not where the training needs it in each step, as it does a loss.",
            gain_pct=gain.pct,
            interval_pct=gain.interval_pct,
        ),
        Advice.of("Move work that needs no current weights, such as plots and files, into a thread."),
    )


def _earlier(spot: CodeSpot, gain: Gain) -> tuple[Advice, ...]:
    return (
        Advice.of(
            f"Move it into the dataset or the collate function ({spot.file}:{spot.line}).",
            expect="Workers then do it beside the steps.",
            limit="While there are CPUs for them; with num_workers=0 the loop still does it.",
            gain_pct=gain.pct,
            interval_pct=gain.interval_pct,
        ),
        Advice.of(f"Make it cheaper ({spot.file}:{spot.line})."),
    )
