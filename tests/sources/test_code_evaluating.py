"""Which stacks are of an evaluation in the midst of the steps, by who is on them and by the text."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from stallmeter.sources.code.evaluating import evaluations, without_evaluations
from stallmeter.sources.code.fold import Frame, Seen
from stallmeter.sources.code.whose import Function

SWITCH = Function(
    "context_decorator.<locals>.decorate_context",
    "torch/utils/_contextlib.py",
    False,
    "torch.utils._contextlib.decorate_context",
    "torch",
)
NET = Function("Net.forward", "net.py", True, first_line=3)

PROGRAM = """\
@torch.no_grad()
def estimate_loss():
    for k in range(10):
        model(batch(k))

def scores(net, data):
    net.eval()
    with torch.no_grad():
        for x in data:
            net(x)
    net.train()

def act(policy, state):
    with torch.no_grad():
        return policy(state).argmax()

def checked(net, x):
    net.eval()
    y = net(x)

for step in range(100):
    if step % 10 == 0:
        model.eval()
        with torch.inference_mode():
            model(held_out)
        model.train()
    model(batch(step)).backward()
"""


def at(path: Path, name: str, first_line: int, line: int, *, decorated: bool = False) -> Seen:
    main = Frame(Function("<module>", "train.py", True, first_line=0), 22, path=str(path))
    frames = [Frame(Function(name, "train.py", True, first_line=first_line), line, path=str(path)), Frame(NET, 4)]
    stack = [*([Frame(SWITCH, 120)] if decorated else []), *frames]
    return Seen((main, *stack) if name != "<module>" else tuple(frames), 0.1)


@pytest.mark.parametrize(
    ("name", "first_line", "line", "decorated", "found"),
    [
        ("estimate_loss", 2, 4, True, True),
        ("scores", 6, 10, False, True),
        ("scores", 6, 7, False, False),
        ("act", 13, 15, False, False),
        ("checked", 17, 19, False, False),
        ("<module>", 0, 25, False, True),
        ("<module>", 0, 27, False, False),
    ],
)
def test_what_evaluates(tmp_path: Path, name: str, first_line: int, line: int, decorated: bool, found: bool) -> None:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(PROGRAM))
    seen = [at(path, name, first_line, line, decorated=decorated)]
    (told,) = evaluations(seen) or [None]
    assert (told is not None) is found
    if told is not None:
        assert told.stack[-1].function.name == name
        assert told.wall_s == 0.1
    assert without_evaluations(seen) == ([] if found else seen)


def test_without_the_text_nothing_is_known() -> None:
    assert evaluations([at(Path("gone.py"), "evaluate", 3, 5, decorated=True)]) == []


@pytest.mark.parametrize("package", ["PIL", "matplotlib"])
def test_pictures_that_are_written_are_for_a_reader_and_evaluate_nothing(tmp_path: Path, package: str) -> None:
    """Though the model is switched to draw them."""
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    scores = at(path, "scores", 6, 10)
    save = Function("Image.save", f"{package}/Image.py", False, f"{package}.Image.Image.save", package)
    drawn = Seen((*scores.stack[:-1], Frame(save, 3)), 0.1)
    assert len(evaluations([scores, drawn])) == 1
    assert without_evaluations([scores, drawn]) == [drawn]
