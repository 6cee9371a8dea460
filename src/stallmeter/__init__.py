"""Finds why PyTorch training is slow (data loading, callbacks, logging, the step), in the run you already track.

Importing this package loads the standard library only; what needs more is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import version as _version

__version__ = _version.VERSION

if TYPE_CHECKING:
    from .api import Monitor as Monitor
    from .api import recommend_num_workers as recommend_num_workers
    from .api import watch as watch
    from .probing import probe as probe

__all__ = ["Monitor", "__version__", "probe", "recommend_num_workers", "watch"]


def __getattr__(name: str) -> Any:
    if name in ("Monitor", "recommend_num_workers", "watch"):
        from . import api

        return getattr(api, name)
    if name == "probe":
        from .probing import probe

        return probe
    raise AttributeError(f"module 'stallmeter' has no attribute {name!r}")
