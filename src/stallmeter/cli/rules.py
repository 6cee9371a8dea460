"""``stallmeter rules`` and ``stallmeter explain``: what stallmeter looks for."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import inspect
import sys
import textwrap
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import SettingError
from .arguments import WIDTH

if TYPE_CHECKING:
    from ..rules.job.rule import JobRule
    from ..rules.rule import Rule

AnyRule: TypeAlias = "Rule | JobRule"


def add(commands: Any) -> None:
    """Add both commands."""
    rules = commands.add_parser("rules", help="list what stallmeter looks for")
    rules.set_defaults(call=_list)

    explain = commands.add_parser("explain", help="explain a rule: meaning, evidence, advice, thresholds")
    explain.add_argument("rule", help="id of the rule, for example input-bound")
    explain.set_defaults(call=_explain)


def _list(_: argparse.Namespace) -> int:
    from ..rules import ALL_RULES
    from ..rules.job import JOB_RULES

    width = max(len(name) for name in _by_id())
    for rule in ALL_RULES:
        print(f"{rule.id:<{width}}  {rule.title}")
    print("\nOver all ranks of a job:\n")
    for over_ranks in JOB_RULES:
        print(f"{over_ranks.id:<{width}}  {over_ranks.title}")
    print("\nMore about one: stallmeter explain RULE")
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    print(_page(rule_named(arguments.rule)))
    return 0


def rule_named(name: str) -> AnyRule:
    """Return the rule with this id.

    Raises:
        SettingError: There is none.
    """
    by_id = _by_id()
    if name in by_id:
        return by_id[name]
    close = difflib.get_close_matches(name, by_id, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else "`stallmeter rules` lists them"
    raise SettingError(f"there is no rule {name!r}; {hint}")


def _by_id() -> dict[str, AnyRule]:
    from ..rules import ALL_RULES
    from ..rules.job import JOB_RULES

    return {**{rule.id: rule for rule in ALL_RULES}, **{rule.id: rule for rule in JOB_RULES}}


def _page(rule: AnyRule) -> str:
    documentation = inspect.getdoc(sys.modules[type(rule).__module__]) or rule.title
    thresholds: list[Any] = [f for f in dataclasses.fields(rule) if "unit" in f.metadata]  # type: ignore[arg-type]
    lines = [rule.id, "=" * len(rule.id), "", documentation.replace("**", ""), ""]
    if thresholds:
        lines += ["Thresholds.", ""]
    for field in thresholds:
        value = f"{getattr(rule, field.name):g} {field.metadata['unit']}"
        source = textwrap.fill(field.metadata["source"], WIDTH, initial_indent="      ", subsequent_indent="      ")
        lines += [f"  {field.name} = {value}", source]
    return "\n".join(lines).rstrip()
