"""What torch spends on noting stacks of calls: in looks made by hand, and in those of a real step."""

from __future__ import annotations

import sys
import threading
import traceback

import pytest
import torch

from stallmeter.machine.frames import stack_of
from stallmeter.sources.code.fold import Frame, Seen
from stallmeter.sources.code.tracing import tracing_s
from stallmeter.sources.code.whose import Function, Whose

MAIN = Function("main", "train.py", True)
NOTES = Function("format_stack", "torch/fx/traceback.py", False, package="torch")
WALKS = Function("StackSummary.extract", "traceback.py", False, package="traceback", standard=True)


def seen(*functions: Function) -> Seen:
    return Seen(tuple(Frame(function, 1) for function in functions), 0.1)


def test_what_lies_below_it_counts() -> None:
    assert tracing_s([seen(MAIN), seen(MAIN, NOTES), seen(MAIN, NOTES, WALKS), seen(MAIN, WALKS)]) == pytest.approx(0.2)


def test_torch_calls_it_by_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anomaly detection, on real operations: what it calls first of Python's own is met on the stack."""
    stacks = []
    me, extract = threading.get_ident(), traceback.StackSummary.extract

    def met(*args: object, **options: object) -> object:
        stacks.append(stack_of(me))
        return extract(*args, **options)

    monkeypatch.setattr(traceback.StackSummary, "extract", met)
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        (torch.ones(2, requires_grad=True) * 2.0).sum()
    monkeypatch.undo()
    assert stacks
    whose = Whose([sys.path[0]])
    told = [Seen(tuple(Frame(whose.code(code), 1) for code, _ in stack), 1.0) for stack in stacks]
    assert tracing_s(told) == len(told)
