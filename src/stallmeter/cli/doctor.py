"""``stallmeter doctor``: check what can be measured on this machine."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from .arguments import WIDTH


def add(commands: Any) -> None:
    """Add the command."""
    doctor = commands.add_parser("doctor", help="check what can be measured on this machine")
    doctor.set_defaults(call=_run)


def _run(_: argparse.Namespace) -> int:
    from ..machine.doctor import check_machine

    checks = check_machine(_gpu_sources())
    width = max(len(check.name) for check in checks)
    marks = {True: "ok", False: "FIX", None: "-"}
    for check in checks:
        print(f"{marks[check.ok]:<4} {check.name:<{width}}  {check.value}")
        if check.fix:
            print(
                textwrap.fill(check.fix, WIDTH, initial_indent=" " * (width + 7), subsequent_indent=" " * (width + 7))
            )
    return 1 if any(check.ok is False for check in checks) else 0


def _gpu_sources() -> tuple[Any, ...]:
    try:
        from ..sources.nvml import NvmlSource
    except ImportError:
        return ()  # check_machine names the package that is missing
    source = NvmlSource()
    source.check()
    return (source,)
