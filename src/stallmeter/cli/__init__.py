"""The command line: record a program, read its recording, explain a rule, check the machine, see a demo.

A mistake of the user ends in one line on stderr and exit status 2, never in a traceback. Importing this package loads
the standard library only, so that ``stallmeter run`` costs the program it starts nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .. import __version__
from ..errors import StallmeterError
from . import compare, demo, diagnose, doctor, merge, probe, report, rules, run, sync
from .arguments import fail

COMMANDS = (report, sync, merge, diagnose, compare, run, doctor, rules, probe, demo)
"""One module for each, in the order of the help."""

INTERRUPTED = 130

BROKEN_PIPE = 141
"""What a shell reports for a program that died of SIGPIPE."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    Args:
        argv: Arguments without the program's name; those of the process by default.
    """
    # Where the terminal's encoding lacks a character, a "?" is better than a traceback.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.call(arguments)
        if sys.stdout is not None:  # closed by the caller
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader has left (`| head`). Python would complain again when it flushes stdout at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except StallmeterError as exc:
        return fail(str(exc))
    except OSError as exc:
        return fail(f"{exc.strerror or exc}: {exc.filename!r}" if exc.filename else str(exc))
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stallmeter", description="Finds why PyTorch training is slow: data loading, callbacks, logging, the step."
    )
    parser.add_argument("--version", action="version", version=f"stallmeter {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return parser
