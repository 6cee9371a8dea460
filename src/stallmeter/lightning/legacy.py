"""The callback for ``pytorch_lightning``."""

from __future__ import annotations

import pytorch_lightning as lightning

from .callback import StallMonitorMixin


class StallMonitor(StallMonitorMixin, lightning.Callback):
    """Records where the time of ``Trainer.fit`` goes; see `StallMonitorMixin` for its arguments."""
