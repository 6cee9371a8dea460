"""Something holds the GPU's clocks down.

**What it means.** The driver or the board lowered the clocks while training ran. Heat and the board's own protection
(power brake, hardware slowdown) are faults of cooling or power supply, and cost speed. The power limit alone is how a
fully used GPU usually runs: it is told as information.

**Evidence.** `gpu.throttling`: the clocks-event reasons that NVML gives with each sample, as shares of the samples
while steps ran, in percent. They are thermal (software or hardware), hardware (slowdown or power brake) and power
limit. `slowed_pct`: by how much the median SM clock was lower under heat or hardware than without, in percent. Time
lost: that part of the steps' own time.

**Advice.** Heat: look at fans, dust, air flow and the neighbours in the rack; raise the fan's speed. Hardware: look at
the power supply and its cables, and ask the operator. Power limit: raise it if the board allows and you may
(`nvidia-smi -pl`), or leave it: the last percent of speed costs the most power.

**When it is wrong.** Samples are a second apart and may miss short slowdowns. Where steps do not wait for the GPU,
lower clocks cost less than what is claimed. Without a stretch at full clocks to compare with, no time is claimed.

**References.** NVML, nvmlDeviceGetCurrentClocksEventReasons. gpuprof: 82 °C and an SM clock lower by 15 %. TraceML: 85
°C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.diagnosis import Advice, Diagnosis, Evidence, Severity
from ..window import Window
from ..workers.gains import gain_without
from .rule import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuThrottled:
    """Fires when heat or hardware, or for information the power limit, held the clocks down."""

    id: ClassVar[str] = "gpu-throttled"
    title: ClassVar[str] = "Something holds the GPU's clocks down"
    own_severity: ClassVar[bool] = True
    bucket: ClassVar[str] = "compute"
    needs: ClassVar[tuple[str, ...]] = ("gpu.throttling", "spent.step_work_s")

    forced_pct: float = threshold(5.0, "%", "our choice: heat or hardware in every twentieth sample is no accident")
    critical_pct: float = threshold(50.0, "%", "our choice: half of the time")
    power_pct: float = threshold(50.0, "%", "our choice: the power limit sets the clocks most of the time")

    def check(self, window: Window) -> Diagnosis | None:
        """Look at the shares of heat, hardware and power limit."""
        seen, work = window.gpu.throttling, window.spent.step_work_s
        if seen is None or work is None:
            return None
        forced = seen.forced_pct >= self.forced_pct and seen.forced_pct > 0
        if not forced and (seen.power_pct < self.power_pct or seen.power_pct <= 0):
            return None
        share = seen.forced_pct if forced else seen.power_pct
        hot = seen.thermal_pct >= seen.hardware_pct
        what = ("heat" if hot else "the board's protection") if forced else "the power limit"
        slowed = seen.slowed_pct if forced else None
        lost = work * share / 100.0 * (slowed or 0.0) / 100.0
        gain = gain_without(window, lost if forced else None, least=0.5, most=1.2, on_device=True)
        severe = seen.forced_pct >= self.critical_pct
        return Diagnosis(
            rule=self.id,
            severity=Severity.INFO if not forced else Severity.CRITICAL if severe else Severity.WARNING,
            title=f"{what[0].upper()}{what[1:]} holds the GPU's clocks down",
            summary=f"GPU {seen.index} was held down by {what} {share:.0f} % of the time"
            + ("" if slowed is None else f", at clocks {slowed:.0f} % lower")
            + ("." if seen.temperature_c is None or not forced else f"; it reached {seen.temperature_c:.0f} °C."),
            time_lost_s=lost,
            share_pct=window.ledger.share_pct(lost) or 0.0,
            confidence=0.8,
            culprit=f"GPU {seen.index}",
            evidence=(
                Evidence("slowed by heat, share of samples", seen.thermal_pct, "%", self.forced_pct, "our choice"),
                Evidence("slowed by hardware, share of samples", seen.hardware_pct, "%", self.forced_pct, "our choice"),
                Evidence(
                    "at the power limit alone, share of samples", seen.power_pct, "%", self.power_pct, "our choice"
                ),
                *((Evidence("SM clock lower by", slowed, "%"),) if slowed is not None else ()),
                *(
                    (Evidence("highest temperature", seen.temperature_c, "°C", seen.temperature_limit_c, "NVML"),)
                    if seen.temperature_c is not None
                    else ()
                ),
            ),
            advice=(
                Advice.of(
                    "Check fans, dust, air flow and the GPUs beside it; raise the fan's speed."
                    if hot
                    else "Check the power supply and its cables, or tell who runs the machine.",
                    expect="An SM clock that stays up while the GPU works.",
                    gain_pct=gain.pct,
                    interval_pct=gain.interval_pct,
                )
                if forced
                else Advice.of(
                    "Raise the power limit if the board allows it: nvidia-smi -pl.",
                    limit="Nothing is wrong: only where power is cheap.",
                ),
                Advice.of("Compare with another machine of the same kind before replacing anything."),
            ),
        )
