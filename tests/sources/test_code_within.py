"""Functions that modules of the program's call, and whether they compute in Python or with another package."""

from __future__ import annotations

from pathlib import Path

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


def librarys(name: str, package: str) -> Frame:
    return Frame(Function(name, f"{package}/{name}.py", False, f"{package}.{name}", package), 1)


SCIPY, TILE = librarys("tocsr", "scipy"), librarys("tile", "numpy")


def test_a_function_that_a_module_calls_names_the_library_beneath_it() -> None:
    """Also where it is another function of the program's that calls it."""
    found = in_modules(
        [
            Seen((MAIN, CALL, FORWARD, own("normalize", 7), SCIPY), 2.0),
            Seen((MAIN, CALL, FORWARD, own("normalize", 8), own("degree"), SCIPY), 2.0),
            Seen((MAIN, CALL, FORWARD, own("normalize", 9)), 1.0),
        ]
    )
    (spot,) = found
    assert (spot.function, spot.calls, spot.wall_s, spot.trains) == ("normalize", ("scipy.tocsr",), 5.0, False)


def test_of_the_method_itself_what_it_calls_of_a_library_without_a_model() -> None:
    """What else the method does is the model's, and so is what calls the program back."""
    found = in_modules(
        [
            Seen((MAIN, CALL, FORWARD, SCIPY), 1.0),
            Seen((MAIN, CALL, FORWARD, TILE), 2.0),
            Seen((MAIN, CALL, FORWARD), 5.0),
            Seen((MAIN, CALL, FORWARD, torchs("dropout", "nn/functional.py")), 20.0),
            Seen((MAIN, CALL, FORWARD, librarys("apply_along_axis", "numpy"), own("block"), CALL, FORWARD), 7.0),
            Seen((MAIN, CALL, FORWARD, librarys("wraps", "functools")), 9.0),
        ]
    )
    (spot,) = found
    assert (spot.function, spot.wall_s, spot.trains) == ("Net.forward", 3.0, True)
    assert spot.calls == ("numpy.tile", "scipy.tocsr")
    assert spot.interpreting_s == 0.0


NET = """\
class Net(Module):
    def forward(self, x):
        with torch.no_grad():
            at = self.sample(x)
        return self.layers(self.gather(x, at))
"""


def test_what_is_called_without_gradients(tmp_path: Path) -> None:
    """By the block that the module's method stands in, or by the decorator of what it calls."""
    path = tmp_path / "net.py"
    path.write_text(NET)

    def forward(line: int) -> Frame:
        return Frame(Function("Net.forward", "net.py", True, first_line=2), line, path=str(path))

    decorated = torchs("context_decorator.<locals>.decorate_context", "utils/_contextlib.py")
    found = in_modules(
        [
            Seen((MAIN, CALL, forward(4), own("sample"), own("farthest")), 3.0),
            Seen((MAIN, CALL, forward(5), own("gather")), 2.0),
            Seen((MAIN, CALL, forward(5), decorated, own("assign")), 1.0),
        ]
    )
    assert {spot.function: spot.untrained_s for spot in found} == {"sample": 3.0, "gather": 0.0, "assign": 1.0}


STEP = """\
def train(model, batches):
    for x in batches:
        with torch.no_grad():
            target = teacher(x)
        match = matcher(model(x), target)
"""


def test_a_module_that_records_no_gradients(tmp_path: Path) -> None:
    """What its own functions compute is told of as a whole; what modules within it compute is not."""
    path = tmp_path / "train.py"
    path.write_text(STEP)

    def train(line: int) -> Frame:
        return Frame(Function("train", "train.py", True, first_line=1), line, path=str(path))

    decorated = torchs("context_decorator.<locals>.decorate_context", "utils/_contextlib.py")
    matcher, teacher = own("Matcher.forward"), own("Teacher.forward")
    found = in_modules(
        [
            Seen((train(5), CALL, decorated, matcher), 1.0),
            Seen((train(5), CALL, decorated, matcher, own("cost"), torchs("cdist", "functional.py")), 3.0),
            Seen((train(4), CALL, teacher, torchs("relu", "nn/functional.py")), 2.0),
            Seen((train(4), CALL, teacher, CALL, torchs("Linear.forward", "nn/modules/linear.py")), 9.0),
            Seen((train(5), CALL, FORWARD), 1.0),
        ]
    )
    assert {spot.function: spot.untrained_s for spot in found} == {"Matcher.forward": 4.0, "Teacher.forward": 2.0}
