"""A child process of ours beside files of the program's that have the names of packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
