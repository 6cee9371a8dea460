"""Runs NvmlSource through the real binding on scenarios of the stub library: cases as JSON on stdin, results on stdout.

It runs in a process of its own, whose LD_LIBRARY_PATH makes the binding load the stub.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pynvml

from stallmeter.records import GpuSample
from stallmeter.sources.nvml import NvmlSource


def run(case: dict[str, Any], scenario: Path) -> dict[str, Any]:
    """Take the samples of one case; stop at the first error that rises."""
    scenario.write_text(case["scenario"].replace("SELF", str(os.getpid())), encoding="ascii")
    stub().stub_reset()
    source = NvmlSource(environ=case.get("environ", {}))
    rounds: list[Any] = []
    error = None
    for time_s in case.get("times", [100.0]):
        try:
            rounds.append([record(r) for r in source.sample(time_s)])
        except Exception as exc:
            error = [type(exc).__name__, str(exc)]
            break
    seen = {
        "rounds": rounds,
        "error": error,
        "reason": source.reason,
        "fix": source.fix,
        "note": source.note,
        "summary": source.summary,
        "not_measured": dict(source.not_measured),
        "calls": calls(),
    }
    source.close()
    return seen | {"users": stub().stub_users(), "buffers": stub().stub_buffers()}


def record(made: Any) -> dict[str, Any]:
    """A record as a dict, what was not measured left out."""
    found = {name: value for name, value in dataclasses.asdict(made).items() if value is not None}
    return {"kind": "gpu" if isinstance(made, GpuSample) else "event"} | found


def stub() -> Any:
    """The library that the binding has loaded."""
    pynvml._LoadNvmlLibrary()
    pynvml.nvmlLib.stub_function.restype = ctypes.c_char_p
    pynvml.nvmlLib.stub_calls.restype = ctypes.c_long
    return pynvml.nvmlLib


def calls() -> dict[str, int]:
    """How often each function was called."""
    counted = {}
    while (name := stub().stub_function(len(counted))) is not None:
        counted[name.decode()] = stub().stub_calls(len(counted))
    return counted


def main() -> None:
    """Run all cases."""
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder) / "scenario.txt"
        os.environ["NVML_STUB"] = str(scenario)
        json.dump([run(case, scenario) for case in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
