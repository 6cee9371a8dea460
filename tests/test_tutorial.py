"""The contributors' tutorial, run as it stands: its files written, its changes made, its commands called."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/tutorial/add-a-rule.md").read_text(encoding="utf-8")


def clone(to: Path) -> None:
    """What the tutorial needs of a clone."""
    leave_out = shutil.ignore_patterns("__pycache__")
    for folder in ("src", "tests/rules", "tools", "docs/rules", "docs/reference"):
        shutil.copytree(ROOT / folder, to / folder, ignore=leave_out)
    for file in ("tests/__init__.py", "pyproject.toml"):
        shutil.copy(ROOT / file, to / file)


def change(file: Path, diff: str) -> None:
    """Put the lines with a plus behind the line above them."""
    lines = diff.splitlines()
    before = [line[1:] for line in lines if line[0] == " "]
    after = [line[1:] for line in lines]
    text = file.read_text(encoding="utf-8")
    assert text.count("\n".join(before)) == 1, f"the list has changed: {before}"
    file.write_text(text.replace("\n".join(before), "\n".join(after)), encoding="utf-8")


def run(block: str, folder: Path) -> None:
    """Call a command; what the page shows of its output must be printed."""
    command, _, printed = block.partition("\n")
    command = command.removeprefix("$ ").removeprefix(".venv/bin/")
    for shown, called in {"make docs": "python tools/rule_docs.py", "stallmeter": "python -m stallmeter"}.items():
        command = re.sub(rf"^{shown}\b", called, command)
    arguments = [sys.executable, *command.split()[1:]]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert printed in done.stdout


def test_a_rule_is_added_and_fires(tmp_path: Path) -> None:
    clone(tmp_path)
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks].count("console") == 4
    for kind, block in blocks:
        match kind:
            case "python":
                name, _, code = block.removeprefix("# file: ").partition("\n")
                (tmp_path / name).write_text(code, encoding="utf-8")
            case "diff":
                change(tmp_path / "src/stallmeter/rules/__init__.py", block)
            case "console":
                run(block, tmp_path)
    written = (tmp_path / "docs/rules/short-epochs.md").read_text(encoding="utf-8")
    assert "each epoch the DataLoader begins anew" in " ".join(written.split())
    assert "few_steps" in written
