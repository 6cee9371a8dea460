"""Waits that end on time."""

from __future__ import annotations

import ctypes
import sys
import threading

import pytest

from stallmeter.machine import timer_slack
from stallmeter.machine.timer_slack import wake_on_time

_PR_GET_TIMERSLACK = 30


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_it_holds_for_the_thread_that_asks_alone():
    def slack_ns() -> int:
        return ctypes.CDLL(None).prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0)

    def ask() -> None:
        found.extend((slack_ns(), wake_on_time(2_000), slack_ns()))

    found: list[object] = []
    before_ns = slack_ns()
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert found == [before_ns, True, 2_000]
    assert slack_ns() == before_ns


def test_another_system(monkeypatch):
    monkeypatch.setattr(timer_slack.sys, "platform", "darwin")
    assert wake_on_time() is False


def test_a_system_without_the_call(monkeypatch):
    def fails(_: object) -> object:
        raise OSError("no library")

    monkeypatch.setattr(timer_slack.sys, "platform", "linux")
    monkeypatch.setattr(timer_slack.ctypes, "CDLL", fails)
    assert wake_on_time() is False
