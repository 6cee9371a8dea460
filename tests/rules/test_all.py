"""What holds for every rule: its form, its page, and that it judges any window without an error."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import re
import subprocess
import sys
import typing
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from stallmeter import records
from stallmeter.records.diagnosis import Fix
from stallmeter.rules import ALL_RULES
from stallmeter.rules.evaluation import evaluate
from stallmeter.rules.frameworks import Setting, said
from stallmeter.rules.job import JOB_RULES
from stallmeter.rules.rule import check_rules
from stallmeter.window import Window
from stallmeter.window.facts import Facts
from stallmeter.window.signals import read_signal

from .windows import check_fix, check_form, run, window

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "src/stallmeter/rules"
SHARED = {"convolving", "frameworks", "functions", "fusing", "rule"}
"""Files of the folder that rules may use."""
HEADINGS = ("What it means", "Evidence", "Advice", "When it is wrong", "References")
KINDS = (
    records.StepRecord,
    records.LedgerRecord,
    records.HostSample,
    records.MemorySample,
    records.GarbagePauses,
    records.GpuSample,
    records.WorkerBatch,
    records.LoaderInfo,
    records.Fork,
    records.DeviceStep,
    records.AllocatorSample,
    records.SyncCalls,
    records.DeepProfile,
    records.CompilerSample,
    records.WorkerMemory,
    records.ProducerLooks,
    records.Fork,
)


def test_each_asks_for_signals_that_there_are() -> None:
    check_rules(ALL_RULES)


def test_to_import_them_asks_for_no_signals() -> None:
    """A mistake in a rule costs that rule, and never the program that imports stallmeter."""
    asked = "from stallmeter.window.signals import signals; import stallmeter.rules, stallmeter.engine.options as o"
    told = subprocess.run(
        [sys.executable, "-c", f"{asked}; o.Options(); print(signals.cache_info().currsize)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "0\n"


def _tool() -> Any:
    spec = importlib.util.spec_from_file_location("rule_docs", ROOT / "tools/rule_docs.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_every_file_is_listed():
    """A rule that is written but not listed would never be asked."""
    no_rules = {"__init__", "confidence", "evaluation", "libraries", "location", "weight", *SHARED}
    written = {path.stem for path in FOLDER.glob("*.py")} - no_rules
    assert written == {rule.id.replace("-", "_") for rule in ALL_RULES}
    assert len(ALL_RULES) == len(written)


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.id)
class TestForm:
    def test_names(self, rule):
        """Id, file and class are one name."""
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.id)
        assert type(rule).__module__ == f"stallmeter.rules.{rule.id.replace('-', '_')}"
        assert type(rule).__name__ == "".join(part.capitalize() for part in rule.id.split("-"))
        assert not rule.title.endswith(".")

    def test_page(self, rule):
        """The page has a title and all headings, in order, each with something below it."""
        text = inspect.getdoc(sys.modules[type(rule).__module__]) or ""
        assert re.match(r"[^\n]+\.\n\n\*\*What it means\.\*\* ", text)
        assert tuple(re.findall(r"^\*\*(.+?)\.\*\* \S", text, re.MULTILINE)) == HEADINGS

    def test_thresholds(self, rule):
        """A rule is frozen, has no other state than its thresholds, and each of them has a unit and a source."""
        assert type(rule).__dataclass_params__.frozen
        assert not hasattr(rule, "__dict__")
        for field in dataclasses.fields(rule):
            assert field.kw_only
            assert isinstance(field.default, float)
            assert field.metadata["unit"]
            assert len(field.metadata["source"]) > 10

    def test_needs(self, rule):
        """What a rule needs are signals of the window, which are None when nothing was measured."""
        assert rule.needs
        empty = Window()
        assert all(read_signal(empty, name) is None for name in rule.needs)

    def test_fixes(self, rule):
        """Each piece of advice is three short lines, in every branch, and what is expected of the first is said."""
        fixes = list(fixes_in(ast.parse(Path(inspect.getfile(type(rule))).read_text(encoding="utf-8"))))
        assert fixes or rule.id == "too-many-workers", "a rule gives advice by Advice.of(do, expect=…, limit=…)"
        for fix in fixes:
            check_fix(fix)
        assert any(fix.expect for fix in fixes) or rule.id in ("no-workers", "too-few-workers", "too-many-workers")

    def test_imports(self, rule):
        """A rule knows the vocabulary and nothing else."""
        source = Path(inspect.getfile(type(rule))).read_text(encoding="utf-8")
        assert set(re.findall(r"^from \.\.(\S+) import", source, re.MULTILINE)) <= {
            "records",
            "records.diagnosis",
            "records.packages",
            "window",
            "workers.forecast",
            "workers.gains",
            "workers.measured",
            "workers.pipeline",
            "workers.snapshots",
            "workers.spare",
        }
        assert set(re.findall(r"^from \.(\w+) import", source, re.MULTILINE)) <= SHARED


def fixes_in(tree: ast.AST) -> Iterator[Fix]:
    """What a rule may advise, with a number in place of each value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) != "Advice", "made by Advice.of, line by line"
            if ast.unparse(node.func) == "Advice.of":
                lines = {"do": node.args[0], **{k.arg: k.value for k in node.keywords if k.arg in ("expect", "limit")}}
                yield from (Fix(**dict(zip(lines, each, strict=True))) for each in product(*map(_said, lines.values())))


def _said(node: ast.expr) -> list[str]:
    if isinstance(node, ast.IfExp):
        return [*_said(node.body), *_said(node.orelse)]
    if isinstance(node, ast.JoinedStr):
        return [
            "".join(str(getattr(part, "value", "")) if isinstance(part, ast.Constant) else "1" for part in node.values)
        ]
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "said":
        do, _, setting, *otherwise = (*node.args, ast.Constant(""))
        return [
            said(str(_said(do)[0]), Facts(framework=framework), one, _said(otherwise[0])[0])
            for framework in ("loop", "lightning", "transformers", "keras", "ignite")
            for one in Setting
            if one.name in ast.unparse(setting)
        ]
    return [str(node.value)] if isinstance(node, ast.Constant) else [""]


def test_pages_are_up_to_date():
    """`make docs` was run after the last change of a rule."""
    folder = ROOT / "docs/rules"
    on_disk = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    made = _tool().pages()
    assert on_disk.keys() == made.keys(), "run `make docs`"
    for name, text in made.items():
        assert on_disk[name] == text, f"docs/rules/{name} is out of date; run `make docs`"


def test_pages_are_written(tmp_path, monkeypatch):
    """The tool writes a page for each rule and removes those of rules that are gone."""
    tool = _tool()
    monkeypatch.setattr(tool, "FOLDER", tmp_path / "rules")
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules/gone.md").write_text("")
    tool.main()
    every = {f"{rule.id}.md" for rule in ALL_RULES} | {f"{rule.id}.md" for rule in JOB_RULES}
    assert {p.name for p in (tmp_path / "rules").iterdir()} == {"index.md"} | every
    over_ranks = (tmp_path / "rules/straggler.md").read_text(encoding="utf-8")
    assert "../../src/stallmeter/rules/job/straggler.py" in over_ranks
    assert "rules=" not in over_ranks
    page = (tmp_path / "rules/input-bound.md").read_text(encoding="utf-8")
    for heading in (*HEADINGS, "Thresholds"):
        assert f"\n## {heading}\n\n" in page


# -- any window -------------------------------------------------------------------------------------------------------

FLOATS = st.one_of(
    st.sampled_from([0.0, 1e-30, 1e-9, 1.0, 60.0, 99.0, 1e12, 1e30]),
    st.integers(0, 200 * 10**9).map(lambda ns: ns / 1e9),  # clocks count nanoseconds
)
SECONDS = st.dictionaries(st.sampled_from(records.BUCKETS), FLOATS)
NAMED = st.dictionaries(st.sampled_from(["StallMonitor", "Ema", "TQDMProgressBar", ""]), FLOATS, max_size=4)
TYPES: dict[Any, st.SearchStrategy[Any]] = {
    float: FLOATS,
    int: st.integers(0, 2**50),
    bool: st.booleans(),
    str: st.sampled_from(["", "fork", "spawn", "DataLoader"]),
    int | str: st.integers(0, 8) | st.sampled_from(["", "auto"]),
}
REASONS = st.sampled_from(["gpu_idle", "power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "bit_11"])
COUNTS = ("num_workers", "workers", "worker", "prefetch_factor", "host_cpus")


def _of(hint: Any, name: str) -> st.SearchStrategy[Any]:
    if typing.get_origin(hint) is not None and type(None) in typing.get_args(hint):
        (inner,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
        return st.none() | _of(inner, name)
    if typing.get_origin(hint) is tuple:
        made_of = typing.get_args(hint)[0]
        plain = REASONS if name == "throttle_reasons" else TYPES.get(made_of, st.nothing())
        inside = _record(made_of) if dataclasses.is_dataclass(made_of) else plain
        return st.lists(inside, max_size=2).map(tuple)
    if typing.get_origin(hint) is Mapping:
        return SECONDS if name == "buckets" else NAMED
    return st.integers(0, 16) if name in COUNTS else TYPES[hint]


def _record(kind: type[Any]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{f.name: _of(hints[f.name], f.name) for f in dataclasses.fields(kind)})


def _consistent(step: records.StepRecord) -> records.StepRecord:
    """A step is the sum of its parts, as the clock makes it."""
    parts = (f"{bucket}_s" for bucket in records.BUCKETS if bucket not in records.HINDSIGHT)
    return dataclasses.replace(step, total_s=sum(getattr(step, part) or 0.0 for part in parts))


def _some(kind: type[Any]) -> st.SearchStrategy[list[Any]]:
    one = _record(kind)
    return st.lists(one.map(_consistent) if kind is records.StepRecord else one, min_size=1, max_size=3)


LISTS = {kind: _some(kind) for kind in KINDS}
"""Made once: to make them in every example would take most of the time."""


@st.composite
def _records(draw: st.DrawFn) -> list[Any]:
    """Some records of most kinds, so that most signals are there."""
    left_out = draw(st.sets(st.sampled_from(KINDS), max_size=2))
    return [record for kind in KINDS if kind not in left_out for record in draw(LISTS[kind])]


RECORDS = _records()

FACTS = st.fixed_dictionaries(
    {},
    optional={
        "accelerator": st.sampled_from(["CPUAccelerator", "CUDAAccelerator", None, 3]),
        "precision": st.sampled_from(["32-true", "bf16-mixed", "", None, 32]),
    },
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(made=RECORDS, times=st.integers(1, 30), facts=FACTS)
def test_no_rule_fails(made, times, facts):
    """Whatever was recorded, a rule judges or abstains, and what it says has its form."""
    filled = window(*(made * times), facts=facts)
    verdict = evaluate(ALL_RULES, filled)
    by_id = {rule.id: rule for rule in ALL_RULES}
    for found in verdict.diagnoses:
        check_form(by_id[found.rule], found, filled)


PLACES = st.just("loop") | st.sampled_from(["workers", "loop", "startup", "helpers"])
PARTS_OF_A_RUN = st.sampled_from(["steps", "long steps"]) | st.sampled_from(
    [*records.BUCKETS, "", "warmup", "before the model"]
)
LOOK = _record(records.CodeLook).flatmap(
    lambda look: st.builds(
        lambda place, bucket, wall_s: dataclasses.replace(look, place=place, bucket=bucket, wall_s=wall_s),
        PLACES,
        PARTS_OF_A_RUN,
        st.floats(1e-3, 100.0),  # a look into nothing is not told of
    )
)
RARE = tuple(
    kind
    for kind in typing.get_args(records.Record)
    if kind not in (*KINDS, records.CodeLook, records.WindowRecord, records.Event, records.UserMetrics)
)


@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # to make such an example smaller takes minutes
)
@given(
    looks=st.lists(LOOK, min_size=1, max_size=4),
    rare=st.lists(st.one_of(*map(_record, RARE)), max_size=8),
    loaders=st.lists(_record(records.LoaderInfo), max_size=1),
    work_s=st.sampled_from([0.0, 1e-9, 2.0, 60.0]),
)
def test_no_rule_fails_beside_looks_and_what_is_rarely_recorded(looks, rare, loaders, work_s):
    """Also in the first moments of a run, when nothing is booked on what was looked into."""
    idle = dict.fromkeys(("forward", "backward", "optimizer", "loop"), 0.0)
    filled = run(*loaders, *rare, *looks, compute=work_s, **idle)
    verdict = evaluate(ALL_RULES, filled)
    by_id = {rule.id: rule for rule in ALL_RULES}
    for found in verdict.diagnoses:
        check_form(by_id[found.rule], found, filled)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(made=RECORDS, factor=st.sampled_from([0.0, 1e-300, 1e9]))
def test_no_threshold_breaks_a_rule(made, factor):
    """Thresholds are the user's: nought and huge ones are allowed."""
    rules = [
        dataclasses.replace(rule, **{f.name: f.default * factor for f in dataclasses.fields(rule)})  # type: ignore[type-var]
        for rule in ALL_RULES
    ]
    evaluate(rules, window(*(made * 20)))


def test_nothing_measured():
    """Of an empty window every rule abstains: nothing is guessed."""
    verdict = evaluate(ALL_RULES, Window())
    assert verdict.primary is None
    assert {a.rule for a in verdict.abstained} == {rule.id for rule in ALL_RULES}


def test_everything_is_none():
    """Records without a single measured value lead to no verdict."""
    empty = [
        *(records.HostSample(time_s=float(i)) for i in range(30)),
        *(records.GpuSample(time_s=float(i), index=0) for i in range(30)),
        records.LoaderInfo(time_s=0.0, kind="DataLoader"),
    ]
    assert evaluate(ALL_RULES, window(*empty)).diagnoses == ()
