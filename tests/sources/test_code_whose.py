"""Whose a function is, and what it is called."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import time
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stallmeter
from stallmeter.sources.code import whose as module
from stallmeter.sources.code.whose import Whose


def _code(source: str, path: str, name: str) -> CodeType:
    """Compile a file's source and return the code of one of its functions."""
    found = _within(compile(source, path, "exec"), name)
    assert found is not None
    return found


def _within(code: CodeType, name: str) -> CodeType | None:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            if const.co_name == name:
                return const
            deeper = _within(const, name)
            if deeper is not None:
                return deeper
    return None


SOURCE = """
class Rotate:
    @staticmethod
    @decorated(
        1)
    def turn(x):
        return [y for y in x]
    def __call__(self, x):
        def inner(): return sum(a for a in x)
        return (lambda z: z)(inner())
"""


def test_a_function_of_the_program_is_shown_relative_to_it(tmp_path):
    path = tmp_path / "data" / "transforms.py"
    path.parent.mkdir()
    path.write_text(SOURCE, "utf-8")  # before Python 3.11 the class is read from the file
    name = Whose([tmp_path]).code(_code(SOURCE, str(path), "__call__"))
    assert (name.file, name.name, name.own) == ("data/transforms.py", "Rotate.__call__", True)


@pytest.mark.parametrize("own_names", [True, False], ids=["co_qualname", "Python 3.10"])
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("turn", "Rotate.turn"),
        ("__call__", "Rotate.__call__"),
        ("inner", "Rotate.__call__.<locals>.inner"),
        ("<lambda>", "Rotate.__call__.<locals>.<lambda>"),
    ],
)
def test_names_are_qualified_on_every_python(tmp_path, monkeypatch, function, expected, own_names):
    path = tmp_path / "transforms.py"
    path.write_text(SOURCE)
    code = _code(SOURCE, str(path), function)
    if own_names and not hasattr(code, "co_qualname"):
        pytest.skip("Python 3.10")
    if not own_names:
        monkeypatch.setattr(module, "getattr", lambda o, n, d=None: d, raising=False)
    assert Whose([tmp_path]).code(code).name == expected


def test_a_comprehension_is_part_of_its_function(tmp_path):
    inner = _within(_code(SOURCE, str(tmp_path / "t.py"), "inner"), "<genexpr>")
    assert inner is not None
    (tmp_path / "t.py").write_text(SOURCE)  # Python 3.10 looks it up
    assert Whose([tmp_path]).code(inner).name == "Rotate.__call__.<locals>.inner"


def test_what_lies_elsewhere_is_shown_from_its_package_on(tmp_path):
    package = tmp_path / "secret" / "mine" / "data"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    name = Whose([tmp_path / "program"]).code(_code("def f(): pass", str(package / "a.py"), "f"))
    assert (name.file, name.own) == ("mine/data/a.py", True)


def test_a_library_is_named_from_its_package_on():
    name = Whose().code(_code("def get(): pass", "/env/lib/python3.11/site-packages/requests_x/api.py", "get"))
    assert (name.file, name.own, name.dotted) == ("requests_x/api.py", False, "requests_x.api.get")
    assert (name.package, name.standard, name.is_public) == ("requests_x", False, True)


def test_a_library_is_called_as_the_public_calls_it():
    name = Whose().code(subprocess.run.__code__)
    assert (name.dotted, name.standard, name.own) == ("subprocess.run", True, False)
    assert Whose().code(json.decoder.JSONDecoder.decode.__code__).dotted == "json.JSONDecoder.decode"


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (time.sleep, "time.sleep"),
        (zlib.decompress, "zlib.decompress"),
        (threading.Lock().acquire, "threading.lock.acquire"),
        (io.BytesIO().read, "io.BytesIO.read"),
        ([].append, "list.append"),
        (sum, "sum"),
    ],
)
def test_what_is_not_written_in_python_has_a_name_as_well(function, expected):
    found = Whose().builtin(function)
    assert (found.dotted, found.own, found.standard, found.file) == (expected, False, True, "")


def test_torchs_own_functions_are_called_as_everybody_calls_them():
    torch = pytest.importorskip("torch")
    assert Whose().builtin(torch.stack).dotted == "torch.stack"
    assert Whose().builtin(torch.zeros(1).sum).dotted.endswith("Tensor.sum")
    assert not Whose().builtin(torch.stack).standard


def test_the_demo_is_a_program():
    """What it makes its batches with is a place, wherever the package lies; the rest of the package is none."""
    package = Path(stallmeter.__file__).parent
    found = Whose().code(_code("def load(): pass", str(package / "demo/crops.py"), "load"))
    assert (found.file, found.own) == ("crops.py", True)
    assert not Whose().code(_code("def load(): pass", str(package / "engine/monitor.py"), "load")).own


def test_generated_code_belongs_to_nobody():
    @dataclass
    class Point:
        x: int

    name = Whose().code(Point.__init__.__code__, "__main__")
    assert (name.own, name.generated) == (False, True)
    assert not Whose().code(_code("def f(): pass", "<frozen importlib._bootstrap>", "f")).own


def test_what_is_typed_in_is_the_users_own():
    assert Whose().code(_code("def f(): pass", "<string>", "f"), "__main__").own
    assert not Whose().code(_code("def f(): pass", "<string>", "f"), "jinja").own
    for cell in ("/tmp/ipykernel_123/4055.py", "<ipython-input-7-abcdef>"):
        found = Whose().code(_code("def f(): pass", cell, "f"))
        assert found.own
        assert found.file.startswith("<cell")
        assert "4055" not in found.file


def test_a_program_in_a_zip_file(tmp_path):
    archive = tmp_path / "app.pyz"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("data.py", "def f(): pass")
    name = Whose([tmp_path]).code(_code("def f(): pass", str(archive / "data.py"), "f"))
    assert (name.file, name.own) == ("app.pyz/data.py", True)


def test_the_program_is_found(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    program = (
        "from stallmeter.sources.code.whose import Whose\ndef f(): pass\nprint(Whose.of_program().code(f.__code__))"
    )
    for path in (tmp_path / "pkg" / "train.py", tmp_path / "solo.py"):
        path.write_text(program)
    for arguments, expected in ((["-m", "pkg.train"], "pkg/train.py"), (["solo.py"], "solo.py")):
        done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert f"file='{expected}'" in done.stdout
        assert "own=True" in done.stdout


def test_stallmeter_is_not_the_users():
    name = Whose([Path(module.__file__).parents[3]]).code(Whose.code.__code__)
    assert (name.own, name.file) == (False, "stallmeter/sources/code/whose.py")


@given(st.text(max_size=40), st.text(max_size=10))
def test_no_name_of_a_file_is_too_odd(path, name):
    code = (lambda: None).__code__.replace(co_filename=path, co_name=name)
    for where in (None, "__main__", name):
        found = Whose(["/a"]).code(code, where)
        assert isinstance(found.is_public, bool)
        assert found.file is not None


class _Hostile:
    def __getattr__(self, name: str) -> object:
        return self


@pytest.mark.parametrize("function", [_Hostile(), type, object(), str.upper, type.__call__, "".join, dict.fromkeys, 3])
def test_no_callable_is_too_odd(function):
    assert isinstance(Whose().builtin(function).dotted, str)


def test_a_comprehension_beside_all_functions_is_part_of_the_module():
    module = compile("found = (i for i in ())", "/program/main.py", "exec")
    inner = next(const for const in module.co_consts if hasattr(const, "co_code"))
    assert Whose(["/program"]).code(inner).name == "<module>"


def test_two_lambdas_of_one_function_are_two(tmp_path):
    source = "def recipe():\n    return [lambda x: x,\n            lambda x: [y for y in x], lambda x: x]\n"
    (tmp_path / "timetable.py").write_text(source)  # Python 3.10 looks it up
    made = {}
    exec(compile(source, str(tmp_path / "timetable.py"), "exec"), made)
    whose = Whose([tmp_path])
    first, second, third = (whose.code(function.__code__) for function in made["recipe"]())
    assert first.name == second.name == third.name == "recipe.<locals>.<lambda>"
    assert first != second
    assert second == third  # no name and no line tells them apart
