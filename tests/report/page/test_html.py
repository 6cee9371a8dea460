"""The HTML report: one file, no network, no script of foreign origin, whatever the recording holds."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
import zlib
from functools import lru_cache
from html.parser import HTMLParser

import pytest

from stallmeter.recording import Header
from stallmeter.records import BUCKETS, Event, GpuSample, LoaderInfo, SyncCalls, WorkerTrial
from stallmeter.records.diagnosis import Abstention, Advice, Diagnosis, Evidence, Severity, Verdict, WorkerAdvice
from stallmeter.report.job.folder import report_of_job
from stallmeter.report.job.model import BINS
from stallmeter.report.model import read_history
from stallmeter.report.page.html import to_html
from stallmeter.report.page.palette import PALETTE

from ...rules.job.jobs import Known, compute_bound, diagnosis, late
from ..job.folders import write_job
from ..long_runs import long_run
from ..recordings import HOSTILE, START_S, VERDICT, complete_run, hardware, ledger, step, write

ATTACKS = (
    HOSTILE,
    "</script><script>alert(1)</script>",
    "</SCRIPT ><img src=x onerror=alert(1)>",
    "<!--<script>",
    "]]></style></title></textarea><svg onload=alert(1)>",
    '" onmouseover="alert(1)" x=\'',
    "' onfocus='alert(1)' autofocus='",
    "javascript:alert(1)",
    '<a href="http://evil.example/x">click</a>',
    "{{ 7 * 7 }} {% raw %} %{y} ${x}",
    "line\nbreak\r\n\u2028\u2029\x00\x1b[31m",
    "var(--ink)",
    "https://user:secret@host.example/path",
    "x" * 10_000,
    "\ud800 lone surrogate",
)
LOADS = ("src", "href", "action", "formaction", "poster", "data", "srcset", "background", "cite", "ping", "xlink:href")


class Page(HTMLParser):
    """What a browser would make of the document."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.style = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        if self._open[-1:] == ["script"]:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = attributes, text + data
        elif self._open[-1:] == ["style"]:
            self.style += data
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def charts(self) -> dict:
        return json.loads(next(text for attributes, text in self.scripts if attributes.get("id") == "charts"))

    @property
    def policy(self) -> str:
        return next(a["content"] for tag, a in self.tags if a.get("http-equiv") == "Content-Security-Policy")


def page_of(folder) -> Page:
    return Page(to_html(read_history(folder)))


def needs_nothing_else(page: Page) -> None:
    """Assert that nothing is loaded from anywhere and that nothing but our scripts can run."""
    assert [a for _, a in page.tags for name in a if name in LOADS] == []
    assert [name for _, a in page.tags for name in a if name.startswith("on")] == []
    assert {tag for tag, _ in page.tags} & {"link", "iframe", "img", "object", "embed", "base", "form"} == set()
    assert not re.search(r"@import|url\s*\(", page.style)
    assert page.policy.startswith("default-src 'none'; script-src ")
    assert "unsafe-inline" not in page.policy.partition("style-src")[0]
    for attributes, text in page.scripts:
        if attributes.get("type") is None:
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in page.policy


@pytest.fixture(scope="module")
def long_page(tmp_path_factory):
    return page_of(write(tmp_path_factory.mktemp("long"), long_run(3000)))


def test_complete_run(tmp_path):
    """Verdict, key figures, ledger, findings, evidence, workers, what is missing, overhead and facts."""
    page = page_of(write(tmp_path, complete_run()))
    needs_nothing_else(page)
    position = 0
    for words in (
        "No worker prepares batches beside the loop",
        "60 s lost, 60.0 % of the run",
        "Do Set num_workers=4. Expect predicted 2.4\N{MULTIPLICATION SIGN} faster",
        "100 ms p95 100 ms, slowest 100 ms",
        "330 samples/s 10.3 steps/s",
        "61.9 %",
        "0 → 4 predicted 2.4\N{MULTIPLICATION SIGN} faster",
        "Where the time went",
        "data wait 60 s 60.0 %",
        "wall time 100 s 100 %",
        "What was found and what to do",
        "Rule no-workers, 90 % sure.",
        "Make one batch cheaper.",
        "data wait, share of training time 61.5 % 10 % our measurement, benchmarks/faults",
        "A callback takes long",
        "Culprit: ImageLogger.",
        "42 ms a step predicted.",
        "Making batches in the loop",
        "What was not measured",
        "low-utilization gpu_utilization_pct",
        "Cost of stallmeter: 4 µs a step in the training thread",
        "source nvml switched off: NVMLError: gone",
        "The run ended.",
    ):
        position = page.text.find(words, position)
        assert position >= 0, f"{words!r} is missing or in the wrong place in:\n{page.text}"


def test_charts_of_a_long_run(long_page):
    """Every chart is there, described in words, in the colours of the palette, and it has data."""
    expected = {
        "phases",
        "step-times",
        "distribution",
        "lanes",
        "cpu",
        "memory",
        "disk",
        "network",
        "shortage",
        "gpu-0",
    }
    assert set(long_page.charts) == expected
    described = {a["id"]: a["aria-label"] for _, a in long_page.tags if a.get("class") == "drawing"}
    assert set(described) == expected
    assert all(len(words) > 20 for words in described.values())
    for chart in long_page.charts.values():
        assert chart["data"]
        assert all(trace["y"] for trace in chart["data"])
    needs_nothing_else(long_page)


def test_figures_are_valid_plotly(long_page):
    """Plotly's own schema accepts each figure once its colours have their tones."""
    from plotly import graph_objects

    # The page's script is the installed plotly's, and an older one passes over what it does not know.
    later = {"unifiedhovertitle"} - graph_objects.layout.XAxis()._valid_props

    def toned(node):
        if isinstance(node, dict):
            return {key: toned(value) for key, value in node.items() if key not in later}
        if isinstance(node, list):
            return [toned(value) for value in node]
        return "#123456" if isinstance(node, str) and node.startswith("var(--") else node

    for chart in long_page.charts.values():
        graph_objects.Figure(data=toned(chart["data"]), layout=toned(chart["layout"]))


def test_every_colour_is_known(long_page):
    """A colour that a figure or a legend names is defined in the style, for light and for dark."""
    named = set(re.findall(r"var\((--[a-z0-9_-]+)\)", json.dumps(long_page.charts)))
    named |= set(re.findall(r"var\((--[a-z0-9_-]+)\)", " ".join(a.get("style") or "" for _, a in long_page.tags)))
    assert len(named) > 10
    for name in named:
        assert long_page.style.count(f"{name}: ") == 2, name
    assert set(BUCKETS) <= set(PALETTE)


def test_phases_add_up(long_page):
    """In each interval the shares sum to 100 %."""
    traces = long_page.charts["phases"]["data"]
    for shares in zip(*(t["y"] for t in traces), strict=True):
        assert sum(s or 0 for s in shares) == pytest.approx(100, abs=0.5)


def test_lanes_show_every_worker(long_page):
    """A lane per worker beside the loop's; the parts of a batch add up to its length."""
    lanes = long_page.charts["lanes"]
    assert lanes["layout"]["yaxis"]["categoryarray"] == ["worker 3", "worker 2", "worker 1", "worker 0", "loop"]
    parts = {t["name"]: t for t in lanes["data"]}
    kinds = ("computing (CPU)", "blocked (storage, network, lock)", "waiting for a CPU")
    for lengths in zip(*(parts[k]["x"] for k in kinds), strict=True):
        assert sum(lengths) == pytest.approx(0.3, abs=1e-3)


def test_size_of_a_long_run(tmp_path):
    """Hours of training with 64 workers and 8 GPUs: the data stay below 1 MB."""
    history = read_history(write(tmp_path, long_run(12_000, workers=64, gpus=8)))
    text = to_html(history)
    data = next(body for a, body in Page(text).scripts if a.get("id") == "charts")
    assert len(data.encode()) < 1e6
    assert len(text.encode()) < 4e6


def test_the_library_is_inside(long_page):
    """The packed script is plotly's, and the page's policy knows its hash."""
    packed = next(text for a, text in long_page.scripts if a.get("id") == "library")
    library = zlib.decompress(base64.b64decode(packed))
    assert b"plotly.js" in library[:200]
    assert base64.b64encode(hashlib.sha256(library).digest()).decode() in long_page.policy


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory):
    """The page of a hostile run by its attack; each is made once."""
    return lru_cache(lambda attack: page_of(hostile_run(tmp_path_factory.mktemp("hostile") / "run", attack)))


@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
def test_hostile_strings(hostile_page, attack):
    """Every place that a foreign string can reach shows it as text and nothing else; none holds a password."""
    page = hostile_page(attack)
    needs_nothing_else(page)
    # `Code` in a sentence is code; nothing else of a foreign string is a tag.
    assert [tag for tag, _ in page.tags if tag != "code"] == [tag for tag, _ in hostile_page("plain").tags]
    shown = page.text + json.dumps(page.charts)
    assert "secret@" not in shown
    assert "x" * 1000 not in shown
    assert not re.search(r"[\x00-\x08\x1b\u2028\u2029\ud800-\udfff]", shown)


def test_hostile_names_are_text_in_figures(hostile_page):
    """Plotly reads HTML in names; none is left for it to read, and no name can become a colour."""
    for attack in ATTACKS:
        strings = []
        collect(hostile_page(attack).charts, strings)
        assert not [s for s in strings if "<" in s.replace("<extra></extra>", "")]


def test_empty_recording(tmp_path):
    """A run without a step says so; no script is needed where there is no chart."""
    page = page_of(write(tmp_path, [ledger(wall_s=0.0, steps=0, epochs=0, buckets={}, own_s=0.0)]))
    assert "Not judged: too little was measured." in page.text
    assert page.scripts == []
    assert "script-src 'none'" in page.policy


def test_killed_run(tmp_path):
    """A recording without an end, torn in its last line, is shown up to there."""
    folder = write(tmp_path, long_run(400, ended=False))
    with (folder / "rank0.0000.jsonl").open("a") as file:
        file.write('["step",401,0,')
    page = page_of(folder)
    assert "the run goes on, or could not say how it ended" in page.text
    assert "phases" in page.charts


def test_run_without_workers_or_hardware(tmp_path):
    """What was not measured has no chart and no table."""
    page = page_of(write(tmp_path, [*(step(i) for i in range(50)), ledger(), VERDICT]))
    assert set(page.charts) == {"phases", "step-times", "distribution"}
    assert "One batch, by who made it" not in page.text
    assert "The machine" not in page.text
    assert "no GPU was sampled" in page.text


def test_what_was_measured_on_the_device(tmp_path):
    """Calls that wait for the device are named as text."""
    syncs = SyncCalls(time_s=START_S, first_step=5, steps=3, calls={"<b>train.py</b>:7 in step": 9})
    page = page_of(write(tmp_path, [*(step(i) for i in range(50)), syncs, ledger(), VERDICT]))
    assert "On the device" in page.text
    assert "<b>train.py</b>:7 in step" in page.text


def test_numbers_of_workers_that_were_tried(tmp_path):
    """A change of the number of workers is shown against its prediction."""
    tried = WorkerTrial(
        time_s=START_S, before=0, workers=4, predicted_gain_pct=50.0, achieved_gain_pct=40.0, outcome="kept"
    )
    page = page_of(write(tmp_path, [*(step(i) for i in range(50)), tried, ledger(), VERDICT]))
    assert "Numbers of workers that were tried" in page.text
    assert "num_workers 0 → 4" in page.text


def test_steps_without_any_wait(tmp_path):
    """Durations of 0 have a place on a logarithmic axis."""
    page = page_of(write(tmp_path, [*(step(i, data_wait_s=0.0) for i in range(50)), ledger()]))
    assert all(value > 0 for trace in page.charts["step-times"]["data"] for value in trace["y"])


def test_not_finite_values(tmp_path):
    """Infinity and NaN of an edited recording reach no figure, which would make its JSON unreadable."""
    broken = [*(step(i, data_wait_s=float("nan"), total_s=float("inf")) for i in range(20)), ledger(), VERDICT]
    body = to_html(read_history(write(tmp_path, broken)))
    assert json.loads(json.dumps(Page(body).charts, allow_nan=False)) is not None


@pytest.mark.parametrize("package", ["jinja2", "plotly"])
def test_missing_package(package):
    """Without its packages the error names the extra."""
    program = f"import sys; sys.modules[{package!r}] = None; import stallmeter.report.page.html"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "MissingPackageError" in done.stderr
    assert "pip install 'stallmeter[report]'" in done.stderr


def collect(node, into: list[str]) -> None:
    """Gather every string of a figure."""
    if isinstance(node, str):
        into.append(node)
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        collect(child, into)


def hostile_run(folder, attack: str):
    """Put one foreign string into every field that may hold one."""
    diagnosis = Diagnosis(
        rule=attack,
        severity=Severity.WARNING,
        title=attack,
        summary=attack,
        time_lost_s=5.0,
        share_pct=5.0,
        confidence=0.5,
        culprit=attack,
        evidence=(Evidence(attack, 1.0, attack, 2.0, attack),),
        advice=(Advice(attack), Advice(attack, 5.0)),
    )
    workers = WorkerAdvice(
        current=1,
        recommended=2,
        predicted_step_time_s=None,
        predicted_gain_pct=None,
        limited_by=attack,
        reason=attack,
        confidence=0.1,
    )
    verdict = Verdict(
        primary=diagnosis,
        diagnoses=(diagnosis, diagnosis),
        abstained=(Abstention(attack, (attack,)),),
        num_workers=workers,
        runner_up=diagnosis,
    )
    known = {"data_wait": 60.0, "forward": 30.0, attack: 10.0}
    records = [
        *hardware(),
        LoaderInfo(time_s=START_S, kind=attack, num_workers=1, why_not=attack, start_method=attack),
        *(GpuSample(time_s=START_S + i, index=0, name=attack, uuid=attack, utilization_pct=3.0) for i in range(3)),
        *(step(i) for i in range(20)),
        Event(time_s=START_S, name=attack, detail=attack),
        ledger(buckets=known, callbacks={attack: 5.0}, logging={attack: 5.0}),
        verdict,
    ]
    header = {"run_id": attack, "host": attack, "version": attack, "framework": attack}
    return write(folder, records, settings={attack: attack, "nested": {attack: [attack]}}, **header)


def test_header_fields_are_all_covered():
    """A new text field of the header has to be thought of above."""
    texts = {name for name, kind in Header.__annotations__.items() if kind in ("str", str)}
    assert texts == {"run_id", "host", "version", "framework", "process_space"}  # the last is never shown


def job_page(folder, **changes) -> Page:
    report = report_of_job(read_history(write_job(folder, **changes)))
    return Page(to_html(read_history(folder), report))


def test_ranks_of_a_job(tmp_path):
    """Who waits for whom, a map of it by rank and time, every rank, and the slowest steps; whose ledger follows."""
    known = {0: Known([compute_bound()]), 1: Known([diagnosis("fetch-stall", 4.0)])}
    page = job_page(tmp_path, work=late(1, "data_wait", 0.02), known=known)
    needs_nothing_else(page)
    position = 0
    for words in (
        "2 ranks, rank 0 in detail",
        "Rank 1: The problem of fetch-stall",
        "The ranks of the job",
        "rank-seconds together",
        "Rank 0 waits for rank 1, late with its data",
        "Who was waited for, and when",
        "rank 0",
        "rank 1",
        "by its own records",
        "fetch-stall",
        "late: data wait",
        "Whole run, rank 0",
    ):
        position = page.text.index(words, position)
    cells = [
        attributes for tag, attributes in page.tags if tag == "td" and "--strength" in (attributes.get("style") or "")
    ]
    assert len(cells) == 2 * BINS
    strengths = [int(re.fullmatch(r"--strength: (\d+)%", cell["style"])[1]) for cell in cells]
    assert (max(strengths[:BINS]), max(strengths[BINS:])) == (0, 100)
    assert all(cell["title"].startswith("rank ") for cell in cells)
    assert "var(--data_wait)" in page.style
    assert "--data_wait:" in page.style


def test_a_job_without_waits(tmp_path):
    """No map and no slow steps where nobody was waited for."""
    page = job_page(tmp_path)
    needs_nothing_else(page)
    assert "No rank waits long for another." in page.text
    assert "Who was waited for" not in page.text
    assert "The steps in which" not in page.text


def test_one_rank_has_no_section(tmp_path):
    """A run of one rank is shown as ever."""
    page = page_of(write(tmp_path, complete_run()))
    assert "The ranks of the job" not in page.text


@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
def test_hostile_names_of_ranks(tmp_path, attack):
    """Hosts, rules and reasons of other ranks are text as well."""
    said = diagnosis(attack, 4.0, title=attack, summary=attack, culprit=attack)
    known = {0: Known([said], host="node1"), 1: Known([said], host=attack, ended=f"exception: {attack}")}
    page = job_page(tmp_path / "a", work=late(1, "forward", 0.02), steps=40, known=known)
    needs_nothing_else(page)
    plain = {
        rank: Known([diagnosis("x", 4.0, culprit="x")], host=f"node{rank}", ended=k.ended) for rank, k in known.items()
    }
    other = job_page(tmp_path / "b", work=late(1, "forward", 0.02), steps=40, known=plain)
    assert [tag for tag, _ in page.tags if tag != "code"] == [tag for tag, _ in other.tags if tag != "code"]
    assert "secret@" not in page.text
    assert "x" * 1000 not in page.text
