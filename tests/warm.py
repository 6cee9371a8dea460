"""Programs that import torch, as forks of a process that has imported it: a fresh interpreter takes seconds for that.

That process holds other people's packages and nothing of ours: each program imports stallmeter itself, as a user's
does. It runs as ``__main__`` with arguments, environment, folder and streams of its own and ends as any does.
Where the start of an interpreter is what is tested, or what is imported first, a test starts a real one.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

IMPORTED = ("torch._dynamo", "lightning.pytorch")
"""The first optimizer imports the first of them, which takes as long as all the rest of a short training.

What is told apart by whether a program has imported it, as MLflow and `pytorch_lightning` are, is left to the programs.
"""


NO_PICTURES = "from stallmeter.engine import wiring; wiring.start_drawing = lambda: None\n"
"""Put before a program's text where page and pictures are not the subject: they take most of a short run's time."""


class Program:
    """A program that runs, with those of `subprocess.Popen`'s methods that tests need."""

    def __init__(self, forks: Forks, pid: int, folder: tempfile.TemporaryDirectory[str]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._forks, self._folder = forks, folder

    def wait(self, timeout: float = 120.0) -> int:
        """Return the exit status, negative for a signal.

        Raises:
            subprocess.TimeoutExpired: It runs on.
        """
        if self.returncode is None:
            status = self._forks.status(self.pid, timeout)
            if status is None:
                self._abort()
                said = "\n".join(self.read(stream)[-9000:] for stream in ("stdout", "stderr"))
                raise subprocess.TimeoutExpired(f"program {self.pid}: {said}", timeout)
            self.returncode = status
        return self.returncode

    def communicate(self, timeout: float = 120.0) -> tuple[str, str]:
        """Wait, and return what it wrote to stdout and to stderr."""
        self.wait(timeout)
        said = self.read("stdout"), self.read("stderr")
        self._folder.cleanup()
        return said

    def read(self, stream: str) -> str:
        """Return what it has written by now."""
        return (Path(self._folder.name) / stream).read_text(encoding="utf-8")

    def _abort(self) -> None:
        """End it and all that it has started, each with a word of where its threads stood; the newest first."""
        with contextlib.suppress(psutil.Error):
            program = psutil.Process(self.pid)
            for process in (*reversed(program.children(recursive=True)), program):
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGABRT)
                    process.wait(5)

    def kill(self) -> None:
        """End it, if it still runs."""
        if self.returncode is None and self._forks.status(self.pid, 0) is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait(30)


class Forks:
    """The process that programs are forked from."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._started: list[int] = []
        self._ended: dict[int, int] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._listen, name="forks", daemon=True).start()

    def start(
        self,
        source: str | Path,
        *arguments: object,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        together: bool = False,
    ) -> Program:
        """Start a program.

        Args:
            source: Its text, as ``python -c`` takes it, or its file.
            arguments: What follows in ``sys.argv``.
            cwd: Its folder.
            env: Its environment, by default this process's.
            together: Write stderr to where stdout goes.
        """
        assert self._process.stdin is not None
        folder = tempfile.TemporaryDirectory(prefix="stallmeter-program-")
        for stream in ("stdout", "stderr"):
            (Path(folder.name) / stream).touch()
        request = {
            "file": str(source) if isinstance(source, Path) else None,
            "source": source.read_text(encoding="utf-8") if isinstance(source, Path) else source,
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd),
            "environ": {"PYTHONFAULTHANDLER": "1", **(os.environ if env is None else env)},
            "streams": [f"{folder.name}/stdout", f"{folder.name}/{'stdout' if together else 'stderr'}"],
        }
        with self._changed:
            before = len(self._started)
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            if not self._changed.wait_for(lambda: len(self._started) > before, 120):
                raise TimeoutError("the process that forks does not answer")
            return Program(self, self._started[before], folder)

    def run(self, source: str | Path, *arguments: object, timeout: float = 120.0, **options: Any) -> Any:
        """Run a program to its end and return what `subprocess.run` would; a program that runs too long is killed."""
        program = self.start(source, *arguments, **options)
        try:
            stdout, stderr = program.communicate(timeout)
        finally:
            program.kill()
        return subprocess.CompletedProcess([], program.wait(), stdout, stderr)

    def status(self, pid: int, seconds: float) -> int | None:
        """Return the exit status of a program that ends within so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: pid in self._ended, seconds)
            return self._ended.get(pid)

    def close(self) -> None:
        """End it; programs that still run are nobody's then."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            # What a test has forked of this process, and what lives on, holds the other end of the pipe, too.
            self._process.kill()
            self._process.wait(30)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            for line in answers:
                what, *numbers = json.loads(line)
                with self._changed:
                    if what == "started":
                        self._started.append(numbers[0])
                    else:
                        self._ended[numbers[0]] = numbers[1]
                    self._changed.notify_all()


# -- in that process ---------------------------------------------------------------------------------------------------


def requests() -> Iterable[dict[str, Any]]:
    """Fork at each request; a fork gets its own, and the process that forks never comes back with one."""
    import gc
    import importlib
    import select

    sys.path[0] = ""  # the folders of tests are named as the packages that they test
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or each fork would copy all memory to collect it at its end
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    waiting = b""
    running: set[int] = set()
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
        for pid in list(running):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                running.discard(pid)
                tell("ended", pid, os.waitstatus_to_exitcode(status))
        if 0 not in ready:
            continue
        read = os.read(0, 1 << 20)
        if not read:
            return []
        *lines, waiting = (waiting + read).split(b"\n")
        for line in lines:
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, before)
                for end in (woken, wake):
                    os.close(end)
                return [json.loads(line)]
            running.add(pid)
            tell("started", pid)


def tell(*words: object) -> None:
    """Answer in one line."""
    os.write(1, json.dumps(words).encode() + b"\n")


def become(request: dict[str, Any]) -> Any:
    """Take over the program's surroundings and return its code."""
    for stream, path in enumerate([os.devnull, *request["streams"]]):
        opened = os.open(path, os.O_WRONLY | os.O_APPEND if stream else os.O_RDONLY)
        os.dup2(opened, stream)
        os.close(opened)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    faulthandler.enable()  # as an interpreter would that is started with this environment
    file = request["file"]
    sys.argv[:] = [file or "-c", *request["arguments"]]
    sys.path[0] = os.path.dirname(file) if file else ""  # noqa: PTH120 - as the interpreter does it
    main = type(sys)("__main__")
    main.__dict__.update(__builtins__=__builtins__, **({"__file__": file} if file else {}))
    sys.modules["__main__"] = main
    return compile(request["source"], file or "<string>", "exec"), main.__dict__


if __name__ == "__main__":
    for _request in requests():
        exec(*become(_request))
