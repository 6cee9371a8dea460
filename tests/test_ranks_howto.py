"""Page and program about several ranks: two real ranks, and the page's code as it stands."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stallmeter.demo.crops import write_crops
from stallmeter.recording import find_recording
from stallmeter.report.model import read_history

from .test_howto import blocks
from .warm import NO_PICTURES

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples/straggler.py"
RUN = f"{NO_PICTURES}import runpy, sys\nrunpy.run_path(sys.argv.pop(1), run_name='__main__')\n"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture(scope="module")
def folder(forks, tmp_path_factory):
    """Where both ranks of the example ran, as torchrun starts them."""
    folder = tmp_path_factory.mktemp("straggler")
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    environments = [{**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in (0, 1)]
    write_crops(folder / "demo-output/crops-320", 320)
    ranks = [forks.start(RUN, EXAMPLE, 1, 0, 320, cwd=folder, env=environment) for environment in environments]
    said = [rank.communicate(120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    return folder


def test_the_example_names_the_rank_with_the_slow_link(folder):
    command = [sys.executable, "-m", "stallmeter", "report", str(folder / "stallmeter"), "--format", "json"]
    report = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    assert report["primary"]["ranks"] == [1], report["primary"]
    assert report["primary"]["rule"] in ("fetch-stall", "no-workers")
    late = {rank["rank"]: rank["late_s"] for rank in report["ranks"]}
    assert late[1] > 10 * late[0]
    assert len(list(find_recording(folder / "stallmeter").glob("rank*.jsonl"))) == 2


AROUND = """
import torch

model = torch.nn.Linear(4, 2)
loss_of, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)
average = torch.optim.swa_utils.AveragedModel(model)
loader = [(torch.ones(3, 4), torch.zeros(3).long())] * 5
"""


def test_the_code_of_the_page_runs(folder, forks, tmp_path):
    loop, reader, spans = blocks("ranks.md")
    done = forks.run(reader, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert " on [1]" in done.stdout
    assert done.stdout.count(" waited ") == 2
    done = forks.run(NO_PICTURES + AROUND + loop + spans, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    reports = [read_history(run).report() for run in sorted((tmp_path / "stallmeter").iterdir())]
    assert [report.steps for report in reports] == [5, 5]
    spent = [{share.name for share in report.ledger if share.seconds} for report in reports]
    assert any({"forward", "backward", "optimizer", "callbacks"} <= names for names in spent)
