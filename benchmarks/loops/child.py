"""One process for each framework: imports it once, and forks for each draw, which trains and says what was seen."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .draws import Draw, draw
from .programs import PROGRAMS, Nobody
from .work import Marks

IMPORTS = {
    "plain": (),
    "accelerate": ("accelerate",),
    "transformers": ("transformers.trainer",),
    "fabric": ("lightning.fabric",),
    "keras": ("keras",),
    "ignite": ("ignite.engine",),
    "lightning": ("lightning.pytorch",),
}


ALWAYS = ("torch", "torch._dynamo", "stallmeter.engine.wiring", "stallmeter.report.model", "stallmeter.zero_code.loop")
"""What a fork would else import anew; the first optimizer imports the second of them, for seconds."""


class Ours(Nobody):
    """stallmeter, with the settings that a user gets."""

    def __init__(self, loop: str, how: str, folder: Path) -> None:
        options: Any = {"directory": folder, "trackers": None, "console": False}
        self._auto = self._plain = None
        if how == "zero-code":
            import stallmeter

            self._auto = stallmeter.auto(**options)
        elif loop in ("plain", "accelerate", "fabric"):
            from stallmeter import Monitor

            self._plain = Monitor(**options)
            self.watch, self.span = self._plain.watch, self._plain.span  # type: ignore[method-assign]
        else:
            self.callbacks = (_callback(loop, options),)

    def close(self) -> None:
        if self._auto is not None:
            self._auto.stop()
        if self._plain is not None:
            self._plain.close()


def _callback(loop: str, options: Any) -> Any:
    rooms = {"transformers": "StallCallback", "keras": "StallCallback", "ignite": "StallHandler"}
    name = rooms.get(loop, "StallMonitor")
    return getattr(importlib.import_module(f"stallmeter.{loop}"), name)(**options)


def measured(one: Draw) -> dict[str, Any]:
    """Train, and return what the program's own clock says and what stallmeter does."""
    from stallmeter.engine import wiring
    from stallmeter.recording import find_recording

    wiring.start_drawing = lambda: None
    marks = Marks()
    with tempfile.TemporaryDirectory(prefix="stallmeter-loops-") as temporary:
        folder = Path(temporary) / "recordings"
        tool = Ours(one.loop, one.how, folder)
        began, busy = time.perf_counter(), _busy_s()
        PROGRAMS[one.loop](one, marks, tool, Path(temporary))
        seconds = time.perf_counter() - began
        others = (_busy_s() - busy) / seconds
        tool.close()
        recordings = sorted(folder.glob("*/")) if folder.is_dir() else []
        seen: dict[str, Any] = {"recordings": len(recordings)}
        if recordings:
            seen |= _seen(find_recording(folder))
    return {"seconds": seconds, "others_cpus": others, "steps": marks.steps, "wait_s": marks.wait_s, "seen": seen}


def _busy_s() -> float:
    """Return the CPU seconds that others than this process and its children have had."""
    import psutil

    us = psutil.Process()
    mine = [us.cpu_times(), *(child.cpu_times() for child in us.children(recursive=True))]
    ours = sum(times.user + times.system for times in mine) + mine[0].children_user + mine[0].children_system
    host = psutil.cpu_times()
    return float(sum(host) - host.idle - getattr(host, "iowait", 0.0) - getattr(host, "guest", 0.0)) - ours


def _seen(folder: Path) -> dict[str, Any]:
    from stallmeter.recording import Reader
    from stallmeter.records import StepRecord
    from stallmeter.report.model import read_history
    from stallmeter.rules.evaluation import diagnose

    history = read_history(folder)
    verdict = diagnose(history.window)
    steps = [record for record, _ in Reader(folder) if isinstance(record, StepRecord)]
    return {
        "primary": None if verdict.primary is None else verdict.primary.rule,
        "warnings": [one.rule for one in verdict.diagnoses if one.severity.value != "info"],
        "workers": None if verdict.num_workers is None else verdict.num_workers.recommended,
        "steps": history.report().steps,
        "buckets": {name: round(s, 4) for name, s in history.window.ledger.record.buckets.items() if s},
        "wait_s": sum(step.data_wait_s for step in steps if not step.epoch_start),
    }


def train(one: Draw, path: Path) -> None:
    """In a fork: train, and leave the result."""
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.fabric", "ignite.engine.engine.Engine"):
        logging.getLogger(name).setLevel(logging.ERROR)
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(one.seed)
    made = path.with_suffix(".new")
    made.write_text(json.dumps(measured(one)))
    made.rename(path)


def main(arguments: Sequence[str]) -> None:
    """Take lines of ``seed, fault, how, path``, as JSON, and say when each is done; an empty one asks for a word."""
    (loop,) = arguments
    os.environ["KERAS_BACKEND"] = "torch"
    os.environ["STALLMETER_DIR"] = "/nonexistent"
    for name in (*ALWAYS, *IMPORTS[loop]):
        importlib.import_module(name)
    for line in sys.stdin:
        if not json.loads(line):
            print(json.dumps(["ready"]), flush=True)
            continue
        seed, fault, how, path = json.loads(line)
        child = os.fork()
        if not child:
            status = 1
            try:
                train(draw(seed, loop, fault, how), Path(path))
                status = 0
            except Exception:  # the parent goes on with the next
                logging.exception("a draw failed")
            finally:
                sys.stdout.flush()
                os._exit(status)
        _, status = os.waitpid(child, 0)
        print(json.dumps([fault, how, status]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
