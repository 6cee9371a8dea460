"""A program that has put something in the place of `open`."""

from __future__ import annotations

import builtins
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stallmeter.machine import procfs
from stallmeter.recording.files import write_atomically


class Counting:
    """Counts what is opened through it, and opens it."""

    def __init__(self, own: Callable[..., Any]) -> None:
        self.own = own
        self.files: list[str] = []

    def __call__(self, file: Any, *args: Any, **kwargs: Any) -> Any:
        self.files.append(str(file))
        return self.own(file, *args, **kwargs)


def test_what_we_read_and_write_ourselves_none_sees(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patched = Counting(io.open)
    monkeypatch.setattr(builtins, "open", patched)
    monkeypatch.setattr(io, "open", patched)
    write_atomically(tmp_path / "file", "text")
    assert procfs.read_text(tmp_path / "file") == "text"
    assert patched.files == []
