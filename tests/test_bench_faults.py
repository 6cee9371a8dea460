"""The fault benchmark draws, measures and judges as it says, and plants what it says."""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.faults import host, outside, rivals, table, truth
from benchmarks.faults.__main__ import document, parse, rejudged, seeds, wanted
from benchmarks.faults.cause import HEALTHY, Cause, Lever, cause_of, gone
from benchmarks.faults.collect import Collector, environment
from benchmarks.faults.draw import draw
from benchmarks.faults.families import FAMILIES
from benchmarks.faults.judge import FEWER_WORKERS, MORE_WORKERS, NOTHING, advises, contradictions, judge
from benchmarks.faults.kept import Kept, load
from benchmarks.faults.program import KINDS, LIBRARIES, LOOPS, SHARDED, Program, Work, program_of, sized, step_s
from benchmarks.faults.statistic import binned, wilson_pct
from benchmarks.faults.truth import Truth, gain_pct, saving

DRAWS = [draw(seed) for seed in range(240)]


def diagnosis(rule: str, *advice: str, severity: str = "warning", **more: Any) -> dict[str, Any]:
    return {
        "rule": rule,
        "severity": severity,
        "title": rule,
        "summary": f"it is {rule}",
        "confidence": 0.8,
        "culprit": None,
        "evidence": [],
        "advice": [{"text": text, "predicted_gain_pct": None, "gain_interval_pct": None} for text in advice],
        **more,
    }


def verdict(*diagnoses: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"primary": diagnoses[0] if diagnoses else None, "diagnoses": list(diagnoses), **more}


def times(step_s: float, count: int = 100, first_s: float = 1.0) -> dict[str, Any]:
    ends = [first_s + step_s * i for i in range(count)]
    return {"ends": ends, "last": ends[-1]}


class TestDraw:
    def test_a_seed_draws_the_same_every_time(self):
        assert [draw(seed) for seed in range(20)] == DRAWS[:20]
        assert DRAWS[0].described != DRAWS[2].described

    @pytest.mark.parametrize("half", [0, 1])
    def test_each_half_sees_every_family(self, half):
        assert {d.family for d in DRAWS[half::2]} == set(FAMILIES)

    def test_libraries_loops_and_kinds_of_work_are_all_there(self):
        assert {d.program.library for d in DRAWS} == set(LIBRARIES)
        assert {d.program.loop for d in DRAWS} == set(LOOPS)
        assert {w.kind for d in DRAWS for w in d.program.work} == set(KINDS)

    def test_a_quarter_has_nothing_planted_and_some_hosts_are_busy(self):
        healthy = [d for d in DRAWS if all(c.extra for c in d.causes)]
        assert len(healthy) >= 0.25 * len(DRAWS)
        assert 0.1 * len(DRAWS) <= sum(d.busy for d in DRAWS) <= 0.3 * len(DRAWS)
        assert sum(len([c for c in d.causes if not c.extra]) == 2 for d in DRAWS) >= 10

    def test_every_lever_changes_its_program(self):
        for one in DRAWS:
            for lever in (lv for c in one.causes for lv in c.levers):
                assert lever.rules
                for change in lever.changes:
                    assert one.program.changed(change) != one.program, one.described

    def test_a_run_has_as_many_steps_as_fit(self):
        for one in DRAWS:
            program = one.program
            assert 4.0 <= step_s(program) * program.steps * program.epochs <= 60.0, one.described

    def test_an_own_dev_shm_holds_the_queue(self):
        for one in (d for d in DRAWS if d.family == "shm-near-limit"):
            program = one.program
            batch = 4 * program.floats * program.batch_size
            assert (2 * program.workers + 1) * batch <= program.shm_bytes

    def test_combined_loaders_are_lightnings(self):
        assert {d.program.loop for d in DRAWS if d.program.library == "combined"} == {"lightning"}

    def test_only_idle_workers_lack_shards(self):
        few = {d.family for d in DRAWS if d.program.library in SHARDED and d.program.shards < d.program.workers}
        assert few == {"idle-workers"}

    def test_it_survives_json(self):
        for one in DRAWS:
            plain = json.loads(json.dumps(one.to_dict()))
            assert program_of(plain["program"]) == one.program
            for cause, fields in zip(one.causes, plain["causes"], strict=True):
                assert [lv.name for lv in cause_of(fields).levers] == [lv.name for lv in cause.levers]

    def test_what_a_step_takes(self):
        slow = Program(device_s=0.01, batch_size=4, work=(Work(kind="sleep", amount_s=0.01),))
        assert step_s(slow) == pytest.approx(0.053)
        assert step_s(slow.changed({"workers": 2})) == pytest.approx(0.02)
        assert step_s(slow.changed({"workers": 8, "work": (Work(kind="lock", amount_s=0.01),)})) == pytest.approx(0.04)
        assert sized(slow, 5.3).steps == 100


class TestGain:
    def test_steps_are_compared_over_the_same_ones(self):
        assert gain_pct(times(0.02), times(0.01, 40), whole=False, from_start=False) == pytest.approx(100.0)

    def test_what_precedes_the_first_step_counts_only_where_it_is_the_cause(self):
        slow, quick = times(0.01, first_s=3.0), times(0.01, first_s=1.0)
        assert gain_pct(slow, quick, whole=True, from_start=False) == pytest.approx(0.0)
        assert gain_pct(slow, quick, whole=True, from_start=True) == pytest.approx(100 * (3.99 / 1.99 - 1))

    def test_a_validation_after_the_last_step_counts(self):
        slow = {**times(0.01), "last": 1.99 + 0.99}
        assert gain_pct(slow, times(0.01), whole=True, from_start=False) == pytest.approx(100.0)

    def test_too_few_steps_say_nothing(self):
        assert gain_pct(times(0.02), times(0.01, 5), whole=False, from_start=False) is None

    def test_a_saving_is_a_part_of_the_time(self):
        assert saving(100.0) == 0.5
        assert saving(0.0) == 0.0


def loader(more: tuple[str, ...] = ("too-few-workers",), items: str = "prep-stall") -> Cause:
    return Cause(
        rule=more[0],
        mechanism="json",
        levers=(
            Lever(name="more", rules=more, changes=({"workers": 2}, {"workers": 3})),
            Lever(name="items", rules=(items,), changes=({"work": ()},), setting=False),
        ),
    )


CALLBACK = gone("slow-callback", "sleep", {"callback_s": 0.0})
LOGGER = gone("slow-logging", "every 1", {"logger_s": 0.0})
LEAK = Cause(rule="host-memory-growth", mechanism="leak_bytes")


class TestTruth:
    def test_the_largest_gain_is_the_cause(self):
        found = truth.of([CALLBACK, LOGGER], {"no slow-callback": [20.0], "no slow-logging": [60.0]})
        assert (found.label, found.right) == ("slow-logging", {"slow-logging"})
        assert found.allowed == {"slow-callback", "slow-logging"}

    def test_two_that_gain_about_the_same_are_both_right(self):
        found = truth.of([CALLBACK, LOGGER], {"no slow-callback": [58.0], "no slow-logging": [60.0]})
        assert found.right == {"slow-callback", "slow-logging"}

    def test_what_gains_less_than_five_percent_is_healthy(self):
        found = truth.of([CALLBACK], {"no slow-callback": [3.0]})
        assert (found.label, found.right, found.allowed) == (HEALTHY, {HEALTHY}, frozenset())

    @pytest.mark.parametrize(("gain", "label"), [(4.5, HEALTHY), (5.5, "slow-callback")])
    def test_near_five_percent_both_are_right(self, gain, label):
        found = truth.of([CALLBACK], {"no slow-callback": [gain]})
        assert (found.label, found.right) == (label, {HEALTHY, "slow-callback"})

    @pytest.mark.parametrize(
        ("more", "right"),
        [
            ([95.0, 90.0], {"too-few-workers"}),
            ([40.0, 45.0], {"too-few-workers", "prep-stall"}),
            ([2.0, -5.0], {"prep-stall"}),
        ],
    )
    def test_a_setting_comes_before_work_on_the_data(self, more, right):
        assert truth.of([loader()], {"more": more, "items": [100.0]}).right == right

    def test_one_worker_that_waits_has_two_names(self):
        waits = loader(("too-few-workers", "fetch-stall"), "fetch-stall")
        assert truth.of([waits], {"more": [90.0], "items": [100.0]}).right == {"too-few-workers", "fetch-stall"}
        shared = truth.of([waits], {"more": [1.0], "items": [100.0]})
        assert (shared.right, shared.label) == ({"fetch-stall"}, "fetch-stall")

    def test_a_setting_that_was_left_out_because_items_cost_nothing(self):
        assert truth.of([loader()], {"items": [1.0]}).unclear == ""

    def test_what_costs_no_time_keeps_its_declared_truth(self):
        assert truth.of([LEAK], {}).right == {"host-memory-growth"}
        assert truth.of([LEAK], {}, 2.0).unclear == ""
        assert "only computing is 30 % faster" in truth.of([LEAK], {}, 30.0).unclear
        beside = truth.of([LEAK, CALLBACK], {"no slow-callback": [50.0]})
        assert (beside.right, beside.allowed) == ({"slow-callback"}, {"slow-callback", "host-memory-growth"})

    def test_what_may_cost_time_is_measured_and_stays_true_where_it_costs_none(self):
        none = Lever(name="no leak", rules=("host-memory-growth", "slow-function"), changes=({},), setting=False)
        leak = dataclasses.replace(LEAK, levers=(none,), always=True)
        assert truth.of([leak], {"no leak": [1.0]}).right == {"host-memory-growth"}
        assert "only computing is 30 % faster" in truth.of([leak], {"no leak": [1.0]}, 30.0).unclear
        costs = truth.of([leak], {"no leak": [40.0]}, 60.0)
        assert (costs.right, costs.unclear) == ({"host-memory-growth", "slow-function"}, "")
        beside = truth.of([leak, CALLBACK], {"no leak": [40.0], "no slow-callback": [10.0]})
        assert (beside.right, beside.label) == ({"host-memory-growth", "slow-function"}, "host-memory-growth")
        less = truth.of([leak, CALLBACK], {"no leak": [10.0], "no slow-callback": [40.0]})
        assert (less.right, "host-memory-growth" in less.allowed) == ({"slow-callback"}, True)

    def test_a_healthy_run_that_computing_alone_would_beat_is_not_judged(self):
        assert "nothing was planted" in truth.of([], {}, 30.0).unclear
        assert truth.of([], {}, 3.0).right == {HEALTHY}

    def test_a_run_that_could_not_be_repeated_is_not_judged(self):
        assert truth.of([CALLBACK], {"no slow-callback": [None]}).unclear


HEALTHY_TRUTH = Truth(right=frozenset({HEALTHY}), label=HEALTHY)
PREP = Truth(right=frozenset({"prep-stall"}), label="prep-stall", allowed=frozenset({"prep-stall", "slow-logging"}))


class TestJudge:
    def test_a_right_primary(self):
        judgement = judge(PREP, verdict(diagnosis("prep-stall"), diagnosis("slow-logging")))
        assert (judgement.right, judgement.unexpected) == (True, ())

    def test_another_primary_is_wrong_even_when_the_right_one_is_second(self):
        assert not judge(PREP, verdict(diagnosis("slow-logging"), diagnosis("prep-stall"))).right
        assert judge(PREP, verdict()).label == NOTHING

    def test_a_warning_on_a_healthy_run_is_a_false_alarm(self):
        assert judge(HEALTHY_TRUTH, verdict(diagnosis("compute-bound", severity="info"))).right
        loud = judge(HEALTHY_TRUTH, verdict(diagnosis("prep-stall")))
        assert (loud.right, loud.false_alarms) == (False, ("prep-stall",))

    def test_what_was_not_planted_is_unexpected(self):
        assert judge(PREP, verdict(diagnosis("prep-stall"), diagnosis("step-outliers"))).unexpected == (
            "step-outliers",
        )

    def test_near_five_percent_a_quiet_verdict_is_right_too(self):
        unsure = Truth(right=frozenset({HEALTHY, "slow-callback"}), label=HEALTHY, allowed=frozenset({"slow-callback"}))
        assert judge(unsure, verdict()).right
        assert judge(unsure, verdict(diagnosis("slow-callback"))).right
        assert not judge(unsure, verdict(diagnosis("prep-stall"))).right

    def test_two_of_the_input_family_contradict_each_other(self):
        assert list(contradictions([diagnosis("prep-stall"), diagnosis("fetch-stall")])) == ["fetch-stall + prep-stall"]

    def test_advice_against_a_diagnosis_contradicts_it(self):
        pair = [diagnosis("prep-stall"), diagnosis("slow-logging", "Use more workers.")]
        assert len(list(contradictions(pair))) == 1
        assert list(contradictions([diagnosis("no-workers")], {"current": 4, "recommended": 2}))

    def test_a_negation_is_no_advice(self):
        assert advises(diagnosis("x", "Add more workers."), MORE_WORKERS)
        assert not advises(diagnosis("x", "More workers on the same CPUs do not help."), MORE_WORKERS)
        assert advises(diagnosis("x", "Set num_workers=0."), FEWER_WORKERS)


def kept(truth_gain: float = 60.0, *said: dict[str, Any], seed: int = 3, **more: Any) -> Kept:
    """Return a draw of a slow callback that was removed."""
    one = dataclasses.replace(DRAWS[seed], program=Program(callback_s=0.01), causes=(CALLBACK,), busy=False)
    base = times(0.01 * (1 + truth_gain / 100))
    result = {
        "seed": seed,
        "family": "slow-callback",
        "draw": json.loads(json.dumps(one.to_dict())),
        "described": one.described,
        "elapsed_s": 12.0,
        "disturbance_cpus": 0.0,
        "cured": [{"lever": "no slow-callback", "change": {"callback_s": 0.0}, **times(0.01)}],
        **base,
        **verdict(*said),
        **more,
    }
    return Kept.of(result)


def promising(gain: float, interval: tuple[float, float] | None) -> dict[str, Any]:
    advice = [{"text": "Do it less often.", "predicted_gain_pct": gain, "gain_interval_pct": interval}]
    return {**diagnosis("slow-callback"), "advice": advice}


class TestKept:
    def test_truth_and_judgement_come_from_the_measured_times(self):
        one = kept(60.0, diagnosis("slow-callback"))
        assert one.truth.gains == {"no slow-callback": pytest.approx(60.0)}
        assert (one.judgement.right, one.failed, one.disturbed) == (True, "", False)
        assert not kept(60.0).judgement.right
        assert kept(1.0).judgement.right

    def test_another_verdict_on_the_same_run(self):
        assert kept(60.0).saying(verdict(diagnosis("slow-callback"))).judgement.right

    def test_a_promised_gain_is_held_against_the_measured_one(self):
        gain = kept(60.0, promising(50.0, (40.0, 70.0))).gain
        assert gain is not None
        assert (gain.error_pct, gain.inside) == (pytest.approx(6.25), True)
        assert kept(60.0, promising(50.0, None)).gain.inside is None
        assert kept(60.0, diagnosis("slow-callback")).gain is None

    def test_a_number_of_workers_is_held_against_the_run_with_that_number(self):
        one = dataclasses.replace(DRAWS[3], program=Program(workers=1), causes=(loader(),))
        promise = {**diagnosis("too-few-workers"), "advice": [
            {"text": "Set num_workers=3.", "predicted_gain_pct": 80.0, "gain_interval_pct": None}
        ]}  # fmt: skip
        cured = [
            {"lever": "items", "change": {"work": None}, **times(0.01)},
            {"lever": "more", "change": {"workers": 2}, **times(0.0125)},
            {"lever": "more", "change": {"workers": 3}, **times(0.011)},
        ]
        number = {"current": 1, "recommended": 2}
        found = kept(100.0, promise, draw=json.loads(json.dumps(one.to_dict())), cured=cured, num_workers=number)
        assert found.worker_gains == {2: pytest.approx(60.0), 3: pytest.approx(81.8, abs=0.1)}
        assert found.gain.measured_pct == pytest.approx(81.8, abs=0.1)
        assert found.workers_of_best_pct == pytest.approx(88.0)

    def test_kept_in_a_folder(self, tmp_path):
        for seed in (3, 5):
            (tmp_path / f"{seed:05d}").mkdir()
            (tmp_path / f"{seed:05d}" / "result.json").write_text(json.dumps(dict(kept(seed=seed).result)))
        assert [k.seed for k in load(tmp_path, range(10))] == [3, 5]


class TestTables:
    def found(self) -> list[Kept]:
        return [
            kept(60.0, promising(50.0, (40.0, 70.0))),
            kept(60.0, diagnosis("prep-stall", confidence=0.55)),
            kept(1.0),
            kept(60.0, error="exit code 1: no memory"),
        ]

    def test_figures(self):
        figures = table.summary(self.found())
        assert figures["right"]["all"] == (2, 3)
        assert figures["right"]["healthy"] == (1, 1)
        assert (figures["failed"], figures["unexpected_warnings"]) == (1, 0)

    def test_the_whole_account(self):
        text = table.markdown(self.found())
        assert "| right primary, all | 2 of 3 (66.7 %, 21 to 94) |" in text
        assert "| slow-callback | 1/2 | 1 | 1 | · |" in text
        assert "| 0.0 to 0.6 | 55 % | 0 of 1" in text
        assert "| slow-callback | 1 | 6.2 % | 1 of 1" in text
        assert "- WRONG: prep-stall (55 %), right would be slow-callback [no slow-callback +60 %]" in text
        assert "no memory" in text

    def test_wilson(self):
        assert wilson_pct(95, 100) == (pytest.approx(88.8, abs=0.05), pytest.approx(97.8, abs=0.05))
        assert wilson_pct(0, 0) == (0.0, 100.0)
        assert wilson_pct(10, 10)[1] == 100.0

    def test_bins(self):
        [(low, high, members)] = binned([(0.85, True), (0.8, False)])
        assert (low, high, len(members)) == (0.8, 0.9, 2)

    def test_as_data(self):
        assert json.loads(json.dumps(document(self.found())))["draws"][0]["truth"] == "slow-callback"


class TestCommand:
    def test_seeds(self):
        assert list(seeds("3-5")) == [3, 4, 5]
        assert list(seeds("7")) == [7]
        assert wanted(parse(["--seeds", "0-9", "--odd"])) == [1, 3, 5, 7, 9]
        assert wanted(parse(["--seeds", "0-3", "--family", DRAWS[2].family])) == [2]

    def test_the_environment_is_nobodys(self):
        kept_ones = environment({"PATH": "/bin", "MLFLOW_TRACKING_URI": "x", "CUDA_VISIBLE_DEVICES": "0"})
        assert kept_ones["PATH"] == "/bin"
        assert "MLFLOW_TRACKING_URI" not in kept_ones
        assert kept_ones["CUDA_VISIBLE_DEVICES"] == ""


class TestHost:
    def test_busy_time_of_some_cpus(self):
        text = "cpu 9 9 9 9\ncpu0 100 0 50 1000 5 0 0 0\ncpu1 1 1 1 1 1 1 1\n"
        assert host.busy_s([0], text) == pytest.approx(150 / os.sysconf("SC_CLK_TCK"))

    def test_the_cpu_time_of_a_process(self):
        assert host.cpu_s(os.getpid()) > 0
        assert host.cpu_s(2**22 + 1) == 0.0


class TestOutside:
    def test_a_throttle_lets_pass_what_it_should(self):
        throttle = outside.Throttle(1_000_000)
        started = time.monotonic()
        for _ in range(10):
            throttle.take(10_000)
        assert time.monotonic() - started >= 0.09

    def test_neighbours_and_store_end_with_the_block(self):
        cpus = host.usable_cpus(2)
        with outside.neighbours(1.4, cpus) as pids, outside.opened_store(1e9, cpus) as (store, port):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/1?bytes=50000&wait=0.001")
            assert len(connection.getresponse().read()) == 50_000
            connection.close()
        assert len(pids) == 2
        assert not any(Path(f"/proc/{pid}").exists() for pid in [*pids, store])


class TestRivals:
    def said(self, *sentences: tuple[str, str, str]) -> dict[str, Any]:
        return {
            "said": [
                {"name": name, "severity": severity, "text": name, "advice": [{"text": advice}], "primary": True}
                for name, severity, advice in sentences
            ]
        }

    def of(self, rule: str) -> Truth:
        return Truth(right=frozenset({rule}), label=rule)

    def test_the_right_place_is_a_symptom_and_the_cure_a_cause(self):
        said = self.said(("INPUT_BOUND", "crit", "Increase workers, prefetch, or storage throughput."))
        few = rivals.read("traceml", self.of("too-few-workers"), said)
        startup = rivals.read("traceml", self.of("worker-startup"), said)
        assert (few.symptom, few.cause, few.contradicts) == (True, True, False)
        assert (startup.symptom, startup.cause, startup.contradicts) == (True, False, True)

    def test_both_ways_at_once_is_a_contradiction(self):
        said = self.said(
            ("90% of step time waiting on the loader", "high", "Increase DataLoader num_workers."),
            ("Dataloader stall + CPU pegged: workers are CPU-bound", "high", "Adding more workers won't help."),
        )
        reading = rivals.read("gpuprof", self.of("prep-stall"), said)
        assert (reading.symptom, reading.cause, reading.contradicts) == (True, True, True)

    def test_a_loud_verdict_on_a_healthy_run_is_an_alarm(self):
        loud = self.said(("90% of step time waiting on the loader", "high", ""))
        quiet = self.said(("No major bottlenecks detected", "low", ""))
        assert rivals.read("gpuprof", HEALTHY_TRUTH, loud).alarm
        assert not rivals.read("gpuprof", HEALTHY_TRUTH, quiet).alarm

    def test_a_run_that_failed_says_nothing(self):
        assert rivals.read("gpuprof", HEALTHY_TRUTH, {"error": "exit code 1"}).said == "exit code 1"

    def test_the_table_compares(self):
        mine = kept(60.0, diagnosis("slow-callback"))
        text = rivals.markdown([mine], {"traceml": {3: self.said(("RESIDUAL_HEAVY", "crit", ""))}})
        assert "| slow-callback | 1/1 | 1 / 0 of 1 |" in text
        assert "| contradictory or harmful advice | 0 | 0 |" in text


@pytest.mark.bench
class TestRuns:
    """Real runs, as the benchmark makes them."""

    @pytest.fixture(scope="class")
    def collector(self, tmp_path_factory):
        with Collector(folder=tmp_path_factory.mktemp("faults"), patience_s=0.0, retries=0).ready() as collector:
            yield collector

    def test_a_cause_is_measured_and_the_verdict_judged(self, collector):
        program = sized(Program(device_s=0.01, callback_s=0.02, persistent=True), 4.0)
        one = dataclasses.replace(DRAWS[3], program=program, causes=(CALLBACK,), busy=False, seconds=4.0)
        found = Kept.of(collector.collect(one))
        assert not found.failed
        assert found.truth.label == "slow-callback"
        [read] = load(collector.folder, [one.seed])
        assert read.truth == found.truth
        [again] = rejudged(collector.folder, [read])
        assert again.judgement == found.judgement

    @pytest.mark.parametrize("library", LIBRARIES)
    def test_each_library_trains(self, library, collector):
        program = Program(
            library=library, workers=2, steps=20, batch_size=4, device_s=0.002,
            work=(Work(kind="json", amount_s=0.0005),),
        )  # fmt: skip
        found = collector.once(program, 1)
        assert len(found["ends"]) == 20, found


def test_the_start_of_workers_has_seconds_of_its_own():
    def warns(*rules: str) -> list[str]:
        return list(contradictions([{"rule": rule, "advice": []} for rule in rules]))

    assert warns("worker-startup", "prep-stall") == []
    assert warns("too-few-workers", "prep-stall") == ["prep-stall + too-few-workers"]
