"""A child process of ours: the same interpreter and module path, none of the program's own settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..machine.installed import program_folders

_PATH = "import sys; sys.path[:] = filter(None, sys.path); import json; sys.path[:] = json.loads(sys.argv[1]); "
"""The first entry of a command's path is the current folder, which may hold a ``json.py``."""

NICENESS = 10
"""Of a child that lets the program go first: of a CPU that both want it gets a tenth."""

PATIENT = f"""
import os
try:
    os.nice({NICENESS})
    with open("/proc/self/autogroup", "w") as group:
        group.write("{NICENESS}")
except (AttributeError, OSError):
    pass
"""
"""Statements that let the program go first, also while modules are imported.

Where Linux groups processes by session, a process's own niceness counts within its session alone, and this one has a
session of its own: as a group it would get as much as the whole program. Groups that are not used cannot be asked.
"""


def can_start() -> bool:
    """Whether one can be started: not where the program is one file without an interpreter."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def start(
    module: str, arguments: Sequence[str], *, stdin: int, stderr: int | None = None, first: str = ""
) -> subprocess.Popen[bytes]:
    """Start a process that calls ``main`` of a module of ours, in a session of its own: signals to the program miss it.

    Args:
        module: Its dotted name.
        arguments: For ``main``.
        stdin: As for `subprocess.Popen`, like ``stderr``.
        stderr: By default the program's own.
        first: Statements before anything of ours is imported.

    Raises:
        OSError: No process can be started.
    """
    # Not the zero-code callback's business, and no GPU is needed.
    environment = {k: v for k, v in os.environ.items() if k != "STALLMETER"} | {"CUDA_VISIBLE_DEVICES": ""}
    program = f"{first}{_PATH}from {module} import main; main(sys.argv[2:])"
    return subprocess.Popen(
        [sys.executable, "-c", program, json.dumps(_path()), *arguments],
        stdin=stdin,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        env=environment,
        start_new_session=True,
    )


def _path() -> list[str]:
    """Return the module path with the program's own folders last: there may be a file ``plotly.py`` in one.

    What is found nowhere else is still found there.
    """
    own = program_folders()
    last = [entry for entry in sys.path if not Path(entry).is_absolute() or Path(entry) in own]
    return [*(entry for entry in sys.path if entry not in last), *last]
