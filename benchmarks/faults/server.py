"""A process that has imported torch and Lightning, and forks a child for each run: an import takes seconds.

    python -m benchmarks.faults.server

It takes a request a line, in JSON, and answers with the child's process id, and at its end with its exit code and CPU
time. Nothing of stallmeter's is imported before the fork, and nothing that starts a thread.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path

IMPORTED = (
    "torch._dynamo",
    "lightning.pytorch",
    "lightning.fabric",
    "lightning.pytorch.utilities.combined_loader",
    "torchdata.stateful_dataloader",
    "PIL.Image",
    "PIL.JpegImagePlugin",
    "numpy.random",
)


def main() -> None:
    for name in IMPORTED:
        with suppress(ImportError):
            importlib.import_module(name)
    from . import child, loaders, trainer  # noqa: F401 - for the children

    if threading.active_count() > 1:
        raise SystemExit(f"imports have started threads: {threading.enumerate()}")
    gc.collect()
    gc.freeze()  # or each child would copy all memory to collect it at its end
    tell("ready")
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if not pid:
            os._exit(serve(request))
        tell("started", pid)
        _, status, usage = os.wait4(pid, 0)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # workers that were left
        tell("ended", os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime)


def serve(request: dict[str, object]) -> int:
    """Be the child; returns its exit code."""
    from . import child

    os.setsid()
    log = os.open(str(request["log"]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for stream, file in enumerate((null, log, log)):
        os.dup2(file, stream)
    sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123 - for as long as the process lives
    try:
        child.write(child.run(request), Path(str(request["result"])))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0


def tell(*words: object) -> None:
    """Answer in one line."""
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
