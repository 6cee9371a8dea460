"""Debugging modes of torch, asked of one that is there and of a real one."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest

from stallmeter.records import DebugModes
from stallmeter.sources.modes import ModeSource


def test_without_torch_nothing_is_on() -> None:
    source = ModeSource({})
    assert source.sample(1.0) == (DebugModes(time_s=1.0),)
    assert source.sample(2.0) == ()


def test_time_is_counted_while_a_mode_is_on() -> None:
    torch = SimpleNamespace(is_anomaly_enabled=lambda: on)
    profiler = SimpleNamespace(_is_profiler_enabled=False)
    source = ModeSource({"torch": torch, "torch.autograd.profiler": profiler})
    on = False
    source.sample(10.0)
    on = True
    assert source.sample(11.5) == (DebugModes(time_s=11.5, anomaly_s=1.5),)
    on, profiler._is_profiler_enabled = False, True
    assert source.sample(12.0) == (DebugModes(time_s=12.0, anomaly_s=1.5, profiler_s=0.5),)
    profiler._is_profiler_enabled = False
    assert source.sample(20.0) == ()
    source.close()


def test_what_is_asked_is_there_in_this_torch() -> None:
    """From another thread than the one that switches a mode on."""
    pytest.importorskip("torch")
    program = textwrap.dedent("""
        import threading, torch
        from stallmeter.sources.modes import ModeSource
        def told():
            found = []
            thread = threading.Thread(target=lambda: found.extend(source.sample(moment)))
            thread.start(); thread.join()
            return [(one.anomaly_s, one.profiler_s) for one in found]
        source, moment = ModeSource(), 1.0
        print(told())
        moment = 2.0
        with torch.autograd.set_detect_anomaly(True):
            print(told())
        moment = 3.0
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            print(told())
        moment = 4.0
        print(told())
    """)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[(0.0, 0.0)]", "[(1.0, 0.0)]", "[(1.0, 1.0)]", "[]"]
