"""Which function that is not written in Python a place in the code calls."""

from __future__ import annotations

import dis
import importlib.util
import linecache
import sys
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from stallmeter.sources.code.fold import Frame, Seen, fold
from stallmeter.sources.code.named import NamedCalls
from stallmeter.sources.code.reading import Reading
from stallmeter.sources.code.whose import Whose

TEXT = """
import math as m
import statistics
import os.path
import zlib
from zlib import crc32

class Thing:
    def __getattr__(self, name):
        raise AssertionError("the program's code was run")

thing = Thing()

def calls(data):
    m.factorial(7)
    zlib.crc32(
        data,
        0,
    )
    crc32(data)
    statistics.mean([1])
    os.path.os.getpid()
    thing.do()
    data.sort()
    len(data)
    int("7")
    "größe", m.floor(1.5)
    return m.pi + data

def shadowed(m):
    m.factorial(7)
"""

NAMES = {
    "m.factorial(7)": "math.factorial",
    "zlib.crc32(": "zlib.crc32",
    "crc32(data)": "zlib.crc32",
    "statistics.mean([1])": "",  # which is on the stack itself
    "os.path.os.getpid()": "os.getpid",
    "thing.do()": "",
    "data.sort()": "",
    "len(data)": "",
    'int("7")': "",
    '"größe", m.floor(1.5)': "math.floor",
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = tmp_path / "program_of_calls.py"
    path.write_text(TEXT, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("program_of_calls", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "program_of_calls", made)
    spec.loader.exec_module(made)
    return made


def _calls(code: CodeType) -> dict[int, list[int]]:
    """Return where in some code something is called, by lines."""
    found: dict[int, list[int]] = {}
    line = 0
    for one in dis.get_instructions(code):
        line = one.starts_line if isinstance(one.starts_line, int) and one.starts_line > 1 else line
        where = one.positions.lineno if one.positions is not None and one.positions.lineno else line
        if one.opname in ("CALL", "CALL_FUNCTION", "CALL_METHOD"):
            found.setdefault(where, []).append(one.offset)
    return found


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code does not tell its columns")
@pytest.mark.parametrize("text", NAMES)
def test_the_text_of_the_call_names_it(module: ModuleType, text: str) -> None:
    line = next(i for i, found in enumerate(TEXT.split("\n"), start=1) if text in found and "import" not in found)
    [at] = _calls(module.calls.__code__)[line]
    names = NamedCalls()
    assert names.at(module.calls.__code__, at) == names.at(module.calls.__code__, at) == NAMES[text]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code does not tell its columns")
def test_what_is_no_call_or_of_another_name_is_not_named(module: ModuleType) -> None:
    names, code = NamedCalls(), module.calls.__code__
    last = max(one.offset for one in dis.get_instructions(code))
    assert [names.at(code, at) for at in (-1, 0, last, last + 1000)] == ["", "", "", ""]
    [[at]] = _calls(module.shadowed.__code__).values()
    assert names.at(module.shadowed.__code__, at) == "", "an argument has the name of the module"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code does not tell its columns")
def test_a_file_that_is_gone_or_a_module_that_is_names_nothing(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = module.calls.__code__
    [at] = next(iter(_calls(code).values()))
    monkeypatch.delitem(sys.modules, "program_of_calls")
    assert NamedCalls().at(code, at) == ""
    (tmp_path / "program_of_calls.py").unlink()
    linecache.clearcache()
    assert NamedCalls().at(code, at) == ""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code does not tell its columns")
def test_a_place_has_the_call_of_its_line(module: ModuleType, tmp_path: Path) -> None:
    """Where most of the line is in it; what else the function does has no name."""
    code = module.calls.__code__
    by_line = _calls(code)
    (first, [factorial]), (_, [crc32]) = sorted(by_line.items())[:2]
    found = Reading(Whose([tmp_path])).seen([(((code, factorial),), 60), (((code, 0),), 20), (((code, crc32),), 20)])
    [spot] = fold(found).spots
    assert (spot.function, spot.line, spot.calls, spot.call_in_line) == ("calls", first, (), "math.factorial")


def test_a_call_that_is_a_smaller_part_of_a_line_is_not_named(tmp_path: Path) -> None:
    own = Whose([tmp_path]).code(compile("x = 1", str(tmp_path / "program.py"), "exec"))
    stacks = [Seen((Frame(own, 3, calls=name),), s) for name, s in (("math.floor", 0.4), ("", 0.6))]
    [spot] = fold(stacks).spots
    assert spot.call_in_line is None
    [spot] = fold([Seen((Frame(own, 3, calls="math.floor"),), 0.7), stacks[1]]).spots
    assert spot.call_in_line == "math.floor"
