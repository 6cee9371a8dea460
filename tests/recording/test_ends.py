"""How ranks ended is kept beside their recordings."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallmeter.recording.ends import ENDS, ProcessEnd, read_ends, write_ends


def test_what_was_seen_comes_back(tmp_path: Path) -> None:
    ends = {1: ProcessEnd(time_s=2.5, signal=9), 0: ProcessEnd(time_s=2.75, status=3), 2: ProcessEnd(time_s=3.0)}
    write_ends(tmp_path, ends)
    assert read_ends(tmp_path) == ends


@pytest.mark.parametrize("text", [None, "", "{", "[]", "3", '{"a": {}}', '{"0": 3}', '{"0": {"no": 1}}', "\x00"])
def test_where_it_cannot_be_read_nobody_saw_it(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / ENDS).write_text(text)
    assert read_ends(tmp_path) == {}
