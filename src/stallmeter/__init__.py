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
    from .zero_code.attaching import auto as auto

__all__ = ["Monitor", "__version__", "auto", "probe", "recommend_num_workers", "watch"]


def __getattr__(name: str) -> Any:
    if name in ("Monitor", "recommend_num_workers", "watch"):
        from . import api

        return getattr(api, name)
    if name == "probe":
        from .probing import probe

        return probe
    if name == "auto":
        from .zero_code.attaching import auto

        return auto
    raise AttributeError(f"module 'stallmeter' has no attribute {name!r}")


_notebook: list[Any] = []
"""What ``%load_ext`` has begun."""


def load_ipython_extension(_: Any) -> None:
    """Begin to measure a notebook's training loops: ``%load_ext stallmeter``."""
    from .zero_code.attaching import auto

    _notebook.append(auto())


def unload_ipython_extension(_: Any) -> None:
    """End the run, and switch off: ``%unload_ext stallmeter``."""
    while _notebook:
        _notebook.pop().stop()
