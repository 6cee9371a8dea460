"""`stallmeter run` and programs that are started as users start them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from stallmeter.recording import Reader
from stallmeter.records import StepRecord

from .programs import program


@pytest.mark.long
def test_a_module_is_measured_and_its_child_says_nothing(tmp_path: Path) -> None:
    """``python -m``, with two processes and a package whose folder is not on the path of the first."""
    pytest.importorskip("torch")
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(program("epochs"))
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STALLMETER")}
    start = [sys.executable, "-m", "stallmeter", "run", "--", sys.executable, "-m", "mine.train"]
    done = subprocess.run(start, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "nothing was recorded" not in done.stderr
    (folder,) = (tmp_path / "stallmeter").iterdir()
    assert sum(isinstance(record, StepRecord) for record, _ in Reader(folder)) == 16


def test_a_program_that_trains_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(
        textwrap.dedent(
            """
            import torch
            for batch in torch.utils.data.DataLoader(torch.ones(4, 1)):
                batch.sum()
            """
        )
    )
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STALLMETER")}
    start = [sys.executable, "-m", "stallmeter", "run", "--", sys.executable, "train.py"]
    done = subprocess.run(start, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert "no optimizer of torch made a step on the same thread; measure a training loop with" in done.stderr
    assert not (tmp_path / "stallmeter").exists()


CLEARED = """
import os
os.environ.clear()
"""


def test_a_program_that_clears_its_environment_is_recorded_where_it_was_said(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(CLEARED + program("workers"))
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STALLMETER")}
    start = [sys.executable, "-m", "stallmeter", "run", "--dir", "there", "--", sys.executable, "train.py"]
    done = subprocess.run(start, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "nothing was recorded" not in done.stderr
    assert not (tmp_path / "stallmeter").exists()
    (folder,) = (tmp_path / "there").iterdir()
    assert sum(isinstance(record, StepRecord) for record, _ in Reader(folder)) == 32
