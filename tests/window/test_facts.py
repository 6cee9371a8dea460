"""What is known of a run from its start on."""

from __future__ import annotations

import pytest

from stallmeter.window.facts import Facts

from ..rules.windows import run


def test_the_accelerator():
    """What the framework chose, when it said so."""
    assert run(facts={"accelerator": "CPUAccelerator"}).facts.accelerator == "CPUAccelerator"
    assert run(facts={"accelerator": None}).facts.accelerator is None
    assert run().facts.accelerator is None


@pytest.mark.parametrize(
    ("known", "full"),
    [({"precision": "32-true"}, True), ({"precision": "bf16-mixed"}, False), ({"precision": 32}, None)],
)
def test_precision(known, full):
    """As the Trainer names it, or unknown."""
    assert Facts(known).full_precision is full


def test_the_budget():
    """None where a recording does not tell it."""
    assert Facts().budget is None
    assert Facts(budget="4").budget is None
    found = Facts(budget={"host_cpus": 8, "affinity_cpus": 4}).budget
    assert found is not None
    assert found.affinity_cpus == 4


def test_the_threads():
    """None where a recording does not tell of them."""
    assert Facts().threads is None
    assert Facts(threads=4).threads is None
    found = Facts(threads={"cores": 4, "variables": {"OMP_NUM_THREADS": "1"}}).threads
    assert found is not None
    assert (found.cores, found.sets(1)) == (4, "OMP_NUM_THREADS")


def test_instructions_for_16_bits():
    """None in recordings that do not tell, and where the system does not."""
    assert Facts().computes_16_bits is None
    assert Facts(computes_16_bits={}).computes_16_bits is None
    assert Facts(computes_16_bits={"bfloat16": False}).computes_16_bits == {"bfloat16": False}
    assert Facts().wide_vectors is None
    assert Facts(wide_vectors="no").wide_vectors is None
    assert Facts(wide_vectors=False).wide_vectors is False
