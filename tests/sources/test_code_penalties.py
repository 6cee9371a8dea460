"""Penalties on weights among what steps do between their model and its gradients: by the text of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallmeter.sources.code.fold import Frame, Seen, fold
from stallmeter.sources.code.penalties import function_takes_weights, line_takes_weights, penalties
from stallmeter.sources.code.whose import Function

TRAIN = '''\
def decay(model):
    """Squares of all parameters()."""
    return sum(p.pow(2).sum() for p in model.parameters())


class Consolidation:
    def penalty(self):
        loss = 0.0
        for name, p in self.model.named_parameters():
            loss = loss + (
                self.fisher[name]
                * (p - self.old[name]) ** 2
            ).sum()
        return loss

    def distance(self):
        return torch.norm(torch.nn.utils.parameters_to_vector(self.model.parameters()) - self.start)

    def kept(self):
        weights = list(self.model.parameters())
        total = 0.0
        for w, old in zip(weights, self.old):
            total += (w - old).norm()
        return total


def size(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def norms(model):
    return {name: p.detach().norm() for name, p in model.named_parameters()}


def focal(out, y):
    """A loss of what comes of parameters()."""
    return ((1 - out.softmax(1)[:, y]) ** 2).mean()  # all parameters()


def train(model, batches):
    for x, y in batches:
        out = model(x)
        loss = focal(out, y)
        loss = loss + 1e-4 * decay(model)
        for p in model.parameters():
            loss = loss + p.abs().sum()
        loss = loss + sum(
            p.abs().sum()
            for p in model.parameters()
        )
        with torch.no_grad():
            seen = decay(model)
        loss.backward()
        for p in model.parameters():
            p.grad.mul_(0.5)
        optimizer.step()
'''


def line_of(text: str, count: int = 1) -> int:
    lines = [number for number, line in enumerate(TRAIN.splitlines(), start=1) if text in line]
    return lines[count - 1]


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "train.py"
    file.write_text(TRAIN)
    return str(file)


@pytest.mark.parametrize("name", ["decay", "penalty", "distance", "kept"])
def test_goes_through_the_weights(path: str, name: str) -> None:
    assert function_takes_weights(path, line_of(f"def {name}("))


@pytest.mark.parametrize("name", ["size", "norms", "focal"])
def test_takes_no_weights_that_gradients_flow_to(path: str, name: str) -> None:
    assert not function_takes_weights(path, line_of(f"def {name}("))


@pytest.mark.parametrize(
    ("text", "count", "is_one"),
    [
        ("p.abs().sum()", 1, True),  # below the head of a loop
        ("p.abs().sum()", 2, True),  # in a statement of several lines
        ("loss = focal(out, y)", 1, False),
        ("p.grad.mul_", 1, False),
        ("out = model(x)", 1, False),
    ],
)
def test_lines(path: str, text: str, count: int, is_one: bool) -> None:
    assert line_takes_weights(path, line_of("def train("), line_of(text, count)) is is_one


def test_a_text_that_is_not_at_hand() -> None:
    assert not function_takes_weights("gone.py", 1)
    assert not line_takes_weights("gone.py", 1, 2)


def frame(path: str, name: str, line: int, first: int | None = None) -> Frame:
    function = Function(name, "train.py", True, first_line=line_of(f"def {name}(") if first is None else first)
    return Frame(function, line, path=path)


def torchs(name: str, file: str) -> Frame:
    return Frame(Function(name, f"torch/{file}", False, f"torch.{name}", "torch"), 1)


def steps(path: str) -> dict[str, Seen]:
    def at(text: str, *inner: Frame, count: int = 1) -> Seen:
        return Seen((frame(path, "train", line_of(text, count)), *inner), 0.1)

    decay = frame(path, "decay", line_of("p.pow(2)"))
    parts = frame(path, "decay.<locals>.<genexpr>", line_of("p.pow(2)"), line_of("p.pow(2)"))
    return {
        "model": at("out = model(x)", torchs("Module._call_impl", "nn/modules/module.py")),
        "loss": at("loss = focal", frame(path, "focal", line_of("softmax"))),
        "penalty": at("* decay(model)", decay, parts),
        "own line": at("p.abs().sum()"),
        "logged": at("seen = decay", decay, parts),
        "gradients": at("loss.backward", torchs("backward", "autograd/__init__.py")),
        "later": at("p.grad.mul_"),
        "optimizer": at("optimizer.step", torchs("Optimizer.profile_hook_step.<locals>.wrapper", "optim/optimizer.py")),
    }


def test_what_is_told_of_a_step(path: str) -> None:
    seen = steps(path)
    found = penalties([*seen.values()])
    assert [id(one) for one, _ in found] == [id(seen["penalty"]), id(seen["own line"])]
    assert [(spot.function, spot.line) for spot in fold(told for _, told in found).spots] == [
        ("decay", line_of("p.pow(2)")),
        ("train", line_of("p.abs().sum()")),
    ]


def test_a_loss_that_calls_a_penalty(path: str) -> None:
    """The function that goes through the parameters is told of, and not who calls it for the sake of a loss."""
    seen = steps(path)
    whole = seen["penalty"].stack
    inside = Seen((whole[0], frame(path, "focal", line_of("softmax")), *whole[1:]), 0.1)
    told = {id(one): told for one, told in penalties([*seen.values(), inside])}[id(inside)]
    assert [one.function.name for one in told.stack] == ["train", "focal", "decay"]


@pytest.mark.parametrize("without", ["gradients", "model", "optimizer"])
def test_a_step_that_is_known_in_part(path: str, without: str) -> None:
    """What comes after what is not known then."""
    seen = steps(path)
    assert not penalties([one for name, one in seen.items() if name != without])


def test_an_optimizer_may_be_known_otherwise(path: str) -> None:
    seen = steps(path)
    assert penalties([one for name, one in seen.items() if name != "optimizer"], optimizer=True)
