"""The drawn programs of the benchmark of the loop's side: what they are, and how they are judged. None is run."""

from __future__ import annotations

import ast

import pytest
from benchmarks.lines.loop_programs import FAMILIES, PLANTED, draw
from benchmarks.lines.loop_side import Judged, table


@pytest.mark.parametrize("family", [*FAMILIES, "import"])
@pytest.mark.parametrize("seed", range(3))
def test_a_program_is_python_and_its_planted_lines_are_found(family, seed):
    program = draw(family, seed)
    assert program == draw(family, seed)
    for text in program.files.values():
        ast.parse(text)
    lines = program.files[program.file].splitlines()
    names = [line.split('spent["')[1].split('"]')[0] for line in lines if 'spent["' in line] or ["<module>"]
    assert len(names) in (1, 2)
    for name in names:
        assert PLANTED in lines[program.line(name) - 1]


def test_function_line_and_share_are_judged_apart():
    program = draw("callback", 0)
    short = next(
        line.split('spent["')[1].split('"]')[0] for line in program.files["main.py"].splitlines() if 'spent["' in line
    )
    said = {
        "file": "main.py",
        "function": program.holder + short,
        "line": program.line(short),
        "share_pct": 80.0,
        "call": None,
    }
    right = Judged(program, said, short, 70.0, ())
    assert (right.function, right.line, right.off) == (True, True, 10.0)
    other_line = Judged(program, {**said, "line": 1}, short, 70.0, ())
    assert (other_line.function, other_line.line) == (True, False)
    wrong = Judged(program, {**said, "function": "train"}, short, 70.0, ("noisy-neighbour",))
    assert (wrong.function, wrong.line, wrong.off) == (False, False, None)
    far = Judged(program, said, short, 50.0, ())
    assert table([right, other_line, wrong, far]).splitlines()[-1] == "| all | 4 | 4 | 3 | 2 | 2 | 3 |"
