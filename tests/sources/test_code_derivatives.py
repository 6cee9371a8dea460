"""Derivatives of one output that are asked for one input at a time: by looks and the text."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallmeter.sources.code.derivatives import in_derivatives, repeated_derivatives, repeats
from stallmeter.sources.code.fold import Frame, Seen
from stallmeter.sources.code.whose import Function

TEXT = '''\
def grad(out, wrt):
    return torch.autograd.grad(out, wrt, torch.ones_like(out), create_graph=True)[0]


def first_order(f, x, y, t):
    """df/dx, df/dy, df/dt"""
    return grad(f, x), grad(f, y), grad(f, t)


def residuals(self, x, y, joint):
    u = self.net(x, y)
    if joint:
        u_x, u_y = grad(u, (x, y))
    else:
        u_x = grad(u, x)
        u_y = grad(u, y)
    u_xx = grad(u_x, x)
    return u_xx + u_y


def direct(u, x, t):
    u_x = torch.autograd.grad(outputs=u, inputs=x, create_graph=True)[0]
    u_t = torch.autograd.grad(
        outputs=u,
        inputs=t,
        create_graph=True,
    )[0]
    return u_x, u_t


def two(net, x, y):
    u = net(x)
    u_x = grad(u, x)
    u = net(y)
    u_y = grad(u, y)
    return u_x, u_y


def rows(y, x, one, other):
    first = torch.autograd.grad(y, x, one, retain_graph=True)
    second = torch.autograd.grad(y, x, other, retain_graph=True)
    again = torch.autograd.grad(y, x, other, retain_graph=True)
    return first, second, again


def of_calls(net, x, y):
    return grad(net(x), x), grad(net(x), y)
'''

TORCH = Function("grad", "torch/autograd/__init__.py", False, "torch.autograd.grad", "torch")
ENGINE = Function("_engine_run_backward", "torch/autograd/graph.py", False, "", "torch")


def line_of(text: str, nth: int = 0) -> int:
    return [i for i, line in enumerate(TEXT.split("\n"), start=1) if text in line][nth]


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "physics.py"
    file.write_text(TEXT)
    return str(file)


def stack(path: str, *own: tuple[str, int]) -> Seen:
    frames = [
        Frame(Function(name, "physics.py", True, first_line=line_of(f"def {name}(")), line, path=path)
        for name, line in own
    ]
    return Seen((*frames, Frame(TORCH, 500), Frame(ENGINE, 9)), 0.6)


HELPER = ("grad", 2)


@pytest.mark.parametrize(
    ("own", "who", "times"),
    [
        ([("first_order", 7), HELPER], "first_order", 3),
        ([("residuals", line_of("u_x = grad(u, x)")), HELPER], "residuals", 2),
        ([("residuals", line_of("u_y = grad(u, y)")), HELPER], "residuals", 2),
        ([("residuals", line_of("u_x, u_y = grad")), HELPER], None, 1),
        ([("residuals", line_of("u_xx = grad")), HELPER], None, 1),
        ([("residuals", line_of("u = self.net")), ("first_order", 7), HELPER], "first_order", 3),
        ([("direct", line_of("inputs=x"))], "direct", 2),
        ([("direct", line_of("inputs=t"))], "direct", 2),
        ([("two", line_of("u_y = grad(u, y)", 1)), HELPER], None, 1),
        ([("of_calls", line_of("return grad(net"))], None, 1),
        ([("rows", line_of("first = "))], None, 1),
        ([("rows", line_of("again = "))], None, 1),
    ],
)
def test_who_asks_for_an_outputs_derivatives_several_times(path, own, who, times):
    one = stack(path, *own)
    assert in_derivatives([one]) == [one]
    found = repeated_derivatives([one])
    assert [seen.stack[-1].function.name for seen in found] == ([who] if who else [])
    assert [seen.wall_s for seen in found] == ([pytest.approx(0.6 * (times - 1) / times)] if who else [])


def test_what_asks_for_none_has_none(path):
    plain = Seen((Frame(Function("first_order", "physics.py", True, first_line=5), 7, path=path),), 0.6)
    library = Seen((Frame(Function("jacobian", "torch/autograd/functional.py", False), 3), Frame(TORCH, 500)), 0.6)
    assert in_derivatives([plain, library]) == []
    assert repeated_derivatives([plain, library]) == []


@pytest.mark.parametrize("text", ["", "f = lambda u: (grad(u, x),\n", "class A:\n    pass\n"])
def test_text_that_is_no_function_repeats_nothing(tmp_path, text):
    file = tmp_path / "other.py"
    file.write_text(text)
    assert repeats(str(file), 1) == ()
    assert repeats(str(tmp_path / "missing.py"), 1) == ()
