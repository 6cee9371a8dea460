"""The few things that a user can do wrong; each message says what happened and what to do."""

from __future__ import annotations


class StallmeterError(Exception):
    """Base class of every error that stallmeter raises on purpose."""


class MissingPackageError(StallmeterError, ImportError):
    """An optional package is needed for what was asked, and it is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed. "
            f"Install it with: pip install 'stallmeter[{extra}]'"
        )


class RecordingError(StallmeterError):
    """A recording cannot be found, read or understood."""


class TrackerError(StallmeterError):
    """A tracker refused what was sent for good: trying again cannot help."""


class TrackerUnavailableError(StallmeterError):
    """A tracker did not take what was sent this time: trying again may help."""


class SettingError(StallmeterError, ValueError):
    """An argument has a wrong type, an unknown name or a value out of range."""
