"""accelerator-unused: a GPU is there, and training does not use it."""

from __future__ import annotations

from stallmeter.records.diagnosis import Severity
from stallmeter.rules.accelerator_unused import AcceleratorUnused

from .windows import fires, gpus, missing, run, silent

CPU = {"accelerator": "CPUAccelerator"}
CUDA = {"accelerator": "CUDAAccelerator"}


def used(utilization: float | None, memory_pct: float = 0.1, index: int = 0):
    """Samples of a GPU of 16 GB."""
    return gpus(
        10,
        lambda i: {
            "utilization_pct": utilization,
            "memory_used_bytes": int(16e9 * memory_pct / 100),
            "memory_total_bytes": int(16e9),
        },
        index=index,
    )


def test_told_to_use_the_cpu():
    """The Trainer's choice is enough, whoever uses the GPU."""
    found = fires(AcceleratorUnused(), run(*used(60.0, 50.0), facts=CPU))
    assert found.summary == "1 visible GPU, and the Trainer runs on the CPU (1000 steps in 100 s)."
    assert (found.severity, found.time_lost_s) == (Severity.WARNING, 0.0)


def test_no_trace_of_use():
    """GPUs without any trace of use are not used, whatever the Trainer says."""
    found = fires(AcceleratorUnused(), run(*used(0.0), *used(1.0, index=1)))
    assert found.summary == "2 visible GPUs, and none was ever used more than 1 % (1000 steps in 100 s)."
    assert fires(AcceleratorUnused(), run(*used(0.0), facts=CUDA))


def test_threshold():
    """One look at work, or memory that is held, is use."""
    assert fires(AcceleratorUnused(), run(*used(3.0)))
    assert silent(AcceleratorUnused(), run(*used(3.1)))
    assert silent(AcceleratorUnused(), run(*used(0.0, memory_pct=3.1)))
    assert silent(AcceleratorUnused(), run(*used(0.0), *used(80.0, index=1)))


def test_a_few_steps():
    """A run of a few steps had no time to use anything."""
    assert silent(AcceleratorUnused(), run(*used(0.0), steps=19))


def test_abstains():
    """Without a GPU, or when its use is unknown, there is nothing to judge."""
    assert missing(AcceleratorUnused(), run(facts=CPU)) == ("gpu.count", "gpu.trace_pct")
    assert missing(AcceleratorUnused(), run(*used(None))) == ("gpu.trace_pct",)


def test_user_threshold():
    """The user's threshold counts, not ours."""
    assert fires(AcceleratorUnused(trace_pct=10.0), run(*used(9.0)))
