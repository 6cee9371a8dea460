"""A program of several ranks with a plain loop, started by a launcher, or by itself as a launcher would.

python plain_ranks.py FOLDER CASE   (or with torchrun, mpirun, srun)
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import stallmeter
from stallmeter.engine import wiring

wiring.start_drawing = lambda: None  # pictures take most of a short run's time
FOLDER, CASE = Path(sys.argv[1]), sys.argv[2]
QUIET = {"hardware": False, "workers": False, "console": False, "trackers": None, "interval_s": 0.05}


def loop(job: str) -> None:
    """Train twice as one of two ranks that wait for each other as a collective would make them, without torch."""
    rank = int(os.environ.get("SLURM_PROCID") or os.environ["OMPI_COMM_WORLD_RANK"])
    for fit in range(2):
        with stallmeter.Monitor(directory=FOLDER / "loop", **QUIET) as monitor:  # type: ignore[arg-type]
            for step in monitor.watch(range(3)):
                for one in (rank, 1 - rank):
                    mark = FOLDER / f"{job}-{fit}-{step}-{one}"
                    mark.touch() if one == rank else wait_for(mark)


def wait_for(mark: Path) -> None:
    deadline = time.monotonic() + 60
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def gloo(name: str, **options: object) -> None:
    """Train as one of two ranks that reduce in every step, and count what the process group was asked for."""
    import torch
    import torch.distributed as dist

    early = stallmeter.Monitor(directory=FOLDER / f"{name}-early", **QUIET)  # type: ignore[arg-type]
    dist.init_process_group("gloo", **options)  # type: ignore[arg-type]
    for _ in range(2):
        with stallmeter.Monitor(directory=FOLDER / name, **QUIET) as monitor:  # type: ignore[arg-type]
            for _ in monitor.watch(range(3)):
                dist.all_reduce(torch.ones(1))
    early.close()
    asked = dist.distributed_c10d._get_default_group()._get_sequence_number_for_group()
    (FOLDER / f"{name}-{dist.get_rank()}.asked").write_text(str(asked))
    dist.barrier()
    dist.destroy_process_group()


def forked(name: str, port: int, **how: object) -> None:
    """Start two ranks, as launchers that bring no store do, and wait for them."""
    children = []
    for rank in (0, 1):
        child = os.fork()
        if not child:
            code = 1
            try:
                if "init_method" in how:  # torch.multiprocessing.spawn: the ranks are in no variable
                    gloo(name, rank=rank, world_size=2, **how)
                else:
                    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                    os.environ.update(where, RANK=str(rank), WORLD_SIZE="2")
                    gloo(name)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    if codes := [code for child in children if (code := os.waitpid(child, 0)[1])]:
        sys.exit(f"{name}: {codes}")


if CASE == "gloo":
    gloo("gloo")
elif CASE == "loop":
    loop(os.environ.get("SLURM_STEP_ID", ""))
else:
    import torch

    torch.set_num_threads(1)
    for again in ("first", "second"):
        forked(again, int(CASE))
    forked("by-file", 0, init_method=f"file://{FOLDER / 'store'}")
