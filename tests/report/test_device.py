"""What the reports say of the device: host wait and exposed wait side by side, the rest where it was measured."""

from __future__ import annotations

import csv

import pytest

from stallmeter.records import DeviceStep
from stallmeter.report.device import device_lines, device_view
from stallmeter.report.json import to_json
from stallmeter.report.markdown import to_markdown
from stallmeter.report.model import read_history
from stallmeter.report.steps_csv import write_steps_csv
from stallmeter.report.text import to_text
from stallmeter.window import Window

from ..rules.windows import device_steps, run
from .recordings import complete_run, device, ledger, step, write


def test_every_line(tmp_path):
    report = read_history(write(tmp_path, complete_run())).report()
    assert dict(device_lines(report.device)) == {
        "exposed wait": "the host waited 60 ms a step for data; it cost 30 ms: the device idled for 52.9 % of the wait",
        "device": "copy 2 ms, forward 20 ms, backward 20 ms, optimizer 1 ms; 16 of 17 steps timed",
        "allocator 0": "peak 2 GB in tensors, 3 GB reserved, 2 retries",
        "waits for it": "in 2 steps: 4 at train.py:7 in step",
        "profile": "3 steps because of compute-bound, most time on the device: aten::mm 30 ms; trace.json.gz; it held "
        "the training for 200 ms and slowed these steps by 50 ms",
    }
    text = " ".join(to_text(report, width=100).split())
    assert "the host waited 60 ms a step for data; it cost 30 ms" in text
    assert "- Exposed wait: the host waited 60 ms a step" in to_markdown(report)


def test_a_hidden_wait_costs_nothing():
    view = device_view(run(*device_steps(wait_s=0.005, exposed=0.0)))
    assert next(device_lines(view)) == (
        "exposed wait",
        "the host waited 5 ms a step for data; it cost nothing: the device idled for 0 % of the wait",
    )


def test_nothing_is_said_without_a_device(tmp_path):
    assert device_view(Window()) is None
    assert list(device_lines(None)) == []
    report = read_history(write(tmp_path, [step(0), ledger()])).report()
    assert to_json(report)["device"] is None
    assert "exposed" not in to_text(report)


def test_only_unread_steps():
    """Steps by the host's clock are counted, and no time is made up."""
    view = device_view(run(*device_steps(10, exposed_wait_s=None, total_s=None)))
    assert view is not None
    assert (view.timed_steps, view.host_clock_steps, view.exposed_wait_s) == (0, 7, None)
    assert [name for name, _ in device_lines(view)] == []


def test_steps_csv_has_the_devices_part(tmp_path):
    """It stands in the row of its step, though it came later; the last step's was not read."""
    folder = write(tmp_path / "run", [*(step(i) for i in range(21)), *device()])
    assert write_steps_csv(folder, 0, tmp_path / "steps.csv") == 21
    with (tmp_path / "steps.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == [str(i) for i in range(21)]
    assert (rows[3]["exposed_wait_s"], rows[3]["device_h2d_s"], rows[3]["host_wait_s"]) == ("0.03", "0.002", "0.06")
    assert (rows[19]["exposed_wait_s"], rows[19]["host_wait_s"]) == ("", "0.06")
    assert (rows[20]["host_wait_s"], rows[20]["device_total_s"]) == ("", "")


def test_steps_csv_of_a_long_run_is_complete(tmp_path, monkeypatch):
    """Rows are kept back for a while only, and stay in order."""
    monkeypatch.setattr("stallmeter.report.steps_csv.HELD_ROWS", 5)
    records = []
    for i in range(40):
        records.append(step(i))
        if i >= 3:
            records.append(
                DeviceStep(index=i - 3, host_wait_s=0.01, host_idle_s=0.0, host_work_s=0.0, exposed_wait_s=0.01)
            )
    folder = write(tmp_path / "run", records)
    assert write_steps_csv(folder, 0, tmp_path / "steps.csv") == 40
    with (tmp_path / "steps.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(40))
    assert [row["exposed_wait_s"] for row in rows] == ["0.01"] * 37 + [""] * 3


@pytest.mark.parametrize(("most", "every"), [(40, 1), (39, 2), (20, 2), (19, 4), (1, 64)])
def test_steps_csv_is_bounded(tmp_path, monkeypatch, most, every):
    """Of too many steps an even sample is written, each with its device's part."""
    monkeypatch.setattr("stallmeter.report.steps_csv.MAX_ROWS", most)
    times = {"host_wait_s": 0.01, "host_idle_s": 0.0, "host_work_s": 0.0}
    folder = write(tmp_path / "run", [r for i in range(40) for r in (step(i), DeviceStep(index=i, **times))])
    assert write_steps_csv(folder, 0, tmp_path / "steps.csv") == len(range(0, 40, every)) <= most
    with (tmp_path / "steps.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(0, 40, every))
    assert all(row["host_wait_s"] == "0.01" for row in rows)


def test_steps_csv_of_a_recording_that_was_thinned_is_bounded(tmp_path, monkeypatch):
    """What was thinned before counts: only steps that a larger power of two divides make way for less."""
    monkeypatch.setattr("stallmeter.report.steps_csv.MAX_ROWS", 20)
    indices = [*range(16), *range(16, 320, 16), 321]
    folder = write(tmp_path / "run", [step(i) for i in indices])
    assert write_steps_csv(folder, 0, tmp_path / "steps.csv") == 20
    with (tmp_path / "steps.csv").open(newline="") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(0, 320, 16))
