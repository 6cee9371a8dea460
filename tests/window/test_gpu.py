"""How this rank's GPU was used."""

from __future__ import annotations

from stallmeter.window.facts import Facts
from stallmeter.window.gpu import GpuSignals
from stallmeter.window.ledger import LedgerSignals
from stallmeter.window.loader import LoaderSignals
from stallmeter.window.steps import StepSignals

from ..rules.windows import START_S, gpus, run


def test_gpu_signals():
    """The busiest GPU while steps ran, the number of GPUs and any trace of use."""
    before = gpus(5, lambda i: {"utilization_pct": 100.0, "time_s": START_S - 10 + i})
    made = run(
        *before,
        *gpus(10, lambda i: {"utilization_pct": 40.0, "memory_used_bytes": 7, "memory_total_bytes": 10}),
        *gpus(10, lambda i: {"utilization_pct": 60.0}, index=1),
        *gpus(2, lambda i: {"utilization_pct": 90.0}, index=2),
    )
    assert made.gpu.utilization_pct == 60.0
    assert made.gpu.count == 3
    assert made.gpu.trace_pct == 100.0


def test_a_part_alone():
    """Of two GPUs the one that was used most tells; clocks are told of where they were held down most."""
    made = GpuSignals(Facts(precision="32-true"), StepSignals(LoaderSignals(), LedgerSignals()))
    assert (made.count, made.utilization_pct, made.idleness, made.throttling, made.tensor_cores) == (None,) * 5
    assert (made.sm_active_pct, made.trace_pct, made.memory.peak, made.memory.trends) == (None,) * 4
    for index, busy, reasons in ((0, 80.0, ()), (1, 5.0, ("sw_thermal",))):
        for sample in gpus(
            10,
            lambda i, busy=busy, reasons=reasons: {  # type: ignore[misc]
                "utilization_pct": busy,
                "sm_active_pct": busy / 2,
                "compute_capability": 9.0,
                "throttle_reasons": reasons,
            },
            index=index,
        ):
            made.append(sample)
    assert (made.count, made.utilization_pct, made.sm_active_pct) == (2, 80.0, 40.0)
    assert made.idleness is not None
    assert made.idleness.share_pct == 0.0
    assert made.throttling is not None
    assert (made.throttling.index, made.throttling.thermal_pct) == (1, 100.0)
    assert made.tensor_cores is not None
    assert (made.tensor_cores.full_precision, made.tensor_cores.active_pct) == (True, None)
