"""The tracebacks of a program's exceptions are the same as without us, for tools and for readers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ..warm import NO_PICTURES, Forks
from .programs import HEAD

AUTO = "import stallmeter; stallmeter.auto(directory='runs', trackers=None, console=False, hardware=False)\n"

RAISING = """
import io, traceback

class Bad(Dataset):
    def __init__(self, bad):
        self.bad = bad
    def __len__(self):
        return 32
    def __getitem__(self, index):
        if index == self.bad:
            raise ValueError("a bad item")
        return torch.ones(4)

class BadOrder:
    def __init__(self, *bad):
        self.bad = bad
    def __len__(self):
        return 32
    def __iter__(self):
        if "begin" in self.bad:
            raise RuntimeError("no order")
        yield from range(16)
        if "midst" in self.bad:
            raise RuntimeError("no more order")
        yield from range(16, 32)

class BadGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1
    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("no gradient")

class BadState:
    def __reduce__(self):
        raise OSError("no state")

def bad_collate(items):
    raise LookupError("no batch")

def bad_init(worker):
    raise LookupError("no worker")

def bad_gradient():
    BadGradient.apply(model(torch.ones(1, 4))).sum().backward()

def train_on(dataset, *bad, workers=0, **more):
    for batch in DataLoader(dataset, 4, sampler=BadOrder(*bad), num_workers=workers, **more):
        update(batch)

def check_on(dataset):
    with torch.no_grad():
        for batch in DataLoader(dataset, 4):
            model(batch)

def shown(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as exc:
        frames = [(frame.filename.rpartition("/")[2], frame.name) for frame in traceback.extract_tb(exc.__traceback__)]
        said = [line.strip() for line in str(exc).splitlines() if line.strip().startswith(("File", "ValueError"))]
        print(frames, [line.partition(", line")[0] for line in said])

good = Bad(-1)
shown(train_on, Bad(1))
shown(bad_gradient)
shown(train_on, good)
for workers in (0, 1):
    shown(train_on, Bad(20), workers=workers)
    shown(train_on, good, "begin", workers=workers)
    shown(train_on, good, "midst", workers=workers)
    shown(train_on, good, workers=workers, collate_fn=bad_collate)
shown(train_on, good, workers=1, worker_init_fn=bad_init)
shown(check_on, Bad(3))
shown(check_on, Bad(13))
shown(bad_gradient)
shown(torch.save, BadState(), io.BytesIO())
shown(torch.optim.SGD, [])
shown(lambda: iter(DataLoader(good)).missing)
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a bare raise takes the traceback that was caught")
def test_they_are_the_same(forks: Forks, tmp_path: Path) -> None:
    said = []
    for measured in (False, True):
        done = forks.run((NO_PICTURES + AUTO if measured else "") + HEAD + RAISING, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.splitlines())
    plain, ours = said
    assert len(plain) == 17
    assert ours == plain
    assert len(list((tmp_path / "runs").iterdir())) == 1
