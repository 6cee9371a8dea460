"""Text, Markdown, note, headline, tags and CSV of a recording."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
import subprocess
import sys

import pytest

from stallmeter.records import NO_LOADER, Event, GpuSample, LoaderInfo, WorkerTrial
from stallmeter.records.diagnosis import Abstention, Advice, Diagnosis, Evidence, Severity, Verdict, WorkerAdvice
from stallmeter.report import json, markdown, text, wording
from stallmeter.report.abstained import unjudged
from stallmeter.report.model import read_history, summarize
from stallmeter.report.page.facts import key_figures, run_facts
from stallmeter.report.run_page import build_page
from stallmeter.report.steps_csv import write_steps_csv
from stallmeter.window import Window

from .recordings import COMPUTE_BOUND, HOSTILE, PRIMARY, START_S, VERDICT, complete_run, ledger, step, write

PLACE = "64 % of it in Rotate.__call__, transforms.py:88 (PIL.Image.Image.rotate)"


@pytest.fixture
def report(tmp_path):
    return read_history(write(tmp_path / "run", complete_run())).report()


@pytest.fixture
def hostile(tmp_path):
    """A run in which every foreign string attacks."""
    primary = Diagnosis(
        rule=HOSTILE,
        severity=Severity.WARNING,
        title=HOSTILE,
        summary=HOSTILE * 20,
        time_lost_s=5.0,
        share_pct=5.0,
        confidence=0.5,
        evidence=(Evidence(HOSTILE, 1.0, HOSTILE, 2.0, HOSTILE),),
        advice=(Advice(HOSTILE * 20), Advice(HOSTILE)),
    )
    second = Diagnosis(
        rule="slow-callback",
        severity=Severity.WARNING,
        title=HOSTILE,
        summary=HOSTILE,
        time_lost_s=1.0,
        share_pct=1.0,
        confidence=0.5,
    )
    workers = WorkerAdvice(
        current=1,
        recommended=2,
        predicted_step_time_s=None,
        predicted_gain_pct=None,
        limited_by=HOSTILE,
        reason=HOSTILE,
        confidence=0.1,
    )
    records = [
        *complete_run(),
        LoaderInfo(time_s=START_S, kind=HOSTILE, why_not=HOSTILE),
        GpuSample(time_s=START_S, index=0, name=HOSTILE, power_w=1.0),
        Event(time_s=START_S, name=HOSTILE, detail=HOSTILE),
        ledger(callbacks={HOSTILE: 10.0}, logging={HOSTILE: 10.0}),
        Verdict(primary=primary, diagnoses=(primary, second), num_workers=workers),
    ]
    return read_history(write(tmp_path / "hostile", records, framework=HOSTILE, host=HOSTILE, version=HOSTILE)).report()


@pytest.mark.parametrize(("before_s", "told"), [(None, False), (4.9, False), (11.6, True)])
def test_what_came_before_the_recording_is_told_where_it_was_long(tmp_path, before_s, told):
    """Whoever times the whole command looks for it: no gain is of that."""
    found = read_history(write(tmp_path / "run", complete_run(), before_s=before_s)).report()
    assert found.wall_s == 100.0
    shown = (text.to_text(found), markdown.to_markdown(found), dict(run_facts(found)).get("before", ""))
    assert [" ".join(one.split()).count("11.6 s of the program, imports for example") for one in shown] == [told] * 3
    assert json.to_json(found)["run"]["before_s"] == before_s


def test_text_leads_with_the_verdict(report):
    """Verdict, fix and gain come before any table, everything else after."""
    shown = text.to_text(report)
    flat = " ".join(shown.split())
    expected = [
        "CRITICAL No worker prepares batches beside the loop",
        "lost 60 s, 60.0 % of the run",
        "do Set num_workers=4.",
        "expect predicted 2.4\N{MULTIPLICATION SIGN} faster",
        "or Make one batch cheaper.",
        "data wait, share of training time: 61.5 % (threshold 10 %)",
        "also A callback takes long (slow-callback, 5 s lost)",
        "Where the time went",
        "data wait 60 s 60.0 %",
        "backward 20 s 20.0 %",
        "wall time 100 s 99.5 % in a named bucket",
        "step time 100 ms 100 ms 100 ms 100 ms",
        "data wait 60 ms 60 ms 60 ms 60 ms",
        "throughput 330 samples/s, 10.3 steps/s",
        "num_workers 0 now; use 4, predicted 2.4\N{MULTIPLICATION SIGN} faster",
        "one batch 55 ms to make, median: CPU 40 ms, blocked 15 ms; queued for a CPU beside that 5 ms",
        "job keeps 1.5 busy (max 2.0), may use 8.0",
        "GPU 0 Tesla T4, busy 50.0 % (max 70.0 %), memory 3 GB, of 16 GB",
        "not judged low-utilization (needs gpu_utilization_pct)",
        "20 of 1,000 steps in full",
        "event source nvml switched off: NVMLError: gone",
        "overhead 4 µs a step in the training thread, 100 ms CPU beside it in all; 0.1 % of the run,",
        "without its imports and the page at the end",
    ]
    position = 0
    for words in expected:
        position = flat.find(words, position)
        assert position >= 0, f"{words!r} is missing or in the wrong place in:\n{shown}"
    assert str(report.path) in shown.replace("\n", "").replace(" ", "")


def test_text_fits_the_width(report, hostile):
    """No line is longer than asked for, none ends in spaces, at 80 columns and at 60."""
    for shown in (report, hostile):
        for width in (80, 60):
            lines = text.to_text(shown, width=width).splitlines()
            assert max(map(len, lines)) <= width
            assert not [line for line in lines if line != line.rstrip()]


def test_named_callbacks_above_one_percent(tmp_path):
    """A callback is named from 1 % of the wall time on."""
    records = [step(0), ledger(callbacks={"ImageLogger": 1.01, "Small": 0.99}), VERDICT]
    shown = text.to_text(read_history(write(tmp_path, records)).report())
    assert re.search(r"^ +ImageLogger +1\.01 s +1\.0 %$", shown, re.MULTILINE)
    assert "Small" not in shown


def test_bars_are_proportional(report):
    """The largest bucket has the full bar; without block characters the bar is of number signs."""
    rows = text.to_text(report, blocks=False).splitlines()
    bars = {row.split("  ")[0]: row.count("#") for row in rows if "#" in row}
    assert bars["data wait"] == text.BAR_COLUMNS
    assert bars["backward"] == round(text.BAR_COLUMNS / 3)
    assert "█" not in "".join(rows)
    assert "█" * text.BAR_COLUMNS in text.to_text(report)


def test_colour_only_on_request(report):
    """Pipes get no escape codes; colours are of the terminal's own palette, readable on dark and light."""
    assert "\x1b" not in text.to_text(report)
    colored = text.to_text(report, color=True)
    codes = {code for codes in re.findall(r"\x1b\[([\d;]*)m", colored) for code in codes.split(";")}
    assert codes
    # Bold, dim, reset and the named colours; never black or white, never 256 or true colours.
    assert codes <= {"0", "1", "2", "31", "32", "33", "35", "36"}
    assert re.sub(r"\x1b\[[\d;]*m", "", colored).split() == text.to_text(report).split()


def test_print_text_to_a_pipe_equals_to_text(report, monkeypatch):
    """A file that is no terminal gets plain text of 80 columns, whatever COLUMNS says."""
    monkeypatch.setenv("COLUMNS", "200")
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    text.print_text(report, file)
    file.seek(0)
    assert file.read() == text.to_text(report)


def test_print_text_to_an_ascii_pipe(report):
    """Where block characters cannot be written, the bars are of number signs."""
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    text.print_text(report, file)
    file.seek(0)
    assert "#" * text.BAR_COLUMNS in file.read()


def test_hostile_names_in_text(hostile):
    """Markup of foreign names is shown, not obeyed; no control character gets through."""
    shown = text.to_text(hostile, color=True)
    plain = re.sub(r"\x1b\[[\d;]*m", "", shown)
    assert "[bold]x[/bold] [/]" in plain
    assert "\x1b" not in plain
    assert "<script>" in plain


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, "Not judged: too little was measured."), (20, "No loss was found in what was measured.")],
)
def test_no_verdict(tmp_path, count, expected):
    """Too short to judge and judged without a finding are told apart; both forms say that the run has no end."""
    report = read_history(write(tmp_path, [*(step(i) for i in range(count)), ledger()])).report()
    shown = " ".join(text.to_text(report).split())
    assert expected in shown
    assert "the run goes on, or could not say how it ended" in shown
    assert markdown.to_markdown(report).startswith(f"**{expected}**")


def test_rules_that_could_not_judge_stand_together(tmp_path):
    """By what they miss, in words; each signal is in the JSON."""
    abstained = (
        Abstention("low-utilization", ("gpu.utilization_pct", "spent.data_wait_share_pct")),
        Abstention("transfer-bound", ("device.h2d_share_pct",)),
        Abstention("prep-stall", ("workers.service_s", "loader.num_workers")),
        Abstention("my-rule", ("my.signal",)),
        Abstention("cpu-throttled", ("host.cpu_throttled_pct",)),
        Abstention("slow-batches", ("queue.blocked_wait_share",)),
        Abstention("recompiles", ("device.compiler.recompile_s",)),
        Abstention("cold-cache", ("steps.epochs.first_wait_s",)),
    )
    records = [*(step(i) for i in range(20)), ledger(), Verdict(primary=None, abstained=abstained)]
    report = read_history(write(tmp_path, records)).report()
    said = [
        "GPU rules: no GPU was seen",
        "not known of the loader and its workers: prep-stall, slow-batches",
        "not known of the machine: cpu-throttled",
        "torch.compile was not seen: recompiles",
        "too few steps: cold-cache",
        "my-rule (needs my.signal)",
    ]
    assert "; ".join(said) in " ".join(text.to_text(report).split())
    assert "".join(f"\n- {one}" for one in said) in markdown.to_markdown(report)
    assert json.to_json(report)["abstained"][0]["missing"] == ["gpu.utilization_pct", "spent.data_wait_share_pct"]
    known = unjudged(abstained[:2], gpu_seen=True, loader=None)
    assert known == ["not known of the GPU: low-utilization, transfer-bound"]


def test_what_stallmeter_does_to_cost_less_is_no_event_in_the_terminal(tmp_path):
    events = [
        Event(time_s=START_S, name="sampling every 2 s", detail="to cost less"),
        Event(time_s=START_S, name="odd"),
    ]
    shown = text.to_text(read_history(write(tmp_path, [step(0), ledger(), *events])).report())
    assert "odd" in shown
    assert "sampling every" not in shown


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        ({"num_workers": 0}, ["rules about workers: there are none", "not known of the loader and its workers: a"]),
        ({"kind": NO_LOADER}, ["rules about workers: there are none", "not known of the loader and its workers: a"]),
        ({"num_workers": 2}, ["not known of the loader and its workers: 3 rules"]),
        (None, ["not known of the loader and its workers: 3 rules"]),
    ],
)
def test_of_many_rules_that_could_not_judge_the_number_is_told(loader, said):
    """Those about workers have nothing to judge where there are none."""
    abstained = [
        Abstention("a", ("workers.service_s", "loader.num_workers")),
        Abstention("b", ("queue.ready_wait_share",)),
        Abstention("c", ("loader.producers.lock_waiters", "workers.idle")),
    ]
    info = None if loader is None else LoaderInfo(**{"time_s": START_S, "kind": "DataLoader", **loader})
    assert unjudged(abstained, gpu_seen=True, loader=info, most=2) == said


@pytest.mark.parametrize(
    ("given", "limit", "shown"),
    [
        ("one two three", 13, "one two three"),
        ("one two three", 12, "one two…"),
        ("one two three", 9, "one two…"),
        ("one two three", 8, "one two…"),
        ("one two three", 7, "one…"),
        ("one " + "x" * 60, 40, "one " + "x" * 35 + "…"),
        ("x" * 60, 40, "x" * 39 + "…"),
    ],
)
def test_a_text_is_cut_between_words(given, limit, shown):
    assert wording.one_line(given, limit) == shown


def test_other_ranks_in_text(tmp_path):
    """The report of one rank says that there are others."""
    for rank in range(3):
        write(tmp_path, [step(0), ledger()], rank=rank, world_size=3)
    shown = text.to_text(read_history(tmp_path, 1).report())
    assert "rank 1 of 3" in shown
    assert "other ranks" in shown
    assert "0, 2 (see them with --rank)" in shown


def test_missing_rich():
    """Without rich the error names the extra."""
    program = (
        "import sys; sys.modules['rich'] = None; sys.modules['rich.console'] = None; import stallmeter.report.text"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "MissingPackageError" in done.stderr
    assert "pip install 'stallmeter[report]'" in done.stderr


def test_markdown_needs_no_third_party():
    """What the monitor imports loads the standard library only."""
    program = (
        "import sys; before = set(sys.modules); import stallmeter.report.markdown, stallmeter.report.json\n"
        "print({m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names) - {'stallmeter'})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_markdown(report):
    """The headline leads; the ledger is a table; evidence has its thresholds; the recording is named."""
    shown = markdown.to_markdown(report)
    place = "64 % of it in Rotate.\\_\\_call\\_\\_, transforms.py:88 (PIL.Image.Image.rotate)"
    assert shown.startswith(
        f"**No worker prepares batches beside the loop: 60 s lost, 60.0 % of the run; {place}. Fix: "
    )
    assert "| data wait | 60 s | 60.0 % |" in shown
    assert "| wall time | 100 s | 100 % |" in shown
    assert "- **Do**: Set num_workers=4." in shown
    assert "- **Expect**: predicted 2.4\N{MULTIPLICATION SIGN} faster\n- **Or**: Make one batch cheaper." in shown
    assert "| data wait, share of training time | 61.5 % | 10 % | our measurement, benchmarks/faults |" in shown
    assert "- low-utilization (needs gpu_utilization_pct)" in shown
    assert "- source nvml switched off: NVMLError: gone" in shown
    assert "The run ended." in shown


def test_hostile_names_in_markdown(hostile):
    """No HTML, link, image or table cell of foreign origin survives, in the report and in the note."""
    for shown in (markdown.to_markdown(hostile), markdown.note(hostile)):
        assert "<" not in shown
        assert "\x1b" not in shown
        assert re.search(r"(?<!\\)!\[", shown) is None
        assert re.search(r"(?<!\\)\[", shown) is None
        tables = [line for line in shown.splitlines() if line.startswith("|")]
        columns = [len(re.findall(r"(?<!\\)\|", line)) for line in tables]
        assert tables
        assert set(columns) <= {4, 5}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a|b", "a\\|b"),
        ("<b>&", "&lt;b&gt;&amp;"),
        ("x\n# y", "x \\# y"),
        ("snake_case", "snake_case"),
        ("__init__", "\\_\\_init\\_\\_"),
        ("set `num_workers=4`", "set `num_workers=4`"),
        ("`<b>`", "\\`&lt;b&gt;\\`"),
        ("```<b>`", "\\`\\`\\`&lt;b&gt;\\`"),
        ("[a](javascript:x)", "\\[a\\](javascript:x)"),
        ("http://user:pass@host/x", "http://host/x"),
        ("a" * 500, "a" * 399 + "…"),
    ],
)
def test_escape(given, expected):
    """Text stays text in Markdown and in the HTML made from it."""
    assert markdown.escape(given) == expected


def test_note_is_short_and_leads_with_the_headline(report, hostile):
    """At most 4 kB, first line is the headline, the table is in."""
    for shown in (report, hostile):
        note = markdown.note(shown)
        assert len(note.encode()) <= markdown.NOTE_BYTES
        assert "| Where the time went |" in note or shown is hostile
    headline = markdown.headline(VERDICT).replace("__call__", "\\_\\_call\\_\\_")
    assert markdown.note(report).splitlines()[0] == f"**{headline}**"


def test_note_of_the_longest_strings(tmp_path):
    """Four bytes a character, every string far over its limit: still 4 kB, still the headline."""
    long = "🔥" * 5000
    primary = Diagnosis(
        rule=long,
        severity=Severity.INFO,
        title=long,
        summary=long,
        time_lost_s=1e300,
        share_pct=1e300,
        confidence=1.0,
        advice=(Advice(long, 1e300),) * 5,
    )
    verdict = Verdict(primary=primary, diagnoses=(primary,) * 20)
    records = [step(0), ledger(callbacks={f"{long}{i}": 5.0 for i in range(50)}), verdict]
    note = markdown.note(read_history(write(tmp_path, records)).report())
    assert len(note.encode()) <= markdown.NOTE_BYTES
    assert note.startswith("**🔥")


def test_live_page(report):
    """The page of a live run is that of its recording."""
    window = Window()
    for record in complete_run()[:-1]:
        window.append(record)
    live, settled = (build_page(made, {}, final=False) for made in (summarize(window, VERDICT), report))
    assert live == settled
    assert live.note == markdown.note(report)
    assert live.headline == markdown.headline(VERDICT)


def test_tags(report):
    """Runs can be searched by cause, data wait, workers and version."""
    assert markdown.tags(report) == {
        "stallmeter.primary": "no-workers",
        "stallmeter.data_wait_pct": "61.9",
        "stallmeter.num_workers": "0",
        "stallmeter.num_workers_advised": "4",
        "stallmeter.predicted_speedup": "2.38",
        "stallmeter.version": "0.1.0",
    }


def test_a_number_that_is_meant_with_one_thread_says_so_in_tags_and_on_the_page(report):
    workers = dataclasses.replace(report.verdict.num_workers, torch_threads=1)
    both = dataclasses.replace(report, verdict=dataclasses.replace(report.verdict, num_workers=workers))
    assert markdown.tags(both)["stallmeter.torch_threads_advised"] == "1"
    (figure,) = [figure for figure in key_figures(both) if "advised" in figure.name]
    assert figure.more.endswith(" with torch.set_num_threads(1)")


def test_tags_of_what_was_not_measured():
    """Not measured is no tag, never 0."""
    assert markdown.tags(summarize(Window(), None)) == {}


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (None, "Not judged: too little was measured."),
        (Verdict(primary=None), "No loss was found in what was measured."),
        (
            VERDICT,
            f"No worker prepares batches beside the loop: 60 s lost, 60.0 % of the run; {PLACE}. "  # noqa: ISC004
            "Fix: num_workers 0 → 4: "
            "predicted 2.4\N{MULTIPLICATION SIGN} faster",
        ),
        (
            Verdict(primary=COMPUTE_BOUND),
            "No loss was found, and compute sets the pace. 95 % of the training time is compute.",
        ),
        (
            Verdict(
                primary=Diagnosis(
                    rule="slow-callback",
                    severity=Severity.WARNING,
                    title="A callback takes long",
                    summary="",
                    time_lost_s=20.0,
                    share_pct=20.0,
                    confidence=1.0,
                    advice=(Advice("Call it less often."),),
                )
            ),
            "A callback takes long: 20 s lost, 20.0 % of the run. "  # noqa: ISC004
            "Fix: Call it less often: at most 1.2\N{MULTIPLICATION SIGN} faster",
        ),
    ],
)
def test_headline(verdict, expected):
    """One line with verdict, fix and gain."""
    assert markdown.headline(verdict) == expected


def test_workers_that_are_saved_are_named_where_the_number_is(tmp_path):
    """A smaller number that is as fast promises processes and memory, no throughput."""
    saving = WorkerAdvice(
        current=12,
        recommended=3,
        predicted_step_time_s=0.02,
        predicted_gain_pct=0.0,
        limited_by="cpu",
        reason="3 do the same",
        confidence=0.8,
        saves_processes=9,
        saves_bytes=1_200_000_000,
    )
    verdict = Verdict(primary=PRIMARY, diagnoses=(PRIMARY,), num_workers=saving)
    made = read_history(write(tmp_path, [*complete_run()[:-1], verdict])).report()
    said = "9 processes and 1.2 GB less"
    assert f"12 now; use 3, {said}: 3 do the same" in " ".join(text.to_text(made).split())
    assert f"12 now, use 3, {said}: 3 do the same" in markdown.note(made)
    assert wording.worker_change(verdict) == f"num_workers 12 → 3: the same speed with {said}"


def test_three_short_lines(tmp_path):
    """What to do, what to expect and what limits it stand on lines of their own, on the console too."""
    change = Advice.of(
        "Set a=1.", expect="Steps of 1 s instead of 2 s.", limit="Not on b.", gain_pct=100.0, interval_pct=(90.0, 110.0)
    )
    primary = dataclasses.replace(PRIMARY, advice=(change, Advice.of("Make c cheaper.", limit="It costs d.")))
    verdict = Verdict(primary=primary, diagnoses=(primary,))
    lines = [
        "do Set a=1.",
        "expect Steps of 1 s instead of 2 s: predicted 2\N{MULTIPLICATION SIGN} faster (1.9 to 2.1)",
        "limit Not on b.",
        "or Make c cheaper.",
        "limit It costs d.",
    ]
    made = read_history(write(tmp_path, [*complete_run()[:-1], verdict])).report()
    shown = [" ".join(line.split()) for line in text.to_text(made).splitlines()]
    assert shown[shown.index(lines[0]) :][:5] == lines
    said = [" ".join(line.split()) for line in wording.console_lines(verdict)]
    assert said == [f"No worker prepares batches beside the loop: 60 s lost, 60.0 % of the run; {PLACE}.", *lines[:3]]
    for document in (markdown.to_markdown(made), markdown.note(made)):
        listed = [line.removeprefix("- ").replace("**", "").replace(":", "", 1) for line in document.splitlines()]
        position = listed.index("Do Set a=1.")
        assert [line[0].lower() + line[1:] for line in listed[position:][:5]] == lines


def test_a_cause_that_is_not_sure_is_said_to_be_probable(tmp_path):
    """Below 60 % every form says "probably" and names what it is else; the runner-up is not listed a second time."""
    doubtful = dataclasses.replace(PRIMARY, confidence=0.55)
    second = Diagnosis(
        rule="slow-callback",
        severity=Severity.WARNING,
        title="A callback takes long",
        summary="",
        time_lost_s=9.0,
        share_pct=9.0,
        confidence=0.3,
    )
    verdict = Verdict(primary=doubtful, diagnoses=(doubtful, second), runner_up=second)
    report = read_history(write(tmp_path, [*complete_run()[:-1], verdict])).report()
    shown = [" ".join(line.split()) for line in text.to_text(report).splitlines()]
    other = "A callback takes long (slow-callback, 30 % sure)"
    assert any(line.startswith("CRITICAL Probably: No worker prepares batches beside the loop: 64 %") for line in shown)
    assert f"else {other}" in shown
    assert not [line for line in shown if line.startswith("also")]
    for document in (markdown.to_markdown(report), markdown.note(report)):
        assert f"**Else**: {other}" in document
        assert "\n\nProbably: The loop made every batch itself" in document
        assert "Also found" not in document
    lost = f"Probably: No worker prepares batches beside the loop: 60 s lost, 60.0 % of the run (55 % sure); {PLACE}."
    line = markdown.headline(verdict)
    assert line.startswith(f"{lost} Fix: ")
    assert line.endswith(f". Else: {other}.")
    assert wording.console_lines(verdict)[:2] == [lost, f"else   {other}"]


def test_the_runner_up_of_a_sure_cause_is_not_shown(tmp_path):
    """It stays in the JSON alone."""
    verdict = dataclasses.replace(VERDICT, runner_up=dataclasses.replace(COMPUTE_BOUND, title="Something else"))
    report = read_history(write(tmp_path, [*complete_run()[:-1], verdict])).report()
    for shown in (text.to_text(report), markdown.to_markdown(report), markdown.headline(verdict)):
        assert "Something else" not in shown
        assert "robably" not in shown


@pytest.mark.parametrize("verdict", [None, Verdict(primary=None), Verdict(primary=COMPUTE_BOUND)])
def test_the_console_has_one_line_where_nothing_is_to_be_won(verdict):
    """Without a loss there is the headline alone."""
    assert wording.console_lines(verdict) == [markdown.headline(verdict)]


def test_what_wins_something_is_said_though_nothing_was_lost():
    advice = Advice("Use bfloat16.", 36.0, (7.0, 63.0))
    wins = Verdict(primary=dataclasses.replace(COMPUTE_BOUND, advice=(advice,)))
    first, do, *_ = wording.console_lines(wins)
    assert first == markdown.headline(wins)
    assert do == "do     Use bfloat16."


def test_what_was_tried(tmp_path):
    """Each number of workers that was tried is in every form, with its prediction and what came of it."""
    trials = [
        WorkerTrial(time_s=1.0, before=2, workers=6, predicted_gain_pct=90.0, outcome="measuring"),
        WorkerTrial(time_s=2.0, before=2, workers=6, predicted_gain_pct=90.0, achieved_gain_pct=80.0, outcome="kept"),
        WorkerTrial(
            time_s=3.0, before=6, workers=8, predicted_gain_pct=5.0, achieved_gain_pct=-3.1, outcome="reverted"
        ),
    ]
    report = read_history(write(tmp_path, [*complete_run(), *trials])).report()
    kept, reverted = (
        "num_workers 2 → 6: predicted 1.9x, achieved 1.8x, kept",
        "num_workers 6 → 8: predicted 1.05x, achieved 0.969x, not better beyond the noise, taken back",
    )
    assert len(report.trials) == 2
    note = markdown.note(report).replace("\N{MULTIPLICATION SIGN}", "x")
    assert note.splitlines()[0].endswith(f"{reverted}.**")
    for shown in (note, text.to_text(report, width=200).replace("\N{MULTIPLICATION SIGN}", "x")):
        assert kept in shown
        assert reverted in shown


def test_a_trial_of_numbers_that_no_run_has_does_not_outgrow_the_headline():
    tried = WorkerTrial(
        time_s=0.0, before=0, workers=2, predicted_gain_pct=1e300, achieved_gain_pct=1e300, outcome="kept"
    )
    assert len(wording.headline(None, [tried])) <= wording.HEADLINE_LIMIT


def test_headline_of_the_longest_strings():
    """One line, at most 300 characters, whatever the rule wrote."""
    primary = Diagnosis(
        rule="x",
        severity=Severity.WARNING,
        title="t\n" * 500,
        summary="s" * 5000,
        time_lost_s=1e308,
        share_pct=1e308,
        confidence=1.0,
        advice=(Advice("a\r\n" * 500, 1e308),),
    )
    line = markdown.headline(Verdict(primary=primary))
    assert len(line) <= 300
    assert line.splitlines() == [line]


@pytest.mark.parametrize(
    ("gain_pct", "interval_pct", "expected"),
    [
        (None, None, None),
        (float("nan"), (1.0, 2.0), None),
        (43.0, (21.0, 62.0), "predicted 1.4x faster (1.2 to 1.6)"),
        (5.1, (-2.0, 12.0), "predicted 1.05x faster (0.98 to 1.12)"),
        (0.4, (-3.0, 3.0), "predicted not faster (0.97 to 1.03)"),
        (1400.0, None, "predicted 15x faster"),
        (50.0, (40.0, float("inf")), "predicted 1.5x faster"),
    ],
)
def test_a_predicted_gain(gain_pct, interval_pct, expected):
    """A factor with what it lies between; small gains with more digits, for 1.05 is not 1.1."""
    said = wording.predicted(gain_pct, interval_pct)
    assert (said and said.replace("\N{MULTIPLICATION SIGN}", "x")) == expected


def test_steps_csv(tmp_path):
    """Every recorded step is a row; columns carry units; not measured is empty."""
    folder = write(tmp_path / "run", [step(0), step(1, samples=None, ready=2), ledger()])
    assert write_steps_csv(folder, 0, tmp_path / "steps.csv") == 2
    with (tmp_path / "steps.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["step"] == "0"
    assert float(rows[0]["data_wait_s"]) == 0.06
    assert rows[0]["epoch_start"] == "1"
    assert rows[0]["ready"] == ""
    assert rows[1]["samples"] == ""
    assert rows[1]["ready"] == "2"
    durations = {name for name in rows[0] if name.endswith("_s")}
    assert {"total_s", "data_wait_s", "h2d_s", "forward_s", "time_s"} <= durations
    assert [f.name for f in tmp_path.iterdir() if f.is_file()] == ["steps.csv"]


def test_steps_csv_leaves_nothing_half_written(tmp_path):
    """When the recording cannot be read, no file is left behind."""
    (tmp_path / "run").mkdir()
    with pytest.raises(Exception, match="holds no recording of rank 0"):
        write_steps_csv(tmp_path / "run", 0, tmp_path / "steps.csv")
    assert [f.name for f in tmp_path.iterdir()] == ["run"]


def test_primary_without_advice(tmp_path):
    """A diagnosis without advice is shown without a fix."""
    bare = Verdict(primary=COMPUTE_BOUND, diagnoses=(COMPUTE_BOUND,))
    shown = text.to_text(read_history(write(tmp_path, [step(0), ledger(), bare])).report())
    assert "INFO" in shown
    assert not re.search(r"^ *(do|or|expect|limit) ", shown, re.MULTILINE)
    assert PRIMARY.title not in shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_print_text_to_a_terminal(report, monkeypatch):
    """A very wide terminal gets colours, and lines that stay readable."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.delenv("NO_COLOR", raising=False)
    file = Terminal()
    text.print_text(report, file)
    assert "\x1b[1;31mCRITICAL" in file.getvalue()
    lines = re.sub(r"\x1b\[[\d;]*m", "", file.getvalue()).splitlines()
    assert text.WIDTH < max(map(len, lines)) <= text.WIDEST


def test_no_color_is_heeded(report, monkeypatch):
    """NO_COLOR turns the colours off in a terminal too."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    file = Terminal()
    text.print_text(report, file)
    assert re.findall(r"\x1b\[[\d;]*3[0-9]m", file.getvalue()) == []


def test_the_console_says_what_to_do_about_a_warning_that_claims_no_time():
    """Numbers next to zero, or a GPU that idles: what it costs is not known, what to do is."""
    advice = (Advice.of("Use it.", expect="Less of it."), Advice.of("Leave it."))
    warning = dataclasses.replace(COMPUTE_BOUND, severity=Severity.WARNING, advice=advice)
    first, *rest = wording.console_lines(Verdict(primary=warning))
    assert first == markdown.headline(Verdict(primary=warning))
    assert [line.split()[0] for line in rest] == ["do", "expect"]
