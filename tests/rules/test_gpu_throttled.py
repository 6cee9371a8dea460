"""gpu-throttled: something holds the GPU's clocks down."""

from __future__ import annotations

import pytest

from stallmeter.records.diagnosis import Severity
from stallmeter.rules.gpu_throttled import GpuThrottled
from stallmeter.window import Window

from .windows import fires, gpus, missing, run, silent


def throttled(hot: int, *reasons: str, slow_mhz: float | None = 1000.0, fast_mhz: float | None = 1400.0) -> Window:
    """A run with 100 samples of a GPU, of which the last ``hot`` have these reasons and lower clocks."""
    return run(
        *gpus(
            100,
            lambda i: {
                "throttle_reasons": reasons if i >= 100 - hot else (),
                "sm_clock_mhz": slow_mhz if i >= 100 - hot else fast_mhz,
                "temperature_c": 60.0 + 0.3 * i,
                "temperature_limit_c": 87.0 if i == 0 else None,
            },
        )
    )


@pytest.mark.parametrize("reason", ["sw_thermal", "hw_thermal"])
def test_heat(reason):
    """The share of hot samples, the clocks against those without heat, and what that cost of the steps' own time."""
    found = fires(GpuThrottled(), throttled(20, reason))
    assert found.summary == "GPU 0 was held down by heat 20 % of the time, at clocks 29 % lower; it reached 90 °C."
    assert found.severity is Severity.WARNING
    assert found.time_lost_s == pytest.approx(0.2 * (1 - 1000 / 1400) * 95)  # forward, backward and optimizer: 95 s
    assert "fans" in found.advice[0].text
    assert (found.evidence[-1].value, found.evidence[-1].threshold) == (pytest.approx(89.7), 87.0)


@pytest.mark.parametrize("reason", ["power_brake", "hw_slowdown"])
def test_hardware(reason):
    """The board protects itself: not the heat, and not a setting."""
    found = fires(GpuThrottled(), throttled(20, reason))
    assert found.title == "The board's protection holds the GPU's clocks down"
    assert "power supply" in found.advice[0].text


def test_a_hardware_slowdown_by_heat_is_heat():
    """NVML sets both reasons then; the sample counts once."""
    found = fires(GpuThrottled(), throttled(20, "hw_slowdown", "hw_thermal"))
    assert found.title == "Heat holds the GPU's clocks down"
    assert [e.value for e in found.evidence[:2]] == [20.0, 0.0]


def test_the_power_limit_alone_is_information():
    """A fully loaded GPU usually runs at it. No time is claimed."""
    found = fires(GpuThrottled(), throttled(60, "power_cap"))
    assert found.summary == "GPU 0 was held down by the power limit 60 % of the time."
    assert (found.severity, found.time_lost_s) == (Severity.INFO, 0.0)
    assert silent(GpuThrottled(), throttled(49, "power_cap"))


def test_heat_below_the_power_limit():
    """Heat under a GPU that is at its power limit, too, is heat."""
    assert fires(GpuThrottled(), throttled(20, "power_cap", "sw_thermal")).title.startswith("Heat")


@pytest.mark.parametrize("reason", ["gpu_idle", "application_clocks", "sync_boost", "display_clocks", "bit_11"])
def test_other_reasons(reason):
    """An idle GPU lowers its clocks, and somebody may have set them: nothing is wrong."""
    assert silent(GpuThrottled(), throttled(100, reason))


def test_threshold():
    """A twentieth of the samples is the limit; half of them is critical."""
    assert fires(GpuThrottled(), throttled(5, "sw_thermal"))
    assert silent(GpuThrottled(), throttled(4, "sw_thermal"))
    assert fires(GpuThrottled(), throttled(49, "sw_thermal")).severity is Severity.WARNING
    assert fires(GpuThrottled(), throttled(50, "sw_thermal")).severity is Severity.CRITICAL


@pytest.mark.parametrize(("slow", "fast", "hot"), [(None, 1400.0, 20), (1000.0, None, 20), (1000.0, 1400.0, 100)])
def test_no_claim_without_a_comparison(slow, fast, hot):
    """Without clocks of both kinds nothing is known about the cost."""
    found = fires(GpuThrottled(), throttled(hot, "sw_thermal", slow_mhz=slow, fast_mhz=fast))
    assert found.time_lost_s == 0.0
    assert "clocks" not in found.summary


def test_the_worst_gpu_is_named():
    """Of several GPUs the one that heat holds down most."""
    cool = gpus(100, lambda i: {"throttle_reasons": ("power_cap",)})
    hot = gpus(100, lambda i: {"throttle_reasons": ("sw_thermal",) if i % 10 == 0 else ()}, index=1)
    assert fires(GpuThrottled(), run(*cool, *hot)).culprit == "GPU 1"


def test_before_the_first_step_does_not_count():
    """Other work may have heated the GPU before."""
    early = gpus(60, lambda i: {"throttle_reasons": ("sw_thermal",), "time_s": 1_700_000_000.0 - 100 + i})
    assert silent(GpuThrottled(), run(*early, *gpus(20, lambda i: {"throttle_reasons": ()})))


def test_abstains():
    """Without reasons, or with too few samples, nothing is known."""
    assert missing(GpuThrottled(), run(*gpus(20, lambda i: {"utilization_pct": 50.0}))) == ("gpu.throttling",)
    assert missing(GpuThrottled(), run(*gpus(4, lambda i: {"throttle_reasons": ()}))) == ("gpu.throttling",)


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert silent(GpuThrottled(forced_pct=30.0), throttled(20, "sw_thermal"))
