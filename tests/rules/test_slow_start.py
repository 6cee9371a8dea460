"""slow-start: the run takes long to start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stallmeter.records import CodeLook, CodeSpot, CompilerSample, WorkerBatch
from stallmeter.records.diagnosis import Severity
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.slow_start import SlowStart
from stallmeter.window import Window

from .windows import START_S, fires, ledger, missing, silent, step, window


def started(start_s: float, wall_s: float = 100.0) -> Window:
    """A run with this start."""
    return window(
        ledger(wall_s=wall_s, start=start_s, data_wait=0, forward=0, backward=0, optimizer=0, loop=wall_s - start_s)
    )


def test_fires():
    """What exceeds a usual start is lost."""
    found = fires(SlowStart(), started(40.0))
    assert found.summary == "The first step began after 40.0 s, 40 % of the run."
    assert found.time_lost_s == 38.0
    assert found.severity is Severity.WARNING


def test_where_it_is_an_import_that_is_to_be_moved():
    imported = started(40.0)
    spot = CodeSpot(file="train.py", line=11, function="main", own=True, wall_s=3.0, calls=("import scipy.stats",))
    look = CodeLook(
        time_s=START_S, place="startup", bucket="start", rule="slow-start", method="samples", seen=50, wall_s=4.0,
        spots=(spot,),
    )  # fmt: skip
    imported.append(look)
    assert fires(SlowStart(), imported).advice[0].text.startswith("Move import scipy.stats (train.py:11) to where")


def waited(first_s: float, epochs: int = 1, start_s: float = 1.0, wall_s: float = 100.0) -> Window:
    """A run that waits so long for its first batch."""
    spent = {"data_wait": 0.0, "forward": 0.0, "backward": 0.0, "optimizer": 0.0}
    made = ledger(
        wall_s=wall_s, start=start_s, worker_startup=first_s, loop=wall_s - start_s - first_s, **spent
    )  # fmt: skip
    return window(replace(made, epochs=epochs))


def test_the_wait_for_the_first_batch_of_the_only_epoch_is_a_start():
    found = fires(SlowStart(), waited(40.0))
    assert found.title == "The first batch takes long to come"
    assert found.time_lost_s == 39.0
    assert found.advice[0].text.startswith("Save what the dataset reads or builds before its first item.")
    assert fires(SlowStart(), waited(10.0, start_s=30.0)).title == "The run takes long to start"


def test_a_first_batch_that_takes_what_all_take_is_no_start():
    """Its time is that of making batches, which the rules about loaders judge."""
    late = waited(40.0)
    for i in range(20):
        late.append(worker_batch(i, 39.5))
    assert silent(SlowStart(), late)
    half = waited(40.0)
    for i in range(20):
        half.append(worker_batch(i, 10.0))
    assert fires(SlowStart(), half).time_lost_s == pytest.approx(29.0)


def worker_batch(index: int, wall_s: float) -> WorkerBatch:
    return WorkerBatch(worker=0, time_s=START_S + 40.0 + index, wall_s=wall_s, cpu_s=wall_s)


def test_a_librarys_function_is_no_place_to_save_anything():
    """What collates the first batch, as any other."""
    late = waited(40.0)
    spot = CodeSpot(file="torch/utils/data/_utils/collate.py", line=1, function="collate", own=False, wall_s=3.0)
    late.append(
        CodeLook(
            time_s=START_S, place="workers", bucket="worker_startup", rule="worker-startup", method="samples", seen=50,
            wall_s=4.0, spots=(spot,),
        )
    )  # fmt: skip
    assert "collate" not in fires(SlowStart(), late).advice[0].text


def test_of_several_epochs_it_is_the_workers_start():
    assert silent(SlowStart(), waited(40.0, epochs=2))


def test_what_a_worker_reads_for_its_first_batch_is_named():
    late = waited(40.0)
    spot = CodeSpot(file="data.py", line=12, function="Table.read", own=True, wall_s=3.0)
    late.append(
        CodeLook(
            time_s=START_S,
            place="workers",
            bucket="worker_startup",
            rule="worker-startup",
            method="samples",
            seen=50,
            wall_s=4.0,
            spots=(spot,),
        )
    )
    found = evaluate((SlowStart(),), late).primary
    assert found is not None
    assert "Table.read (data.py:12)" in found.advice[0].text
    assert found.location is not None
    assert (found.location.function, found.location.share_pct) == ("Table.read", 75.0)
    assert any(one.name.startswith("samples of a worker's stack") for one in found.evidence)


def test_threshold():
    """It fires at the threshold and is silent just below it."""
    assert fires(SlowStart(), started(25.0))
    assert silent(SlowStart(), started(24.9))


def test_trials():
    """A trial of some seconds consists of its start: that is told, it is no warning."""
    assert fires(SlowStart(), started(9.9, wall_s=20.0)).severity is Severity.INFO
    assert fires(SlowStart(), started(10.0, wall_s=20.0)).severity is Severity.WARNING
    assert silent(SlowStart(), started(1.9, wall_s=2.0))


def test_always():
    """A start of 20 minutes is told however long the run."""
    assert fires(SlowStart(), started(1200.0, wall_s=86_400.0)).severity is Severity.WARNING
    assert silent(SlowStart(), started(1199.0, wall_s=86_400.0))


def test_abstains():
    """Without a ledger there is nothing to judge."""
    assert missing(SlowStart(), Window()) == ("ledger.start_s", "ledger.wall_s")


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(SlowStart(warn_pct=50.0), started(40.0))


def warmed(warmup_s: float, wall_s: float, *, start_s: float = 0.5, compiled_s: float | None = None) -> Window:
    """A run whose first two steps took so much longer, for torch.compile where its seconds are given."""
    spent = {"start": start_s, "warmup": warmup_s, "loop": 0.0, "data_wait": 0.0, "forward": 0.0, "optimizer": 0.0}
    made = window(
        *(step(i, total_s=warmup_s / 2 + 0.024, forward_s=warmup_s / 2 + 0.02) for i in range(2)),
        *(step(i, total_s=0.024, forward_s=0.02) for i in range(2, 100)),
        ledger(wall_s=wall_s, steps=100, **spent, backward=wall_s - warmup_s - start_s),
    )
    if compiled_s is not None:
        made.append(CompilerSample(time_s=START_S, compilations=2, recompilations=0, seconds=compiled_s))
    return made


def test_first_steps():
    """What the first steps take beyond steady ones counts, and the advice is for them."""
    found = fires(SlowStart(), warmed(12.0, 15.0))
    assert found.summary == "The steps were steady after 12.5 s, 83 % of the run: 12.0 s of it in the first 2 steps."
    assert (found.severity, found.time_lost_s) == (Severity.WARNING, 12.0)
    assert not any("num_sanity_val_steps" in advice.text for advice in found.advice)
    assert found.title == "The first steps take long"


def test_compiler():
    """Where torch.compile took the time, it is named, and so is its cache."""
    found = fires(SlowStart(), warmed(12.0, 15.0, compiled_s=11.0))
    assert found.summary.endswith("in the first 2 steps, in which torch.compile took 11.0 s.")
    assert "TORCHINDUCTOR_CACHE_DIR" in found.advice[0].text
    assert "torch.compile" not in fires(SlowStart(), warmed(12.0, 15.0, compiled_s=1.0)).summary


def test_little_warm_up():
    """1.5 s in a run of 10 s is nobody's problem, and no part of the summary where the start is long."""
    assert silent(SlowStart(), warmed(1.5, 10.0))
    assert silent(SlowStart(), warmed(12.0, 100.0))
    assert "before" not in fires(SlowStart(), warmed(1.0, 60.0, start_s=40.0)).summary


@pytest.mark.parametrize(
    ("framework", "has"), [("lightning 2.6.6", True), ("transformers 5.23.0", False), (None, False)]
)
def test_sanity_check(framework, has):
    """Lightning alone has one that can be skipped."""
    slow = warmed(1.0, 60.0, start_s=40.0)
    slow.facts["framework"] = framework
    assert has == any("num_sanity_val_steps" in advice.text for advice in fires(SlowStart(), slow).advice)


def test_recordings_of_older_versions():
    """Their ledgers have no such bucket."""
    old = started(40.0)
    assert old.ledger.record is not None
    buckets = {name: s for name, s in old.ledger.record.buckets.items() if name != "warmup"}
    old.append(replace(old.ledger.record, buckets=buckets))
    assert old.ledger.warmup_s is None
    assert fires(SlowStart(), old).time_lost_s == 38.0
