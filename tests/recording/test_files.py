"""Where a recording's reports are written to."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from stallmeter.recording import as_typed, write_output


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "real.md", tmp_path / "link.md"
    target.write_text("old")
    link.symlink_to(target)
    write_output(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.md", "real.md"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_output(pipe, "text")
    reader.join(30)
    assert read == ["text"]
    assert pipe.is_fifo()


@pytest.mark.parametrize("where", ["missing/report.md", "."])
def test_what_cannot_be_written_is_said_with_the_users_path(tmp_path: Path, where: str) -> None:
    with pytest.raises(OSError) as caught:
        write_output(tmp_path / where, "text")
    assert caught.value.filename == str(tmp_path / where)
    assert ".tmp" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_path_is_short_in_the_folder_that_the_program_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that has gone elsewhere is told the whole path."""
    folder = tmp_path / "my runs" / "1"
    monkeypatch.chdir(tmp_path)
    assert as_typed(folder) == "'my runs/1'"
    monkeypatch.chdir("/")
    (tmp_path / "gone").mkdir()
    assert as_typed(Path("/elsewhere/1")) == "/elsewhere/1"  # who outlives a program waits there
    monkeypatch.chdir(tmp_path / "gone")
    assert as_typed(folder) == f"'{folder}'"
    (tmp_path / "gone").rmdir()
    assert as_typed(folder) == f"'{folder}'"
    assert as_typed(None) == ""
