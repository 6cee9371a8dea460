"""What the report says about complete, growing, torn, empty and damaged recordings."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import replace

import pytest

from stallmeter.errors import RecordingError, SettingError
from stallmeter.machine.procfs import process_space
from stallmeter.recording import Recorder
from stallmeter.records import BUCKETS, Event
from stallmeter.records.diagnosis import Verdict
from stallmeter.records.steps import AT_EXIT
from stallmeter.report.model import BEFORE_MODEL, HOST_SIGNALS, read_history, summarize
from stallmeter.window import Window

from ..rules.test_input_bound import before, without_loader
from ..rules.windows import ledger as ledger_of
from .recordings import COMPUTE_BOUND, START_S, VERDICT, complete_run, ledger, step, write


def test_complete_recording(tmp_path):
    """Ledger, verdict, statistics and costs come from the records."""
    report = read_history(write(tmp_path, complete_run())).report()
    assert report.verdict == VERDICT
    assert report.settled
    assert report.ended == "end"
    assert report.header is not None
    assert report.header.framework == "lightning 2.6.6"
    assert (report.wall_s, report.steps, report.epochs, report.samples) == (100.0, 1000, 2, 32_000)
    assert (report.recorded_steps, report.lost_steps, report.skipped_lines) == (20, 0, 0)
    assert report.coverage_pct == 99.5
    assert report.step_time_s is not None
    assert report.step_time_s.median == pytest.approx(0.1)
    assert report.data_wait_s is not None
    assert report.data_wait_s.p95 == pytest.approx(0.06)
    assert report.data_wait_share_pct == pytest.approx(100 * 60 / 97)
    assert report.steps_per_s == pytest.approx(1000 / 97)
    assert report.samples_per_s == pytest.approx(32_000 / 97)
    assert report.loader is not None
    assert report.loader.batch_size == 32


def test_ledger_keeps_order_and_adds_up(tmp_path):
    """All buckets are there, in their order, and sum to the wall time."""
    report = read_history(write(tmp_path, complete_run())).report()
    assert tuple(share.name for share in report.ledger) == BUCKETS
    assert sum(share.seconds for share in report.ledger) == pytest.approx(report.wall_s)
    assert sum(share.share_pct or 0 for share in report.ledger) == pytest.approx(100)
    callbacks = next(share for share in report.ledger if share.name == "callbacks")
    assert [part.name for part in callbacks.parts] == ["ImageLogger", "StallMonitor"]
    assert callbacks.parts[0].share_pct == pytest.approx(0.9)


def test_batch_cost_and_hardware(tmp_path):
    """Samples are summarised by median, least and most; what nobody measured is None."""
    report = read_history(write(tmp_path, complete_run())).report()
    cost = report.batch_cost
    assert cost is not None
    assert (cost.batches, cost.cpu_s, cost.run_queue_s, cost.collate_s) == (3, 0.04, 0.005, 0.002)
    assert cost.service_s == pytest.approx(0.055)
    assert cost.blocked_s == pytest.approx(0.015)
    job = report.hardware.host["job_cpus"]
    assert job is not None
    assert (job.median, job.min, job.max) == (1.5, 1.0, 2.0)
    assert set(report.hardware.host) == set(HOST_SIGNALS)
    assert report.hardware.host["swap_used_bytes"] is None
    (gpu,) = report.hardware.gpus
    busy = gpu.levels["utilization_pct"]
    assert busy is not None
    assert (gpu.name, busy.median, busy.max) == ("Tesla T4", 50.0, 70.0)
    assert gpu.levels["sm_clock_mhz"] is None
    (network,) = report.hardware.network
    assert (network.name, network.received_bytes_per_s.max) == ("eth0", 2e6)


def test_overhead_counts_hooks_and_threads(tmp_path):
    """The cost is what the hooks took plus the CPU of the threads."""
    overhead = read_history(write(tmp_path, complete_run())).report().overhead
    assert overhead is not None
    assert overhead.per_step_us == pytest.approx(104)
    assert overhead.share_pct == pytest.approx(0.104)


def test_passed_verdict_wins(tmp_path):
    """A verdict of today's rules replaces the recorded one."""
    today = Verdict(primary=COMPUTE_BOUND, diagnoses=(COMPUTE_BOUND,))
    assert read_history(write(tmp_path, complete_run())).report(today).verdict == today


def test_last_verdict_and_ledger_win(tmp_path):
    """Earlier ones are history."""
    early = Verdict(primary=COMPUTE_BOUND, diagnoses=(COMPUTE_BOUND,))
    report = read_history(write(tmp_path, [ledger(wall_s=1.0, steps=1), early, *complete_run()])).report()
    assert report.wall_s == 100.0
    assert report.verdict == VERDICT


def test_growing_recording(tmp_path):
    """A recording that is still open can be read, is not settled, and says more when it has grown."""
    folder = write(tmp_path, [step(0), ledger(steps=1)])
    recorder = Recorder(folder, read_history(folder).header)
    recorder.flush()
    before = read_history(folder).report()
    assert (before.steps, before.settled, before.ended) == (1, False, None)
    assert before.verdict == Verdict(primary=None)
    recorder.write(VERDICT)
    recorder.write(ledger(steps=2))
    recorder.flush()
    history = read_history(folder)
    assert history.report().steps == 2
    assert history.verdict == VERDICT
    assert not history.settled


def test_ledger_after_the_verdict_unsettles(tmp_path):
    """A verdict that did not see the last ledger is not final, even after an end."""
    end = Event(time_s=START_S, name="end", detail="end")
    assert not read_history(write(tmp_path, [end, ledger(), VERDICT, ledger(steps=1001)])).settled


def test_torn_last_line(tmp_path):
    """What a SIGKILL tore off is ignored; everything before it counts."""
    folder = write(tmp_path, [*(step(i) for i in range(20)), ledger(), VERDICT])
    with (folder / "rank0.0000.jsonl").open("ab") as file:
        file.write(b'["ledger",{"time_s":17000')
    report = read_history(folder).report()
    assert report.steps == 1000
    assert report.skipped_lines == 0
    assert not report.settled
    assert "has no end" in report.how_it_ended


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        ("end", "The run ended"),
        (AT_EXIT, "The run ended with its program"),
        ("exception: E", "The run ended by exception: E"),
    ],
)
def test_how_it_ended(tmp_path, detail, said):
    """A loop that nobody closes ends with the program, as it should: no fault."""
    end = Event(time_s=1.0, name="end", detail=detail)
    assert read_history(write(tmp_path, [step(0), ledger(), VERDICT, end])).report().how_it_ended == said


def test_a_process_that_is_gone_or_not(tmp_path):
    """Of a recording without an end; of another machine's nobody here can tell."""
    here = {"host": socket.gethostname(), "process_space": process_space()}
    of = {
        "gone": {**here, "pid": 4_000_000_000, "started_s": time.time()},
        "there": {**here, "pid": os.getpid(), "started_s": time.time()},
        "elsewhere": {"host": "node2", "pid": os.getpid(), "started_s": time.time()},
        "another container": {**here, "process_space": "other", "pid": 4_000_000_000},
    }
    said = {}
    for name, header in of.items():
        report = read_history(write(tmp_path / name, [step(0), ledger(), VERDICT], **header)).report()
        said[name] = report.running, report.how_it_ended
    unknown = None, "The recording has no end: the run goes on, or could not say how it ended"
    assert said == {
        "gone": (False, "The run has ended and could not say how: its process is gone"),
        "there": (True, "The run goes on"),
        "elsewhere": unknown,
        "another container": unknown,
    }
    end = Event(time_s=START_S, name="end", detail="end")
    assert read_history(write(tmp_path / "ended", [end, ledger(), VERDICT], **of["gone"])).report().running is None


def test_killed_while_beginning_a_part(tmp_path):
    """A part without its header ends the history, it does not end the report."""
    folder = write(tmp_path, [step(0), ledger(), VERDICT])
    (folder / "rank0.0001.jsonl").write_bytes(b'["hea')
    assert read_history(folder).report().steps == 1000


def test_exception_is_named(tmp_path):
    """A run that raised says so."""
    end = Event(time_s=START_S, name="end", detail="exception: ValueError")
    assert "exception: ValueError" in read_history(write(tmp_path, [end, ledger(), VERDICT])).report().how_it_ended


@pytest.mark.parametrize("records", [[], [step(0)]])
def test_empty_recording(tmp_path, records):
    """Header only, or killed before the first ledger: the error says that nothing was measured."""
    folder = write(tmp_path, records)
    with pytest.raises(RecordingError, match="is empty: nothing was measured yet"):
        read_history(folder).report()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]\n", b'{"a": 1}\n', b'["header", 3]\n', b"\xff\xfe\n", b'["header",{}]\n']
)
def test_no_header(tmp_path, content):
    """A file that is no recording is named."""
    (tmp_path / "rank0.0000.jsonl").write_bytes(content)
    with pytest.raises(RecordingError, match=r"rank0\.0000\.jsonl"):
        read_history(tmp_path).report()


def test_newer_schema(tmp_path):
    """A recording of a newer version asks for an upgrade instead of being misread."""
    folder = write(tmp_path, complete_run(), schema=99)
    with pytest.raises(RecordingError, match="upgrade"):
        read_history(folder).report()


@pytest.mark.parametrize(
    "line",
    [
        ["step", "x", 0, 1, 1, 1, 1.0, 1.0, 0.5],
        ["step", 7, 0, 1, 1, 1, 1.0, "long", 0.5],
        ["ledger", {"time_s": 1, "wall_s": "all", "steps": 1, "epochs": 1, "buckets": {"other": 0.1}}],
        ["host", {"time_s": 1, "job_cpus": "high", "usable_cpus": 2.0}],
    ],
)
def test_wrong_types(tmp_path, line):
    """Values of a wrong type are the recording's fault, and the error says so."""
    folder = write(tmp_path, [*complete_run(), *(step(i) for i in range(20, 40))])
    with (folder / "rank0.0000.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(RecordingError, match="damaged"):
        read_history(folder).report()


def test_broken_lines_are_counted(tmp_path):
    """Lines in the middle that are no records are passed over and counted."""
    folder = write(tmp_path, [step(0)])
    with (folder / "rank0.0000.jsonl").open("ab") as file:
        file.write(b'nonsense\n["ledger",{"a":1}]\n[1]\n')
    write(folder, [ledger(), VERDICT])
    assert read_history(folder).report().skipped_lines == 3


def test_ranks(tmp_path):
    """Each rank has a report of its own and names the others."""
    write(tmp_path, [ledger(steps=10), VERDICT], rank=0, world_size=2)
    write(tmp_path, [ledger(steps=11)], rank=1, world_size=2)
    assert read_history(tmp_path).report().steps == 10
    other = read_history(tmp_path, 1).report()
    assert other.steps == 11
    assert other.ranks == (0, 1)
    with pytest.raises(RecordingError, match="no recording of rank 2: it holds rank 0, 1"):
        read_history(tmp_path, 2).report()


def test_live_window_without_anything():
    """Before the first record everything is absent, nothing is 0 that was not counted."""
    report = summarize(Window(), None)
    assert report.wall_s is None
    assert report.coverage_pct is None
    assert report.overhead is None
    assert report.ledger == ()
    assert report.verdict.primary is None


def test_live_window_equals_replay(tmp_path):
    """A window fed live and one replayed from the recording give the same report."""
    window = Window()
    for record in complete_run():
        if not isinstance(record, Verdict):
            window.append(record)
    folder = write(tmp_path, complete_run())
    replayed = read_history(folder).report()
    live = summarize(window, VERDICT, header=replayed.header, path=folder, ranks=(0,), settled=True)
    assert live == replayed


def test_validation_shows_what_its_own_loader_took():
    """Inside its share, as callbacks stand inside theirs."""
    made = Window()
    made.append(replace(ledger_of(validation=30.0), validation_parts={"start": 20.0, "wait": 1.0}))
    share = next(share for share in summarize(made, None).ledger if share.name == "validation")
    assert [(part.name, part.seconds) for part in share.parts] == [
        ("its own loader's start", 20.0),
        ("its own loader's wait", 1.0),
    ]


def test_of_steps_without_a_loader_it_is_shown_what_they_do_before_the_model():
    """No wait is timed there: all would be computing."""
    shown = {share.name: share.parts for share in summarize(without_loader(before(0.4)), None).ledger}
    [part] = shown["compute"]
    assert (part.name, part.share_pct) == (BEFORE_MODEL, pytest.approx(40.0))
    shown = {share.name: share.parts for share in summarize(without_loader(), None).ledger}
    assert shown["compute"] == ()


def test_what_is_said_on_purpose_is_no_damage(tmp_path):
    """A wrong option is no fault of the recording, though the error is a ValueError, too."""
    history = read_history(write(tmp_path, complete_run()))

    def refuse(_: Window) -> None:
        raise SettingError("HTML is no text for a terminal")

    with pytest.raises(SettingError, match="no text for a terminal"):
        history.guarded(refuse)
    with pytest.raises(RecordingError, match="damaged"):
        history.guarded(lambda _: int("many"))
