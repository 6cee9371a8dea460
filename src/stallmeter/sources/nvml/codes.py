"""What an error of NVML means: gone for good, or for this time only; and for what."""

from __future__ import annotations

from enum import Enum
from typing import Any


class ErrorScope(Enum):
    """How far an error reaches."""

    DRIVER = "driver"
    """NVML answers nothing more in this process."""
    DEVICE = "device"
    """The device fell off the bus or must be reset."""
    METRIC = "metric"
    """This device or driver will never answer this call."""
    MOMENT = "moment"
    """The same call may succeed the next time."""


_REACH = {
    ErrorScope.DRIVER: ("UNINITIALIZED", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND", "LIB_RM_VERSION_MISMATCH"),
    ErrorScope.DEVICE: ("GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND"),
    ErrorScope.METRIC: (
        "NOT_SUPPORTED",
        "NO_PERMISSION",
        "FUNCTION_NOT_FOUND",
        "INVALID_ARGUMENT",
        "ARGUMENT_VERSION_MISMATCH",
        "VGPU_ECC_NOT_SUPPORTED",
        "DEPRECATED",
    ),
}

_WORDS = {
    "NO_PERMISSION": "not permitted",
    "FUNCTION_NOT_FOUND": "unknown to this driver",
    "ARGUMENT_VERSION_MISMATCH": "unknown to this driver",
}

_RECENT = {"GPU_NOT_FOUND": 28}
"""ErrorCodes of nvml.h that a driver may return and older bindings (12.535) do not name."""


class ErrorCodes:
    """Sorts the errors of an NVML binding.

    Args:
        nvml: The pynvml module, or what stands in for it.
    """

    def __init__(self, nvml: Any) -> None:
        # A binding older than a call raises AttributeError, and odd bytes in a name UnicodeDecodeError.
        self.caught: tuple[type[Exception], ...] = (nvml.NVMLError, AttributeError, ValueError)
        """What a call may raise."""
        self._names = {
            code: (name, loss)
            for loss, names in _REACH.items()
            for name in names
            if (code := getattr(nvml, f"NVML_ERROR_{name}", _RECENT.get(name))) is not None
        }

    def loss(self, exc: Exception) -> ErrorScope:
        """Return how far an error reaches."""
        if isinstance(exc, AttributeError):
            return ErrorScope.METRIC
        return self._names.get(getattr(exc, "value", None), ("", ErrorScope.MOMENT))[1]

    def why(self, exc: Exception) -> str:
        """Say in words why a metric is not measured."""
        if isinstance(exc, AttributeError):
            return "needs a newer nvidia-ml-py"
        name = self._names.get(getattr(exc, "value", None), ("", ErrorScope.MOMENT))[0]
        return _WORDS.get(name, "not supported")
