"""What several commands share: kinds of arguments, and how a mistake is told."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from ..errors import SettingError

USAGE_ERROR = 2
FORMATS = ("text", "markdown", "json", "html")
SHEET_FORMATS = ("text", "markdown", "json")

WIDTH = 80
"""Of what is written to the terminal."""


def fail(message: str, status: int = USAGE_ERROR) -> int:
    """Say in one line on stderr what is wrong; returns the exit status."""
    print(f"stallmeter: {' '.join(message.split())}", file=sys.stderr)
    return status


def check_output(output: Path | None) -> None:
    """Refuse what nothing can be written to, before any work is done for it.

    Args:
        output: The file; None for stdout.

    Raises:
        SettingError: It is a folder (as an empty name is), or stdout is closed.
    """
    if output is not None and output.is_dir():
        raise SettingError(f"--output {str(output)!r} is a folder; name a file, for example --output report.html")
    if output is None and sys.stdout is None:
        raise SettingError("stdout is closed; name a file: --output report.txt")


def positive(text: str) -> int:
    """Return a whole number from 1 up.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 up")
    return int(text)


def count(text: str) -> int:
    """Return a whole number from 0 up.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 up")
    return int(text)


def percentage(text: str) -> float:
    """Return a number from 0 up.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage from 0 up")
    return value
