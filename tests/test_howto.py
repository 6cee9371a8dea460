"""The code in the how-tos runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

HOWTO = Path(__file__).parent.parent / "docs/howto"


def blocks(page: str) -> list[str]:
    """The page's Python, block by block."""
    return re.findall(r"^```python\n(.*?)^```", (HOWTO / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_write_a_rule(tmp_path, monkeypatch, capsys):
    """The rule of the how-to is asked, its threshold is the user's, and its test passes."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "howto"}
    found = blocks("write-a-rule.md")
    assert len(found) == 4
    for block in found:
        exec(compile(block, "write-a-rule.md", "exec", dont_inherit=True), names)
    assert "'low-throughput'" in capsys.readouterr().out
    assert names["monitor"].verdict.abstained
    changed = {rule.id: rule for rule in names["rules"]}
    assert changed["slow-callback"].warn_pct == 15.0
    assert changed.keys() == {rule.id for rule in names["ALL_RULES"]}
