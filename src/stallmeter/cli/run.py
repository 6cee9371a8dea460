"""``stallmeter run``: record a program that trains with torch, unchanged."""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from ..engine.run_check import leave_witness
from ..errors import SettingError
from .arguments import fail

SITE = Path(__file__).absolute().parents[1] / "zero_code" / "site"
"""Holds the first module of ours that an interpreter meets."""

NOT_EXECUTABLE = 126
NOT_FOUND = 127


def add(commands: Any) -> None:
    """Add the command."""
    run = commands.add_parser(
        "run",
        help="record a program that trains with torch, unchanged",
        description="Run a program with STALLMETER=1, which attaches stallmeter to every Lightning Trainer in it, and "
        "to every other loop that trains with an optimizer of torch. Arguments, stdin, signals and exit status are "
        "the program's own. Where nothing was measured, a line says so and why when it has ended.",
        usage="stallmeter run [--dir DIR] -- python train.py ...",
    )
    run.add_argument("--dir", type=Path, help="where recordings go (default: ./stallmeter)")
    run.add_argument("program", nargs=argparse.REMAINDER, help="for example: python train.py --epochs 3")
    run.set_defaults(call=_run)


def _run(arguments: argparse.Namespace) -> int:
    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    if not program:
        raise SettingError("say what to run: stallmeter run -- python train.py")
    name = program[0]
    if name.endswith(".py") and shutil.which(name) is None:
        raise SettingError(f"{name!r} is a script, not a program; write: stallmeter run -- python {name}")
    path = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "STALLMETER": "1", "PYTHONPATH": os.pathsep.join(path)}
    if arguments.dir is not None:
        # Absolute, because the program may change its folder before it trains.
        environment["STALLMETER_DIR"] = str(arguments.dir.absolute())
    if sys.stdout is not None:  # closed by the caller
        sys.stdout.flush()
    call_off = leave_witness(environment, Path(environment.get("STALLMETER_DIR") or "stallmeter"))
    try:
        os.execvpe(name, program, environment)  # noqa: S606 - the program replaces this one: no shell is wanted
    except FileNotFoundError:
        call_off()
        what = "there is no program" if shutil.which(name) is None else "the interpreter is missing that is named by"
        return fail(f"{what} {name!r}", NOT_FOUND)
    except OSError as exc:
        call_off()
        hint = " (does it begin with a line like #!/usr/bin/env python3?)" if exc.errno == errno.ENOEXEC else ""
        return fail(f"{name!r} cannot be run: {exc.strerror}{hint}", NOT_EXECUTABLE)
