"""Ray Train on a cluster of this machine: the programs of the how-to, as they stand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stallmeter.recording import Header, Reader, ranks

pytestmark = [
    pytest.mark.ecosystem,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed; make test-ecosystem installs it"),
]

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "ray.md"
SMALL = """
import ray

ray.init(num_cpus=2, include_dashboard=False, logging_level="error", object_store_memory=100_000_000)
"""
"""Of a cluster that starts in seconds on two CPUs."""


def program(number: int, folder: Path, *changes: tuple[str, str]) -> str:
    """One of the page's programs, with its storage in a folder of the test's."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    text: str = blocks[number]
    for old, new in (
        ("/mnt/shared/ray", str(folder / "storage")),
        ('if __name__ == "__main__":', f"{SMALL}\nif 1:"),
        *changes,
    ):
        assert old in text, old
        text = text.replace(old, new)
    return text


def run(text: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = folder / "program.py"
    path.write_text(text, encoding="utf-8")
    clean = {
        k: v for k, v in os.environ.items() if not k.startswith(("STALLMETER", "MLFLOW", "NEPTUNE", "RAY", "SLURM"))
    }
    return subprocess.run(
        [sys.executable, str(path)],
        env={**clean, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )


def report_of(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "stallmeter", "report", str(folder), "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def recording_in(folder: Path) -> Path:
    (found,) = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return found


def headers(folder: Path) -> list[Header]:
    assert ranks(folder) == [0, 1]
    return [Reader(folder, rank).header() for rank in (0, 1)]


VERSIONS = pytest.mark.parametrize("version", ["1", "0"], ids=["second version", "first version"])
"""Of Ray Train: 2.51 made the second one the default."""


@VERSIONS
def test_a_plain_loop(version: str, tmp_path: Path) -> None:
    done = run(program(0, tmp_path), tmp_path, RAY_TRAIN_V2_ENABLED=version)
    assert done.returncode == 0, done.stderr[-4000:]
    result = Path(done.stdout.splitlines()[-1])
    assert result.is_relative_to(tmp_path / "storage" / "first")
    folder = recording_in(result / "stallmeter")
    assert [(h.rank, h.world_size, h.framework) for h in headers(folder)] == [(0, 2, "loop"), (1, 2, "loop")]
    assert {path.name for path in folder.iterdir()} >= {"report.md", "diagnosis.json", "report.html"}
    report = report_of(folder)
    assert report["steps"] == 3 * 64
    assert [row["rank"] for row in report["ranks"]] == [0, 1]


def test_lightning(tmp_path: Path) -> None:
    done = run(program(1, tmp_path), tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    folder = recording_in(tmp_path / "storage" / "second" / "stallmeter")
    found = headers(folder)
    assert [h.rank for h in found] == [0, 1]
    assert {h.framework.split()[0] for h in found} == {"lightning"}
    assert [h.settings["budget"]["ranks_on_node"] for h in found] == [2, 2]
    assert (folder / "report.html").is_file()
    assert report_of(folder)["steps"] == 3 * 64


def test_a_late_worker_is_named(tmp_path: Path) -> None:
    line = "            for inputs, targets in monitor.watch(loader):\n"
    slow = (line, f"{line}                time.sleep(0.03 * ray.train.get_context().get_world_rank())\n")
    text = program(0, tmp_path, slow, ("import torch\n", "import time\n\nimport torch\n"))
    done = run(text, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    report = report_of(recording_in(tmp_path / "storage" / "first" / "stallmeter"))
    assert (report["primary"]["rule"], report["primary"]["ranks"]) == ("straggler", [1])
    assert report["primary"]["time_lost_s"] == pytest.approx(3 * 64 * 0.03, rel=0.15)


@pytest.mark.parametrize("number", [0, 1], ids=["plain loop", "Lightning"])
def test_a_relative_folder_is_refused(number: int, tmp_path: Path) -> None:
    monitor = ("stallmeter.Monitor()", "StallMonitor()")[number]
    done = run(program(number, tmp_path, (monitor, monitor.replace("()", "(directory='rec')"))), tmp_path)
    assert done.returncode != 0
    (said, *_) = re.findall(r"SettingError: (.*)", done.stderr)
    run_folder = tmp_path / "storage" / ("first", "second")[number]
    assert "Ray Train has moved this worker into its session's temporary storage" in said
    assert f"Leave it out, and recordings go to '{run_folder}/stallmeter'" in said
    assert not (run_folder / "stallmeter").exists()
