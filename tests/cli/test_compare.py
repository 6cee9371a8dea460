"""`stallmeter compare` and `diagnose` as a user meets them: real recordings, a real server, exit status."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallmeter import Monitor
from stallmeter.cli import main
from stallmeter.rules import ALL_RULES

from ..report.job.folders import write_job
from ..report.recordings import VERDICT, complete_run, ledger, step, write
from ..rules.job.jobs import Known, compute_bound, diagnosis, late
from ..servers import FaultServer, MlflowServer


class Batches:
    """Batches of which each takes its time, or longer on a busy machine: ``took_s`` is what all of them took."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count, self.seconds, self.took_s = count, seconds, 0.0

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.count):
            began = time.perf_counter()
            if self.seconds:
                time.sleep(self.seconds)
            self.took_s += time.perf_counter() - began
            yield [0] * 4


def train(folder: Path, seconds: float, **options: object) -> float:
    """A plain loop of 100 steps of 5 ms; return what its data cost, in s a step."""
    settings = {"hardware": False, "workers": False, "console": False, "trackers": None, "interval_s": 0.05, **options}
    batches = Batches(100, seconds)
    with Monitor(directory=folder, **settings) as monitor:  # type: ignore[arg-type]
        for _ in monitor.watch(batches):
            time.sleep(0.005)
    return batches.took_s / batches.count


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, float]:
    """One run with free data and one whose data cost 10 ms a step, each below a folder of its own, and these costs."""
    folder = tmp_path_factory.mktemp("runs")
    return {folder / "fast": train(folder / "fast", 0.0), folder / "slow": train(folder / "slow", 0.01)}


@pytest.fixture(scope="module")
def runs(costs: dict[Path, float]) -> tuple[Path, ...]:
    return tuple(costs)


def ask(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    try:
        status = main([*map(str, arguments)])
    except SystemExit as exc:  # of argparse
        status = int(str(exc.code))
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def fails(capsys: pytest.CaptureFixture[str], *arguments: object, says: str) -> None:
    status, out, err = ask(capsys, *arguments)
    assert (status, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


# -- compare


def test_a_slower_loader_is_a_regression(costs, capsys):
    """From the loop to the exit status: 5 ms a step against 15 ms."""
    fast, slow = costs
    for metric in ("step_time", "throughput"):
        common = ("--max-regression-pct", 20, "--metric", metric, "--format", "json")
        status, out, _ = ask(capsys, "compare", fast, slow, *common)
        document = json.loads(out)
        assert status == 1
        assert document["regressed"] is True
        assert document["beyond_noise"] is True
        assert ask(capsys, "compare", slow, fast, *common)[0] == 0
        assert ask(capsys, "compare", fast, fast, *common)[0] == 0
    difference = pytest.approx(costs[slow] - costs[fast], abs=0.004)
    assert document["ledger_s_per_step"]["data_wait"]["difference"] == difference
    assert document["numbers"]["data_wait_pct"]["after"] > 40
    assert ask(capsys, "compare", fast, slow)[0] == 0


def test_forms(runs, capsys):
    """The terminal and Markdown say the same sentence."""
    status, text, _ = ask(capsys, "compare", *runs, "--max-regression-pct", "20")
    assert status == 1
    assert text.startswith("Regression of more than 20 %. Step time, median went from ")
    assert "data wait" in text
    assert "\x1b" not in text
    markdown = ask(capsys, "compare", *runs, "--max-regression-pct", "20", "--format", "markdown")[1]
    assert markdown.startswith("**Regression of more than 20 %. Step time, median went from ")
    assert "| Time per step | before | after | change |" in markdown


def test_mistakes(runs, tmp_path, capsys):
    """One line, exit status 2."""
    fast = runs[0]
    fails(capsys, "compare", fast, tmp_path / "nowhere", says="nowhere")
    fails(capsys, "compare", tmp_path, fast, says="holds no recording")
    empty = write(tmp_path / "empty", [ledger(steps=0)])
    fails(capsys, "compare", fast, empty, "--max-regression-pct", 5, says="has no step time")
    for wrong in ("-1", "five", "nan", "inf"):
        status, _, err = ask(capsys, "compare", fast, fast, f"--max-regression-pct={wrong}")
        assert status == 2
        assert "no percentage" in err


def test_a_run_id_needs_an_address(runs, capsys, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    fails(capsys, "compare", "a" * 32, runs[0], says="--tracking-uri")


def test_a_server_that_fails(runs, capsys):
    """It is named, without a traceback."""
    pytest.importorskip("mlflow")
    with FaultServer(500, '{"error_code": "INTERNAL_ERROR", "message": "broken"}') as server:
        uri = f"http://u:s3cret@{server.address}"
        status, out, err = ask(capsys, "compare", "a" * 32, runs[0], "--tracking-uri", uri)
    assert (status, out) == (2, "")
    assert "broken" in err
    assert "s3cret" not in err
    assert err.count("\n") == 1


@pytest.mark.server
def test_runs_of_mlflow(server: MlflowServer, runs, tmp_path, capsys, monkeypatch):
    """By run id: the same numbers as from the recordings, without an interval; and a run without a report is named."""
    from mlflow import MlflowClient

    from stallmeter.delivery.trackers.mlflow import MlflowTracker

    trackers = [MlflowTracker.create_run(server.uri, "compare") for _ in range(2)]
    for tracker, seconds in zip(trackers, (0.0, 0.01), strict=True):
        train(tmp_path, seconds, trackers=tracker, close_budget_s=120)
    ids = [tracker.run_id for tracker in trackers]
    common = ("--max-regression-pct", 20, "--format", "json")
    status, out, err = ask(capsys, "compare", *ids, "--tracking-uri", server.uri, *common)
    assert status == 1, err
    document = json.loads(out)
    assert document["beyond_noise"] is None
    assert document["after"]["source"] == f"run {ids[1]}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    assert ask(capsys, "compare", ids[0], runs[1], *common)[0] == 1
    client = MlflowClient(server.uri)
    bare = client.create_run(client.get_experiment_by_name("compare").experiment_id).info.run_id
    fails(capsys, "compare", bare, runs[0], says="stallmeter/diagnosis.json")
    fails(capsys, "compare", "f" * 32, runs[0], says="f" * 32)


def test_runs_in_a_database(runs, tmp_path, new_database, capsys, monkeypatch):
    """The same without a server."""
    from stallmeter.delivery.trackers.mlflow import MlflowTracker

    monkeypatch.chdir(tmp_path)
    uri = new_database(tmp_path / "mlflow.db")
    tracker = MlflowTracker.create_run(uri)
    train(tmp_path, 0.01, trackers=tracker, close_budget_s=120)
    status, _, err = ask(capsys, "compare", runs[0], tracker.run_id, "--tracking-uri", uri, "--max-regression-pct", 20)
    assert status == 1, err
    empty = MlflowTracker.create_run(uri).run_id
    fails(capsys, "compare", runs[0], empty, "--tracking-uri", uri, says="stallmeter/diagnosis.json")


# -- diagnose


def test_diagnose_asks_todays_rules(tmp_path, capsys):
    """The recorded verdict is shown against what the rules say now."""
    folder = write(tmp_path, complete_run(), version="0.0.1")
    status, out, _ = ask(capsys, "diagnose", folder, "--format", "json")
    assert status == 0
    document = json.loads(out)
    assert document["recorded"] == {"version": "0.0.1", "primary": "no-workers"}
    by_rule = {change["rule"]: change for change in document["changes"]}
    assert by_rule["slow-callback"]["change"] == "gone"
    assert by_rule["slow-callback"]["recorded"]["time_lost_s"] == 5.0
    assert {d["rule"] for d in document["diagnoses"]} == {r for r, c in by_rule.items() if c["now"]}
    assert document["run"]["settled"] is False


def test_diagnose_of_an_unchanged_recording(runs, capsys):
    """What this version recorded, it says again: a table of what is the same tells nothing."""
    for run in runs:
        status, out, _ = ask(capsys, "diagnose", run)
        assert status == 0
        assert "Today's rules say what was recorded." in out
        assert "Recorded by" not in out


def test_diagnose_some_rules(tmp_path, capsys):
    """Only they are asked, only their findings are compared, and num_workers is left alone."""
    folder = write(tmp_path, complete_run())
    some = ("--rule", "slow-callback", "--rule", "slow-start")
    status, out, _ = ask(capsys, "diagnose", *some, folder, "--format", "json")
    document = json.loads(out)
    assert status == 0
    assert {change["rule"] for change in document["changes"]} <= {"slow-callback", "slow-start"}
    assert {a["rule"] for a in document["abstained"]} <= {"slow-callback", "slow-start"}
    assert document["num_workers"] is None
    text = ask(capsys, "diagnose", folder, "--rule", "slow-callback")[1]
    assert "primary cause" not in text
    assert "gone" in text
    fails(capsys, "diagnose", folder, "--rule", "slow-callbak", says="did you mean 'slow-callback'?")


def test_diagnose_a_killed_run(tmp_path, capsys):
    """Without a recorded verdict everything is new."""
    folder = write(tmp_path, [*(step(i) for i in range(40)), ledger(steps=40)])
    document = json.loads(ask(capsys, "diagnose", folder, "--format", "json")[1])
    assert document["recorded"] is None
    assert document["changes"]
    assert {change["change"] for change in document["changes"]} == {"new"}
    assert {change["rule"] for change in document["changes"]} <= {rule.id for rule in ALL_RULES}
    assert "The run recorded no verdict." in ask(capsys, "diagnose", folder)[1]


def test_diagnose_forms_and_ranks(tmp_path, capsys):
    """Markdown is the report with a table below; --rank picks one."""
    write(tmp_path, [*complete_run()], rank=1, world_size=2)
    out = ask(capsys, "diagnose", tmp_path, "--rank", "1", "--format", "markdown")[1]
    assert "| Where the time went | Time | Share |" in out
    assert f"| primary cause | {VERDICT.primary.rule} |" in out
    fails(capsys, "diagnose", tmp_path, "--rank", "0", says="no recording of rank 0")
    fails(capsys, "diagnose", tmp_path / "nowhere", says="nowhere")


SLOW_DATA = {0: Known([compute_bound()]), 1: Known([diagnosis("fetch-stall", 4.0)])}


def test_diagnose_a_job(tmp_path, capsys):
    """All ranks are asked again; the job that they make then is set against the one of their recorded verdicts."""
    folder = write_job(tmp_path, late(1, "data_wait", 0.05), steps=300, known=SLOW_DATA)
    document = json.loads(ask(capsys, "diagnose", folder, "--format", "json")[1])
    assert document["recorded"] == {"version": "0.1.0", "primary": "fetch-stall"}
    assert document["primary"]["ranks"] == [1]
    assert document["run"]["settled"] is False
    gone = next(change for change in document["changes"] if change["rule"] == "fetch-stall")
    assert (gone["ranks"], gone["change"]) == ([1], "gone")
    text = ask(capsys, "diagnose", folder)[1]
    assert re.search(r"fetch-stall, rank 1 +critical, .* lost +- +gone", text)
    assert re.search(r"primary cause +fetch-stall, rank 1 +\S+, rank 1 +changed", text)


def test_diagnose_one_rank_of_a_job(tmp_path, capsys):
    """By itself: its own recorded verdict against today's."""
    folder = write_job(tmp_path, late(1, "data_wait", 0.05), steps=300, known=SLOW_DATA)
    document = json.loads(ask(capsys, "diagnose", folder, "--rank", "0", "--format", "json")[1])
    assert document["recorded"]["primary"] == "compute-bound"
    assert document["job"] is None
    assert document["run"]["rank"] == 0


def test_diagnose_a_job_by_rules_over_ranks(tmp_path, capsys):
    """They are rules like others, where there are ranks to judge."""
    folder = write_job(tmp_path, late(1, "forward", 0.05), steps=300)
    document = json.loads(
        ask(capsys, "diagnose", folder, "--rule", "straggler", "--rule", "slow-start", "--format", "json")[1]
    )
    assert [(d["rule"], d["ranks"]) for d in document["diagnoses"]] == [("straggler", [1])]
    assert document["num_workers"] is None
    assert {a["rule"] for a in document["abstained"]} <= {"straggler", "slow-start"}
    fails(capsys, "diagnose", folder, "--rank", "0", "--rule", "straggler", says="without --rank")
    alone = write(tmp_path / "alone", complete_run())
    fails(capsys, "diagnose", alone, "--rule", "straggler", says="straggler judges the ranks of a job")


def test_compare_jobs(tmp_path, capsys):
    """The job's cause with its rank; another number of ranks makes rates incomparable."""
    before = write_job(tmp_path / "before", late(1, "data_wait", 0.02), known=SLOW_DATA)
    after = write_job(tmp_path / "after", ranks=4)
    text = ask(capsys, "compare", before, after)[1]
    assert re.search(r"ranks +2, these numbers of rank 0 +4, these numbers of rank 0", text)
    assert "fetch-stall on rank 1, " in text
    assert "The number of ranks changed from 2 to 4: samples per second are one rank's" in " ".join(text.split())
    document = json.loads(ask(capsys, "compare", before, after, "--format", "json")[1])
    assert document["before"]["primary"]["ranks"] == [1]
    assert (document["before"]["rank"], document["before"]["world_size"]) == (0, 2)
    assert (document["after"]["primary"], document["after"]["world_size"]) == (None, 4)
