"""The architecture page shows the layers that are really enforced."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_page_shows_the_enforced_layers() -> None:
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    layers = contracts["importlinter:contract:layers"]["layers"].split("\n")
    enforced = [set(re.split(r"\W+", layer.strip())) for layer in layers if layer.strip()]
    page = (ROOT / "docs" / "explain" / "architecture.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```\n(__main__.*?)```", page, re.DOTALL)
    assert [set(re.split(r"\W+", layer.strip())) for layer in block.split(">")] == enforced
