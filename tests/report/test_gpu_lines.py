"""How a GPU is shown: how hard it worked and what held it down, where that was measured."""

from __future__ import annotations

from stallmeter.records import GpuSample
from stallmeter.records.diagnosis import Verdict
from stallmeter.report.json import to_json
from stallmeter.report.model import summarize
from stallmeter.report.text import to_text
from stallmeter.window import Window


def shown(*reasons: tuple[str, ...], **signals: float):
    """The report of a run with one GPU sample for each of these sets of throttle reasons."""
    window = Window()
    for number, known in enumerate(reasons):
        window.append(GpuSample(time_s=float(number), index=0, name="H100", throttle_reasons=known, **signals))
    return summarize(window, Verdict(primary=None))


def test_activity_and_throttling():
    """Text names what tells about the machine; the JSON has every reason."""
    report = shown(
        ("power_cap",),
        ("power_cap", "sw_thermal"),
        ("gpu_idle",),
        (),
        sm_active_pct=61.0,
        tensor_active_pct=22.0,
        dram_active_pct=43.0,
    )
    words = " ".join(to_text(report).split())
    assert "SMs active 61.0 %, Tensor Cores active 22.0 %, memory bandwidth 43.0 %" in words
    assert "clocks held down by power limit 50.0 % and heat 25.0 %" in words
    (gpu,) = to_json(report)["hardware"]["gpus"]
    assert gpu["throttled_pct"] == {"gpu_idle": 25.0, "power_cap": 50.0, "sw_thermal": 25.0}
    assert gpu["tensor_active_pct"] == {"median": 22.0, "min": 22.0, "max": 22.0}


def test_nothing_held_it_down():
    """Measured and found free is not the same as not measured."""
    free = shown((), ())
    assert to_json(free)["hardware"]["gpus"][0]["throttled_pct"] == {}
    window = Window()
    window.append(GpuSample(time_s=1.0, index=0, name="T4"))
    unknown = summarize(window, Verdict(primary=None))
    assert to_json(unknown)["hardware"]["gpus"][0]["throttled_pct"] is None
    for report in (free, unknown):
        assert "held down" not in to_text(report)
