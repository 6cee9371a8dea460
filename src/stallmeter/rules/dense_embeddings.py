"""An embedding table's gradient is as large as the table, and few of its rows are used.

**What it means.** A recommender or a large vocabulary has a table of many rows, of which a batch uses few. With
`sparse=False`, the default, each step makes a gradient of the whole table, fills it with zeros, and has the optimizer
write all rows.

**Evidence.** `spent.tensors.dense_embeddings`: tables of 10,000 rows and more that have a dense gradient between two
steps, the share of their rows in which it is not zero, by a sample of some hundred rows, and their numbers beside those
of all parameters with gradients. They are found in the models that running functions know by name. `spent.bucket_s`:
seconds of the optimizer's steps in the wall-clock ledger; `spent.step_work_s`: of the whole steps; `ledger.record`: how
many there were. `spent.optimizer`: which optimizer it is.

**Advice.** `sparse=True` for the table, with an optimizer of its own that takes sparse gradients: `SparseAdam`, or SGD
without momentum; Adagrad takes them itself, with the same results. What is saved is the tables' share of the
optimizer's time, and the filling of their gradients, once for each lookup in a step: that is not timed apart, and the
interval is wide. For a row that is used a sparse optimizer takes longer than a dense one: the more rows a batch uses,
the less is promised.

**When it is wrong.** Other optimizers than these, momentum, weight decay and some ways to clip gradients take no sparse
ones; `SparseAdam` leaves the moments of rows that are not used as they are, so that results differ. Gradients that are
cleared at the end of each step, and those on an accelerator, are not seen. Where the step is one piece, the optimizer
not timed apart, nothing is said: a loop that is only watched. Where gradients are accumulated, a batch
uses fewer rows than a step of the optimizer.

**References.** PyTorch's documentation of `torch.nn.Embedding` (`sparse`) and of `torch.optim.SparseAdam`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records import DenseEmbeddings as Found
from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import Gain, gain_without
from .rule import threshold

OWN = (0.85, 0.93, 1.0)
"""Least, usual and most that is saved of the optimizer's time for the tables: a sparse one takes some of it. Our
measurement, benchmarks/faults/embeddings, as are the next three."""

USED_ROW = (4.0, 2.5, 0.0)
"""How many times as long a sparse optimizer takes for a row that is used as a dense one does: at most, as a rule and
at least. Of tables of which 8 to 34 % are used a sparse Adam saved that much less; SGD takes next to nothing."""

OF_THE_REST = (0.0, 0.3, 0.95)
"""The same of the rest of a step, where gradients are filled: none to 96 % of it was measured."""

FILLING = {"SGD": (0.0, 1.5, 4.5), "Adam": (0.0, 0.15, 1.3)}
FILLING_OF_OTHERS = (0.0, 0.45, 1.9)
"""Bounds of that, as multiples of the optimizer's time for the tables, by its kind. A table's gradient is filled for
each of its lookups in a step, and an optimizer takes the longer for a number the more it keeps of it. Our measurement,
tables on a CPU, for one lookup and for four: Adam 0.05 to 0.3, and 1.2 to 1.3; Adagrad and RMSprop 0.1 to 0.47,
and 0.9 to 1.9; SGD 0.8 to 4.5, and 7 to 19, of which one lookup is allowed for; with momentum, not seen, less."""

SPARSE_ADAM_S = (1e-3, 0.45e-3, 0.1e-3)
"""Seconds that `SparseAdam` takes for a table however few rows are used: at most, as a rule and at least. Our
measurement on a slow CPU, 0.4 to 0.5 ms (256 rows of 20,000 and 90,000, by what more rows take beyond them); two
programs of others with steps of 25 and 40 ms won 1.9 and 2.1 times the speed; 2.5 and 2.7 was promised without."""

LIKE_ADAM = ("Adam", "NAdam", "RAdam")
"""How the names of optimizers begin that take as long for a number as Adam."""

TAKES_SPARSE = "Adagrad"
"""Takes sparse gradients itself; what it does with them is the same."""

PLAIN = ("SGD", TAKES_SPARSE)
"""Those that need no `SparseAdam`."""

MOST_OF_A_STEP = 0.98
"""Part of the steps' work that is left out at the most: more is not believed; steps of 57 times the speed were seen."""

LEAST_PCT = 10.0
"""Share of the steps' time, percent, from which on the optimizer is told of, and so is what would be saved."""


def saves(
    kind: str, optimizer: float, held: float, used: float, *, tables_per_s: float = 0.0
) -> tuple[float, float, float]:
    """Return which parts (0 to 1) of the steps' time are saved: at least, as a rule and at most.

    Args:
        kind: The optimizer's class name; empty where it is not known.
        optimizer: Part of the steps' time that the optimizer takes.
        held: Part of the trained numbers that the tables hold.
        used: Part of the tables' rows that a step uses.
        tables_per_s: Tables that all steps of a second update together.
    """
    own, rest = optimizer * held, max(0.0, 1.0 - optimizer)
    fillings = FILLING.get("Adam" if kind.startswith(LIKE_ADAM) else kind, FILLING_OF_OTHERS)
    once = (0.0, 0.0, 0.0) if kind.startswith(PLAIN) else SPARSE_ADAM_S
    least, usual, most = (
        min(
            MOST_OF_A_STEP,
            max(0.0, min(part, 1.0 - row * used) * own - seconds * tables_per_s) + min(of_rest * rest, filling * own),
        )
        for part, row, of_rest, filling, seconds in zip(OWN, USED_ROW, OF_THE_REST, fillings, once, strict=True)
    )
    return least, usual, most


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseEmbeddings:
    """Fires when the optimizer takes long for the rows of embedding tables that a step does not use."""

    id: ClassVar[str] = "dense-embeddings"
    title: ClassVar[str] = "Each step writes all rows of an embedding table, and uses few"
    needs: ClassVar[tuple[str, ...]] = (
        "ledger.record",
        "ledger.training_s",
        "spent.tensors.dense_embeddings",
        "spent.step_work_s",
    )
    optional: ClassVar[tuple[str, ...]] = ("device.pace_s", "ledger.wall_s", "spent.optimizer")

    optimizer_pct: float = threshold(LEAST_PCT, "%", "Of the steps' time; our choice, as for a fused optimizer")
    held_pct: float = threshold(50.0, "%", "Of the trained numbers; our choice: most of what the optimizer writes")
    used_pct: float = threshold(20.0, "%", "Of the rows; our measurement, benchmarks/faults: of 34 % not always faster")
    nearly_all_pct: float = threshold(80.0, "%", "Of the trained numbers; our choice: the rest is soon updated")
    warn_pct: float = threshold(LEAST_PCT, "%", "our choice: worth an optimizer of its own for the table")
    critical_pct: float = threshold(50.0, "%", "our choice: as long as all else")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare what the optimizer takes for these tables with the thresholds."""
        found, spent, record = window.spent.tensors.dense_embeddings, window.spent, window.ledger.record
        optimizer_s, whole_s = spent.bucket_s("optimizer"), spent.step_work_s
        if record is None or found is None or not found.tables or window.device.pace_s is not None:
            return None
        if not optimizer_s or not whole_s:
            return None
        share, held = optimizer_s / whole_s, found.share
        if 100.0 * share < self.optimizer_pct or 100.0 * held < self.held_pct:
            return None
        kind = "" if spent.optimizer is None else spent.optimizer.kind
        tables_per_s = found.tables * record.steps / whole_s
        least, usual, most = saves(kind, share, held, found.used_share, tables_per_s=tables_per_s)
        if not usual:
            return None
        saved_s = usual * whole_s
        pct = window.ledger.training_share_pct(saved_s)
        if pct is None or pct < self.warn_pct or 100.0 * found.used_share > self.used_pct:
            return None
        gain = gain_without(window, saved_s, least=least / usual, most=most / usual)
        used = "under 1" if found.used_share < 0.01 else f"{100.0 * found.used_share:.0f}"
        names = _names(found)
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if pct >= self.critical_pct else Severity.WARNING,
            title=self.title,
            summary=f"A step uses {used} % of the {found.rows:,} rows of {names} ({found.kind}); "
            "their gradient is dense, and the optimizer writes all of them.",
            time_lost_s=saved_s,
            share_pct=window.ledger.share_pct(saved_s) or 0.0,
            confidence=0.7,
            culprit=found.part or None,
            # Its seconds are among these: of what it writes hardly anything is left.
            supersedes=("slow-optimizer",) if 100.0 * held >= self.nearly_all_pct else (),
            evidence=self._evidence(found, share),
            advice=(
                _sparse(names, kind, "its" if found.tables < 2 else "their", gain),
                Advice.of(
                    "Merge rare ids into fewer rows.",
                    expect="A smaller table, gradient and optimizer state.",
                    limit="Where these rows need no weights of their own.",
                ),
            ),
        )

    def _evidence(self, found: Found, optimizer: float) -> tuple[Evidence, ...]:
        used, held = 100.0 * found.used_share, 100.0 * found.share
        return (
            Evidence("rows that a step uses, by a sample", used, "%", self.used_pct, "benchmarks/faults"),
            Evidence("numbers of these tables, share of all trained", held, "%", self.held_pct, "our choice"),
            Evidence("optimizer, share of the steps' time", 100.0 * optimizer, "%", self.optimizer_pct, "our choice"),
            Evidence("memory of these gradients, at 4 bytes each", 4.0 * found.numbers, "bytes"),
        )


def _sparse(names: str, kind: str, whose: str, gain: Gain) -> Advice:
    cure = "plain torch.optim.SGD" if kind in ("", "SGD") else "torch.optim.SparseAdam"
    itself = kind == TAKES_SPARSE
    return Advice.of(
        f"Set sparse=True in {names}; {kind} takes sparse gradients."
        if itself
        else f"Set sparse=True in {names}, with a {cure} of {whose} own.",
        expect="A step writes the rows that its batch uses, and no others.",
        limit="Not with weight decay; some ways to clip gradients take no sparse ones."
        if itself
        else "Results differ: rows that are not used keep their moments, and weights do not decay.",
        gain_pct=gain.pct,
        interval_pct=gain.interval_pct,
    )


NAMED = 3
"""Tables that are named one by one: more would not be read; our choice."""


def _names(found: Found) -> str:
    """Name the tables: all where they are few."""
    if found.tables <= 1:
        return found.part
    if found.tables > NAMED or len(found.also) != found.tables - 1:
        return f"{found.part} and {found.tables - 1} more"
    *first, last = (found.part, *found.also)
    return f"{', '.join(first)} and {last}"
