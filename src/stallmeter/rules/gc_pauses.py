"""Python's garbage collector holds training up.

**What it means.** Now and then the collector walks every object that could be part of a cycle, with the interpreter's
lock held: the training thread stands still, and so do threads that hand batches over. With millions of objects, an
index of a dataset as lists and dicts for example, one pass takes tenths of a second, and every rank pauses at another
moment.

**Evidence.** `host.garbage.training_s`: seconds in collections on the training thread since its first step, from the
collector's own callbacks, so all of them are counted; as a share of training time in percent. The longest pause, the
number of collections of the oldest generation, and blocks of memory on Python's heap, which are objects, roughly.
`host.garbage.called_s` and `host.garbage.called_at`: those that the program itself asks for, and where. A pass that
begins by itself does so when more objects were made than the collector's threshold; one that begins before is called.

**Advice.** Where the program calls `gc.collect()` itself, call it less often, or not at all: what is in no cycle is
freed without it. Else `gc.disable()` and `gc.collect()` every so many steps make the pauses rare and, with several
ranks, simultaneous. `gc.freeze()` after set-up puts all that exists by then out of the collector's sight, which makes
them short where the objects are not made in the steps. So do fewer Python objects, an index as numpy arrays for
example.

**When it is wrong.** Where training waits for its workers anyway, a pause is made up for by a shorter wait: the rule is
silent then. On a GPU with work queued ahead, a short pause costs nothing. Collections on other threads hold the
training thread as well when it needs the interpreter; they are told and not counted.

**References.** pytorch/torchtitan issue 148; microsoft/DeepSpeed issue 8451, pauses of 234 to 327 ms. Stragglers by
garbage collection: MegaScale (Jiang et al., NSDI '24).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import gain_without
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class GcPauses:
    """Fires when garbage collections take a large share of the training time."""

    id: ClassVar[str] = "gc-pauses"
    title: ClassVar[str] = "Python's garbage collector holds training up"
    bucket: ClassVar[str] = "compute"
    needs: ClassVar[tuple[str, ...]] = (
        "host.garbage.training_s",
        "host.garbage.waiting_s",
        "ledger.training_s",
        "ledger.wall_s",
    )
    optional: ClassVar[tuple[str, ...]] = (
        "host.garbage.automatic",
        "host.garbage.blocks",
        "host.garbage.called_at",
        "host.garbage.called_s",
        "host.garbage.longest_s",
        "host.garbage.other_threads_s",
        "host.garbage.passes",
        "loader.num_workers",
    )

    warn_pct: float = threshold(5.0, "%", "our choice: as for a callback that takes this much")
    critical_pct: float = threshold(20.0, "%", "as for input wait, which XProf calls high from 20 %")
    min_lost_s: float = threshold(0.5, "s", "as for a callback: less, by a few passes, may be no more in a long run")
    regular: float = threshold(5.0, "passes", "our choice: so many in a short run go on in a long one")
    called_share: float = threshold(0.5, "of 1", "our choice: most of the collections are the program's own calls")
    waiting_pct: float = threshold(10.0, "%", "as for input wait: from here on workers set the pace, not the loop")

    def check(self, window: Window) -> Diagnosis | None:
        """Compare the seconds on the training thread with its time."""
        garbage, training_s = window.host.garbage, window.ledger.training_s
        paused_s, waiting_s = garbage.training_s, garbage.waiting_s
        if paused_s is None or waiting_s is None or not training_s:
            return None
        lost_s = min(paused_s, training_s)
        share = window.ledger.training_share_pct(lost_s)
        few = lost_s < self.min_lost_s and (garbage.passes or 0) < self.regular
        if share is None or share < self.warn_pct or few:
            return None
        # A loop that waits for workers waits as much less as it was held up itself.
        waited = window.ledger.training_share_pct(max(0.0, (window.spent.bucket_s("data_wait") or 0.0) - waiting_s))
        if window.loader.num_workers and waited is not None and waited >= self.waiting_pct:
            return None
        longest_s, others_s = garbage.longest_s or 0.0, garbage.other_threads_s or 0.0
        # Objects that are made in the steps are still looked through.
        gain = gain_without(window, lost_s, least=0.7)
        by_itself = garbage.automatic is not False
        called_at = garbage.called_at if (garbage.called_s or 0.0) >= self.called_share * paused_s else None
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL if share >= self.critical_pct else Severity.WARNING,
            title=self.title,
            summary=f"Garbage collections took {lost_s:.1f} s of the training thread, {share:.0f} % of the training "
            f"time; the longest took {longest_s * 1e3:.0f} ms."
            + ("" if called_at is None else " The program itself calls gc.collect()."),
            time_lost_s=lost_s,
            share_pct=window.ledger.share_pct(lost_s) or 0.0,
            confidence=0.85,
            culprit="garbage collector",
            location=called_at,
            evidence=(
                Evidence(
                    "garbage collections, share of training time",
                    share,
                    "%",
                    self.warn_pct,
                    "our choice: as for a callback that takes this much",
                ),
                Evidence("longest collection", longest_s, "s"),
                Evidence("collections of the oldest generation", float(garbage.passes or 0), "passes"),
                *((Evidence("blocks on the heap", garbage.blocks / 1e6, "million"),) if garbage.blocks else ()),
                *((Evidence("on other threads and before training", others_s, "s"),) if others_s > 0 else ()),
            ),
            advice=(
                Advice.of(
                    f"Call gc.collect() less often than {called_at.function} does ({called_at.file}:{called_at.line}), "
                    "and gc.freeze() once after set-up."
                    if called_at is not None
                    else "Call gc.freeze() after set-up, gc.disable(), and gc.collect() each 1000 steps."
                    if by_itself
                    else "Call gc.collect() less often, and gc.freeze() once after set-up.",
                    expect="Rare and short pauses, at steps that you choose.",
                    limit="Memory grows in between where objects refer to each other in cycles.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                Advice.of("Hold an index as numpy arrays or one tensor instead of lists and dicts."),
            ),
        )
