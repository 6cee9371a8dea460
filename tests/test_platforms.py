"""Where POSIX is not to be had, everything is imported all the same and measures less."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path

import stallmeter

from .warm import Forks

OPTIONAL = ("ignite", "keras", "transformers")
"""Adapters whose modules import the package that they are named after."""

MODULES = sorted(
    path.relative_to(Path(stallmeter.__file__).parents[1]).with_suffix("").as_posix().replace("/", ".")
    for path in Path(stallmeter.__file__).parent.rglob("*.py")
    if path.name not in ("__main__.py", "__init__.py")
    and (path.parent.name not in OPTIONAL or importlib.util.find_spec(path.parent.name) is not None)
)

WITHOUT = """
import os, psutil, sys
sys.platform = "win32"
for name in ("fcntl", "resource", "pwd", "grp", "termios", "posix_ipc"):
    sys.modules[name] = None
for name in ("register_at_fork", "sched_getaffinity", "getloadavg", "fork"):
    if hasattr(os, name):
        delattr(os, name)
"""


def test_every_module_can_be_imported_without_posix(forks: Forks, tmp_path: Path) -> None:
    assert len(MODULES) > 100
    # Packages of others need POSIX here, where they were installed for it: they come first.
    first = "import lightning.pytorch, pytorch_lightning, mlflow, sklearn.datasets, multiprocessing.popen_spawn_posix\n"
    program = first + WITHOUT + "import importlib\n" + f"for name in {MODULES!r}: importlib.import_module(name)\n"
    done = forks.run(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_loop_is_recorded_without_posix_and_without_proc(tmp_path: Path) -> None:
    program = WITHOUT + textwrap.dedent(
        """
        import builtins, pathlib
        real = builtins.open
        def no_proc(file, *args, **kwargs):
            if str(file).startswith(("/proc", "/sys")):
                raise FileNotFoundError(file)
            return real(file, *args, **kwargs)
        builtins.open = no_proc
        import io
        io.open = no_proc
        import time, stallmeter
        with stallmeter.Monitor(directory="runs", trackers=None, interval_s=0.05) as monitor:
            for batch in monitor.watch(range(30)):
                time.sleep(0.01)
        from stallmeter.report.model import read_history
        report = read_history(monitor.folder).report()
        assert report.steps == 30, report.steps
        assert report.coverage_pct > 90, report.coverage_pct
        """
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
