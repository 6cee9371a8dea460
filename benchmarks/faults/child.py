"""One run in a process of its own: takes over the surroundings that the request names, trains, writes what came out."""

from __future__ import annotations

import ctypes
import importlib
import json
import logging
import multiprocessing
import os
import platform
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from .loops import EnoughError, Marks, Nobody, run_plain
from .program import Program, program_of
from .work import Maker, calibrated, drop_cache, wait

CGROUP = Path("/sys/fs/cgroup/cpu")
MODULES = {
    "stateful": ("torchdata.stateful_dataloader",),
    "webdataset": ("webdataset",),
    "webloader": ("webdataset",),
    "datasets": ("datasets",),
    "litdata": ("litdata",),
    "accelerate": ("accelerate",),
}
OPEN_FILES = 1024
"""The usual soft limit, whatever this machine's is."""


def run(request: Mapping[str, Any]) -> dict[str, Any]:
    """Make the run that a request describes and return its times, and what the tool said.

    Args:
        request: ``program``, ``seed``, ``tool``, ``folder`` for the recording, ``shared`` for data that runs share,
            ``rates`` of the kinds of work, ``store``, ``cpus``, ``cap_s`` and ``gentle_s`` (see `Marks`).
    """
    if request.get("calibrate"):
        os.sched_setaffinity(0, request["cpus"][:1])
        return {"rates": calibrated()}
    program = program_of(request["program"])
    _surroundings(request, program)
    for name in MODULES.get(program.library, ()) + MODULES.get(program.loop, ()):
        importlib.import_module(name)  # as a program does before it trains
    with tempfile.TemporaryDirectory(prefix="stallmeter-faults-") as temporary:
        tool = make_tool(request["tool"], Path(request["folder"] or temporary), program.loop)
        return _train(request, program, tool, Path(temporary))


def _train(request: Mapping[str, Any], program: Program, tool: Any, folder: Path) -> dict[str, Any]:
    store = None if request["store"] is None else ("127.0.0.1", int(request["store"]))
    shared = Path(request["shared"])
    data = shared / "items.bin"
    if program.cold:
        drop_cache(data)

    def make_loader() -> Any:
        from .loaders import make_loader as make

        maker = Maker(program, request["seed"], request["rates"], store, folder, data)
        return make(program, maker, request["seed"], shared)

    marks = Marks(request["cap_s"], request["gentle_s"])
    cut = False
    try:
        if program.loop == "lightning":
            from .trainer import run_lightning

            run_lightning(program, make_loader, tool.callbacks, marks, folder)
        else:
            run_plain(program, make_loader, tool, marks, folder)
    except EnoughError:
        cut = True
    seconds = time.perf_counter() - marks.began
    said = {} if request["folder"] is None else tool.result()
    for worker in multiprocessing.active_children():  # or their CPU time would count as other people's
        worker.kill()
        worker.join()
    return {
        **said,
        "ends": [round(end, 5) for end in marks.ends],
        "last": marks.last,
        "cut": cut,
        "fit_s": seconds,
        "machine": {"python": platform.python_version(), **{n: _version(n) for n in ("torch", "lightning")}},
    }


def make_tool(name: str, folder: Path, loop: str) -> Any:
    """Return what watches the run."""
    if name == "nobody":
        return type("Silent", (Nobody,), {"callbacks": ()})()
    if name == "stallmeter":
        from .ours import Stallmeter

        return Stallmeter(folder, loop)
    from .rivals import open_rival

    return open_rival(name, folder)


def _surroundings(request: Mapping[str, Any], program: Program) -> None:
    warnings.filterwarnings("ignore")
    for name in ("lightning", "lightning.pytorch", "lightning.fabric", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if request["cpus"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, request["cpus"])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard), hard))
    if program.quota_cpus:
        group = CGROUP / f"stallmeter-faults-{os.getpid()}"
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text(str(int(100_000 * program.quota_cpus)))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    if program.shm_bytes:
        mount_shm(program.shm_bytes)
    if program.fork_wait_s:
        os.register_at_fork(before=lambda: wait(program.fork_wait_s))
    torch.set_num_threads(1)
    torch.manual_seed(request["seed"])


def mount_shm(size: int) -> None:
    """Give this process and its children a /dev/shm of their own.

    Raises:
        OSError: The system does not let us.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, recursive_private = 0x20000, 0x44000
    calls = (
        (libc.unshare, (new_mounts,)),
        (libc.mount, (b"none", b"/", None, ctypes.c_ulong(recursive_private), None)),
        (libc.mount, (b"tmpfs", b"/dev/shm", b"tmpfs", ctypes.c_ulong(0), f"size={size}".encode())),
    )
    for call, arguments in calls:
        if call(*arguments):
            raise OSError(ctypes.get_errno(), "no mount namespace of its own")


def can_throttle() -> bool:
    """Whether this machine lets us set a CPU quota as the draws do."""
    group = CGROUP / f"stallmeter-faults-{os.getpid()}"
    with suppress(OSError):
        group.mkdir()
        possible = (group / "cpu.cfs_quota_us").is_file()
        group.rmdir()
        return possible
    return False


def forget_quota(pid: int) -> None:
    """Remove the cgroup of a run that has ended."""
    with suppress(OSError):
        (CGROUP / f"stallmeter-faults-{pid}").rmdir()


def _version(name: str) -> str | None:
    module = sys.modules.get(name)
    return None if module is None else str(getattr(module, "__version__", ""))


def write(result: Mapping[str, Any], path: Path) -> None:
    """Write a result as a whole."""
    made = path.with_suffix(".new")
    made.write_text(json.dumps(result))
    made.rename(path)
