"""Loaders that are none of torch's: those that a program iterates itself are timed, the parts of them are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stallmeter.recording import Reader
from stallmeter.records import LedgerRecord, LoaderInfo

NODES = """
class Loader:
    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return Batches(self.batches)


class Batches:
    \"\"\"Has no length.\"\"\"

    def __init__(self, batches):
        self.left = iter(batches)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.left)

    def state(self):
        return "kept"


class Outer(Loader):
    def __iter__(self):
        return Batches(iter(Loader(self.batches)))
"""

PROGRAM = """
import torch
from torchdata.nodes.loader import Loader, Outer

torch.manual_seed(7)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for loader in ({kind}([torch.ones(2, 4)] * 8), {kind}([torch.ones(2, 4)] * 8)):
    batches = iter(loader)
    assert batches and batches.state() == "kept"
    for batch in batches:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
print([float(p.double().sum()) for p in model.parameters()])
"""


@pytest.mark.parametrize(("kind", "steps"), [("Loader", 16), ("Outer", 0)])
def test_what_the_program_iterates_is_timed_and_its_parts_are_not(tmp_path: Path, kind: str, steps: int) -> None:
    """``Outer`` is not known, and what it iterates in turn is its own package's affair."""
    package = tmp_path / "packages/torchdata/nodes"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "loader.py").write_text(NODES)
    (tmp_path / "train.py").write_text(PROGRAM.format(kind=kind))
    command = [sys.executable, "-m", "stallmeter", "run", "--dir", tmp_path / "rec", "--", sys.executable, "train.py"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "packages")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    recordings = list((tmp_path / "rec").glob("*")) if steps else []
    assert ("nothing was recorded" in done.stderr) == (not steps)
    for recording in recordings:
        records = [record for record, _ in Reader(recording)]
        assert [r.steps for r in records if isinstance(r, LedgerRecord)][-1] == steps
        assert {r.kind for r in records if isinstance(r, LoaderInfo)} == {"Loader"}
    assert len(recordings) == (steps > 0)
