"""Today's rules on recordings of a real GPU: what was planted is named, with its place."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from stallmeter.records.diagnosis import Diagnosis, Severity, Verdict
from stallmeter.report.model import read_history
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.window import Window

RECORDINGS = Path(__file__).parent / "data" / "h200"

PLANTED = {
    "bench-healthy": ("compute-bound", None),
    "bench-slow-network": ("fetch-stall", None),
    "bench-pageable": ("unpinned-memory", None),
    "bench-post-processing": ("slow-callback", "PostProcessing.on_train_batch_end"),
    "bench-inefficient-layer": ("compute-bound", None),
    "leaf-classify": ("no-workers", "LeafAugment.crop"),
    "harbour-detect": ("slow-function", "match_image"),
    "street-segment": ("slow-function", "ConfusionMeter.update"),
    "clip-recognise": ("launch-bound", "Residual.forward"),
    "audio-keywords": ("host-sync", "SpecAugment._span"),
    "dqn-navigation": ("input-bound", "ReplayBuffer.sample"),
    "load-forecast": ("worker-startup", "LoadWindows._read_station"),
}
"""Recording to primary cause, and the function that is its place where one is named."""

WON = {
    "harbour-detect": 3.44,
    "street-segment": 1.60,
    "audio-keywords": 3.51,
    "dqn-navigation": 5.04,
    "load-forecast": 3.21,
}
"""By how much training got faster without what was planted, where the interval of the first advice holds that."""


@pytest.fixture
def window(request: pytest.FixtureRequest, tmp_path: Path) -> Window:
    packed = RECORDINGS / f"{request.param}.jsonl.xz"
    (tmp_path / "rank0.0000.jsonl").write_bytes(lzma.decompress(packed.read_bytes()))
    return read_history(tmp_path).window


def judged(window: Window) -> tuple[Verdict, Diagnosis]:
    verdict = evaluate(ALL_RULES, window)
    assert verdict.primary is not None
    return verdict, verdict.primary


@pytest.mark.parametrize(("window", "expected"), PLANTED.items(), indirect=["window"], ids=PLANTED)
def test_what_was_planted_is_named(window: Window, expected: tuple[str, str | None]) -> None:
    _, primary = judged(window)
    rule, function = expected
    assert primary.rule == rule
    if function is not None:
        assert primary.location is not None
        assert primary.location.function == function


@pytest.mark.parametrize(("window", "won"), WON.items(), indirect=["window"], ids=WON)
def test_what_was_won_lies_in_the_interval(window: Window, won: float) -> None:
    advice = judged(window)[1].advice[0]
    assert advice.gain_interval_pct is not None
    least, most = advice.gain_interval_pct
    assert 1.0 + least / 100.0 <= won + 0.02
    assert won <= 1.0 + most / 100.0


@pytest.mark.parametrize("window", ["bench-healthy", "bench-inefficient-layer"], indirect=True)
def test_a_busy_gpu_is_warned_of_nothing(window: Window) -> None:
    verdict, _ = judged(window)
    assert all(found.severity is Severity.INFO for found in verdict.diagnoses)


@pytest.mark.parametrize("window", ["bench-small-batch"], indirect=True)
def test_two_seconds_tell_too_little(window: Window) -> None:
    """The device follows the host, and how busy it is was asked once or twice: nobody is said to set the pace."""
    assert "compute-bound" not in {found.rule for found in evaluate(ALL_RULES, window).diagnoses}
    assert window.device.queued_share is not None
    assert window.device.queued_share < 0.1


@pytest.mark.parametrize("window", ["bench-slow-network"], indirect=True)
def test_a_device_behind_its_host_is_not_launch_bound(window: Window) -> None:
    """It caught up for most of each wait, and needs two thirds of its step's time to do so."""
    assert window.device.caught_up_share is not None
    assert window.device.queued_share is not None
    assert window.device.caught_up_share > 0.8
    assert window.device.queued_share > 0.4
    assert "launch-bound" not in {found.rule for found in evaluate(ALL_RULES, window).diagnoses}
