"""Files of the program's that have the name of a package of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stallmeter.machine.installed import installed

ASKS = """
import sys
from stallmeter.machine.processes import SYSTEM
from stallmeter.sources.host import HostSource
from stallmeter.sources.nvml import NvmlSource
assert SYSTEM.Process().pid > 0 and SYSTEM.virtual_memory().total > 0 and SYSTEM.cpu_times()
print("ours:", SYSTEM.__name__, sorted({"psutil", "pynvml"} & set(sys.modules)))
import psutil, pynvml
print("theirs:", psutil.mine, pynvml.mine)
"""


def run(folder: Path, source: str) -> list[str]:
    """Have a program say what it imports, its folder being the first on the path."""
    (folder / "prog.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "prog.py"], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_file_of_the_programs_is_not_imported_and_is_still_the_programs(tmp_path: Path) -> None:
    for name in ("psutil", "pynvml"):
        (tmp_path / f"{name}.py").write_text(f"print('imported {name}')\nmine = True\n")
    assert run(tmp_path, ASKS) == [
        "ours: _stallmeter_psutil []",
        "imported psutil",
        "imported pynvml",
        "theirs: True True",
    ]


def test_one_that_the_program_has_imported_before(tmp_path: Path) -> None:
    for name in ("psutil", "pynvml"):
        (tmp_path / f"{name}.py").write_text("mine = True\n")
    said = run(tmp_path, "import psutil, pynvml\n" + ASKS)
    assert said == ["ours: _stallmeter_psutil ['psutil', 'pynvml']", "theirs: True True"]


def test_without_any_the_package_is_the_programs_too() -> None:
    psutil = pytest.importorskip("psutil")
    assert installed("psutil", "psutil") is psutil


def test_what_only_the_program_has_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "not_installed.py").write_text("raise AssertionError('it was run')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=r"not_installed.py is not the package not-installed, which is not installed"):
        installed("not_installed", "not-installed")


def test_what_is_nowhere_is_missing() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'nowhere_at_all'"):
        installed("nowhere_at_all", "nowhere")


def test_a_layout_that_is_not_known_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No metadata beside it, no folder of a known name, but not beside the program either."""
    (tmp_path / "odd_layout.py").write_text("mine = False\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert installed("odd_layout", "odd-layout").mine is False
    monkeypatch.delitem(sys.modules, "odd_layout")
