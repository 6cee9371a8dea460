"""The step waits for results of the device.

**What it means.** A call like `.item()`, `.cpu()`, `print(loss)` or a boolean mask needs a value that the device has
not computed yet. The host waits, and then has to launch the next work while the device idles. Once a step this can
cost as much as the whole launch of a step.

**Evidence.** `device.syncs`: calls that made the host wait, by source line. They are looked for in two steps with
PyTorch's `set_sync_debug_mode`, once, and only where `spent.idle_in_steps_s`, seconds in which the GPU idled inside the
steps' own work, is a large part of the training time (`ledger.training_s`). `ledger.record` tells how many steps there
were: a call that waits, with the launch of what follows, takes tens of microseconds, so a few of them in a long step
only inform.

**Advice.** Keep values on the device (`loss.detach()`), and read them every hundredth step or at the end of the epoch.
`self.log` in Lightning takes tensors. Replace boolean masks by `torch.where`. Copy with `non_blocking=True`.

**When it is wrong.** Few steps are probed: what happens every hundredth step is likely missed. PyTorch does not report
every synchronising call, and none of other libraries. A call in the probed steps may be an exception.

**References.** PyTorch, "Performance Tuning Guide": avoid unnecessary CPU-GPU synchronization;
`torch.cuda.set_sync_debug_mode`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import gain_without
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSync:
    """Fires when steps contain synchronising calls and the device idles for want of work."""

    id: ClassVar[str] = "host-sync"
    title: ClassVar[str] = "The step waits for results of the device"
    needs: ClassVar[tuple[str, ...]] = ("device.syncs", "spent.idle_in_steps_s", "ledger.training_s", "ledger.record")
    family: ClassVar[str] = "compute"

    calls: float = threshold(1.0, "calls", "our choice: once a step is enough to keep the host from running ahead")
    idle_pct: float = threshold(10.0, "%", "MLPerf Storage: accelerator utilisation below 90 % fails")
    takes_s: float = threshold(40e-6, "s", "our measurement (H200): 17 µs in copies of single numbers, 39 in draws")
    explains: float = threshold(
        0.25, "1", "our choice: a quarter of the idle time, for launches around a call go with it"
    )

    def suspects(self, window: Window) -> bool:
        """Whether calls that wait for the device would explain what is seen: only then are they looked for."""
        lost = window.spent.idle_in_steps_s
        idle = None if lost is None else window.ledger.training_share_pct(lost)
        return idle is not None and idle >= self.idle_pct

    def check(self, window: Window) -> Diagnosis | None:
        """Look at the calls that were found and at what they can have cost."""
        found, lost, ledger = window.device.syncs, window.spent.idle_in_steps_s, window.ledger.record
        idle = None if lost is None else window.ledger.training_share_pct(lost)
        if found is None or not found.calls or lost is None or idle is None or ledger is None:
            return None
        rate = sum(found.calls.values()) / max(1, found.steps)
        if rate < self.calls or not self.suspects(window):
            return None
        waits_s = rate * self.takes_s * ledger.steps
        is_cause = waits_s >= self.explains * lost
        # What launching the work takes stays, and is not known apart from the waiting: 0.85 to 1 was saved by programs
        # that wait hundreds of times in a step (three, on an H200).
        claimed = lost if is_cause else 0.0
        gain = gain_without(window, 0.85 * claimed, least=0.5, most=1.2)
        places = sorted(found.calls, key=lambda place: (-found.calls[place], place))
        places = [place.strip() or "an unknown place" for place in places]
        return Diagnosis(
            rule=self.id,
            severity=Severity.WARNING if is_cause else Severity.INFO,
            title=self.title,
            summary=f"Each step waited for the device {'once' if round(rate) == 1 else f'{rate:.0f} times'}, most "
            f"often at {places[0]}, and the GPU idled {idle:.0f} % of the training time inside the steps.",
            time_lost_s=claimed,
            share_pct=window.ledger.share_pct(claimed) or 0.0,
            confidence=0.7,
            culprit=places[0],
            evidence=(
                Evidence("calls in a step that waited for the device", rate, "calls", self.calls, "our choice"),
                Evidence("what these take in all, about", waits_s, "s", self.explains * lost, "our choice"),
                Evidence("idle inside the steps, share of training time", idle, "%", self.idle_pct, "MLPerf Storage"),
            ),
            advice=(
                Advice.of(
                    f"Read no value off the device in each step at {places[0]}.",
                    expect="A GPU that idles less inside the steps.",
                    limit="A value that decides what the step does has to be read.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                ),
                *(Advice.of(f"Look at {place} as well.") for place in places[1:3]),
                Advice.of("Keep values as tensors (loss.detach()) and read them once in a hundred steps."),
                Advice.of("Replace boolean masks and nonzero() by torch.where; copy with non_blocking=True."),
            ),
        )
