"""What the environment asks for. Standard library only: it is read at the start of each interpreter."""

from __future__ import annotations

import os
import sys

VARIABLE = "STALLMETER"
WITNESS = "STALLMETER_WITNESS"
"""Names the folder for marks of `run_check`."""
MEASURED = "measured"
"""The mark there of a program that was measured, or was told why it is not."""
ON = ("1", "true", "yes", "on")
OFF = ("", "0", "false", "no", "off")


def is_asked() -> bool:
    """Whether what trains is to be measured; a value that says neither is named once."""
    value = os.environ.get(VARIABLE, "")
    said = value.strip().lower()
    if said not in (*ON, *OFF):
        os.environ[VARIABLE] = "0"  # or each process that this one starts would say the same
        if sys.stderr is not None:
            sys.stderr.write(
                f"stallmeter: {VARIABLE} is {value!r}, so nothing is measured; "
                f"give {', '.join(ON)} to measure, {', '.join(OFF[1:])} not to\n"
            )
    return said in ON
