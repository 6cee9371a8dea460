"""What a worker does for the items of others: by the text of an iterable dataset."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from stallmeter.sources.code.fold import Frame, Seen
from stallmeter.sources.code.repeated import last_line_for_all, repeated
from stallmeter.sources.code.whose import Function

IDENTITY = """
    info = get_worker_info()
    wid, count = (info.id, info.num_workers) if info else (0, 1)
"""

LATE = {
    "rest of the loop": """
    for i, line in enumerate(self.file):
        item = self.parse(line)
        if i % count != wid:  # <
            continue
        yield item
    """,
    "body of a test": """
    for i, line in enumerate(self.file):
        item = self.parse(line)
        if i % count == wid:  # <
            yield item
    """,
    "a range of its own": """
    first = wid * self.each
    for i, item in enumerate(self.parsed()):
        if i < first:  # <
            continue
        yield item
    """,
    "islice": """
    for item in itertools.islice(self.parsed(), wid, None, count):  # <
        yield item
    """,
    "a slice": """
    items = [self.parse(line) for line in self.file]
    yield from items[wid::count]  # <
    """,
    "a slice of what is read": """
    for item in self.read_all()[wid::count]:  # <
        yield item
    """,
    "before what is called of some": """
    items = [self.parse(line) for line in self.file]  # <
    for item in map(self.augment, items[wid::count]):
        yield item
    """,
    "before what is called of some lines": """
    lines = self.read()  # <
    yield from map(self.parse, itertools.islice(lines, wid, None, count))
    """,
    "across ranks": """
    stride = count * self.world_size
    for i, line in enumerate(self.file):
        item = self.parse(line)
        if i % stride != wid:  # <
            continue
        yield item
    """,
    "counted by hand": """
    i = 0
    while True:
        item = self.parse(next(self.file))
        i += 1
        if (i - 1) % count != wid:  # <
            continue
        yield item
    """,
}

NONE = {
    "nothing left out": """
    for line in self.file:
        yield self.parse(line)
    """,
    "ranges": """
    for i in range(wid, len(self.rows), count):
        yield self.parse(self.rows[i])
    """,
    "a test of the items": """
    for i, line in enumerate(self.file):
        item = self.parse(line)
        if i % self.stride:
            continue
        yield item
    """,
    "without workers": """
    if info is None:
        yield from self.parsed()
    """,
}


def _at(tmp_path: Path, body: str) -> tuple[str, list[str]]:
    text = "class Lines:\n    def __iter__(self):" + textwrap.indent(IDENTITY + body, "    ")
    path = tmp_path / "data.py"
    path.write_text(text)
    return str(path), text.split("\n")


@pytest.mark.parametrize("how", LATE)
def test_up_to_where_others_items_are_left_out_all_is_for_all(tmp_path, how):
    path, lines = _at(tmp_path, LATE[how])
    assert last_line_for_all(path, 2) == next(i for i, line in enumerate(lines, start=1) if "# <" in line)


@pytest.mark.parametrize("how", NONE)
def test_where_none_are_left_out_nothing_is_for_all(tmp_path, how):
    path, _ = _at(tmp_path, NONE[how])
    assert last_line_for_all(path, 2) == 0


def test_a_worker_named_in_the_test_itself_needs_no_name_before(tmp_path):
    path = tmp_path / "data.py"
    path.write_text(
        "def rows(file, worker_id, num_workers):\n"
        "    for i, row in enumerate(map(parse, file)):\n"
        "        if i % num_workers == worker_id:\n"
        "            yield row\n"
    )
    assert last_line_for_all(str(path), 1) == 3


@pytest.mark.parametrize("text", ["", "rows = [f(lambda row: row,\n 1)]\n", "def broken(:\n    pass\n"])
def test_text_that_is_no_function_says_nothing(tmp_path, text):
    path = tmp_path / "data.py"
    path.write_text(text)
    for line in (0, 1, 2, 9):
        assert last_line_for_all(str(path), line) == 0
    assert last_line_for_all(str(tmp_path / "missing.py"), 1) == 0


def test_calls_before_that_line_are_for_all_and_those_after_it_are_not(tmp_path):
    path, lines = _at(tmp_path, LATE["rest of the loop"])
    parse = next(i for i, line in enumerate(lines, start=1) if "self.parse" in line)
    fetch = Frame(Function("fetch", "torch/utils/data/_utils/fetch.py", own=False), 30)

    def seen(line: int) -> Seen:
        at = Frame(Function("Lines.__iter__", "data.py", own=True, first_line=2), line, path=path)
        return Seen((fetch, at, Frame(Function("Lines.parse", "data.py", own=True))), 0.5, 0.5)

    before, after, itself = seen(parse), seen(parse + 3), Seen(seen(parse).stack[:2], 0.5, 0.5)
    assert repeated([before, after, itself]) == [before]
