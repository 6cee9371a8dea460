"""Functions that modules of the program's call, and whether they compute in Python."""

from __future__ import annotations

import pytest

from stallmeter.sources.code.fold import Frame, Seen
from stallmeter.sources.code.whose import Function
from stallmeter.sources.code.within import in_modules


def torchs(name: str, file: str) -> Frame:
    return Frame(Function(name, f"torch/{file}", False, f"torch.{name}", "torch"), 1)


def own(name: str, line: int = 9, *, interprets: bool = False) -> Frame:
    return Frame(Function(name, "net.py", True, first_line=5), line, interprets=interprets)


MAIN, FORWARD = own("main"), own("Net.forward")
CALL = torchs("Module._call_impl", "nn/modules/module.py")
BACKWARD = torchs("backward", "autograd/__init__.py")


def test_what_a_module_calls_is_told_with_all_that_it_calls() -> None:
    found = in_modules(
        [
            Seen((MAIN, CALL, FORWARD, own("adjacency", 7, interprets=True)), 1.0),
            Seen((MAIN, CALL, FORWARD, own("adjacency", 7), own("degree")), 3.0),
            Seen((MAIN, CALL, FORWARD, own("adjacency", 8), torchs("sparse", "sparse.py")), 1.0),
            Seen((MAIN, CALL, FORWARD, torchs("dropout", "nn/functional.py")), 20.0),
        ]
    )
    (spot,) = found
    assert (spot.function, spot.line, spot.wall_s, spot.interpreting_s) == ("adjacency", 7, 5.0, 1.0)


def test_the_module_itself_and_modules_that_it_calls_are_left_out() -> None:
    within = own("Net.forward.<locals>.<listcomp>")
    layer = torchs("Linear.forward", "nn/modules/linear.py")
    assert not in_modules(
        [
            Seen((MAIN, CALL, FORWARD), 1.0),
            Seen((MAIN, CALL, FORWARD, within), 1.0),
            Seen((MAIN, CALL, FORWARD, own("blocks"), CALL, layer), 1.0),
            Seen((MAIN, own("prepare")), 1.0),
            Seen((MAIN,), 1.0),
        ]
    )


@pytest.mark.parametrize("stack", [(MAIN, BACKWARD, CALL, FORWARD, own("hook")), (MAIN, CALL, FORWARD, BACKWARD)])
def test_what_computes_gradients_is_none_of_the_model(stack: tuple[Frame, ...]) -> None:
    assert not in_modules([Seen(stack, 1.0)])
