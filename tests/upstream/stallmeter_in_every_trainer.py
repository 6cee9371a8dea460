"""A pytest plugin that puts the callback into every `Trainer` of ``lightning.pytorch``; see ``run.py``.

As ``STALLMETER=1`` does, but with nothing said and nothing forwarded: Lightning's tests look at what loggers got.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from typing import Any

from lightning.pytorch.trainer.connectors import callback_connector

from stallmeter.lightning.unified import StallMonitor

_FOLDER = tempfile.mkdtemp(prefix="stallmeter-upstream-")
_load = callback_connector._load_external_callbacks


def _remove(pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(_FOLDER, ignore_errors=True)


def _with_ours(group: str) -> list[Any]:
    return [*_load(group), StallMonitor(trackers=None, console=False, directory=_FOLDER)]


atexit.register(_remove, os.getpid())
callback_connector._load_external_callbacks = _with_ours
