"""What holds for every rule over ranks: its form and its page."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from pathlib import Path

import pytest

from stallmeter.ranks.steps import PHASES
from stallmeter.rules import ALL_RULES
from stallmeter.rules.job import JOB_RULES, evaluation

from ..test_all import HEADINGS, fixes_in
from ..windows import check_fix
from .jobs import in_turn, job, late

FOLDER = Path(evaluation.__file__).parent
PARTS = {"__init__", "crowding", "dealing", "evaluation", "gain", "losses", "rule", "shards", "starved", "words"}


def test_every_file_is_listed():
    """A rule that is written but not listed would never be asked."""
    written = {path.stem for path in FOLDER.glob("*.py")} - PARTS
    assert written == {rule.id.replace("-", "_") for rule in JOB_RULES}


def test_names_are_unlike_those_of_one_rank():
    """A diagnosis is told by its rule's name."""
    assert not {rule.id for rule in JOB_RULES} & {rule.id for rule in ALL_RULES}


def test_a_bucket_is_one_of_a_step():
    """A rule that names a bucket that no rank is late in would never be a job's cause."""
    assert {rule.bucket for rule in ALL_RULES if hasattr(rule, "bucket")} <= set(PHASES)


@pytest.mark.parametrize("rule", JOB_RULES, ids=lambda rule: rule.id)
class TestForm:
    def test_names(self, rule):
        """Id, file and class are one name."""
        assert type(rule).__module__ == f"stallmeter.rules.job.{rule.id.replace('-', '_')}"
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
        assert dataclasses.fields(rule)
        for field in dataclasses.fields(rule):
            assert isinstance(field.default, float)
            assert field.metadata["unit"]
            assert len(field.metadata["source"]) > 10

    def test_fixes(self, rule):
        """Each piece of advice is three short lines, in every branch, and what is expected of the first is said."""
        fixes = list(fixes_in(ast.parse(Path(inspect.getfile(type(rule))).read_text(encoding="utf-8"))))
        assert fixes
        for fix in fixes:
            check_fix(fix)
        assert any(fix.expect for fix in fixes)


@pytest.mark.parametrize("work", [late(1, "forward", 0.02), late(3, "data_wait", 0.05), in_turn(4, "backward", 0.05)])
def test_form_of_a_diagnosis(work):
    """Title, summary with units, evidence with sources, advice, confidence and seconds."""
    made = job(work, ranks=4, meet="optimizer")
    (found,) = evaluation.judge(made).verdict.diagnoses
    assert not found.title.endswith(".")
    assert found.summary.endswith(".")
    assert re.search(r"\d ms", found.summary)
    assert found.evidence
    for evidence in found.evidence:
        assert evidence.unit
        assert evidence.threshold is None or evidence.source
    for advice in found.advice:
        check_fix(advice.fix)
    assert 0 < found.confidence <= 1
    assert found.share_pct == pytest.approx(100 * found.time_lost_s / made.wall_s)
