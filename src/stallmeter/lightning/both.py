"""The callback for programs that use both packages."""

from __future__ import annotations

import lightning.pytorch as lightning
import pytorch_lightning

from .callback import StallMonitorMixin


class StallMonitor(StallMonitorMixin, lightning.Callback, pytorch_lightning.Callback):
    """Records where the time of ``Trainer.fit`` goes; see `StallMonitorMixin` for its arguments."""
