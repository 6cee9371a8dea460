"""What several commands share: kinds of arguments, and how a mistake is told."""

from __future__ import annotations

import argparse
import math
import sys

USAGE_ERROR = 2
FORMATS = ("text", "markdown", "json", "html")
SHEET_FORMATS = ("text", "markdown", "json")

WIDTH = 80
"""Of what is written to the terminal."""


def fail(message: str, status: int = USAGE_ERROR) -> int:
    """Say in one line on stderr what is wrong; returns the exit status."""
    print(f"stallmeter: {' '.join(message.split())}", file=sys.stderr)
    return status


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
