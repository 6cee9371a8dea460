"""What the environment asks for. Standard library only: it is read at the start of each interpreter."""

from __future__ import annotations

import os
import sys

VARIABLE = "STALLMETER"
DIRECTORY = "STALLMETER_DIR"
"""Names the folder of all recordings."""
WITNESS = "STALLMETER_WITNESS"
"""Names the folder for marks of `run_check`."""
MEASURED = "measured"
"""The mark there of a program that was measured, or was told why it is not."""
ON = ("1", "true", "yes", "on")
OFF = ("", "0", "false", "no", "off")


_at_start: dict[str, str] = {}
"""What the program was started with."""


def keep() -> None:
    """Keep what the environment says now, at the start of the program: it may clear its environment later.

    Processes that it starts then know of nothing, and are not measured.
    """
    _at_start.update({name: os.environ[name] for name in (VARIABLE, DIRECTORY, WITNESS) if name in os.environ})


def variable(name: str) -> str:
    """Return what a variable of ours says, or said at the start where it is gone; empty where it never was there."""
    value = os.environ.get(name)
    return _at_start.get(name, "") if value is None else value


def is_asked() -> bool:
    """Whether what trains is to be measured; a value that says neither is named once."""
    value = variable(VARIABLE)
    said = value.strip().lower()
    if said not in (*ON, *OFF):
        os.environ[VARIABLE] = "0"  # or each process that this one starts would say the same
        if sys.stderr is not None:
            sys.stderr.write(
                f"stallmeter: {VARIABLE} is {value!r}, so nothing is measured; "
                f"give {', '.join(ON)} to measure, {', '.join(OFF[1:])} not to\n"
            )
    return said in ON
