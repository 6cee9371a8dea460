"""The Lightning callback, for ``lightning.pytorch`` and for ``pytorch_lightning``.

`StallMonitor` is the class of the package that the program uses: of the one that is imported, of both when both are.
Importing this module imports neither.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from ..errors import MissingPackageError

if TYPE_CHECKING:
    from .unified import StallMonitor as StallMonitor

__all__ = ["StallMonitor"]


def __getattr__(name: str) -> Any:
    if name != "StallMonitor":
        raise AttributeError(f"module 'stallmeter.lightning' has no attribute {name!r}")
    unified_in_use = "lightning.pytorch" in sys.modules
    legacy_in_use = "pytorch_lightning" in sys.modules
    if unified_in_use and legacy_in_use:
        from . import both as chosen
    elif legacy_in_use or (not unified_in_use and importlib.util.find_spec("lightning") is None):
        if importlib.util.find_spec("pytorch_lightning") is None:
            raise MissingPackageError("lightning", "lightning", "stallmeter.lightning.StallMonitor")
        from . import legacy as chosen  # type: ignore[no-redef]
    else:
        from . import unified as chosen  # type: ignore[no-redef]
    return chosen.StallMonitor
