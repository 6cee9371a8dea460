"""The structure is what its page says, and stays within its limits."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "stallmeter"
PAGE = ROOT / "docs" / "explain" / "architecture.md"


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("structure", ROOT / "tools/structure.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = tool  # its dataclasses look there
    spec.loader.exec_module(tool)
    return tool


structure = _tool()


def test_the_page_shows_the_enforced_layers() -> None:
    enforced = [set(re.split(r"\W+", layer)) for layer in structure.layers()]
    [block] = re.findall(r"```\n(__main__.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert [set(re.split(r"\W+", layer.strip())) for layer in block.split(">")] == enforced


def test_the_page_and_its_picture_know_every_room() -> None:
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    page = PAGE.read_text(encoding="utf-8")
    assert rooms == set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE))))
    shown = re.findall(
        r'class="name"[^>]*>([^<]*)<', (ROOT / "docs/images/architecture.svg").read_text(encoding="utf-8")
    )
    assert rooms <= {name for names in shown for name in names.split(", ")}


@pytest.mark.parametrize("page", [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")], ids=lambda page: page.stem)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        pytest.skip("it tells of what was")
    rooms = "|".join(path.parent.name for path in SOURCE.glob("*/__init__.py"))
    named = re.findall(rf"`(?:src/)?(?:stallmeter/)?((?:{rooms})/[\w/.]*)`", page.read_text(encoding="utf-8"))
    assert [name for name in named if not (SOURCE / name).exists()] == []


def test_the_structure_keeps_its_limits() -> None:
    _, beyond = structure.check()
    assert beyond == []


def test_what_the_limits_catch(tmp_path: Path) -> None:
    """A cycle that is closed inside a function, and a look at what is private to another module."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "sent").mkdir()
    (tmp_path / "kept" / "store.py").write_text(
        "class Store:\n    def __init__(self):\n        self._lines = []\n\n"
        "def flush():\n    from ..sent import post\n    post.send()\n"
    )
    (tmp_path / "sent" / "post.py").write_text(
        "from ..kept.store import Store\n\n\n"
        "def send(store, torch):\n    torch._C._cuda_init()\n    return store._lines\n"
    )
    modules = structure.read(tmp_path)
    names = {module.name for module in modules}
    graph = {module.name: structure.imports(module, names) for module in modules}
    assert structure.cycles(graph) == [["kept.store", "sent.post"]]
    assert [(p.where, p.what) for p in structure.private_accesses(modules)] == [("sent.post:6", "store._lines")]


INTERNALS = {
    "demo.training": "MLflow's logger keeps its address so",
    "delivery.trackers": "the clients of MLflow and Neptune",
    "keras": "sys._getframe, to find what fit iterates",
    "lightning": "Lightning's loops",
    "machine.frames": "sys._current_frames, of which it is the only caller",
    "probing.loaders": "torch's DataLoader",
    "probing.trainer": "compiled modules",
    "ranks.channels": "torch's process group",
    "sources": "torch's DataLoader, profiler and modules; Python's warnings",
    "transformers": "the Trainer, and sys._getframe to find it",
}
"""Rooms and files that look at what is private to somebody else's package, and what it is."""


def test_other_peoples_internals_stay_in_their_adapter() -> None:
    """What begins with an underscore, is read from another object and is defined nowhere in our package is theirs."""
    modules = structure.read()
    ours = set().union(*(structure.defined_privately(module) for module in modules))
    found = {
        module.name
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and structure._is_private(node.attr)
        and node.attr not in ours | {"_make", "_exit"}  # of named tuples and of os
        and not structure._is_self(node.value)
    }
    allowed = tuple(INTERNALS)
    assert {name for name in found if not name.startswith(allowed)} == set()
