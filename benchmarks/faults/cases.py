"""A case of a benchmark in a process of its own, so that none finds what another has left in memory and caches."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def measured(module: str, *case: object, seconds: float) -> Any:
    """Return what a module prints, as JSON, when it is run for one case.

    Args:
        module: Run with ``python -m``; it knows ``--case`` and ``--seconds``.
        case: What tells it from the others.
        seconds: To measure for.
    """
    arguments = ["--case", *map(str, case), "--seconds", str(seconds)]
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
