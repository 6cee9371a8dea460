"""Zero-code activation: what Lightning calls for every Trainer. Does nothing unless ``STALLMETER=1`` is set."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from ..engine.environment import is_asked

_log = logging.getLogger("stallmeter")


def lightning_callbacks() -> list[Any]:
    """Return the callback for a ``lightning.pytorch.Trainer`` when ``STALLMETER=1``, else nothing."""
    return _callbacks("unified")


def pytorch_lightning_callbacks() -> list[Any]:
    """Return the callback for a ``pytorch_lightning.Trainer`` when ``STALLMETER=1``, else nothing."""
    return _callbacks("legacy")


def _callbacks(module: str) -> list[Any]:
    if not is_asked():
        return []
    from ..engine.options import unasked
    from ..errors import StallmeterError

    try:
        return [importlib.import_module(f".{module}", __package__).StallMonitor(**unasked().given())]
    except (ImportError, OSError, StallmeterError) as exc:
        _log.warning("stallmeter: STALLMETER asks for it, but the callback cannot be made: %s", exc)
        return []
