"""What a call between the model and its gradients is for, by the text of its line."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from stallmeter.sources.code.taken import takes_no_gradient

BEFORE = """
    labels = inputs["labels"]
    outputs = model(**inputs)
    hidden, self.kept = outputs.hidden, outputs[0]
    loss = cross_entropy(outputs.logits, labels)
"""


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
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(BEFORE) + line + "\nloss.backward()\n")
    assert takes_no_gradient(str(path), 3, 6) is found


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
