"""What a call between the model and its gradients is for, by the text of its line."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from stallmeter.sources.code.taken import makes_next_batch, takes_no_gradient, takes_nothing_made

BEFORE = """
    labels = inputs["labels"]
    outputs = model(**inputs)
    hidden, self.kept = outputs.hidden, outputs[0]
    loss = cross_entropy(outputs.logits, labels)
"""


def step_with(line: str, folder: Path) -> str:
    """Return the path of a file whose sixth line is this one."""
    path = folder / "train.py"
    path.write_text(textwrap.dedent(BEFORE) + line + "\nloss.backward()\n")
    return str(path)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("self.f1 = self.span_f1(outputs.logits.detach(), labels)", True),
        ("score(labels, outputs.logits[0].view(-1, 2).argmax(-1), weight=0.5)", True),
        ("history.append(loss.item())", True),
        ("draw(self.kept.detach(), hidden.detach())", True),
        ("loss = loss + distill(outputs.logits, teacher.detach())", False),
        ("loss = loss + distill(hidden, outputs.logits.detach())", False),
        ("loss = criterion(outputs.logits, labels)", False),
        ("words = look_up(labels)", False),
        ("score(outputs.detach(),", False),
        ("with torch.no_grad(): score(outputs, labels)", False),
    ],
)
def test_what_a_call_has_of_the_model(tmp_path: Path, line: str, found: bool) -> None:
    assert takes_no_gradient(step_with(line, tmp_path), 3, 6) is found


def test_a_block_without_gradients(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    lines = [
        "out = model(x)",
        "if step % 2:",
        "    with torch.no_grad():",
        "        for one in out:",
        "",
        "            score(one)",
    ]
    path.write_text("\n".join([*lines, "    score(out)", "loss = f(out)"]) + "\n")
    assert takes_no_gradient(str(path), 1, 6)
    assert not takes_no_gradient(str(path), 1, 7)
    assert not takes_no_gradient(str(path), 1, 8)


@pytest.mark.parametrize(("since", "line"), [(0, 3), (5, 3), (3, 99)])
def test_lines_that_are_not_there_tell_nothing(tmp_path: Path, since: int, line: int) -> None:
    path = tmp_path / "train.py"
    path.write_text("a = 1\nb = 2\nc = 3\n")
    assert not takes_no_gradient(str(path), since, line)
    assert not takes_no_gradient(str(tmp_path / "gone.py"), 1, 2)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("weights = rarity(words)[:, 1:]", True),
        ("weights = (quick if slowly else rarity)(words, 3)", True),
        ("self.weights = rarity(words)", True),
        ("weights = rarity(labels)", False),  # which the loss has had as well
        ("weights = self.rarity(words)", False),  # it may take what was left there
        ("loss = loss + rarity(words)", False),
        ("rarity(words)", False),  # it gives nothing: a loss may be kept in it
        ("weights = rarity()", False),
        ("weights = rarity(words,", False),
        ("weights = words", False),
    ],
)
def test_a_call_that_has_nothing_of_what_was_made_since_the_model(tmp_path: Path, line: str, found: bool) -> None:
    assert takes_nothing_made(step_with(line, tmp_path), 3, 6) is found


def test_the_next_batch_is_told_by_the_lines_of_the_same_function(tmp_path: Path) -> None:
    """Another function above has a name of the same spelling: the model is not called with it here."""
    path = tmp_path / "train.py"
    other = "def rarity(words):\n    weights = ones(words)\n    return weights\n"
    body = (
        "def loss_of(model, words):\n    out = model(words)\n    weights = rarity(tokens)\n    return out * weights\n"
    )
    path.write_text(other + body)
    assert not makes_next_batch(str(path), 5, 6)
    assert takes_nothing_made(str(path), 5, 6)
    path = tmp_path / "loop.py"
    path.write_text("weights = first()\nfor _ in range(9):\n    out = model(weights)\n    weights = rarity(tokens)\n")
    assert makes_next_batch(str(path), 3, 4)
