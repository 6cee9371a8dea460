"""What the environment said when the program was started."""

from __future__ import annotations

import pytest

from stallmeter.engine import environment
from stallmeter.engine.environment import DIRECTORY, VARIABLE, is_asked, keep, variable


@pytest.fixture(autouse=True)
def _as_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_at_start", {})


def test_what_is_gone_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    monkeypatch.setenv(DIRECTORY, "there")
    keep()
    monkeypatch.delenv(VARIABLE)
    monkeypatch.delenv(DIRECTORY)
    assert is_asked()
    assert variable(DIRECTORY) == "there"


def test_what_the_program_says_since_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    keep()
    monkeypatch.setenv(VARIABLE, "0")
    assert not is_asked()


def test_what_was_never_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DIRECTORY, raising=False)
    keep()
    assert variable(DIRECTORY) == ""
