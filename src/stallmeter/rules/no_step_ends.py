"""A step does not end: the training thread stands in one place.

**What it means.** Steps came, and then one does not end. The training thread is found in the same place again and
again, for half a minute or more and for five times the longest step before. It waits for something that does not come:
a rank that has failed or is elsewhere in the program, a worker of the loader, a lock, a server, a disk. Or it is in one
very long call.

**Evidence.** `code.standing`: for how long the thread had stood when it was last looked at, in seconds, and where. It
is forgotten when steps go on. What has passed since is counted with it.

**Advice.** See what that line waits for. Give a time-out to what may not come: the loader's batches, requests, the
process group's collectives. Of a job of several ranks the report says where each of them stands: most wait for one.

**When it is wrong.** A checkpoint, a compilation or a validation in the middle of a step may take that long, where no
earlier step held one. It goes away when the step ends.

**References.** PyTorch ends a job after a collective of 10 minutes (NCCL) or 30 (gloo), without naming the place.
py-spy dump shows the stack of one process, to who is there to ask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class NoStepEnds:
    """Fires while the training thread stands in a step."""

    id: ClassVar[str] = "no-step-ends"
    title: ClassVar[str] = "A step does not end"
    needs: ClassVar[tuple[str, ...]] = ("ledger.record",)
    optional: ClassVar[tuple[str, ...]] = ("code.standing", "steps.step_time_s")

    warn_s: float = threshold(30.0, "s", "our choice: what is looked for; shorter pauses are told as long steps")

    def check(self, window: Window) -> Diagnosis | None:
        """Count from when it began to stand to the newest that is known of the run."""
        look, ledger = window.code.standing, window.ledger.record
        if look is None or ledger is None or look.wall_s < self.warn_s:
            return None
        stood_s = look.wall_s + max(0.0, ledger.time_s - look.time_s)
        spot = look.spots[0] if look.spots else None
        place = "one place" if spot is None else f"{spot.function} ({spot.file}:{spot.line})"
        called = "" if spot is None or not spot.calls else f", in {spot.calls[0]}"
        steps = window.steps.step_time_s
        return Diagnosis(
            rule=self.id,
            severity=Severity.CRITICAL,
            title=self.title,
            summary=f"For {stood_s:.0f} s no step has ended: the training thread stands in {place}{called}.",
            time_lost_s=stood_s,
            share_pct=window.ledger.share_pct(stood_s) or 0.0,
            confidence=0.9,
            evidence=(
                Evidence("time in one place", stood_s, "s", self.warn_s, "our choice"),
                *([] if steps is None else [Evidence("step time, median", steps.median, "s")]),
            ),
            advice=(
                Advice.of(
                    f"Find what {place} waits for: a rank, a worker, a lock, a server.",
                    expect="Steps that end.",
                    limit="One long call may be all: then it goes away.",
                ),
                Advice.of(
                    "Give time-outs to what may not come: DataLoader(timeout=...), init_process_group(timeout=...).",
                    expect="An error at the line that waits, instead of a job that stands.",
                ),
            ),
            supersedes=("compute-bound", "step-outliers"),
        )
