"""The fault benchmark judges verdicts as it says, and plants what it says."""

from __future__ import annotations

import http.client
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.faults import case as cases_module
from benchmarks.faults import outside, rivals, runner, table
from benchmarks.faults.__main__ import about, parse, plan, write_json
from benchmarks.faults.case import FEWER_WORKERS, HEALTHY, MORE_WORKERS, Case, advises, contradictions, judge
from benchmarks.faults.cases import CASES, FAULTS, HEALTHY_SHAPES, case_of, choose
from benchmarks.faults.shape import JITTER, Shape


def diagnosis(rule: str, *advice: str, severity: str = "warning", **more: Any) -> dict[str, Any]:
    return {
        "rule": rule,
        "severity": severity,
        "title": rule,
        "summary": f"it is {rule}",
        "culprit": None,
        "evidence": [],
        "advice": [{"text": text, "predicted_gain_pct": None} for text in advice],
        **more,
    }


def result(*diagnoses: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"primary": diagnoses[0] if diagnoses else None, "diagnoses": list(diagnoses), **more}


def fault(**more: Any) -> Case:
    return Case(**{"id": "c", "truth": "prep-stall", "what": "w", "shapes": (Shape(),), **more})


HEALTHY_CASE = fault(truth=HEALTHY)


class TestJudge:
    def test_the_planted_rule_is_right(self):
        judgement = judge(fault(), result(diagnosis("prep-stall")))
        assert (judgement.label, judgement.right, judgement.clean) == ("prep-stall", True, True)

    def test_another_primary_is_wrong_even_when_the_planted_rule_is_second(self):
        judgement = judge(fault(), result(diagnosis("slow-logging"), diagnosis("prep-stall")))
        assert not judgement.right
        assert judgement.unexpected == ()

    def test_no_primary_has_a_label_of_its_own(self):
        assert judge(fault(), result()).label == cases_module.NOTHING

    def test_a_warning_that_nobody_planted_is_told(self):
        judgement = judge(fault(), result(diagnosis("prep-stall"), diagnosis("io-wait-high")))
        assert judgement.unexpected == ("io-wait-high",)
        assert judgement.right

    def test_what_the_case_allows_for_is_no_surprise(self):
        case = fault(also_allowed=frozenset({"cpu-saturated"}), accept=frozenset({"compute-bound"}))
        assert judge(case, result(diagnosis("compute-bound", severity="info"), diagnosis("cpu-saturated"))).clean

    def test_a_required_warning_must_be_there(self):
        case = fault(accept=frozenset({"compute-bound"}), required=frozenset({"host-memory-growth"}))
        bound = diagnosis("compute-bound", severity="info")
        assert judge(case, result(bound)).faults == ("no warning host-memory-growth",)
        assert judge(case, result(bound, diagnosis("host-memory-growth"))).clean

    def test_the_culprit_must_be_named(self):
        case = fault(culprit="Histo")
        assert judge(case, result(diagnosis("prep-stall"))).faults == ("culprit is None",)
        assert judge(case, result(diagnosis("prep-stall", culprit="Histograms"))).clean

    def test_what_must_be_said_may_stand_in_summary_evidence_or_advice(self):
        case = fault(says=("persistent_workers",))
        assert judge(case, result(diagnosis("prep-stall"))).faults == ("does not say 'persistent_workers'",)
        assert judge(case, result(diagnosis("prep-stall", "Set persistent_workers=True."))).clean

    def test_forbidden_advice_of_any_warning_is_a_fault(self):
        case = fault(truth="slow-batches", forbidden_advice=(MORE_WORKERS,))
        said = result(diagnosis("slow-batches"), diagnosis("io-wait-high", "Use more workers."))
        assert judge(case, said).faults == ("io-wait-high advises more workers",)


class TestHealthy:
    @pytest.mark.parametrize("said", [(), (diagnosis("compute-bound", severity="info"),)])
    def test_nothing_to_warn_of(self, said: tuple[dict[str, Any], ...]):
        assert judge(HEALTHY_CASE, result(*said)).right

    def test_a_warning_is_a_false_alarm(self):
        judgement = judge(HEALTHY_CASE, result(diagnosis("noisy-neighbour")))
        assert judgement.false_alarms == ("noisy-neighbour",)
        assert not judgement.right

    @pytest.mark.parametrize(("slowed", "right"), [(1.0, False), (12.0, True)])
    def test_a_neighbour_may_be_named_only_where_it_cost_time(self, slowed: float, right: bool):
        case = fault(truth=HEALTHY, allowed_if_slowed=frozenset({"noisy-neighbour"}))
        assert judge(case, result(diagnosis("noisy-neighbour"), slowed_pct=slowed)).right is right


class TestContradictions:
    def test_two_causes_of_the_same_wait(self):
        found = list(contradictions([diagnosis("prep-stall"), diagnosis("fetch-stall"), diagnosis("slow-logging")]))
        assert found == ["fetch-stall + prep-stall"]

    def test_advice_that_another_diagnosis_rules_out(self):
        found = list(contradictions([diagnosis("prep-stall"), diagnosis("io-wait-high", "Raise num_workers.")]))
        assert found == ["prep-stall, yet io-wait-high advises more workers"]

    def test_the_recommended_number_is_advice_too(self):
        advice = {"current": 2, "recommended": 4}
        assert list(contradictions([diagnosis("worker-startup")], advice)) == ["worker-startup, yet num_workers 2 -> 4"]
        assert not list(contradictions([diagnosis("worker-startup")], {"current": 2, "recommended": 2}))

    def test_a_sound_verdict_has_none(self):
        assert not list(
            contradictions([diagnosis("no-workers", "Set num_workers=2.")], {"current": 0, "recommended": 2})
        )

    @pytest.mark.parametrize(
        ("text", "advised"),
        [
            ("Raise num_workers from 2 to 4.", True),
            ("Use more workers, unless memory is short.", True),
            ("Set persistent_workers=True. More workers will not help.", False),
            ("Do not add workers", False),
            ("More workers would make it worse.", False),
            ("Set persistent_workers=True.", False),
            ("Use a cheaper transform; then raise num_workers.", True),
        ],
    )
    def test_negated_advice_is_no_advice(self, text: str, advised: bool):
        assert advises(diagnosis("x", text), MORE_WORKERS) is advised

    def test_fewer_workers(self):
        assert advises(diagnosis("x", "Set num_workers=0."), FEWER_WORKERS)


class TestCases:
    def test_there_are_enough(self):
        assert len(FAULTS) >= 16
        assert len(HEALTHY_SHAPES) >= 6
        assert all(len(case.shapes) >= 3 for case in CASES)
        assert len({case.id for case in CASES}) == len(CASES)

    def test_intensities_differ(self):
        assert all(len(set(case.shapes)) == len(case.shapes) for case in CASES)

    def test_chosen_by_id_or_truth(self):
        assert [c.id for c in choose(["prep-stall"])] == ["prep-stall", "prep-stall-crowded"]
        assert choose(None) == CASES
        with pytest.raises(SystemExit, match="no such case: nonsense"):
            choose(["nonsense"])

    def test_a_seed_varies_costs_and_nothing_else(self):
        shape = case_of("fetch-stall-bandwidth").shapes[0]
        varied = shape.varied(3)
        assert varied == shape.varied(3) != shape.varied(4)
        assert 0 < abs(varied.item_bytes / shape.item_bytes - 1) <= JITTER
        assert (varied.steps, varied.workers, varied.item_cpu_s) == (shape.steps, shape.workers, 0.0)

    def test_the_plan_sees_every_intensity(self):
        runs = plan(FAULTS[:2], 3, "rotate")
        assert Counter((r.case.id, r.level) for r in runs) == {(c.id, n): 1 for c in FAULTS[:2] for n in range(3)}
        assert len(plan(FAULTS, 2, "all")) == 6 * len(FAULTS)
        assert {r.level for r in plan(FAULTS, 2, "1")} == {1}


class TestRunner:
    def test_busy_time_counts_only_the_chosen_cpus(self):
        text = "cpu 9 9 9 9 9 9 9\ncpu0 100 0 50 1000 7 0 0 0\ncpu1 10 0 0 1000 0 0 0 0\ncpu10 999 0 0 0 0 0 0\n"
        tick = 1 / os.sysconf("SC_CLK_TCK")
        assert runner.busy_s((0,), text) == pytest.approx(150 * tick)
        assert runner.busy_s((0, 1), text) == pytest.approx(160 * tick)

    def test_the_environment_hides_accelerators_and_settings(self):
        env = runner.environment({"PATH": "p", "STALLMETER": "1", "MLFLOW_RUN_ID": "x"})
        assert env["CUDA_VISIBLE_DEVICES"] == ""
        assert not {"STALLMETER", "MLFLOW_RUN_ID"} & set(env)

    def test_a_run_is_slowed_by_waits_and_by_a_device_that_sleeps_too_long(self):
        made = {"shape": {"device_s": 0.01, "steps": 100, "epochs": 2}, "spent": {"next": 0.2, "forward": 2.3}}
        assert runner.slowed_pct({**made, "fit_s": 5.0}) == pytest.approx(10.0)

    def test_a_run_that_fails_says_why(self):
        run = plan(FAULTS[:1], 1, "0")[0]
        broken = runner.Runner(cpus=runner.usable_cpus(2), tool="no-such-tool").attempt(run)
        assert "no-such-tool" in broken["error"]
        assert not judge(run.case, broken).right

    def test_a_disturbed_run_is_made_again_and_the_least_disturbed_counts(self):
        runs = plan(FAULTS[:2], 1, "0")
        disturbance = {runs[0].name: iter([1.5, 0.4, 0.9]), runs[1].name: iter([0.1])}
        told = []

        def make(run: runner.Run) -> dict[str, Any]:
            return {"case": run.case.id, "disturbance_cpus": next(disturbance[run.name])}

        first, second = runner.gather(runs, [make], retries=2, on_result=told.append)
        assert (first["disturbance_cpus"], first["attempts"]) == (0.4, 3)
        assert (second["disturbance_cpus"], second["attempts"]) == (0.1, 1)
        assert [result["disturbance_cpus"] for result in told] == [1.5, 0.1, 0.4]


class TestOutside:
    def test_a_throttle_lets_pass_what_it_should(self):
        throttle = outside.Throttle(1_000_000)
        started = time.monotonic()
        for _ in range(10):
            throttle.take(10_000)
        assert time.monotonic() - started >= 0.09

    def test_neighbours_and_store_end_with_the_block(self):
        with outside.started(1, 1e9, runner.usable_cpus(2)) as (pids, port):
            assert port is not None
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/1?bytes=50000")
            assert len(connection.getresponse().read()) == 50_000
            connection.close()
        assert len(pids) == 2
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


class TestTable:
    def runs(self) -> list[dict[str, Any]]:
        return [
            {**result(diagnosis("prep-stall")), "case": "prep-stall", "truth": "prep-stall", "level": 0, "seed": 0},
            {**result(diagnosis("fetch-stall")), "case": "prep-stall", "truth": "prep-stall", "level": 1, "seed": 0},
            {**result(), "case": "tiny-data", "truth": HEALTHY, "level": 0, "seed": 0},
            {**result(), "case": "prep-stall", "truth": "prep-stall", "level": 2, "seed": 0, "error": "exit code 1"},
        ]

    def test_the_matrix_counts_primaries_by_truth(self):
        counts = table.matrix(table.judged(self.runs(), CASES))
        assert counts["prep-stall"] == {"prep-stall": 1, "fetch-stall": 1, cases_module.NOTHING: 1}
        assert counts[HEALTHY] == {cases_module.NOTHING: 1}

    def test_the_figures(self):
        figures = table.summary(table.judged(self.runs(), CASES))
        assert figures["faults"] == {"runs": 3, "right": 1, "right_pct": pytest.approx(100 / 3)}
        assert figures["healthy"]["right_pct"] == 100.0
        assert figures["failed_runs"] == 1

    def test_misses_are_listed(self):
        pairs = table.judged(self.runs(), CASES)
        text = table.markdown(pairs, CASES, {"date": "today"})
        assert "- prep-stall, intensity 1, seed 0: fetch-stall; “it is fetch-stall”" in text
        assert "right primary, faults | 1 of 3 (33.3 %)" in text

    def test_the_ledger_is_held_against_what_was_planted(self):
        run = {
            "ledger": {"forward": 5.0, "data_wait": 3.0, "worker_startup": 1.0, "start": 1.0},
            "spent": {
                "forward": 4.9,
                "next": 3.2,
                "next iterators": 0.5,
                "shutdowns": 0.3,
                "pauses": 1.0,
                "logging": 0.01,
            },
        }
        assert table.ledger_error_pct(run) == {"forward": pytest.approx(1.0), "input": pytest.approx(0.0)}

    def test_written_as_json_and_as_a_table_of_signals(self, tmp_path: Path):
        runs = self.runs()
        write_json(tmp_path / "out.json", runs, about(runs))
        assert '"prep-stall": {' in (tmp_path / "out.json").read_text()
        assert len(table.signal_table(runs).splitlines()) == 5

    def test_the_command_line(self):
        arguments = parse(["--seeds", "2", "--only", "tiny-data", "slow-logging"])
        assert (arguments.seeds, arguments.only, arguments.jobs) == (2, ["tiny-data", "slow-logging"], 1)


class TestRivals:
    def said(self, *sentences: tuple[str, str, str]) -> list[dict[str, Any]]:
        return [
            {"name": name, "severity": severity, "text": name, "advice": [{"text": advice}], "primary": True}
            for name, severity, advice in sentences
        ]

    def test_the_right_place_is_a_symptom_and_the_cure_a_cause(self):
        said = self.said(("INPUT_BOUND", "crit", "Increase workers, prefetch, or storage throughput."))
        few = rivals.read("traceml", {"truth": "too-few-workers", "said": said})
        startup = rivals.read("traceml", {"truth": "worker-startup", "said": said})
        assert (few.symptom, few.cause, few.contradicts) == (True, True, False)
        assert (startup.symptom, startup.cause, startup.contradicts) == (True, False, True)

    def test_both_ways_at_once_is_a_contradiction(self):
        said = self.said(
            ("90% of step time waiting on the loader", "high", "Increase DataLoader num_workers."),
            ("Dataloader stall + CPU pegged: workers are CPU-bound", "high", "Adding more workers won't help."),
        )
        reading = rivals.read("gpuprof", {"truth": "prep-stall", "said": said})
        assert (reading.symptom, reading.cause, reading.contradicts) == (True, True, True)

    def test_a_loud_verdict_on_a_healthy_shape_is_an_alarm(self):
        loud = self.said(("90% of step time waiting on the loader", "high", ""))
        quiet = self.said(("No major bottlenecks detected", "low", ""))
        assert rivals.read("gpuprof", {"truth": HEALTHY, "said": loud}).alarm
        assert not rivals.read("gpuprof", {"truth": HEALTHY, "said": quiet}).alarm

    def test_a_run_that_failed_says_nothing(self):
        assert rivals.read("gpuprof", {"truth": HEALTHY, "error": "exit code 1"}).said == "exit code 1"

    def test_the_table_compares(self):
        planted = {"case": "prep-stall", "truth": "prep-stall", "level": 0, "seed": 0}
        ours = table.judged([{**planted, **result(diagnosis("prep-stall"))}], CASES)
        theirs = [{**planted, "said": self.said(("INPUT_BOUND", "crit", "Increase workers."))}]
        text = rivals.markdown(ours, {"traceml": theirs})
        assert "| prep-stall | 1/1 | 1 / 0 of 1 |" in text
        assert "| contradictory or harmful advice | 0 | 1 |" in text


class TestFit:
    """What is planted is really spent, and measured where it is spent."""

    def spent(self, **shape: Any) -> tuple[float, dict[str, float]]:
        from benchmarks.faults import fit

        return fit.run(Shape(**{"device_s": 0.001, "steps": 6, "batch_size": 2, **shape}), 0, [])

    def test_after_the_step(self):
        elapsed, spent = self.spent(
            callback_s=0.004,
            hook_cpu_s=0.002,
            logger_s=0.01,
            log_every=2,
            save_every=3,
            save_s=0.02,
            validate_every=3,
            validate_steps=2,
            validate_s=0.01,
        )
        assert spent["forward"] >= 6 * 0.001
        assert spent["callbacks"] >= 6 * 0.006
        assert spent["logging"] >= 3 * 0.01
        assert spent["checkpoint"] >= 2 * 0.02
        assert spent["validation"] >= 4 * 0.01
        assert sum(spent.values()) <= elapsed

    def test_before_it(self):
        _, spent = self.spent(item_cpu_s=0.002, item_wait_s=0.003, slow_every=6, slow_item_s=0.02, setup_s=0.05)
        assert spent["next"] >= 12 * 0.005 + 2 * 0.02
        assert spent["start"] >= 0.05

    def test_with_workers(self):
        _, spent = self.spent(workers=1, tensors=5, epochs=2, worker_init_s=0.1)
        assert spent["next iterators"] > 0
        assert spent["next"] >= 0.1

    def test_memory_is_kept(self):
        _, spent = self.spent(leak_bytes=1000, leak_item_bytes=1000, pause_every=3, pause_s=0.02, iterable=True)
        assert spent["pauses"] >= 2 * 0.02
