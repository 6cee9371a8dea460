"""Train every case with the callback and print what it says beside the article's numbers.

python -m benchmarks.gpu [--cpu-smoke] [--seconds S] [--workers N] [--batch N] [--keep DIR] [--json FILE] [CASE ...]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
import tempfile
import warnings
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path

import lightning.pytorch as L
import torch

from stallmeter.lightning.unified import StallMonitor

from .cases import CASES, GPU, SMOKE, Case, Segmentation, Shape, loader_of
from .pace import suited, usable_workers


@dataclass(frozen=True)
class Row:
    case: str
    planted: str
    article: str
    samples_per_s: float | None
    gpu_pct: float | None
    host_wait_pct: float | None
    exposed_wait_pct: float | None
    h2d_pct: float | None
    primary: str
    others: str
    right: bool | None
    """None in a smoke test, which has no device to judge."""


def run(case: Case, shape: Shape, *, accelerator: str, seconds: float | None, keep: str | None) -> Row:
    """Train one case and judge it.

    Args:
        case: What is planted.
        shape: How large everything is.
        accelerator: Of the Trainer.
        seconds: Longest training; None for as many steps as the shape says.
        keep: Folder of the recordings; None to keep none.
    """
    with tempfile.TemporaryDirectory() if keep is None else contextlib.nullcontext(keep) as folder:
        ours = StallMonitor(directory=folder, trackers=None, console=False)
        extra = [case.callback(shape)] if case.callback else []
        trainer = L.Trainer(
            max_epochs=1,
            max_time=None if seconds is None else timedelta(seconds=seconds),
            accelerator=accelerator,
            devices=1,
            callbacks=[*extra, ours],
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            num_sanity_val_steps=0,
            logger=False,
        )
        trainer.fit(Segmentation(case, shape), loader_of(case, shape))
        monitor = ours.monitor
        assert monitor is not None
        monitor.finish()  # or its page would be drawn beside the next run
        window, primary = monitor.window, monitor.verdict.primary
        said = primary.rule if primary else "none"
        return Row(
            case=case.name,
            planted=case.planted,
            article=case.article,
            samples_per_s=window.ledger.samples_per_s,
            gpu_pct=window.gpu.utilization_pct,
            host_wait_pct=window.ledger.host_wait_share_pct,
            exposed_wait_pct=window.spent.data_wait_share_pct if window.device.exposed_wait_share is not None else None,
            h2d_pct=window.device.h2d_share_pct,
            primary=said,
            others=", ".join(d.rule for d in monitor.verdict.diagnoses if d is not primary),
            right=None if accelerator == "cpu" else said in case.expected,
        )


def table(rows: list[Row]) -> str:
    def number(value: float | None, digits: int = 0) -> str:
        return "-" if value is None else f"{value:,.{digits}f}"

    head = "| case | planted | article | samples/s | GPU % | host wait % | exposed wait % | copy % | primary | right |"
    lines = [head, "|---|---|---|---:|---:|---:|---:|---:|---|---|"]
    lines += [
        f"| {r.case} | {r.planted} | {r.article} | {number(r.samples_per_s)} | {number(r.gpu_pct)} "
        f"| {number(r.host_wait_pct, 1)} | {number(r.exposed_wait_pct, 1)} | {number(r.h2d_pct, 1)} "
        f"| `{r.primary}` | {'-' if r.right is None else 'yes' if r.right else 'no'} |"
        for r in rows
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu-smoke", action="store_true", help="tiny sizes on the CPU: runs the code, proves nothing")
    parser.add_argument("--seconds", type=float, help="longest training of a case; 300 steps by default")
    parser.add_argument("--workers", type=int, help="all CPUs but two by default")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--keep", help="folder for the recordings; none are kept by default")
    parser.add_argument("--json")
    parser.add_argument("cases", nargs="*", help="names of cases; all by default")
    arguments = parser.parse_args()
    if not arguments.cpu_smoke and not torch.cuda.is_available():
        sys.stderr.write("no CUDA device: this benchmark needs one (--cpu-smoke runs its code without)\n")
        return 1
    unknown = set(arguments.cases) - {case.name for case in CASES}
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(c.name for c in CASES)}")
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    shape = SMOKE if arguments.cpu_smoke else GPU
    accelerator = "cpu" if arguments.cpu_smoke else "cuda"
    changes = {"workers": arguments.workers, "batch": arguments.batch}
    if not arguments.cpu_smoke and arguments.workers is None:
        changes["workers"] = usable_workers()
    shape = replace(shape, **{name: value for name, value in changes.items() if value is not None})
    shape = suited(shape, accelerator) if shape.workers else shape
    device = "CPU, a smoke test of the code" if arguments.cpu_smoke else torch.cuda.get_device_name(0)
    print(f"device: {device}; torch {torch.__version__}, lightning {L.__version__}; {shape}\n")
    chosen = [case for case in CASES if not arguments.cases or case.name in arguments.cases]
    rows = []
    for case in chosen:
        rows.append(run(case, shape, accelerator=accelerator, seconds=arguments.seconds, keep=arguments.keep))
        print(f"{case.name}: {rows[-1].primary} ({rows[-1].others})", file=sys.stderr)
    print(table(rows))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps([asdict(row) for row in rows], indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
