"""``stallmeter demo``: train a small network on real images."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .arguments import count, positive
from .show import read, show


def add(commands: Any) -> None:
    """Add the command."""
    demo = commands.add_parser("demo", help="train a small network on real images, with its verdict and MLflow run")
    demo.add_argument("--dir", type=Path, default=Path("demo-output"), help="default: ./demo-output")
    demo.add_argument("--epochs", type=positive, default=6, help="default: 6")
    demo.add_argument("--num-workers", type=count, default=0, help="try what the verdict advises (default: 0)")
    demo.add_argument("--apply", action="store_true", help="let stallmeter set the number of workers between epochs")
    demo.set_defaults(call=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ..demo import run_demo

    outcome = run_demo(
        arguments.dir, epochs=arguments.epochs, num_workers=arguments.num_workers, apply=arguments.apply, say=print
    )
    show(read(outcome.recording, None), "text", None)
    print(f"\n{outcome.next_steps()}")
    return 0
