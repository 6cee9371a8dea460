"""The benchmark of the recommended number of workers draws what it says, and judges as it says."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))
pytest.importorskip("PIL")

from benchmarks.faults.statistic import wilson_pct as wilson
from benchmarks.workers import __main__ as command
from benchmarks.workers import measure as measuring
from benchmarks.workers.draws import MECHANISMS, draw, maker
from benchmarks.workers.judging import Judgement, between, judge, of_best, sentences, summary, table
from benchmarks.workers.loaders import Work
from benchmarks.workers.measure import Truth, forked, measure, record, sweep

from stallmeter.recording import find_recording


def test_draws_are_the_same_each_time_and_cover_all_mechanisms_with_odd_and_even_seeds() -> None:
    for parity in (0, 1):
        seeds = range(parity, 96, 2)
        draws = [draw(seed) for seed in seeds]
        assert draws == [draw(seed) for seed in seeds]
        assert len(draws) >= 40
        assert {d.mechanism for d in draws} == set(MECHANISMS)
        assert {0, 1, 2, 12} <= {d.start for d in draws}
        assert {d.step for d in draws} == {"device", "cpu", "cpu-threads"}
        assert all(d.start in d.numbers and d.batch_work_s < 0.2 for d in draws)


def truth(**rounds: tuple[float, ...]) -> dict[int, Truth]:
    return {int(name[1:]): Truth(times, 0.0) for name, times in rounds.items()}


def test_a_share_of_the_best_compares_rounds_and_does_not_flatter_the_best() -> None:
    even = truth(w1=(0.02, 0.04, 0.02), w2=(0.01, 0.02, 0.01))
    assert of_best(even, even[1].rounds_s) == pytest.approx(0.5)
    assert of_best(even, even[2].rounds_s) == 1.0
    lucky = truth(w1=(0.01, 0.01, 0.01), w2=(0.005, 0.02, 0.02))
    assert of_best(lucky, lucky[1].rounds_s) == 1.0


@pytest.mark.parametrize(("again", "expected"), [(False, (0.02, 0.01, 0.02)), (True, (0.0, 0.01, 0.02))])
def test_a_kept_sweep_gets_the_rounds_that_it_is_short_of(
    again: bool, expected: tuple[float, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(_: object, __: object, numbers: Sequence[int], *, rounds_: Sequence[int], seconds: float) -> object:
        return {w: Truth(tuple(number / 100.0 for number in rounds_), 0.2) for w in numbers}, []

    monkeypatch.setattr(command, "sweep", measured)
    one = replace(draw(4), start=1)
    kept = tmp_path / one.name / "sweep.json"
    kept.parent.mkdir()
    before = {w: {"rounds_s": [0.02], "others_cpus": 0.1} for w in (1, 3)}
    kept.write_text(json.dumps({"recorded_step_s": 0.02, "recorded_others_cpus": 0.0, "sweep": before}))
    command.measure_draw(one, Namespace(folder=tmp_path, rounds=3, seconds=1.0), again=again)
    after = command.truth_of(json.loads(kept.read_text()))
    assert after[1] == Truth(expected, 0.2)
    assert again or set(after) == {1, 3}


def test_a_number_that_was_not_measured_lies_between_its_neighbours() -> None:
    measured = truth(w1=(0.04,), w4=(0.01,))
    assert between(measured, 4) == (0.01,)
    assert between(measured, 9) == (0.01,)
    assert between(measured, 2)[0] == pytest.approx(0.04 ** (2 / 3) * 0.01 ** (1 / 3))


def test_wilson() -> None:
    assert wilson(0, 0) == (0.0, 100.0)
    low, high = wilson(40, 40)
    assert (round(low, 1), high) == (91.2, pytest.approx(100.0))
    low, high = wilson(20, 40)
    assert low == pytest.approx(100 - high)


def test_what_is_reported() -> None:
    good = Judgement(
        name="001-python",
        start=2,
        recommended=3,
        best=4,
        of_best_pct=98.0,
        start_of_best_pct=70.0,
        error_pct=-4.0,
        errors_pct={1: 2.0, 2: -6.0},
        limited_by="compute",
        primary="too-few-workers",
        reason="",
        others_cpus=0.1,
        noise_pct=2.0,
    )
    missed = replace(good, name="003-lock", of_best_pct=80.0, error_pct=None, errors_pct={}, others_cpus=1.0)
    found = summary([good, missed])
    assert (found["reached"], found["draws"], found["misses"]) == (1, 2, ["003-lock"])
    assert (found["median_error_pct"], found["predicted"], found["median_error_all_pct"]) == (4.0, 1, 4.0)
    assert (found["quiet"], found["quiet_reached"]) == (1, 1)
    assert "Misses: 003-lock" in sentences(found)
    assert table([good, missed]).count("\n") == 3


@pytest.mark.long
def test_a_draw_is_recorded_swept_and_judged(tmp_path: Path) -> None:
    """For real, on a loader that waits: two workers are twice as fast as one."""
    one = replace(draw(5), work=Work(blocked_s=0.004), batch_size=4, start=1, step_s=0.002, floats=8, step="device")
    with ExitStack() as stack:
        make = maker(one, tmp_path, stack)
        forked(lambda: record(one, make, tmp_path / "run", 1.2))
        found, failed = sweep(one, make, (1, 3), rounds_=range(1), seconds=0.2)
    assert not failed
    assert found[1].step_s > 1.5 * found[3].step_s
    judged = judge(one.name, one.start, find_recording(tmp_path / "run"), found)
    assert judged.best == 3
    assert judged.start_of_best_pct < 75
    assert set(judged.errors_pct) == {1, 3}


def test_what_fails_in_a_fork_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="ended with status"):
        forked(lambda: 1 / 0)
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_whole_epochs_are_measured_with_their_start() -> None:
    short = replace(draw(31), work=Work(), epoch_batches=5, batch_size=2, step="device", step_s=0.002, start=0)
    with ExitStack() as stack:
        make = maker(short, Path(), stack)
        began = time.monotonic()
        assert measure(short, make, 0, 0.05) >= 0.002
        assert time.monotonic() - began >= 4 * 5 * 0.002


def test_the_least_disturbed_of_some_tries_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = iter([(0.03, 1.0), (0.02, 0.5), (0.025, 0.8), (0.01, 0.0)])
    monkeypatch.setattr(measuring, "forked", lambda work: next(tries))
    assert measuring._undisturbed(lambda: None) == (0.02, 0.5)
    assert measuring._undisturbed(lambda: None) == (0.01, 0.0)


@pytest.mark.long
def test_a_loop_of_several_threads_beside_a_worker() -> None:
    case = ["--seconds", "0.5", "--case", "tiny", "1", "1", "2"]
    command = [sys.executable, "-m", "benchmarks.workers.threads", *case]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    said = json.loads(ran.stdout)
    assert said["step_ms"] > said["wait_ms"] > 0, ran.stderr
