"""Beside what the program has of its own: a Trainer, `watch`, forks; and that nothing is left when it stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallmeter.recording import Reader
from stallmeter.records import StepRecord

from ..warm import NO_PICTURES, Forks
from .programs import HEAD

OPTIONS = "directory='runs', trackers=None, console=False, hardware=False"
AUTO = f"import stallmeter; auto = stallmeter.auto({OPTIONS})\n"


def steps_of_runs(folder: Path) -> dict[str, list[int]]:
    """Number of steps of each recording, by its framework."""
    found: dict[str, list[int]] = {}
    for path in sorted((folder / "runs").iterdir()):
        reader = Reader(path)
        steps = sum(isinstance(record, StepRecord) for record, _ in reader)
        found.setdefault(reader.header().framework.split(" ")[0], []).append(steps)
    return found


def run(forks: Forks, folder: Path, body: str, before: str = AUTO) -> str:
    done = forks.run(NO_PICTURES + before + HEAD + body, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "switched off" not in done.stderr, done.stderr
    return str(done.stdout)


LIGHTNING = """
import lightning.pytorch as pl
from lightning.pytorch.demos.boring_classes import BoringModel
for (batch,) in train:
    update(batch)
trainer = pl.Trainer(max_epochs=1, limit_train_batches=6, limit_val_batches=2, logger=False, accelerator="cpu",
                     enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(BoringModel())
for (batch,) in train:
    update(batch)
"""


def test_a_trainer_is_measured_by_its_callback_alone(forks: Forks, tmp_path: Path) -> None:
    run(forks, tmp_path, LIGHTNING)
    assert steps_of_runs(tmp_path) == {"loop": [16], "lightning": [6]}


def test_the_programs_own_watch_wins(forks: Forks, tmp_path: Path) -> None:
    body = f"for (batch,) in stallmeter.watch(train, {OPTIONS}):\n    update(batch)\n"
    run(forks, tmp_path, body + "for (batch,) in train:\n    update(batch)\n")
    assert steps_of_runs(tmp_path) == {"loop": [8]}


STOPPED = """
import os, sys
from torch.optim import optimizer as optimizers
from stallmeter.zero_code import startup
wrapped = DataLoader.__iter__
begun = iter(train)
for (batch,) in train:
    update(batch)
assert auto.monitor is not None and len(optimizers._global_optimizer_pre_hooks) == 1
auto.stop()
assert auto.monitor.closed
left = [hasattr(function, "__wrapped__") for function in (DataLoader.__iter__, torch.autograd.backward)]
print(DataLoader.__iter__ is wrapped, *left)
print(len(optimizers._global_optimizer_pre_hooks), len(optimizers._global_optimizer_post_hooks))
print([finder for finder in sys.meta_path if type(finder).__module__.startswith("stallmeter")])
print(os.environ.get("STALLMETER"), len(list(begun)))
for (batch,) in train:
    update(batch)
auto = stallmeter.auto(directory='runs', trackers=None, console=False, hardware=False)
for (batch,) in validation:
    update(batch)
"""


def test_nothing_is_left_when_it_stops(forks: Forks, tmp_path: Path) -> None:
    said = run(forks, tmp_path, STOPPED).splitlines()
    assert said == ["False False False", "0 0", "[]", "None 8"]
    assert sorted(steps_of_runs(tmp_path)["loop"]) == [3, 8]


TRACKERS = """
from stallmeter.engine import wiring
auto.stop()
asked = []
wiring.choose_trackers = lambda *_: asked.append(1) or ()
auto = stallmeter.auto(directory='runs', trackers='mlflow', console=False, hardware=False)
for _ in range(3):
    for (batch,) in train:
        pass
print(len(asked))
for (batch,) in train:
    update(batch)
print(len(asked))
"""


def test_no_tracker_is_asked_before_something_is_trained(forks: Forks, tmp_path: Path) -> None:
    """To ask one may open a run, and nobody would close it."""
    assert run(forks, tmp_path, TRACKERS).split() == ["0", "1"]


FORK = """
import os
for (batch,) in train:
    update(batch)
if os.fork() == 0:
    for (batch,) in validation:
        update(batch)
    raise SystemExit
os.wait()
"""


def test_a_fork_has_a_run_of_its_own(forks: Forks, tmp_path: Path) -> None:
    run(forks, tmp_path, FORK)
    assert sorted(steps_of_runs(tmp_path)["loop"]) == [3, 8]


THREAD = """
import queue, threading
batches = queue.Queue(2)
def fetch():
    for batch in train:
        batches.put(batch)
    batches.put(None)
threading.Thread(target=fetch, daemon=True).start()
while (batch := batches.get()) is not None:
    update(batch[0])
"""


@pytest.mark.long
def test_a_loader_that_another_thread_asks(forks: Forks, tmp_path: Path) -> None:
    done = forks.run(NO_PICTURES + AUTO + HEAD + THREAD, cwd=tmp_path)
    assert done.returncode == 0
    assert not (tmp_path / "runs").exists()
    assert "in a thread of its own" in done.stderr


PROBED = """
def train_step(batch):
    update(batch[0])
stallmeter.probe(step=train_step, loader=train, restore=[model, optimizer], seconds=0.2, time_limit_s=2, trackers=None,
                 progress=False)
"""


@pytest.mark.long
def test_a_probe_is_no_training(forks: Forks, tmp_path: Path) -> None:
    done = forks.run(AUTO + HEAD + PROBED, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "runs").exists()
    assert "nothing was recorded" not in done.stderr


TRAINING_THREADS = """
import threading
both = threading.Barrier(2)
seen = []
def fit(loader):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(2):
        for index, (batch,) in enumerate(loader):
            if epoch == index == 0:
                both.wait()
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            seen.append(len(batch))
threads = [threading.Thread(target=fit, args=(make_loader(20),)) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(seen))
"""


@pytest.mark.long
def test_of_two_threads_that_train_at_once_one_is_measured(forks: Forks, tmp_path: Path) -> None:
    assert run(forks, tmp_path, TRAINING_THREADS) == "80\n"
    (folder,) = (tmp_path / "runs").iterdir()
    steps = [record for record, _ in Reader(folder) if isinstance(record, StepRecord)]
    assert 20 <= len(steps) <= 80
    assert all(step.total_s >= 0 and (step.compute_s or 0) >= 0 for step in steps)


INSIDE = """
class Mixed(torch.utils.data.IterableDataset):
    def __iter__(self):
        for (batch,) in make_loader(6):
            yield batch[0]

for workers in (0, 1):
    for batch in DataLoader(Mixed(), batch_size=2, num_workers=workers):
        update(batch)
"""


@pytest.mark.long
def test_a_loader_inside_a_dataset_is_no_loop(forks: Forks, tmp_path: Path) -> None:
    run(forks, tmp_path, INSIDE)
    assert steps_of_runs(tmp_path) == {"loop": [6]}


NOTEBOOK = """
stallmeter.load_ipython_extension(None)
for (batch,) in train:
    update(batch)
stallmeter.unload_ipython_extension(None)
for (batch,) in train:
    update(batch)

import os
from stallmeter.lightning.entry_points import lightning_callbacks
print(os.environ.get("STALLMETER"), lightning_callbacks())
"""


def test_a_notebook(forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLMETER_DIR", "runs")
    assert run(forks, tmp_path, NOTEBOOK, before="import stallmeter\n") == "None []\n"
    assert steps_of_runs(tmp_path) == {"loop": [8]}


TWICE = """
stallmeter.auto(directory="first", trackers=None, console=False, hardware=False)
second = stallmeter.auto(directory="runs", trackers=None, console=False, hardware=False)
for (batch,) in train:
    update(batch)
stallmeter.auto(directory="third")
stallmeter.auto()
second.stop()
import os
print(os.environ.get("STALLMETER"))
"""


def test_options_of_a_second_call_are_named_where_they_do_not_hold(forks: Forks, tmp_path: Path) -> None:
    done = forks.run(NO_PICTURES + "import stallmeter\n" + HEAD + TWICE, cwd=tmp_path)
    assert done.stdout == "None\n"
    assert steps_of_runs(tmp_path) == {"loop": [8]}
    assert [line for line in done.stderr.splitlines() if line.startswith("stallmeter: ")] == [
        "stallmeter: auto() was called before with another directory; the last call holds",
        "stallmeter: a run has begun; what this auto() says of directory, trackers, hardware, console does not hold",
    ]


def test_an_option_that_makes_no_sense_is_refused_at_once(forks: Forks, tmp_path: Path) -> None:
    done = forks.run("import stallmeter; stallmeter.auto(interval_s=0)", cwd=tmp_path)
    assert "SettingError: interval_s is 0" in done.stderr
