"""What the table of loaders in the docs says, with the real packages: each row is run as the page has it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallmeter import Monitor
from stallmeter.recording import Reader
from stallmeter.records import NO_LOADER, LedgerRecord, LoaderInfo, ProducerLooks, StepRecord, WorkerBatch
from stallmeter.window.producers import MIN_LOOKS

from .loaders import BATCH, ITEMS, MAKERS

PROGRAM = Path(__file__).with_name("train_any_loader.py")
PAGE = Path(__file__).parents[2] / "docs/howto/loaders.md"
EPOCHS = 3
ELSEWHERE = ("grain, processes", "DALI", "Ray Data")
NEW_FOLDER = ("litData", "Mosaic Streaming")


def rows() -> dict[str, list[bool]]:
    """The table's rows: whether it is timed, looked into, its queue seen, advised, applied."""
    found = re.findall(r"^\| (.+?) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    cells = {name.strip("`"): [cell.strip() for cell in rest.split(" | ")] for name, rest in found}
    return {name: [cell.startswith("yes") for cell in told] for name, told in cells.items() if told[0] in ("yes", "no")}


def test_the_page_has_a_row_for_each() -> None:
    assert rows().keys() == MAKERS.keys()


@pytest.fixture(autouse=True)
def _no_cluster_is_left() -> Iterator[None]:
    yield
    if "ray" in sys.modules:
        import ray

        ray.shutdown()


@pytest.mark.ecosystem
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MAKERS)
def test_a_row_of_the_table(name: str, tmp_path: Path) -> None:
    try:
        loader = MAKERS[name](tmp_path / "data" if name in NEW_FOLDER else tmp_path)
    except ModuleNotFoundError as exc:
        pytest.skip(f"{exc.name} is not installed; make test-ecosystem installs it")
    batches = EPOCHS * ITEMS // BATCH
    # Those who make batches in other processes are found by what watches the job's processes.
    options = {"directory": tmp_path / "rec", "trackers": None, "console": False, "hardware": name in ELSEWHERE}
    options["deep_batches"] = 0  # batches that are looked into one by one are left out of what is counted
    with Monitor(**options, interval_s=0.1, on_num_workers=lambda _: 2) as monitor:
        handed_out = sum(1 for _ in range(EPOCHS) for _ in monitor.watch(loader))
    assert handed_out == batches
    found = [one for one, _ in Reader(monitor.folder)]
    steps = [one for one in found if isinstance(one, StepRecord)]
    infos = [one for one in found if isinstance(one, LoaderInfo)]
    made = sum(isinstance(one, WorkerBatch) for one in found)
    known = sum(step.head_ready is not None for step in steps)
    advice = monitor.verdict.num_workers
    seen = sum(one.looks for one in found if isinstance(one, ProducerLooks))
    assert [
        len(steps) == batches and sum(step.data_wait_s for step in steps) > 0.1,
        (made == batches and infos[0].probed) or (not infos[0].probed and seen >= MIN_LOOKS),
        known > batches / 2,
        advice is not None and "repeats or drops samples" not in advice.reason,
        infos[-1].num_workers == 2,
    ] == rows()[name]
    if not infos[0].probed:
        assert (made, known, advice) == (0, 0, None)
        assert monitor.verdict.primary is not None
        assert monitor.verdict.primary.rule == "fetch-stall"


NO_CLASS = ("a generator",)
"""What is no class that is known: the steps are those of the optimizer then, the first ones in hindsight."""


@pytest.mark.ecosystem
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MAKERS)
def test_without_code(name: str, tmp_path: Path) -> None:
    """Steps are counted once, waits are booked, and the weights are those of a run without stallmeter."""
    told = []
    for folder in ("bare", "seen"):
        data = tmp_path / f"data-{folder}"
        if name not in NEW_FOLDER:
            data.mkdir()
        command = [sys.executable, str(PROGRAM), name, str(data)]
        if folder == "seen":
            command = [sys.executable, "-m", "stallmeter", "run", "--dir", str(tmp_path / "rec"), "--", *command]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        if "ModuleNotFoundError" in done.stderr:
            pytest.skip(done.stderr.strip().splitlines()[-1])
        assert done.returncode == 0, done.stderr
        told.append(done)
    trained = [next(line for line in one.stdout.splitlines() if line.startswith("trained")) for one in told]
    assert trained[0] == trained[1]
    (recording,) = (tmp_path / "rec").glob("*")
    found = [one for one, _ in Reader(recording)]
    ledger = [one for one in found if isinstance(one, LedgerRecord)][-1]
    steps = int(trained[1].split()[1])
    assert steps == 2 * ITEMS // BATCH
    assert ledger.steps == steps
    if name in NO_CLASS:
        assert {one.kind for one in found if isinstance(one, LoaderInfo)} == {NO_LOADER}
        return
    assert ledger.buckets["data_wait"] > 0.1
