"""Words and numbers that all forms of a report share."""

from __future__ import annotations

from dataclasses import replace

from stallmeter.records import OWN_NAME
from stallmeter.records.diagnosis import Advice, Location, Verdict
from stallmeter.report import wording

from .recordings import ADVICE, PRIMARY

TIMES = "\N{MULTIPLICATION SIGN}"


def test_a_share_is_a_plain_number() -> None:
    """Its unit is 1, which nobody reads as one."""
    assert wording.quantity(0.951, "1") == "0.951"
    assert wording.quantity(12.5, "%") == "12.5 %"
    assert wording.quantity(None, "1") == wording.ABSENT
    assert [wording.quantity(n, "collectives") for n in (1, 1.001, 2)] == [
        "1 collective",
        "1 collective",
        "2 collectives",
    ]
    assert [wording.quantity(1, unit) for unit in ("s", "ms", "bytes/s")] == ["1 s", "1 ms", "1 bytes/s"]


def test_a_line_that_takes_a_part_of_its_function_has_a_share_of_its_own() -> None:
    """Two calls of the backward pass in one function are no single line's."""
    both = Location("train.py", 133, "main", 72.0, "torch.autograd.backward", line_share_pct=41.0)
    diagnosis = replace(PRIMARY, rule="compute-bound", location=both)
    assert wording.place(diagnosis) == "72 % of it in main, 41 % in its line train.py:133 (torch.autograd.backward)"
    nearly_all = replace(diagnosis, location=replace(both, line_share_pct=65.0))
    assert wording.place(nearly_all) == "72 % of it in main, train.py:133 (torch.autograd.backward)"


def test_the_place_of_a_function_that_is_the_cause_has_no_share_of_it() -> None:
    """Its seconds are its own: a share of the steps beside them would be read as a share of these."""
    where = Location(file="gan.py", line=84, function="update", share_pct=52.0, call="copy.deepcopy")
    found = replace(PRIMARY, rule="slow-function", title="update holds up the steps", location=where)
    assert wording.placed(found) == "update holds up the steps: gan.py:84 (copy.deepcopy)"
    assert wording.place(replace(found, title="step takes longer than the model")) == (
        "in update, gan.py:84 (copy.deepcopy)"
    )
    assert wording.place(replace(found, rule="slow-callback")).startswith("52 % of it in update, ")


def test_callbacks_that_are_ours_alone_are_no_callbacks_of_the_loop() -> None:
    assert wording.label("callbacks", [OWN_NAME]) == "stallmeter itself"
    assert wording.label("callbacks", [OWN_NAME, "Ema"]) == wording.label("callbacks") == "callbacks"
    assert wording.label("logging", [OWN_NAME]) == "logging"


def test_our_own_time_is_told_by_our_name() -> None:
    """A loop may have no callbacks at all, and nobody there knows a StallMonitor."""
    assert wording.part_label(OWN_NAME) == "stallmeter itself"
    assert wording.part_label("EarlyStopping") == "EarlyStopping"


def test_one_gain_is_told_of_one_number_of_workers() -> None:
    """What the steps win is more than what the run does; where an advice sets the number it has the run's."""
    advice = Advice.of("Set num_workers=4 and persistent_workers=True.", gain_pct=50.0, interval_pct=(30.0, 70.0))
    found = replace(PRIMARY, advice=(advice,))
    workers = replace(ADVICE, predicted_gain_pct=90.0)
    alone = Verdict(primary=None, diagnoses=(), num_workers=workers)
    both = Verdict(primary=found, diagnoses=(found,), num_workers=workers)
    assert wording.promised(alone) == f"predicted 1.9{TIMES} faster"
    assert wording.promised(both) == wording.gain(found) == f"predicted 1.5{TIMES} faster (1.3 to 1.7)"
    assert wording.worker_change(both) == f"num_workers 0 → 4: predicted 1.5{TIMES} faster (1.3 to 1.7)"
    one_thread = replace(both, num_workers=replace(workers, torch_threads=1))
    assert "num_workers 0 → 4 with torch.set_num_threads(1): predicted" in (wording.worker_change(one_thread) or "")
    other = replace(found, advice=(replace(advice, text="Set num_workers=40."),))
    assert wording.promised(replace(both, diagnoses=(other,))) == f"predicted 1.9{TIMES} faster"


def test_a_cost_that_nobody_measured_is_not_nothing() -> None:
    said = "not measured in the training thread, 500 ms CPU beside it in all; 1.4 % of the run"
    assert wording.cost(0.0, 0.5, 100, 1.4) == f"{said}, without {wording.AROUND}"
    assert wording.cost(0.0, 0.5, 100, 1.4, 0.05) == f"{said}, without {wording.AROUND}"
    looked = ", and 1.6 s by which batches took longer for a look into them"
    assert wording.cost(0.0, 0.5, 100, 1.4, 1.6) == f"{said}, without {wording.AROUND}{looked}"
    assert wording.cost(0.001, 0.5, 100, 1.4).startswith("10 µs a step in the training thread, ")
