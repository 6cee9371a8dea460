"""Programs that train and ask no loader: their optimizer's steps are the loop's, and looks tell what a batch takes."""

from __future__ import annotations

import json
import textwrap
import threading
import time
from pathlib import Path

import pytest

from stallmeter.engine.options import Options
from stallmeter.engine.run import Run
from stallmeter.records import NO_LOADER, DroppedGradients, LoaderInfo, WorkerBatch
from stallmeter.timing.clock import StepClock
from stallmeter.zero_code import updates
from stallmeter.zero_code.loop import Loop
from stallmeter.zero_code.updates import (
    ENOUGH_UPDATES,
    LEAST_S,
    MOST_OTHERS,
    MOST_PAST,
    NoLoader,
    PastUpdates,
    Updates,
)

from ..warm import NO_PICTURES, Forks
from .programs import HEAD, TAIL
from .test_auto import AUTO, Runs, finish

AT_ONCE = "from stallmeter.zero_code import updates; updates.LEAST_S = 0.0\n"

BATCHES = """
def make_batch():
    time.sleep(0.002)
    return torch.randn(4, 4)
"""

PROGRAMS = {
    "calls": """
        for _ in range(40):
            update(make_batch())
        """,
    "a generator": """
        def batches():
            for _ in range(40):
                yield make_batch()
        for batch in batches():
            update(batch)
        """,
    "a thread that asks the loader": """
        import queue, threading
        ready = queue.Queue(2)
        def fill():
            for _ in range(50):
                for (batch,) in train:
                    time.sleep(0.002)
                    ready.put(batch)
        filler = threading.Thread(target=fill)
        filler.start()
        for _ in range(400):
            update(ready.get())
        filler.join()
        """,
    "one batch of each iterator": """
        for _ in range(40):
            (batch,) = next(iter(train))
            update(batch)
        """,
    "workers that start for one batch": """
        late = DataLoader(train.dataset, batch_size=4, num_workers=1)
        for _ in range(30):
            (batch,) = next(iter(late))
            update(batch)
        """,
    "folds": """
        for fold in range(3):
            by = torch.optim.SGD(model.parameters(), lr=1e-3)
            for _ in range(16):
                update(make_batch(), by)
            del by
        """,
    "then a loader": """
        for _ in range(20):
            update(make_batch())
        for epoch in range(2):
            for (batch,) in train:
                update(batch)
        """,
    "validation": """
        for index in range(40):
            update(make_batch())
            if index % 16 == 15:
                with torch.no_grad():
                    for (batch,) in validation:
                        model(batch)
                        time.sleep(0.01)
        time.sleep(0.2)
        """,
    "then a framework": """
        from contextlib import nullcontext
        import sys
        claim_loops = getattr(sys.modules.get("stallmeter.engine.run"), "claim_loops", nullcontext)
        for _ in range(20):
            update(make_batch())
        with claim_loops():
            for _ in range(10):
                update(make_batch())
        """,
    "trained in turn": """
        made, judge = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
        both = [torch.optim.SGD(net.parameters(), lr=1e-3) for net in (judge, made)]
        for _ in range(60):
            batch = make_batch()
            for by in both:
                by.zero_grad()
                judge(made(batch)).mean().backward()
                by.step()
        """,
    "two optimizers": """
        other = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(20):
            update(make_batch())
            update(make_batch(), other)
        """,
}


@pytest.fixture(scope="module")
def done(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    def text(name: str, measured: bool) -> str:
        before = NO_PICTURES + AUTO + AT_ONCE if measured else ""
        return before + HEAD + BATCHES + textwrap.dedent(PROGRAMS[name]) + TAIL

    return Runs(forks, tmp_path_factory.mktemp("programs"), text)


AT_EACH_RUN = ("calls", "folds", "trained in turn")
COMPARED = [pytest.param(name, marks=() if name in AT_EACH_RUN else pytest.mark.long) for name in PROGRAMS]
"""Some are compared with themselves each time, and all where there is more time."""


@pytest.mark.parametrize("name", COMPARED)
def test_it_computes_the_same(done: Runs, name: str) -> None:
    off, on = done[name, False], done[name, True]
    assert on.status == off.status == 0, on.stderr
    assert "weights" in on.stdout
    if name != "a thread that asks the loader":  # whose random numbers are drawn when it comes to it
        assert on.stdout == off.stdout
    assert "Traceback" not in on.stderr
    assert "switched off" not in on.stderr


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("calls", 40),
        ("a generator", 40),
        ("one batch of each iterator", 40),
        ("workers that start for one batch", 30),
        ("folds", 3 * 16),
        ("then a loader", 20 + 16),
        ("validation", 40),
        ("then a framework", 20),
        ("two optimizers", 20),
        ("trained in turn", 60),
    ],
)
def test_its_steps(done: Runs, name: str, steps: int) -> None:
    """What follows the last update is no step, however long the program goes on."""
    found = done[name, True]
    assert len(found.steps) == steps
    assert found.ledger.steps == steps
    assert sum(found.ledger.buckets.values()) == pytest.approx(found.ledger.wall_s)
    if name in ("calls", "a generator"):
        assert found.ledger.buckets["data_wait"] < 0.1 * found.ledger.buckets["compute"]
        assert found.steps[-1].total_s >= 0.002


def test_gradients_of_another_network_are_seen(done: Runs) -> None:
    """Steps end among torch's hooks of an optimizer's step; those of before it was known are not looked at."""
    found = [record for record in done["trained in turn", True].records if isinstance(record, DroppedGradients)]
    assert (found[-1].beneath, found[-1].beneath_during) == ("made", "judge")
    assert found[-1].beneath_s > 0.0


def test_a_thread_that_asks_a_loader_makes_no_steps(done: Runs) -> None:
    """Nor does it take the ledger away. While it puts a run together for its loader the steps have to wait for it."""
    found = done["a thread that asks the loader", True]
    assert 200 <= found.ledger.steps <= 400


WITHOUT = """
def descend(batch):
    model(batch).sum().backward()
    with torch.no_grad():
        for weights in model.parameters():
            weights -= 1e-3 * weights.grad
            weights.grad = None
"""


BY = "by = torch.optim.SGD(model.parameters(), lr=1e-3)\n"
LATER = f"for _ in range(20): descend(make_batch())\n{BY}for _ in range(20): update(make_batch(), by)"
MANY = f"""{BY}
for _ in range(20):
    for _ in range(2 * {ENOUGH_UPDATES}): model(make_batch()).sum().backward()
    by.step()"""


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("for _ in range(40): descend(make_batch())", 40 - 1),  # of the first one only the end was seen
        ("for (batch,) in make_loader(12): descend(batch)", 12),
        (LATER, 20 - 1 + 20 + 1),  # the first one's gradients ended a step
        (MANY, 20),
    ],
    ids=["no loader", "a loader", "later an optimizer", "many gradients before its first step"],
)
def test_without_an_optimizer_gradients_make_the_steps(forks: Forks, tmp_path: Path, text: str, steps: int) -> None:
    """Some programs change the weights themselves."""
    head = HEAD.replace("optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)", "optimizer = None")
    assert head != HEAD
    program = tmp_path / "train.py"
    program.write_text(NO_PICTURES + AUTO + AT_ONCE + head + BATCHES + WITHOUT + text + TAIL)
    found = finish(forks.start(program, cwd=tmp_path), tmp_path)
    assert found.status == 0, found.stderr
    assert "switched off" not in found.stderr
    assert len(found.steps) == found.ledger.steps == steps
    assert sum(found.ledger.buckets.values()) == pytest.approx(found.ledger.wall_s)


def test_that_no_loader_is_asked_is_said(done: Runs) -> None:
    for name in ("calls", "a generator", "a thread that asks the loader"):
        infos = [record for record in done[name, True].records if isinstance(record, LoaderInfo)]
        assert infos[-1].kind == NO_LOADER, name
        assert infos[-1].torch_threads, name


def test_a_thread_that_asks_a_loader_while_updates_become_steps_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its loader is none of the training's, and what was said of it before stands."""
    pytest.importorskip("torch")  # it is asked whether gradients are recorded
    monkeypatch.setattr(updates, "LEAST_S", 0.0)
    loop = Loop(Options(directory=str(tmp_path), trackers=None))
    start, prepared, batches = loop._start, [], []

    def start_beside_another_thread(run: Run, since_ns: int | None = None) -> None:
        monkeypatch.setattr(run.loaders, "probe_workers", prepared.append)
        monkeypatch.setattr(run.loaders, "probe_beside", prepared.append)
        asking = threading.Thread(target=lambda: batches.extend(loop.begin(loader, lambda: iter([1, 2]))))
        asking.start()
        asking.join()
        start(run, since_ns)

    monkeypatch.setattr(loop, "_start", start_beside_another_thread)
    loader, optimizer = object(), Optimizer()
    try:
        for _ in range(2 * ENOUGH_UPDATES):
            loop.before_update(optimizer, time.perf_counter_ns(), None)
            loop.after_update(optimizer)
        assert loop.monitor is not None
        assert batches == [1, 2]
        assert prepared == []
    finally:
        loop.close()


def test_workers_that_start_for_one_batch_are_waited_for_inside_the_steps(done: Runs) -> None:
    on = done["workers that start for one batch", True]
    infos = [record for record in on.records if isinstance(record, LoaderInfo)]
    assert (infos[-1].num_workers, infos[-1].probed) == (1, True)
    assert sum(isinstance(record, WorkerBatch) for record in on.records) >= 15
    assert sum(step.data_wait_s > 0 for step in on.steps) >= 18
    assert on.ledger.buckets["worker_startup"] > 0.01


def test_validation_beside_it_is_booked(done: Runs) -> None:
    buckets = done["validation", True].ledger.buckets
    assert buckets["validation"] > 0.05


def test_a_loader_that_comes_later_makes_the_steps(done: Runs) -> None:
    steps = done["then a loader", True].steps
    assert [step.samples for step in steps[-16:]] == [4] * 16
    assert steps[0].samples is None


def test_a_small_fit_is_no_training() -> None:
    now_s = [0.0]
    counted = Updates(lambda: now_s[0])
    assert not any(counted.are_enough() for _ in range(10 * ENOUGH_UPDATES))
    now_s[0] = LEAST_S
    assert counted.are_enough()
    assert not counted.are_enough()  # it begins anew


class Optimizer:
    """Anything that can be referred to weakly."""


def remembered(by: object, *times: tuple[int, int, int], past: PastUpdates | None = None) -> PastUpdates:
    """Return what is kept of updates that were called, began and ended then; the optimizer was made at 10."""
    past = past or PastUpdates()
    for called, began, ended in times:
        past.begin(by, called, began, 10)
        past.end(by, ended)
    return past


def test_the_past_begins_with_the_optimizer() -> None:
    by = Optimizer()
    began, found = remembered(by, (30, 35, 40), (50, 50, 60)).take()
    assert began == 10
    assert [(one.called, one.began, one.ended) for one in found] == [(30, 35, 40), (50, 50, 60)]
    past = PastUpdates()
    for at in (30, 50):
        past.begin(by, at, at, None)
        past.end(by, at)
    began, found = past.take()
    assert (began, [one.ended for one in found]) == (30, [50])  # of the first one nobody knows when it began
    assert past.take() == (None, [])


def test_an_update_within_another_one_is_a_part_of_it() -> None:
    outer, inner = Optimizer(), Optimizer()
    past = PastUpdates()
    past.begin(outer, 20, 20, 10)
    past.begin(inner, 25, 25, 10)
    past.end(inner, 30)
    past.end(outer, 40)
    assert [(one.by(), one.ended) for one in past.take()[1]] == [(outer, 40)]


def test_an_update_that_has_raised_is_none() -> None:
    by = Optimizer()
    past = PastUpdates()
    past.begin(by, 20, 20, 10)
    assert [one.ended for one in remembered(by, (30, 30, 40), past=past).take()[1]] == [40]
    past.begin(by, 20, 20, 10)
    assert past.take() == (None, [])


def test_the_past_of_a_training_that_is_over_is_forgotten() -> None:
    first, second = Optimizer(), Optimizer()
    past = remembered(first, (20, 20, 30))
    del first
    assert [one.called for one in remembered(second, (50, 50, 60), past=past).take()[1]] == [50]


def test_more_updates_than_are_kept_leave_no_past() -> None:
    by = Optimizer()
    assert remembered(by, *[(20 + at, 20 + at, 21 + at) for at in range(MOST_PAST + 1)]).take() == (None, [])


def test_other_threads_have_a_past_of_their_own() -> None:
    by = Optimizer()
    past = PastUpdates()
    other = threading.Thread(target=remembered, args=(by, (20, 20, 30)), kwargs={"past": past})
    other.start()
    other.join()
    assert past.take() == (None, [])


def test_what_comes_before_the_loop_is_known_is_booked(forks: Forks, tmp_path: Path) -> None:
    """A first step in which something is compiled, say, and our own imports and set-up beside it."""
    text = """
        time.sleep(0.1)  # since the optimizer was made
        for index in range(30):
            batch = make_batch()
            if not index:
                time.sleep(0.4)
            update(batch)
        """
    program = tmp_path / "train.py"
    program.write_text(NO_PICTURES + AUTO + AT_ONCE + HEAD + BATCHES + textwrap.dedent(text) + TAIL)
    found = finish(forks.start(program, cwd=tmp_path), tmp_path)
    assert found.status == 0, found.stderr
    steps, ledger = found.steps, found.ledger
    assert [step.index for step in steps] == list(range(30))
    assert [step.optimizer_step for step in steps[:3]] == [1, 2, 3]
    assert (steps[0].compute_s or 0.0) + (steps[0].callbacks_s or 0.0) > 0.5
    assert ledger.buckets["warmup"] > 0.4
    assert all((step.optimizer_s or 0.0) > 0 for step in steps)
    assert sum(ledger.buckets.values()) == pytest.approx(ledger.wall_s)
    assert steps[0].time_s - steps[0].total_s == pytest.approx(ledger.time_s - ledger.wall_s, abs=1e-3)


CLOSURE = """
def update(batch):
    def closure():
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()
        time.sleep(0.01)
        return loss
    optimizer.step(closure)
"""


@pytest.mark.parametrize("source", ["range(30)", "[batch for epoch in range(4) for batch in train]"])
def test_what_a_closure_computes_is_not_the_optimizers_time(forks: Forks, tmp_path: Path, source: str) -> None:
    """Model and gradients are called by the optimizer then: its own part of that is not known."""
    text = f"for batch in {source}:\n    update(make_batch())\n"
    program = tmp_path / "train.py"
    program.write_text(NO_PICTURES + AUTO + AT_ONCE + HEAD + BATCHES + CLOSURE + text + TAIL)
    found = finish(forks.start(program, cwd=tmp_path), tmp_path)
    assert found.status == 0, found.stderr
    steps = found.steps
    assert len(steps) >= 20
    assert [step.optimizer_step for step in steps[:3]] == [1, 2, 3]
    assert sum(step.optimizer_s or 0.0 for step in steps) == 0.0
    assert sum(step.compute_s or 0.0 for step in steps) > 0.01 * (len(steps) - 2)


def test_an_evaluation_without_a_loader_is_validation(forks: Forks, tmp_path: Path) -> None:
    """Each so-many-th step evaluates, in a function of its own that knows no loader."""
    text = """
        torch.set_num_threads(1)
        net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
        by = torch.optim.SGD(net.parameters(), lr=1e-4)
        data = torch.randn(256, 64)

        @torch.no_grad()
        def estimate_loss():
            net.eval()
            for _ in range(600):
                net(data)
            net.train()

        for index in range(600):
            if index % 25 == 24:
                estimate_loss()
            net(data).mean().backward()
            by.step()
        """
    program = tmp_path / "train.py"
    program.write_text(NO_PICTURES + AUTO + AT_ONCE + HEAD + textwrap.dedent(text) + TAIL)
    found = finish(forks.start(program, cwd=tmp_path), tmp_path)
    assert found.status == 0, found.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    primary = json.loads((folder / "diagnosis.json").read_text(encoding="utf-8"))["primary"]
    assert primary["rule"] == "validation-heavy"
    assert primary["location"]["function"] == "estimate_loss"


def test_an_optimizer_that_steps_no_more_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = StepClock.__new__(StepClock)
    clock.worked = True
    asked: list[int] = []
    monkeypatch.setattr(NoLoader, "__next__", lambda _: asked.append(1))
    steps = Updates()
    steps.begin(clock, iter(NoLoader()))
    first, second, third = Optimizer(), Optimizer(), Optimizer()
    steps.after(first)
    assert (len(asked), clock.worked) == (1, False)
    for _ in range(MOST_OTHERS - 1):
        steps.after(second)
    assert len(asked) == 1
    steps.after(second)
    assert len(asked) == 2
    del second
    steps.after(third)  # the one that made them is gone
    assert len(asked) == 3
    steps.end()
    steps.after(third)
    assert len(asked) == 3


def test_what_makes_the_batches_is_named(forks: Forks, tmp_path: Path) -> None:
    """Looks see it in the steps: nobody times a wait."""
    text = """
        def wait_for_batch():
            time.sleep(0.012)
            return torch.randn(4, 4)
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), model)
        for _ in range(150):
            batch = wait_for_batch()
            optimizer.zero_grad()
            net(batch).sum().backward()
            optimizer.step()
        """
    program = tmp_path / "train.py"
    program.write_text(NO_PICTURES + AUTO + AT_ONCE + HEAD + textwrap.dedent(text))
    found = finish(forks.start(program, cwd=tmp_path), tmp_path)
    assert found.status == 0, found.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    primary = json.loads((folder / "diagnosis.json").read_text(encoding="utf-8"))["primary"]
    assert primary["rule"] == "input-bound"
    assert primary["location"]["function"] == "wait_for_batch"
