"""What the device's timeline tells, and what was looked at inside a few steps."""

from __future__ import annotations

from ..records import CompilerSample, DebugModes, DeepProfile, DeviceStep, SyncCalls
from ..records.stats import Reservoir
from . import exposed_wait
from .compiler import CompilerSignals
from .memo import Memo
from .modes import ModeSignals
from .steps import WARMUP_STEPS


class DeviceSignals:
    """Signals of steady steps between events on the device.

    Args:
        size: Most steps kept.
    """

    def __init__(self, *, size: int = 4096) -> None:
        self.memo = Memo()
        self.compiler = CompilerSignals()
        self.modes = ModeSignals()
        self.steps: Reservoir[DeviceStep] = Reservoir(size)
        """Steady steps on the device's timeline."""
        self._syncs: SyncCalls | None = None
        self._profile: DeepProfile | None = None

    def append(self, record: DeviceStep | SyncCalls | DeepProfile | CompilerSample | DebugModes) -> None:
        """Take a step on the device, what was seen inside a few steps, or what was compiled."""
        self.memo.changes += 1
        match record:
            case DeviceStep() if not record.epoch_start and record.index >= WARMUP_STEPS:
                self.steps.add(record)
            case CompilerSample():
                self.compiler.append(record)
            case DebugModes():
                self.modes.append(record)
            case SyncCalls():
                self._syncs = record
            case DeepProfile():
                self._profile = record
            case _:
                pass

    @property
    def syncs(self) -> SyncCalls | None:
        """Calls that waited for the device in the steps that were probed; None when none were."""
        return self._syncs

    @property
    def profile(self) -> DeepProfile | None:
        """The window of torch.profiler; None when there was none."""
        return self._profile

    @property
    def exposed_wait_share(self) -> float | None:
        """Share (0 to 1) of the data wait for which the device idled; None when that was not measured."""
        return self.memo("exposed", lambda: exposed_wait.exposed_share(self.steps.items))

    @property
    def h2d_share_pct(self) -> float | None:
        """Host-to-device copies as a share of the steps' device time, percent."""
        share = self.memo("h2d", lambda: exposed_wait.share_of(self.steps.items, lambda s: s.h2d_s))
        return None if share is None else 100.0 * share

    @property
    def caught_up_share(self) -> float | None:
        """Share (0 to 1) of the time between two steps' work in which the device had nothing left to do."""
        return self.memo("caught up", lambda: exposed_wait.caught_up_share(self.steps.items))

    @property
    def queued_share(self) -> float | None:
        """Share (0 to 1) of a step's device time that was still to be done when the host was through with the step."""
        return self.memo("queued", lambda: exposed_wait.queued_share(self.steps.items))

    @property
    def pace_s(self) -> float | None:
        """Mean device time of a step if data were free."""
        return self.memo("pace", lambda: exposed_wait.pace_s(self.steps.items))
