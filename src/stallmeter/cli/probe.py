"""``stallmeter probe``: measure a training with free data, and what num_workers and batch size do to it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from ..errors import SettingError
from .arguments import FORMATS, check_output, count, positive


def add(commands: Any) -> None:
    """Add the command."""
    probe = commands.add_parser(
        "probe",
        help="measure how fast a training would be with free data, and what num_workers and batch size do to it",
        description="Measure a training for a minute at most: the loader alone, the training on one batch, both "
        "together. The factory returns (module, data) of Lightning, with a dict of Trainer arguments behind them if "
        "need be, or (step, loader) of a plain loop.",
    )
    probe.add_argument("target", metavar="FACTORY", help="package.module:factory or path/to/file.py:factory")
    probe.add_argument(
        "--sweep-workers", type=_workers, metavar="auto|N,N,...", help="numbers of workers to measure besides"
    )
    probe.add_argument("--sweep-batch-size", type=_sizes, metavar="N,N,...", help="batch sizes to measure besides")
    probe.add_argument("--seconds", type=float, default=3.0, help="most time to measure in each phase (default: 3)")
    probe.add_argument("--time-limit-s", type=float, default=60.0, help="most time for everything (default: 60)")
    probe.add_argument("--recording", type=Path, metavar="PATH", help="take the present speed from a recorded run")
    probe.add_argument("--format", choices=FORMATS, default="text")
    probe.add_argument("--output", type=Path, metavar="FILE", help="write there instead of to stdout")
    probe.add_argument("--trackers", choices=("auto", "mlflow", "neptune", "neptune-scale", "none"), default="auto")
    probe.add_argument("--run-id", metavar="ID", help="forward it to this MLflow run")
    probe.set_defaults(call=_run)


def _workers(text: str) -> tuple[int, ...] | str:
    return text if text == "auto" else tuple(count(part) for part in text.split(","))


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(positive(part) for part in text.split(","))


def _run(arguments: argparse.Namespace) -> int:
    from ..probing import probe
    from ..probing.show import render
    from ..probing.target import import_target

    check_output(arguments.output)
    if arguments.run_id is not None:
        if arguments.trackers == "none":
            raise SettingError("--run-id names a run, and --trackers none sends nothing: leave out one of them")
        os.environ["MLFLOW_RUN_ID"] = arguments.run_id
    result = probe(
        **import_target(arguments.target),
        sweep_workers=arguments.sweep_workers,
        sweep_batch_size=arguments.sweep_batch_size,
        seconds=arguments.seconds,
        time_limit_s=arguments.time_limit_s,
        recording=arguments.recording,
        trackers=None if arguments.trackers == "none" else arguments.trackers,
    )
    shown = render(result, arguments.format)
    if arguments.output is None:
        sys.stdout.write(shown)
    else:
        from ..recording import write_output

        write_output(arguments.output, shown)
    return 0
