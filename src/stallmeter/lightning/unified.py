"""The callback for ``lightning.pytorch``."""

from __future__ import annotations

import lightning.pytorch as lightning

from .callback import StallMonitorMixin


class StallMonitor(StallMonitorMixin, lightning.Callback):
    """Records where the time of ``Trainer.fit`` goes; see `StallMonitorMixin` for its arguments."""
