"""A child process of ours beside files of the program's that have the names of packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stallmeter.report.child import NICENESS

SHOWN = """
import json, sys

def main(arguments):
    import rich
    with open(arguments[0], "w") as file:
        json.dump([rich.__name__, hasattr(rich, "mine"), json.__name__, hasattr(json, "mine")], file)
"""

STARTS = """
import subprocess
from stallmeter.report import child
assert child.start("shown", ["out"], stdin=subprocess.DEVNULL).wait() == 0
"""


def test_packages_come_before_the_programs_files(tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("mine = True\n")
    (tmp_path / "shown.py").write_text(SHOWN)
    (tmp_path / "prog.py").write_text(STARTS)
    done = subprocess.run(
        [sys.executable, "prog.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_text() == '["rich", false, "json", false]'


def test_a_module_of_pythons_own_in_the_current_folder_is_not_imported(tmp_path: Path) -> None:
    """It is on the path of a command, where it is not on that of a program elsewhere."""
    there = tmp_path / "there"
    there.mkdir()
    (there / "json.py").write_text("mine = True\n")
    (tmp_path / "shown.py").write_text(SHOWN)
    (tmp_path / "prog.py").write_text(STARTS)
    done = subprocess.run(
        [sys.executable, tmp_path / "prog.py"], cwd=there, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (there / "out").read_text() == '["rich", false, "json", false]'


TELLS = """
import os, pathlib

def main(arguments):
    group = pathlib.Path("/proc/self/autogroup")
    told = group.read_text().split()[-1] if group.is_file() else ""
    pathlib.Path(arguments[0]).write_text(f"{os.nice(0)} {told}")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no niceness")
def test_a_patient_child_lets_the_program_go_first(tmp_path: Path) -> None:
    """As a process and, where Linux shares the CPUs out by session, as a session: it has one of its own."""
    (tmp_path / "shown.py").write_text(TELLS)
    (tmp_path / "prog.py").write_text(STARTS.replace("DEVNULL)", "DEVNULL, first=child.PATIENT)"))
    subprocess.run([sys.executable, "prog.py"], cwd=tmp_path, timeout=60, check=True)
    nice, _, group = (tmp_path / "out").read_text().partition(" ")
    assert int(nice) == NICENESS
    switch = Path("/proc/sys/kernel/sched_autogroup_enabled")
    shares_by_session = switch.is_file() and switch.read_text().strip() == "1"
    assert group in ({str(NICENESS)} if shares_by_session else {"", "0", str(NICENESS)})
