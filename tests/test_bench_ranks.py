"""The benchmark of jobs of several ranks draws, judges and simulates as it says."""

from __future__ import annotations

import json
import resource
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.ranks import rivals, scale
from benchmarks.ranks.__main__ import Judged, names_it, right_by_fault, table
from benchmarks.ranks.draws import FAULTS, LAUNCHERS, Draw, draw
from benchmarks.ranks.killed import naming
from benchmarks.ranks.simulated import LATE_S, SimulatedJob, write_job

from stallmeter.recording import ranks
from stallmeter.report.job.folder import report_of_job
from stallmeter.report.json import to_json
from stallmeter.report.model import read_history
from stallmeter.rules import ALL_RULES
from stallmeter.rules.job import JOB_RULES

DRAWS = [draw(fault, launcher, seed) for fault in FAULTS for launcher in LAUNCHERS for seed in range(5)]


def primary(rule: str, *of: int, severity: str = "warning", lost_s: float = 1.0) -> dict[str, Any]:
    return {"rule": rule, "severity": severity, "time_lost_s": lost_s} | ({"ranks": list(of)} if of else {})


def judged(each: Draw, said: dict[str, Any] | None, lost_s: float = 1.0, live: dict[str, Any] | None = None) -> Judged:
    return Judged(each, {"primary": said}, lost_s, None if live is None else {"primary": live})


def one(fault: str, launcher: str = "plain", rank: int = 1) -> Draw:
    return replace(draw(fault, launcher, 0), rank=rank)


class TestDraws:
    def test_a_seed_draws_the_same_every_time_and_seeds_differ(self):
        again = [draw(fault, launcher, seed) for fault in FAULTS for launcher in LAUNCHERS for seed in range(5)]
        assert again == DRAWS
        assert len({(d.step_s, d.extra_s) for d in DRAWS}) == len(DRAWS)

    def test_both_ranks_all_sizes_and_both_kinds_of_work_are_drawn(self):
        assert {d.rank for d in DRAWS if d.fault in ("data", "forward", "backward", "hook")} == {0, 1}
        assert {d.workers for d in DRAWS} == {0, 1}
        assert {d.spins for d in DRAWS} == {True, False}
        assert {d.rank for d in DRAWS if d.fault in ("logging", "checkpoint")} == {0}

    def test_what_is_planted_is_worth_a_warning_and_a_run_takes_seconds(self):
        for each in DRAWS:
            assert 0.6 <= each.extra_s / each.every / each.step_s <= 2.0, each.name
            assert 60 <= each.steps <= 400, each.name
            assert each.steps * (each.step_s + each.extra_s / each.every) <= 6.0, each.name

    def test_right_rules_are_rules(self):
        known = {rule.id for rule in (*ALL_RULES, *JOB_RULES)}
        assert all(d.right_rules <= known for d in DRAWS)
        assert all(bool(d.right_rules) != d.is_healthy for d in DRAWS)


class TestJudging:
    @pytest.mark.parametrize(
        ("fault", "launcher", "said", "right"),
        [
            ("data", "plain", primary("fetch-stall", 1), True),
            ("data", "plain", primary("fetch-stall", 0), False),
            ("data", "plain", primary("fetch-stall"), False),
            ("data", "plain", primary("straggler", 1), False),
            ("data", "plain", primary("fetch-stall", 1, severity="info"), False),
            ("data", "plain", None, False),
            ("both-data", "plain", primary("fetch-stall"), True),
            ("both-data", "plain", primary("fetch-stall", 1), False),
            ("hook", "plain", primary("straggler", 1), True),
            ("hook", "lightning", primary("straggler", 1), False),
            ("hook", "lightning", primary("slow-callback", 1), True),
            ("rotating", "lightning", primary("rank-imbalance"), True),
            ("healthy", "plain", primary("compute-bound", severity="info"), True),
            ("healthy", "plain", primary("straggler", 1), False),
            ("healthy", "plain", None, True),
        ],
    )
    def test_rule_and_rank_must_both_be_right(self, fault, launcher, said, right):
        each = one(fault, launcher)
        assert names_it(each, said or {}) is right
        assert judged(each, said).is_right is right

    def test_the_error_of_the_loss_is_a_share_of_the_truth(self):
        data = one("data")
        assert judged(data, primary("fetch-stall", 1, lost_s=1.1), 1.0).error == pytest.approx(0.1)
        assert judged(data, primary("fetch-stall", 1, lost_s=0.5), 2.0).error == pytest.approx(-0.75)
        assert judged(data, primary("fetch-stall", 1), 0.1).error is None  # so little that noise decides
        assert judged(data, None).error is None
        assert judged(one("healthy"), None).error is None

    def test_the_table_counts_what_was_said_in_the_report_and_on_rank_0(self):
        good, bad = primary("fetch-stall", 1), primary("compute-bound", severity="info")
        found = [judged(one("data"), good, live=good), judged(one("data"), good, 2.0, live=bad)]
        found += [judged(one("forward"), bad, live=bad), judged(one("healthy"), primary("straggler", 1))]
        text = table(found)
        assert "| data | 2 of 2 | 1 of 2 | 1 of 2 | 25.0 % |" in text
        assert "| forward | 0 of 1 | 0 of 1 |" in text
        assert "Alarms on healthy jobs: 1. Jobs called compute-bound beside a planted fault: 2." in text
        assert text.count("WRONG") == 2
        assert "live compute-bound" in text
        assert right_by_fault(found)["data"] == (2, 2)


class TestRivals:
    @pytest.mark.parametrize(
        ("fault", "kind", "of", "symptom", "cause"),
        [
            ("data", "INPUT_STRAGGLER", [1], True, True),
            ("data", "STRAGGLER", [1], True, False),
            ("data", "INPUT_STRAGGLER", [0], False, False),
            ("data", "INPUT_BOUND", [1], True, True),
            ("data", "INPUT_BOUND", [0], True, False),
            ("data", "COMPUTE_BOUND", [1], False, False),
            ("backward", "STRAGGLER", [1], True, True),
            ("hook", "STRAGGLER", [1], True, False),
            ("hook", "RESIDUAL_HEAVY", [], True, False),
            ("both-data", "INPUT_BOUND", [], True, True),
            ("communication", "COMPUTE_BOUND", [], False, False),
            ("healthy", "COMPUTE_BOUND", [], True, True),
            ("healthy", "INPUT_STRAGGLER", [1], False, False),
        ],
    )
    def test_it_is_read_generously(self, fault, kind, of, symptom, cause):
        reading = rivals.read(one(fault), {"primary": {"kind": kind, "ranks": of}})
        assert (reading.symptom, reading.cause) == (symptom, cause)

    def test_what_it_did_not_say_is_wrong_and_shown(self):
        reading = rivals.read(one("data"), {"error": "exit code 1: no such thing"})
        assert (reading.symptom, reading.cause) == (False, False)
        assert "no such thing" in reading.said

    def test_kept_answers_are_not_asked_for_again(self, tmp_path):
        each = one("data")
        (tmp_path / each.name).mkdir()
        said = {"primary": {"kind": "INPUT_STRAGGLER", "ranks": [1]}}
        (tmp_path / each.name / "traceml.json").write_text(json.dumps(said))
        readings = rivals.ask([each], tmp_path, "/no/such/python")
        assert "| data | 1 of 2 | 1 of 1 | 1 of 1 |" in rivals.table({"data": (1, 2)}, readings)


class TestSimulated:
    JOB = SimulatedJob(ranks=12, steps=300)

    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory):
        folder = tmp_path_factory.mktemp("simulated") / "job"
        write_job(folder, self.JOB)
        return folder

    def test_the_loss_is_what_the_late_rank_adds(self):
        others_s = max(self.JOB.arrivals_s(rank)[7] for rank in range(12) if rank != self.JOB.late)
        assert self.JOB.arrivals_s(self.JOB.late)[7] == self.JOB.meetings_s()[7] > others_s + 0.8 * LATE_S
        assert self.JOB.lost_s == pytest.approx(300 * LATE_S)

    def test_the_recordings_are_real(self, folder):
        assert ranks(folder) == tuple(range(12))
        headers = [read_history(folder, rank).header for rank in (0, 7, 8)]
        assert [(h.rank, h.world_size, h.host) for h in headers] == [
            (0, 12, "node000"), (7, 12, "node000"), (8, 12, "node001")
        ]  # fmt: skip
        report = read_history(folder, self.JOB.late).report()
        assert report.steps == 300
        assert sum(share.seconds for share in report.ledger) == pytest.approx(report.wall_s)

    def test_the_report_names_the_late_rank_and_its_loss_and_stays_short(self, folder):
        report = report_of_job(read_history(folder))
        assert report is not None
        said = report.verdict.primary
        assert said is not None
        assert (said.rule, said.ranks) == ("straggler", (self.JOB.late,))
        assert said.time_lost_s == pytest.approx(self.JOB.lost_s, rel=0.1)
        shown = to_json(report)["job"]["slowest_steps"]
        assert shown
        assert all(len(step["seconds"]) == 8 and str(self.JOB.late) in map(str, step["seconds"]) for step in shown)

    def test_posts_go_through_a_real_store(self):
        pytest.importorskip("torch")
        found = scale.posted(SimulatedJob(ranks=6, steps=10_000))
        assert len(found.bytes_per_min) == scale.MINUTES
        assert all(0 < size < scale.GOAL_BYTES_PER_MIN for size in found.bytes_per_min)
        assert found.posts >= 6

    def test_time_and_size_of_a_program_are_its_own(self):
        wall_s, cpu_s, peak_bytes = scale.measured([sys.executable, "-c", "held = bytes(64_000_000)"])
        assert cpu_s > 0
        assert wall_s > 0
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # a child begins as a copy of this process
        assert 64e6 < peak_bytes < 1e9 + before
        with pytest.raises(SystemExit, match="exit code 3"):
            scale.measured([sys.executable, "-c", "raise SystemExit(3)"])


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("Rank 1 died, while others went on. Last known step: 60.", True),
        ("- **Rank 1 was ended by SIGKILL, and the others could not go on without it. Last known step: 3.**", True),
        ("Ranks 0 and 1 were ended by SIGKILL, rank 1 0.99 s before the next. Last known steps: 38, 35.", True),
        ("Ranks 0 and 1 were ended by SIGKILL, rank 0 0.99 s before the next. Last known steps: 38, 35.", False),
        ("Ranks 0 and 1 were ended by SIGKILL. Last known steps: 38, 35.", False),
        ("Rank 1 waits for rank 0, late with its data.", False),
    ],
)
def test_a_line_that_names_the_dead_rank(line: str, names: bool) -> None:
    assert bool(naming(["2 ranks: no loss was found.", line])) is names
