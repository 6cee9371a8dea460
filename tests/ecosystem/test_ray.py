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
    pytest.mark.timeout(1800),
    pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed; make test-ecosystem installs it"),
]

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "ray.md"
DRIVER = """
import contextlib, io, json, sys, traceback
from pathlib import Path

import ray

# Two for the workers; Ray Train's first version keeps one more for its trainer, and waits for it for ever.
ray.init(num_cpus=3, include_dashboard=False, logging_level="error", object_store_memory=100_000_000)
ended = {}
for name, text in json.loads(Path(sys.argv[1]).read_text()).items():
    printed, error = io.StringIO(), ""
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(text, name, "exec"), {"__name__": "__main__"})
    except Exception:
        error = traceback.format_exc()
    ended[name] = {"printed": printed.getvalue(), "error": error}
Path(sys.argv[2]).write_text(json.dumps(ended))
"""
"""Runs programs one after the other on one cluster, whose start takes longer than all of them."""

LOOP = "            for inputs, targets in monitor.watch(loader):\n"
LATE_S = 0.03
PLAIN, LIGHTNING = 0, 1


def program(number: int, name: str, storage: Path, *changes: tuple[str, str]) -> str:
    """One of the page's programs, with its storage in a folder of the test's."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    text: str = blocks[number]
    ours = (("/mnt/shared/ray", str(storage)), (('name="first"', 'name="second"')[number], f'name="{name}"'))
    for old, new in (*ours, *changes):
        assert old in text, old
        text = text.replace(old, new)
    return text


class Cluster:
    """What the programs left that ran on one."""

    def __init__(self, folder: Path, programs: dict[str, str], **variables: str) -> None:
        self.storage = folder / "storage"
        (folder / "driver.py").write_text(DRIVER)
        (folder / "programs.json").write_text(json.dumps(programs))
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("STALLMETER", "MLFLOW", "NEPTUNE", "RAY", "SLURM"))
        }
        quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "600", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "driver.py", "programs.json", "ended.json"],
            env={**kept, **quiet, **variables},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=1700,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        self.ended: dict[str, dict[str, str]] = json.loads((folder / "ended.json").read_text())

    def recording(self, name: str) -> Path:
        assert not self.ended[name]["error"], self.ended[name]["error"][-3000:]
        (found,) = [p for p in (self.storage / name / "stallmeter").iterdir() if not p.name.startswith(".")]
        return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    folder = tmp_path_factory.mktemp("ray")
    storage = folder / "storage"
    wait = f"                __import__('time').sleep({LATE_S} * __import__('torch').distributed.get_rank())\n"
    return Cluster(
        folder,
        {
            "plain": program(PLAIN, "plain", storage),
            "late": program(PLAIN, "late", storage, (LOOP, LOOP + wait)),
            "lightning": program(LIGHTNING, "lightning", storage),
            "relative": program(PLAIN, "relative", storage, ("Monitor()", "Monitor(directory='rec')")),
            "relative in Lightning": program(
                LIGHTNING, "relative in Lightning", storage, ("StallMonitor()", "StallMonitor(directory='rec')")
            ),
        },
    )


def headers(folder: Path) -> list[Header]:
    assert list(ranks(folder)) == [0, 1]
    return [Reader(folder, rank).header() for rank in (0, 1)]


def report_of(folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "stallmeter", "report", str(folder), "--format", "json"]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def check_plain_loop(folder: Path) -> None:
    assert [(h.rank, h.world_size, h.framework) for h in headers(folder)] == [(0, 2, "loop"), (1, 2, "loop")]
    assert [h.settings["budget"]["ranks_on_node"] for h in headers(folder)] == [2, 2]
    assert {path.name for path in folder.iterdir()} >= {"report.md", "diagnosis.json", "report.html"}
    report = report_of(folder)
    assert report["steps"] == 3 * 64
    assert [row["rank"] for row in report["ranks"]] == [0, 1]


def test_a_plain_loop(cluster: Cluster) -> None:
    folder = cluster.recording("plain")
    check_plain_loop(folder)
    printed = cluster.ended["plain"]["printed"].splitlines()[-1]
    assert Path(printed) == folder.parents[1], "recordings are in the folder that Ray names as its result"


def test_lightning(cluster: Cluster) -> None:
    folder = cluster.recording("lightning")
    found = headers(folder)
    assert {h.framework.split()[0] for h in found} == {"lightning"}
    assert [h.settings["budget"]["ranks_on_node"] for h in found] == [2, 2]
    assert (folder / "report.html").is_file()
    assert report_of(folder)["steps"] == 3 * 64


def test_a_late_worker_is_named(cluster: Cluster) -> None:
    primary = report_of(cluster.recording("late"))["primary"]
    assert (primary["rule"], primary["ranks"]) == ("straggler", [1])
    assert primary["time_lost_s"] == pytest.approx(3 * 64 * LATE_S, rel=0.2)


@pytest.mark.parametrize("name", ["relative", "relative in Lightning"])
def test_a_relative_folder_is_refused(name: str, cluster: Cluster) -> None:
    (said, *_) = re.findall(r"SettingError: (.*)", cluster.ended[name]["error"])
    assert "Ray Train has moved this worker into its session's temporary storage" in said
    assert f"Leave it out, and recordings go to '{cluster.storage / name}/stallmeter'" in said
    assert not (cluster.storage / name / "stallmeter").exists()


def test_the_first_version_of_ray_train(tmp_path: Path) -> None:
    """Ray 2.51 made the second one the default."""
    programs = {"plain": program(PLAIN, "plain", tmp_path / "storage")}
    done = Cluster(tmp_path, programs, RAY_TRAIN_V2_ENABLED="0").ended["plain"]
    assert not done["error"], done["error"][-3000:]
    (folder,) = [
        p for p in Path(done["printed"].splitlines()[-1], "stallmeter").iterdir() if not p.name.startswith(".")
    ]
    check_plain_loop(folder)
