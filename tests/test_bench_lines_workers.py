"""The drawn programs of the benchmark of the workers' side: what they are, and which place is right. None trains."""

from __future__ import annotations

import ast

import pytest
from benchmarks.lines.worker_programs import FAMILIES, draw
from benchmarks.lines.worker_side import truth_of


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(3))
def test_a_program_is_python_and_its_lines_are_found(family: str, seed: int) -> None:
    program = draw(family, seed)
    assert program == draw(family, seed)
    for text in (program.source, program.mended):
        ast.parse(text)
    lines = program.source.splitlines()
    assert [lines[line - 1].split()[0] for line in sorted(program.lines_beside)] == ["for", "total"]
    assert program.others or program.lines


def test_what_takes_more_by_the_clock_is_right() -> None:
    program = draw("socket", 0)
    (planted,) = truth_of(program, {"spent": 7.0, "beside": 3.0, "whole": 10.0}, 1.0)
    assert planted.functions == (program.function,)
    assert (planted.lines, planted.share_pct) == (program.lines, 70.0)
    (beside,) = truth_of(program, {"spent": 2.0, "beside": 6.0, "whole": 10.0}, 1.0)
    assert (beside.functions, beside.lines, beside.share_pct) == (("prepare",), program.lines_beside, 60.0)
    both = truth_of(program, {"spent": 4.6, "beside": 5.0, "whole": 10.0}, 1.0)
    assert [one.functions for one in both] == [("prepare",), (program.function,)]


def test_a_wait_for_a_lock_is_what_the_training_takes_longer() -> None:
    """Batches that are made alone meet the lock in another phase."""
    program = draw("lock", 0)
    assert program.workers == 1
    alone = {"spent": 0.2, "beside": 0.6, "whole": 1.0, "batches": 10}
    (planted,) = truth_of(program, alone, 5.0)  # 200 ms for each, of which 80 are not the lock's
    assert (planted.functions, planted.share_pct) == (("Shared.guarded",), pytest.approx(60.0))
    (beside,) = truth_of(program, alone, 12.0)
    assert (beside.functions, beside.share_pct) == (("prepare",), pytest.approx(72.0))
