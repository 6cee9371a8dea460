"""A program that trains and ends in a way of its own, each time in a process of its own, without us and with us.

    python ending.py NAMESPACE FOLDER ENDING ...

The packages are imported once; each ending runs in two forks of this process side by side, which leave their exit
status, their output, their recording and, where they still can, the weights in FOLDER.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import importlib
import io
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from stallmeter.engine import wiring

torch.set_num_threads(1)
TOO_LONG_S = 120


class Rows(Dataset):
    def __init__(self, at: int = -1, do: Callable[[], object] = lambda: None) -> None:
        self.at, self.do = at, do

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.at:
            self.do()
        return torch.full((4,), index / 16)


def kill(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def interrupted() -> None:
    """The signal reaches the main thread at some bytecode from here on: stay until it has."""
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)


def words() -> None:
    sys.exit("that is enough")


def wrong() -> None:
    raise ValueError("that is wrong")


def fork(ending: Callable[[], None]) -> Callable[[], None]:
    """A child that ends in its own way; the parent goes on."""

    def call() -> None:
        if os.fork() == 0:
            ending()
        _, status = os.wait()
        Path("child.txt").write_text(str(os.waitstatus_to_exitcode(status)))

    return call


def no_room() -> None:
    """Files may not grow any more; as on a full disk, a write is short and the next one fails."""
    room = 1000
    for recording in Path().glob("rec/*/rank0.0000.jsonl"):
        while '["ledger"' not in recording.read_text():
            time.sleep(0.01)
        room += recording.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    atexit.register(resource.setrlimit, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def no_files() -> None:
    """Nothing can be opened any more."""
    used = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def no_stderr() -> None:
    os.close(2)


def replaced() -> None:
    os.execv("/bin/sh", ["sh", "-c", "exit 9"])


STEPS: dict[str, Callable[[], object]] = {
    "end": lambda: None,
    "exception": wrong,
    "sys.exit": lambda: sys.exit(3),
    "sys.exit with words": words,
    "os._exit": lambda: os._exit(5),
    "os.abort": kill(signal.SIGABRT),
    "exec": replaced,
    "SIGINT": interrupted,
    "SIGTERM": kill(signal.SIGTERM),
    "SIGKILL": kill(signal.SIGKILL),
    "fork and os._exit": fork(lambda: os._exit(4)),
    "fork and sys.exit": fork(lambda: sys.exit(4)),
    "fork and raise": fork(wrong),
    "full disk": no_room,
    "no more files": no_files,
    "no stderr": no_stderr,
}
"""What happens in the third training step."""


def no_proc() -> None:
    """Nothing stands below /proc and /sys, here and in the workers."""

    def hiding(theirs: Callable[..., Any]) -> Callable[..., Any]:
        asks = theirs.__name__ in ("exists", "is_file", "is_dir")

        def call(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            if str(path).startswith(("/proc", "/sys")):
                if asks:
                    return False
                raise FileNotFoundError(2, "No such file or directory", str(path))
            return theirs(path, *args, **kwargs)

        return call

    readers: dict[Any, tuple[str, ...]] = {
        builtins: ("open",),
        io: ("open",),
        os: ("open", "listdir", "scandir", "stat", "lstat", "readlink"),
        Path: ("open", "read_text", "read_bytes", "exists", "is_file", "is_dir", "iterdir"),
    }
    for owner, names in readers.items():
        for name in names:
            setattr(owner, name, hiding(getattr(owner, name)))


BEFORE: dict[str, Callable[[], object]] = {"no /proc": no_proc}
"""What happens before the first step."""

WORKERS: dict[str, Callable[[], object]] = {
    "worker killed": kill(signal.SIGKILL),
    "worker leaves": lambda: os._exit(1),
    "worker aborts": kill(signal.SIGABRT),
}
"""What happens in a worker at the seventh row."""


def train(pl: Any, name: str, callbacks: list[Any]) -> None:
    class Model(pl.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.global_step == 2 and name in STEPS:
                STEPS[name]()
            return self.layer(batch).pow(2).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-2)

    BEFORE.get(name, lambda: None)()
    torch.manual_seed(7)
    model = Model()
    quiet = dict.fromkeys(("enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger"), False)
    trainer = pl.Trainer(accelerator="cpu", max_epochs=1, callbacks=callbacks, **quiet)
    data = Rows(7, WORKERS[name]) if name in WORKERS else Rows()
    workers = 0 if "fork" in name or name == "no more files" else 1
    # One batch ahead: the loop has taken the others when the worker dies. Torch cannot open what a dead worker sent.
    ahead = 1 if name in WORKERS else None
    try:
        trainer.fit(model, DataLoader(data, batch_size=2, num_workers=workers, prefetch_factor=ahead))
    finally:
        if name != "no more files":
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            Path(f"weights-{os.getpid()}.json").write_text(json.dumps([p.tolist() for p in model.parameters()]))
    print("trained", trainer.global_step, flush=True)


def main() -> None:
    namespace, folder = sys.argv[1], Path(sys.argv[2])
    pl = importlib.import_module(namespace)
    module = importlib.import_module(f"stallmeter.lightning.{'unified' if namespace[0] == 'l' else 'legacy'}")
    wiring.start_drawing = lambda: None  # pictures take most of a short run's time
    import_what_training_imports(pl, folder / "first")
    gc.freeze()  # or each process would copy all memory to collect it at its end
    for name in sys.argv[3:]:
        running = {}
        for ours in (False, True):
            place = folder / name.replace("/", "") / ("with" if ours else "without")
            place.mkdir(parents=True)
            child = os.fork()
            if child == 0:
                os.chdir(place)
                for stream, path in ((1, "out.txt"), (2, "err.txt")):
                    os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666), stream)
                # Falls through to the end of the program, as any other program does.
                return train(pl, name, [module.StallMonitor(directory="rec", interval_s=0.05)] if ours else [])
            running[place] = child
        for place, child in running.items():
            (place / "status.txt").write_text(str(wait_for(child)))
    return None


def import_what_training_imports(pl: Any, place: Path) -> None:
    """Import here what the first training would import in each fork: it takes most of a fork's time.

    What stallmeter imports is left to the forks: in some of them no file can be opened any more.
    """
    place.mkdir(parents=True)
    child = os.fork()
    if child == 0:
        os.chdir(place)
        os.dup2(os.open("out.txt", os.O_CREAT | os.O_WRONLY, 0o666), 1)
        os.dup2(1, 2)
        train(pl, "end", [])
        Path("modules.json").write_text(json.dumps(list(sys.modules)))
        os._exit(0)
    assert wait_for(child) == 0, (place / "out.txt").read_text()
    for name in json.loads((place / "modules.json").read_text()):
        if name not in sys.modules and not name.startswith("stallmeter"):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def wait_for(child: int) -> int | None:
    deadline = time.monotonic() + TOO_LONG_S
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


if __name__ == "__main__":
    main()
