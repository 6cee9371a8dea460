"""One case in a process of its own: trains, and prints the result as JSON.

python -m benchmarks.faults.run_case CASE --level 1 --seed 0
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import platform
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from .cases import case_of


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case")
    parser.add_argument("--level", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tool", default="stallmeter")
    parser.add_argument("--folder", type=Path, help="where the recording stays; a temporary one by default")
    parser.add_argument("--cpus", type=lambda text: [int(c) for c in text.split(",")])
    parser.add_argument("--store-port", type=int)
    parser.add_argument("--result", type=Path, help="where the result goes; stdout by default")
    parser.add_argument("--training", type=Path, help="made when training begins")
    return parser.parse_args()


def make_tool(name: str, folder: Path) -> Any:
    """Return what watches the fit."""
    if name == "stallmeter":
        from .ours import Stallmeter

        return Stallmeter(folder)
    from .rivals import open_rival

    return open_rival(name, folder)


def main() -> None:
    arguments = parse()
    # Whatever prints belongs on stderr: stdout is the result.
    out = arguments.result.open("w") if arguments.result else os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if arguments.cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, arguments.cpus)
    warnings.filterwarnings("ignore")
    for name in ("lightning", "lightning.pytorch", "lightning.fabric", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    case = case_of(arguments.case)
    shape = case.shape(arguments.level, arguments.seed)
    store = ("127.0.0.1", arguments.store_port) if arguments.store_port else None
    with tempfile.TemporaryDirectory() as temporary:
        tool = make_tool(arguments.tool, arguments.folder or Path(temporary))
        from . import fit

        if arguments.training:
            arguments.training.touch()
        started = time.perf_counter()
        elapsed, spent = fit.run(shape, arguments.seed, tool.callbacks, store=store)
        result = tool.result()
    result |= {
        "case": case.id,
        "level": arguments.level,
        "seed": arguments.seed,
        "tool": arguments.tool,
        "fit_s": elapsed,
        "spent": spent,
        "shape": dataclasses.asdict(shape),
        "machine": {
            "python": platform.python_version(),
            "torch": _version("torch"),
            "lightning": _version("lightning") or _version("pytorch_lightning"),
            "stallmeter": _version("stallmeter"),
        },
        "total_s": time.perf_counter() - started,
    }
    json.dump(result, out)
    out.write("\n")
    out.flush()


def _version(name: str) -> str | None:
    module = sys.modules.get(name)
    return None if module is None else str(getattr(module, "__version__", ""))


if __name__ == "__main__":
    main()
