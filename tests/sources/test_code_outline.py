"""Qualified names from a file's text, beside those that Python gives its code from 3.11 on."""

from __future__ import annotations

import argparse
import json.decoder
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from stallmeter.sources.code import outline, whose
from stallmeter.sources.code.whose import Whose

COMPREHENSIONS = {"<module>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>"}


def _is_unnamed(name: str) -> bool:
    """Nor is what works out the type parameters of a function called by anybody."""
    return name in COMPREHENSIONS or name.startswith("<generic parameters")


def _within(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _within(const)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="its code has no qualified name to compare with")
@pytest.mark.parametrize("module", [argparse, json.decoder, typing, outline, whose])
def test_names_are_those_that_python_gives(module: ModuleType):
    path = Path(str(module.__file__))
    text = path.read_text("utf-8")
    lines = outline.blanked(text.splitlines(keepends=True))
    codes = [one for one in _within(compile(text, str(path), "exec")) if not _is_unnamed(one.co_name)]
    assert len(codes) > 2
    found = [outline.qualified(lines, one.co_firstlineno, one.co_name) for one in codes]
    assert found == [one.co_qualname for one in codes]


HARD = '''
class Table:
    HELP = """
class Not(a):
def this():
"""
    def read(
        self, path="#", *, quote='"',
    ):
        sql = f"""
select *
""".strip()
        if path:
            @cached
            async def line(at): return [x for x in at]
        return line
if True:
    def beside(): pass
'''


@pytest.mark.parametrize(
    ("name", "expected"), [("read", "Table.read"), ("line", "Table.read.<locals>.line"), ("beside", "beside")]
)
def test_text_in_strings_and_blocks_are_no_scopes(name, expected):
    codes = {one.co_name: one for one in _within(compile(HARD, "hard.py", "exec"))}
    lines = outline.blanked(HARD.splitlines(keepends=True))
    assert outline.qualified(lines, codes[name].co_firstlineno, name) == expected


def test_code_without_its_file_keeps_its_own_name(monkeypatch):
    monkeypatch.setattr("stallmeter.sources.code.whose.getattr", lambda o, n, d=None: d, raising=False)
    code = next(_within(compile("\n\ndef f(): pass", "gone.py", "exec")))
    assert Whose().code(code).name == "f"
