"""recompiles: torch.compile compiles the same code again and again."""

from __future__ import annotations

from typing import Any

import pytest

from stallmeter.records import CompilerSample
from stallmeter.records.diagnosis import Severity
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.recompiles import Recompiles
from stallmeter.window import Window

from .windows import START_S, fires, ledger, missing, silent, step, window


def compiled(count: int = 6, each_s: float = 2.0, *, pauses_s: float | None = None, **changes: Any) -> Window:
    """A run of 100 s in which each compilation but the first held up a step."""
    held = count * each_s if pauses_s is None else pauses_s
    steps = [step(i, **changes) for i in range(200)]
    work = {"data_wait": 0.0, "forward": 30.0 + held, "backward": 50.0 - held, "optimizer": 15.0, "start": 1.0}
    sample = CompilerSample(
        time_s=START_S + 50, compilations=count + 1, recompilations=count, seconds=20.0, recompile_s=count * each_s
    )
    return window(*steps, sample, ledger(steps=600, **work))


def test_fires():
    """What compiling again took is lost, where steps were as much longer."""
    found = fires(Recompiles(), compiled())
    assert found.summary.startswith("Code was compiled again 6 times, which took 12.0 s; steps took 32.0 s more than")
    assert (found.time_lost_s, found.severity) == (12.0, Severity.WARNING)
    assert "dynamic=True" in found.advice[0].text
    assert fires(Recompiles(), compiled(15)).severity is Severity.CRITICAL


def test_what_dynamo_does_not_count():
    """Steps that were longer than the compilations say may be so for them, up to a half more."""
    promised = []
    for held_s, most_s in ((12.0, 12.0), (14.0, 14.0), (18.0, 18.0), (32.0, 18.0)):
        made = compiled()
        spent = {"forward": 18.0 + held_s, "backward": 30.0, "optimizer": 51.0 - held_s, "start": 1.0}
        made.append(ledger(steps=600, data_wait=0.0, loop=0.0, **spent))
        advice = fires(Recompiles(), made).advice[0]
        assert advice.predicted_gain_pct == pytest.approx(100 * (12 + most_s) / 2 / (99 - (12 + most_s) / 2))
        assert advice.gain_interval_pct is not None
        low_pct, high_pct = advice.gain_interval_pct
        assert low_pct <= 100 * 12 / (99 - 12)
        assert high_pct >= 100 * most_s / (99 - most_s)
        promised.append(advice.gain_interval_pct)
    assert promised == sorted(promised)
    assert promised[2] == promised[3]


def test_both_are_needed():
    """Compilation that held up nobody, and long steps without compilation, are not this."""
    made = window(*(step(i) for i in range(200)), ledger(start=1.0))
    assert missing(Recompiles(), made) == ("device.compiler.recompilations", "device.compiler.recompile_s")
    made = compiled()
    made.append(ledger(steps=1000))  # as long as median steps
    assert silent(Recompiles(), made)
    assert silent(Recompiles(), compiled(0))


def test_in_most_steps():
    """Then the median step compiles as well, and no step is longer than it for that."""
    made = compiled(360, 0.1, pauses_s=0.0)
    made.append(ledger(steps=600, data_wait=0.0, forward=30.0, backward=30.0, optimizer=39.0, start=1.0, loop=0.0))
    found = fires(Recompiles(), made)
    assert found.time_lost_s == 36.0
    assert found.summary.endswith("there were 600 steps, so it is in most of them.")
    first = found.advice[0]
    assert first.predicted_gain_pct == pytest.approx(100 * 36 / (99 - 36), rel=0.02)


@pytest.mark.parametrize(("count", "each_s"), [(2, 10.0), (10, 0.4), (3, 0.3)])
def test_thresholds(count, each_s):
    """Twice is usual, and little time is little."""
    assert silent(Recompiles(), compiled(count, each_s))


def test_a_smaller_last_batch():
    """Then dropping it is the first thing to do."""
    made = compiled()
    for i in range(200, 205):
        made.append(step(i, samples=7))
    assert "drop_last" in fires(Recompiles(), made).advice[0].text


def test_it_explains_the_long_first_steps():
    """Where most of the start is compilation of the same code, that is the cause."""
    first = [step(i, total_s=8.1, forward_s=8.03) for i in range(5)]
    spent = {"start": 1.0, "warmup": 40.0, "data_wait": 0.0, "forward": 6.0, "backward": 10.0, "optimizer": 3.0}
    sample = CompilerSample(time_s=START_S, compilations=5, recompilations=4, seconds=40.0, recompile_s=30.0)
    made = window(*first, *(step(i) for i in range(5, 200)), sample, ledger(wall_s=61.0, steps=200, **spent, loop=1.0))
    verdict = evaluate(ALL_RULES, made)
    assert verdict.primary is not None
    assert verdict.primary.rule == "recompiles"
    assert "slow-start" not in {found.rule for found in verdict.diagnoses}


def test_abstains():
    """Without torch.compile there is nothing to judge."""
    assert missing(Recompiles(), Window())[:2] == ("device.compiler.recompilations", "device.compiler.recompile_s")


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(Recompiles(warn_pct=20.0), compiled())
